package e2e

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// relayTree is the sample with a chain of landings, shanghai to hangzhou to
// shenzhen, and a topic that every zone gets from its city's CZone.
func relayTree(t *testing.T) string {
	t.Helper()
	text := string(sample.YAML)
	for _, edit := range [][2]string{
		{"  - name: hangzhou\n", "  - name: hangzhou\n    broadcasts_via: shanghai\n"},
		{"  - name: shenzhen\n", "  - name: shenzhen\n    broadcasts_via: hangzhou\n"},
		{"\ntopics:\n", "\ntopics:\n  - {name: rules, max_body: 64KiB, route: {broadcast: zone}}\n"},
		{"\nconsumer_groups:\n", "\nconsumer_groups:\n  - {name: rules-watch, topics: [rules]}\n"},
	} {
		if strings.Count(text, edit[0]) != 1 {
			t.Fatalf("the sample has %q %d times", edit[0], strings.Count(text, edit[0]))
		}
		text = strings.Replace(text, edit[0], edit[1], 1)
	}
	return text
}

// everyZone are the zones of the sample.
var everyZone = []string{"rz01", "rz02", "gz01", "cz-sh", "rz03", "rz04", "gz02", "cz-hz", "rz05", "cz-sz"}

// tellRules starts publishers of the topic that every zone gets, and a consumer in
// each. Of rz01, which has two groups, both are read.
func tellRules(g *ground, l *ledger) {
	for _, at := range []string{"rz02", "rz04", "rz05"} {
		l.publish("rules at "+at, g.client(at), pace, func(int) letter {
			return letter{topic: "rules", from: at, homes: everyZone}
		})
	}
	for _, z := range everyZone {
		for _, group := range g.top.FindZone(zone.Zone(z)).Groups {
			l.consume(z, group.Nodes[0].Client, "rules-watch", "rules")
		}
	}
}

// TestRelaysUnderKills kills the nodes of a chain of landings again and again, as
// fast as they are started, parents and children at once, while broadcasts for
// cities and zones pass: every acknowledged one is in each place, once.
func TestRelaysUnderKills(t *testing.T) {
	need(t, "redis-server")
	rnd := attackRand(t)
	redis := startRedis(t)
	g := startGroundOf(t, relayTree(t), "--redis", redis)
	w := watchCaches(t, redis, cities, memberKeys)
	l := newLedger(t)
	tellRules(g, l)
	tellMembers(g, l)
	m := l.mark()
	eventually(t, "every publisher begins", time.Minute, func() error { return l.goesOn(m, 20) })
	victims := append([]string{"cz-sh-a-1", "cz-hz-a-1", "cz-hz-a-1", "cz-sz-a-1"}, g.names()...)
	for range rounds(1, 12) {
		for range 12 {
			g.signal(syscall.SIGKILL, some(rnd, victims, 3)...)
			hold(time.Duration(rnd.IntN(900)) * time.Millisecond)
		}
		m := l.mark()
		began := time.Now()
		eventually(t, "it heals", 3*time.Minute, func() error {
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
		t.Logf("whole after %.1f s", time.Since(began).Seconds())
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
	t.Log(l.sums())
	g.stop(t, time.Minute)
	g.sane()
	for _, n := range g.names(zone.RoleBroker) {
		text := readFile(t, filepath.Join(g.dir, "logs", n+".log"))
		if i := strings.Index(text, "origin and destination disagree"); i >= 0 {
			t.Errorf("%s says that an origin diverged, which pages people, and every disk kept its word: %.2000s", n, text[i:])
		}
	}
}

func some(rnd *rand.Rand, from []string, most int) []string {
	var all []string
	for range 1 + rnd.IntN(most) {
		all = append(all, from[rnd.IntN(len(from))])
	}
	return all
}

// tellMembers starts publishers of member data in three cities, and consumers of
// it in their CZones.
func tellMembers(g *ground, l *ledger) {
	var version atomic.Uint64
	for _, at := range []string{"rz01", "rz03", "rz05"} {
		l.publish("member at "+at, g.client(at), pace, func(n int) letter {
			v := version.Add(1)
			return letter{topic: "member", from: at, key: memberKeys[n%len(memberKeys)], version: v, homes: []string{"cz-sh", "cz-hz", "cz-sz"},
				properties: map[string]string{"mqr.op": "set", "mqr.version": fmt.Sprint(v)}}
		})
	}
	for _, z := range []string{"cz-sh", "cz-hz", "cz-sz"} {
		l.consume(z, g.client(z), "member-watch", "member")
	}
}
