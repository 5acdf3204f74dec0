package router

import (
	"context"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/masters"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// simMembers are the nodes of a broker group. They share the log of the world's broker
// of that city, as committed records are shared; the one that is master serves it, the
// others refuse.
type simMembers struct {
	w     *simWorld
	group zone.Group

	mu     sync.Mutex
	epoch  uint64             // guarded by mu
	master zone.Node          // "" = nobody; guarded by mu
	told   map[zone.Node]word // what each node knows of the term; guarded by mu
	dead   map[zone.Node]bool // guarded by mu
	hints  []Member           // what gossip says; guarded by mu
	asked  map[zone.Node]int  // sessions; guarded by mu
}

type word struct {
	epoch  uint64
	master zone.Node
}

func (m *simMembers) gossip() []Member {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hints
}

// open begins a session with one of the nodes.
func (m *simMembers) open(node zone.Node, near, far *bounded) (wire.Stream, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked[node]++
	switch w := m.told[node]; {
	case m.dead[node]:
		return nil, net.ErrClosed
	case m.master == node:
		if !m.w.brokers[m.group].serve(far) {
			return nil, net.ErrClosed
		}
	default:
		m.w.wg.Go(func() {
			if f, err := far.Recv(context.Background()); err == nil {
				_ = far.Send(context.Background(), masters.Refusal(&f, w.master, w.epoch, "not here"))
			}
			_ = far.Close(wire.CodeNotMaster)
		})
	}
	return near, nil
}

// nobody ends the master's rule: its sessions end.
func (m *simMembers) nobody() {
	m.mu.Lock()
	m.master = ""
	m.mu.Unlock()
	b := m.w.brokers[m.group]
	b.kill()
	b.mu.Lock()
	b.dead = false
	b.mu.Unlock()
}

// elect makes a node the master of the next epoch. Those of knows hear of it.
func (m *simMembers) elect(node zone.Node, knows ...zone.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.epoch++
	m.master = node
	for _, n := range append(knows, node) {
		m.told[n] = word{m.epoch, node}
	}
}

// hint lets gossip say who is master, or who was.
func (m *simMembers) hint(node zone.Node, epoch uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hints = []Member{{Node: node, Role: zone.RoleBroker, Group: m.group, Term: epoch, Leads: true}}
}

// TestMasterIsFoundWhereverItMoves moves the master of a broker group forty times under
// load: with gossip that tells at once, late or never, with the old master dead or
// alive, with replicas that know the new one or nobody, with and without a time without
// a master. Every flow goes on within a second of there being one, and every record
// lands once, in order.
func TestMasterIsFoundWhereverItMoves(t *testing.T) {
	const node = "              - {name: g-basil-1, client: '10.2.2.1:1', peer: '10.2.2.1:2', gossip: '10.2.2.1:3'}\n"
	text := strings.Replace(simTopologyText(2, 2), node, node+
		strings.NewReplacer("basil-1", "basil-2", "10.2.2.1", "10.2.2.2").Replace(node)+
		strings.NewReplacer("basil-1", "basil-3", "10.2.2.1", "10.2.2.3").Replace(node), 1)
	text = strings.Replace(text, "  - name: basil\n", "  - name: basil\n    coordinator: {driver: raft, voters: [g-basil-1, g-basil-2, g-basil-3]}\n", 1)
	top := parsed(t, text)
	tls := pki(t, top)
	members := []zone.Node{"g-basil-1", "g-basil-2", "g-basil-3"}
	synctest.Test(t, func(t *testing.T) {
		w := newSimWorld(t, top, tls, 20*time.Millisecond, Limits{})
		defer w.close()
		m := &simMembers{w: w, group: "g-basil", told: map[zone.Node]word{}, dead: map[zone.Node]bool{}, asked: map[zone.Node]int{}}
		m.elect("g-basil-1", members...)
		w.several = m
		w.linked()
		lanes := []*simLane{w.lane("amber", "basil", 1, nil), w.lane("amber", "basil", 2, func(l *simLane) { l.class = zone.ClassUrgent })}
		defer func() {
			for _, l := range lanes {
				l.stop()
			}
		}()
		rng := rand.New(rand.NewPCG(5, 1))
		at := 0
		for range 40 {
			m.nobody()
			old := members[at]
			m.mu.Lock()
			m.dead = map[zone.Node]bool{old: rng.IntN(2) == 0}
			m.mu.Unlock()
			if rng.IntN(2) == 0 {
				time.Sleep(2 * time.Second)
			}
			at = (at + 1 + rng.IntN(2)) % len(members)
			if rng.IntN(2) == 0 {
				m.elect(members[at], members...)
			} else {
				m.elect(members[at]) // the others have not heard yet
			}
			switch rng.IntN(3) {
			case 0:
				m.hint(members[at], m.epoch)
			case 1:
				m.hint(old, m.epoch-1) // late
			}
			before := make([]int, len(lanes))
			for i, l := range lanes {
				before[i], _ = l.settled()
			}
			for i, l := range lanes {
				w.within(2*time.Second, "goes on with the new master", func() bool {
					n, _ := l.settled()
					return n > before[i]
				})
			}
		}
		for _, l := range lanes {
			l.finish()
		}
		for _, l := range lanes {
			w.within(5*time.Second, "all settled", func() bool { n, all := l.settled(); return n == all })
			settled, hops, _ := l.inflow()
			if _, all := l.settled(); settled != uint64(all) || len(hops) != all {
				t.Errorf("%d given, %d settled, %d landed", all, settled, len(hops))
			}
		}
		total := 0
		for _, n := range m.asked {
			total += n
		}
		if opens := lanes[0].opens + lanes[1].opens; total > 2*opens {
			t.Errorf("%d sessions with members for %d of the flows", total, opens)
		}
	})
}
