package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestLongCutHealsByItself cuts a city off for longer than every timer: links are
// given up, gossip drops the city, sessions are gone. A backlog for it grows. The
// heal needs no hand, and nothing is lost or doubled. How soon, how fast and what
// the other cities notice is reported; the simulation asserts it.
func TestLongCutHealsByItself(t *testing.T) {
	need(t, "redis-server")
	redis := startRedis(t)
	g := startGround(t, "--redis", redis)
	w := watchCaches(t, redis, cities, memberKeys)
	l := story(g)
	rest, lone := g.routers("shanghai", "hangzhou"), g.routers("shenzhen")
	wan(g, 6, append(slices.Clone(rest), lone...)...)
	m := l.mark()
	eventually(t, "every publisher goes on", time.Minute, func() error { return l.goesOn(m, 100) })
	cut := time.Now()
	g.net.part(rest, lone)
	wan(g, 4, rest...)
	wan(g, 2, lone...)
	if long() {
		hold(3 * time.Minute) // thrice what gossip remembers the dead
	}
	m = l.mark()
	bulk := 0
	l.burst(g.client("rz01"), letter{topic: "transfer", properties: map[string]string{"userId": "1085"}, homes: []string{"rz05"}, size: 16 << 10},
		func() bool { bulk++; return bulk > rounds(1000, 20000) })
	eventually(t, "the others go on and get what is theirs", time.Minute, func() error {
		if err := l.goesOn(m, 50); err != nil {
			return err
		}
		return l.arrivedElsewhere(m)
	})
	g.net.heal()
	healed := time.Now()
	m = l.mark()
	waiting := l.waiting(m, "rz05")
	eventually(t, "the first message crosses", 3*time.Minute, func() error {
		if l.waiting(m, "rz05") == waiting {
			return fmt.Errorf("%d wait for rz05", waiting)
		}
		return nil
	})
	first := time.Since(healed)
	eventually(t, "everything crosses", 3*time.Minute, func() error {
		if err := l.arrived(m); err != nil {
			return err
		}
		return w.has(m.newest)
	})
	all := time.Since(healed)
	wan(g, 6, append(rest, lone...)...)
	t.Logf("cut for %.0f s; after the heal the first message arrived within %.2f s, the backlog of %d within %.2f s (%.0f messages/s)",
		healed.Sub(cut).Seconds(), first.Seconds(), waiting, all.Seconds(), float64(waiting)/all.Seconds())
	t.Logf("from rz02 to rz03, publish to receive: %s before the cut, %s during it, %s after it",
		l.latency("rz02", "rz03", time.Time{}, cut), l.latency("rz02", "rz03", cut, healed), l.latency("rz02", "rz03", healed, time.Now()))
	l.endPublishing()
	settle(t, g, l)
	if err := l.verdict(); err != nil {
		t.Error(err)
	}
	if err := w.verdict(); err != nil {
		t.Error(err)
	}
	t.Log(l.sums())
	g.stop(t, time.Minute)
	g.sane()
}

// wan waits until routers see so many members of the gossip between cities.
func wan(g *ground, n int, routers ...string) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("%v see %d routers", routers, n), 2*time.Minute, func() error {
		for _, r := range routers {
			if got, err := metricAt(g.admin(r), "mqrouter_gossip_members", `pool="wan"`); err != nil || int(got) != n {
				return fmt.Errorf("%s sees %v: %w", r, got, err)
			}
		}
		return nil
	})
}

// inShenzhen reports whether a zone of the sample is there.
func inShenzhen(zone string) bool { return zone == "rz05" || zone == "cz-sz" }

// arrivedElsewhere is arrived for what neither comes from Shenzhen nor goes there.
func (l *ledger) arrivedElsewhere(m *mark) error {
	m.wanted = slices.DeleteFunc(m.wanted, func(s *sent) bool { return inShenzhen(s.from) })
	return l.arrived(m, "rz05", "cz-sz")
}

// waiting counts what the mark knows as acknowledged and a home has not received.
func (l *ledger) waiting(m *mark, home string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, s := range m.acked {
		if slices.Contains(s.homes, home) && len(s.seen[home]) == 0 {
			n++
		}
	}
	return n
}

// latency is the time from publish to first receipt, of transfers of a span.
func (l *ledger) latency(from, home string, since, until time.Time) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []time.Duration
	for _, s := range l.sent {
		if at, ok := s.first[home]; ok && strings.HasPrefix(s.stream, from+" ") && s.at.After(since) && s.at.Before(until) {
			all = append(all, at.Sub(s.at))
		}
	}
	if len(all) == 0 {
		return "nothing"
	}
	slices.Sort(all)
	return fmt.Sprintf("p50 %.1f ms, p99 %.1f ms of %d", ms(all[len(all)/2]), ms(all[len(all)*99/100]), len(all))
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
