package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestRoundsOfFaults runs a replicated group, the routers of two cities and the group
// of another city through rounds of drawn faults, one or two at a time, under clients
// of every kind. After each round everything is healed, and then the group is whole
// again by itself, everything that was acknowledged has arrived, the logs of the
// members are equal, and nothing that clients saw breaks a promise.
//
// The seed gives the faults, their victims and their times, as far as these are the
// test's; what the processes make of it is theirs.
func TestRoundsOfFaults(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	rnd := attackRand(t)
	a.start()
	n := rounds(20, 200)
	if *roundsFlag > 0 {
		n = *roundsFlag
	}
	for i := range n {
		a.round(i+1, rnd)
	}
	a.finish()
}

// arenaTopics has a topic of every kind, and one for each durability.
const arenaTopics = `topics:
  - {name: transfer, durability: all-in-sync, route: {shard: {property: userId}}}
  - {name: quick, durability: quorum, route: {shard: {property: userId}}}
  - {name: entries, kind: fifo, route: {shard: {property: userId}}}
  - {name: later, kind: delay, route: {shard: {property: userId}}}
  - {name: payments, kind: transaction, route: {shard: {property: userId}}}
consumer_groups:
  - {name: on-transfer, topics: [transfer]}
  - {name: on-quick, topics: [quick]}
  - {name: on-entries, topics: [entries], fifo: true}
  - {name: on-later, topics: [later]}
  - {name: on-payments, topics: [payments]}
`

// arena is a deployment that is broken and healed, and its clients.
type arena struct {
	*cluster
	net    *network
	ledger *ledger
	pulse  pulse // of publishes into the replicated group
	watch  *reigns
	said   []string    // what was done in this round
	consul *consulCity // nil: the members vote themselves
	sick   bool        // a disk is broken in this round: a node may end, and is started again

	mu   sync.Mutex
	runs map[string][]*process // every process of each node; guarded by mu
}

