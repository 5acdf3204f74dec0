package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// zoneOf is the sample's sharding: the last two digits of a user name the zone.
var zoneOf = []string{"rz01", "rz02", "rz03", "rz04", "rz05"}

// pace is how often each publisher of a story sends.
const pace = 25 * time.Millisecond

// publishersAt are the names of a story's publishers at a zone.
func publishersAt(zone string) []string { return []string{"transfer at " + zone, "member at " + zone} }

// story starts the clients of a test on the sample: publishers at every RZone, of
// every kind of route, and consumers wherever something arrives.
func story(g *ground) *ledger {
	l := newLedger(g.t)
	for i, at := range zoneOf {
		l.publish("transfer at "+at, g.client(at), pace, func(n int) letter {
			to := n % len(zoneOf)
			user := fmt.Sprint(1000 + 20*to + i)
			m := letter{topic: "transfer", from: at, properties: map[string]string{"userId": user}, homes: []string{zoneOf[to]}}
			if at != "rz01" { // which has two groups, so that a client's messages take two ways
				m.stream = at + " for user " + user
			}
			return m
		})
	}
	l.publish("directed at rz04", g.client("rz04"), pace, func(n int) letter {
		to := []string{"rz01", "rz05", "rz02", "shenzhen"}[n%4]
		return letter{topic: "directed", properties: map[string]string{"destination": to}, homes: []string{strings.Replace(to, "shenzhen", "cz-sz", 1)}}
	})
	var version atomic.Uint64
	for _, at := range []string{"rz01", "rz03", "rz05"} {
		l.publish("member at "+at, g.client(at), 2*pace, func(n int) letter {
			v := version.Add(1)
			return letter{topic: "member", from: at, key: memberKeys[n%len(memberKeys)], version: v, homes: []string{"cz-sh", "cz-hz", "cz-sz"},
				properties: map[string]string{"mqr.op": "set", "mqr.version": fmt.Sprint(v)}}
		})
	}
	for _, z := range zoneOf {
		l.consume(z, g.client(z), "transfer-credit", "transfer")
		l.consume(z, g.client(z), "directed-worker", "directed")
	}
	l.consume("cz-sz", g.client("cz-sz"), "directed-worker", "directed")
	l.consume("rz03", g.client("rz03"), "orders-billing", "orders")
	for _, z := range []string{"cz-sh", "cz-hz", "cz-sz"} {
		l.consume(z, g.client(z), "member-watch", "member")
	}
	return l
}

var memberKeys = []string{"story:1", "story:2", "story:3", "story:4", "story:5", "story:6", "story:7", "story:8"}

// TestFaultsLoseAndDoubleNothing runs a deployment of processes through rounds of
// drawn faults, under publishers of every kind of route. After each fault every
// publisher goes on, everything that was acknowledged arrives and reaches the
// caches, without a hand. At the end nothing is lost, doubled or out of order,
// and no cache ever went back.
func TestFaultsLoseAndDoubleNothing(t *testing.T) {
	need(t, "redis-server")
	rnd := attackRand(t)
	redis := startRedis(t)
	g := startGround(t, "--redis", redis)
	w := watchCaches(t, redis, cities, memberKeys)
	l := story(g)
	m := l.mark()
	eventually(t, "every publisher begins", time.Minute, func() error { return l.goesOn(m, 20) })
	var faults []fault
	for n := rounds(10, 20); len(faults) < n; {
		faults = append(faults, deck(g, rnd)...) // of ten
	}
	for i, f := range faults {
		began := time.Now()
		f.do(g, l)
		over := time.Now()
		m := l.mark()
		eventually(t, fmt.Sprintf("round %d, %s: it heals", i+1, f.name), 3*time.Minute, func() error {
			if err := g.whole(); err != nil {
				return err
			}
			if err := l.goesOn(m, 20); err != nil {
				return err
			}
			if err := l.arrived(m); err != nil {
				return err
			}
			return w.has(m.newest)
		})
		t.Logf("round %d: %s; %.1f s, then whole after %.1f s", i+1, f.name, over.Sub(began).Seconds(), time.Since(over).Seconds())
	}
	l.endPublishing()
	settle(t, g, l)
	m = l.mark()
	eventually(t, "caches end with the newest versions", time.Minute, func() error { return w.has(m.newest) })
	if err := l.verdict(); err != nil {
		t.Error(err)
	}
	if err := w.verdict(); err != nil {
		t.Error(err)
	}
	landedOnce(t, g, m)
	t.Log(l.sums())
	g.stop(t, time.Minute)
	g.sane()
}

// settle waits until brokers have nothing on its way and consumers everything,
// so that whatever could still arrive twice has.
func settle(t *testing.T, g *ground, l *ledger) {
	t.Helper()
	type status struct {
		Node  string `json:"node"`
		Flows []struct {
			Group   string `json:"group"`
			Backlog uint64 `json:"backlog"`
		} `json:"flows"`
		Consumers []struct {
			Group string `json:"group"`
			Lag   uint64 `json:"lag"`
		} `json:"consumers"`
	}
	m := l.mark()
	eventually(t, "everything arrives and is consumed", 2*time.Minute, func() error {
		if err := l.arrived(m); err != nil {
			return err
		}
		out, err := mqrouter(t, []string{"MQROUTER_ADMIN=" + g.admin("rt-sh-1")}, "status", "-o", "json")
		if err != nil {
			return err
		}
		for _, s := range decode[[]status](t, out) {
			for _, f := range s.Flows {
				if f.Backlog > 0 {
					return fmt.Errorf("%s: %d records on their way to %s", s.Node, f.Backlog, f.Group)
				}
			}
			for _, c := range s.Consumers {
				if c.Lag > 0 {
					return fmt.Errorf("%s: %d messages for %s", s.Node, c.Lag, c.Group)
				}
			}
		}
		return nil
	})
}

// landedOnce asks the brokers themselves about a few messages: one publishing,
// and one landing in each home.
func landedOnce(t *testing.T, g *ground, m *mark) {
	t.Helper()
	type sighting struct {
		What string `json:"what"`
		Zone string `json:"zone"`
	}
	slices.SortFunc(m.acked, func(a, b *sent) int { return strings.Compare(a.id, b.id) })
	for i := range 12 {
		s := m.acked[i*(len(m.acked)-1)/11]
		count := map[string]int{}
		for _, at := range decode[[]sighting](t, must(t, []string{"MQROUTER_ADMIN=" + g.admin("rt-sh-1")}, "message", "find", s.id, "-o", "json")) {
			count[at.What]++
			if at.What == "landed" && !slices.Contains(s.homes, at.Zone) {
				t.Errorf("%s landed in %s, its homes are %v", s.id, at.Zone, s.homes)
			}
		}
		if count["published"] != 1 || count["landed"] > len(s.homes) || len(s.homes) > 1 && count["landed"] != len(s.homes) {
			t.Errorf("I2: the logs have %s as %v, its homes are %v", s.id, count, s.homes)
		}
	}
}

// startRedis runs a Redis until the test ends and returns its address.
func startRedis(t *testing.T) string {
	t.Helper()
	port := freePorts(t, 1)[0]
	p := start(t, "redis-server", nil, "redis-server", "--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", t.TempDir())
	p.await(t, "Ready to accept connections", time.Minute)
	return fmt.Sprintf("127.0.0.1:%d", port)
}