func newArena(t *testing.T) *arena {
	t.Helper()
	a := &arena{cluster: drawReplicated(t, arenaTopics), runs: map[string][]*process{}}
	text, net := relayDoors(t, readFile(t, a.topology()), 0)
	net.dialler = a.dialler
	a.net = net
	var err error
	if err = os.WriteFile(a.topology(), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	a.args = func(*clusterNode) []string { return []string{"--bind", "127.0.0.1"} }
	if *coordinatorFlag == "consul" {
		a.consul = startConsul(t)
		underConsul(t, a.cluster, a.consul)
	}
	if a.program, err = breakable(); err != nil {
		t.Fatal(err)
	}
	a.ledger = newLedger(t)
	a.ledger.homeOf = func(broker string) string { return broker[:strings.LastIndexByte(broker, '-')] }
	t.Cleanup(a.keep)
	return a
}

// start starts every node, and clients when the group is whole.
func (a *arena) start() {
	a.t.Helper()
	for name := range a.nodes {
		a.begin(name)
	}
	for name := range a.nodes {
		a.ready(name)
	}
	a.watch = watchReigns(a)
	a.whole("at the start")
	a.clientsOf("rz-a", members, map[string]int{"own": 3, "leaving": 7})
	a.clientsOf("rz-b", []string{"rz-b-1"}, map[string]int{"landing": 2})
	m := a.ledger.mark()
	eventually(a.t, "every publisher begins", time.Minute, func() error { return a.ledger.goesOn(m, 5) })
}

// begin starts a node and keeps its process.
func (a *arena) begin(name string) {
	a.t.Helper()
	a.up(name)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runs[name] = append(a.runs[name], a.nodes[name].running)
}

// clientsOf starts publishers of every kind at nodes of a zone, for users of some last
// digits, and consumers of everything there.
func (a *arena) clientsOf(at string, nodes []string, digits map[string]int) {
	l, endpoints := a.ledger, a.clients(nodes...)
	for what, digit := range digits {
		home := "rz-a"
		if digit > 4 {
			home = "rz-b"
		}
		for i, topic := range []string{"transfer", "quick", "entries", "later", "payments"} {
			name := what + " " + topic
			from := slices.Concat(endpoints[i%len(endpoints):], endpoints[:i%len(endpoints)])
			l.wanderingPublisher(name, from, 40*time.Millisecond, a.pulseOf(at), func(n int) letter {
				m := letter{topic: topic, from: at, homes: []string{home}, properties: map[string]string{"userId": fmt.Sprint(1000+i) + fmt.Sprint(digit)}}
				switch topic {
				case "transfer", "quick":
					m.stream = name
				case "entries":
					m.group = fmt.Sprintf("%s %d", what, n%3)
					m.stream = name + " of " + m.group
				case "later":
					m.delay = time.Duration(200+n%10*300) * time.Millisecond
				case "payments":
					m.end = committed
					if n%3 == 2 {
						m.end = rolledBack
					}
				}
				return m
			})
		}
	}
	for _, topic := range []string{"transfer", "quick", "entries", "later", "payments"} {
		l.wanderingConsumer(at, endpoints, "on-"+topic, topic)
	}
}

func (a *arena) pulseOf(zone string) *pulse {
	if zone == "rz-a" {
		return &a.pulse
	}
	return nil
}

// round draws faults, strikes, heals and checks.
func (a *arena) round(number int, rnd *rand.Rand) {
	a.t.Helper()
	blows := a.draw(rnd)
	over := a.ledger.troubleBegins(len(blows) > 1 && slices.ContainsFunc(blows, func(b blow) bool { return b.clock }))
	a.said, a.sick = nil, slices.ContainsFunc(blows, func(b blow) bool { return b.disk || b.rot })
	began := time.Now()
	say := func(text string) {
		a.said = append(a.said, fmt.Sprintf("+%.1fs %s", time.Since(began).Seconds(), text))
	}
	a.ledger.begin(&a.pulse)
	for _, b := range blows {
		say(b.name)
		b.strike()
		hold(b.last)
	}
	for _, rot := range []bool{false, true} { // a damaged store needs sound ones beside it when it goes
		for _, b := range blows {
			if b.heal != nil && b.rot == rot {
				b.heal()
			}
		}
	}
	a.net.heal()
	say("healed")
	healed := time.Now()
	what := fmt.Sprintf("round %d (-seed=%d): %s", number, attackSeed(), strings.Join(a.said, ", "))
	a.whole(what)
	whole := time.Since(healed)
	m := a.ledger.mark()
	eventually(a.t, what+": every publisher goes on", time.Minute, func() error { return a.ledger.goesOn(m, 5) })
	over()
	a.arrives(what, m)
	if err := errors.Join(a.ledger.soFar(), a.sameLogs(), a.watch.verdict()); err != nil {
		a.t.Fatalf("%s: %v", what, err)
	}
	a.t.Logf("%s; whole %.1f s later, longest time without a publish %.1f s, checked after %.1f s", what, whole.Seconds(), a.ledger.silence(&a.pulse).Seconds(), time.Since(healed).Seconds())
}

// finish lets everything arrive and looks a last time.
func (a *arena) finish() {
	a.t.Helper()
	a.ledger.endPublishing()
	m := a.ledger.mark()
	a.arrives("at the end", m)
	a.whole("at the end")
	a.watch.stop()
	if err := errors.Join(a.ledger.verdict(), a.sameLogs(), a.watch.verdict(), a.sane()); err != nil {
		a.t.Errorf("-seed=%d: %v", attackSeed(), err)
	}
	a.t.Log(a.ledger.sums())
}

// arrives waits until what was acknowledged has arrived, as long as something does: how
// fast that goes is the machine's.
func (a *arena) arrives(what string, m *mark) {
	a.t.Helper()
	left, moved := len(m.wanted), time.Now()
	for err := a.ledger.arrived(m); err != nil; err = a.ledger.arrived(m) {
		if len(m.wanted) < left {
			left, moved = len(m.wanted), time.Now()
		}
		if time.Since(moved) > time.Minute {
			a.t.Fatalf("%s: nothing that was acknowledged has arrived for a minute: %v\n%s", what, err, a.statusOf(a.master()))
		}
		hold(100 * time.Millisecond)
	}
}

// whole waits until every node runs, is ready, and every member is in sync, as the
// members themselves say. What was healed heals without a hand.
func (a *arena) whole(what string) {
	a.t.Helper()
	eventually(a.t, what+": the group is whole again", 2*time.Minute, func() error {
		for name, n := range a.nodes {
			select {
			case <-n.running.done:
				if a.sick && slices.Contains(members, name) {
					a.supervise(name)
				}
				return fmt.Errorf("%s ended: %w", name, n.running.err)
			default:
			}
		}
		all, err := a.members()
		if err != nil {
			return err
		}
		masters := 0
		for _, m := range all {
			if m.Role == "master" {
				masters++
				if len(m.InSync) != len(members) || len(m.Proposed) > 0 {
					return fmt.Errorf("in sync are %v, proposed %v: %+v", m.InSync, m.Proposed, m.Replicas)
				}
			} else if !m.Following {
				return fmt.Errorf("a %s does not follow: %s %s", m.Role, m.FollowErr, m.Problem)
			}
		}
		if masters != 1 {
			return fmt.Errorf("%d masters", masters)
		}
		return nil
	})
}

// keep writes what the nodes said into a folder that stays, when the test has failed.
func (a *arena) keep() {
	if !a.t.Failed() {
		return
	}
	dir, err := os.MkdirTemp("", "mqrouter-faults-")
	if err != nil {
		a.t.Log(err)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, runs := range a.runs {
		for i, p := range runs {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.%d.log", name, i+1)), []byte(p.output()), 0o644); err != nil {
				a.t.Log(err)
			}
		}
	}
	for _, name := range members {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(a.data(name), "log"))); err != nil {
			a.t.Log(err)
		}
	}
	a.t.Logf("-seed=%d; this round: %s; what the nodes said, once for each start, and the members' commit logs: %s", attackSeed(), strings.Join(a.said, ", "), dir)
}

// sane looks for what no node may ever say.
func (a *arena) sane() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for name, runs := range a.runs {
		for _, p := range runs {
			text := p.output()
			for _, bad := range []string{"DATA RACE", "panic: ", "fatal error: ", "has diverged"} {
				if i := strings.Index(text, bad); i >= 0 {
					errs = append(errs, fmt.Errorf("%s: %.4000s", name, text[i:]))
				}
			}
		}
	}
	return errors.Join(errs...)
}
