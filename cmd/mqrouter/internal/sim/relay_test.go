package sim

import (
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/zone"
)

// relayed is three cities of which north takes broadcasts from what west has
// landed, with a topic that goes to every zone.
func relayed() plan {
	p := oneZoneEach()
	p.relay()
	return p
}

// relay has the third city take broadcasts from what the second has landed, and
// adds a topic that goes to every zone.
func (p *plan) relay() {
	p.cities[2].via = p.cities[1].name
	p.topics = append(p.topics, "{name: rules, budget: 64MiB, class: urgent, route: {broadcast: zone}}")
	p.groups = append(p.groups, "{name: rules-watch, topics: [rules], max_attempts: 1000, retry: {steps: [1s]}}")
}

// D6 and P5: cities with two routers each and all links between them. A broadcast
// crosses the link from its origin to the relay city once and the link from there to
// the next once, however many routers and zones there are, and comes to each zone
// once.
func TestD6_RelayedBroadcastCrossesEachLinkOnce(t *testing.T) {
	bubble(t, 6, relayed(), func(t *testing.T, w *world) {
		w.consumers(w.ctx, 0)
		p := w.newProducer(w.ctx, "rz1", "p")
		time.Sleep(settleIn)
		rng := w.rng("values")
		value := func(n int) []byte { // that no compressor makes smaller
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			return b
		}
		send := func(n int) {
			p.steady(w.ctx, n, 20*time.Millisecond, func(int) sending {
				c := w.hist.change(rng)
				c.Op, c.Value = broadcast.OpSet, value(8<<10)
				return sending{topic: "member", change: c}
			})
		}
		send(20) // sessions come about
		w.quiet(30 * time.Second)
		time.Sleep(15 * time.Second) // by then links know that their paths lose nothing
		w.crossed()
		const n = 200
		send(n)
		w.quiet(30 * time.Second)
		got := w.crossed()
		ratio := func(from, to zone.City) float64 { return float64(got[[2]zone.City{from, to}]) / (n * 8 << 10) }
		t.Logf("bytes for each byte of the changes: east to west %.2f, west to north %.2f, east to north %.2f", ratio("east", "west"), ratio("west", "north"), ratio("east", "north"))
		for _, way := range [][2]zone.City{{"east", "west"}, {"west", "north"}} {
			if r := ratio(way[0], way[1]); r < 1 || r > 1.3 {
				t.Errorf("%.2f bytes from %s to %s for each byte: that is not one copy", r, way[0], way[1])
			}
		}
		if r := ratio("east", "north"); r > 0.1 {
			t.Errorf("%.2f bytes from east to north for each byte: that should be none", r)
		}
		w.check()
	})
}

// The relay city's broker is killed while others publish: the city behind it goes
// on, every zone gets everything once and in order, and what the relay city missed
// comes when it is back.
func TestBroadcastsGoOnWhenTheRelayCityDies(t *testing.T) {
	bubble(t, 7, relayed(), func(t *testing.T, w *world) {
		w.consumers(w.ctx, 0)
		p := w.newProducer(w.ctx, "rz1", "p")
		q := w.newProducer(w.ctx, "rz2", "q") // in the relay city itself
		time.Sleep(settleIn)
		rng := w.rng("kill")
		next := func(i int) sending {
			if i%2 == 0 {
				return sending{topic: "rules", all: true, size: 100}
			}
			return sending{topic: "member", change: w.hist.change(rng)}
		}
		p.steady(w.ctx, 100, 20*time.Millisecond, next)
		for _, power := range []bool{false, true} {
			w.nodes["cz-west-a-1"].crash(rng, power)
			since := w.now()
			p.steady(w.ctx, 300, 20*time.Millisecond, next)
			q.steady(w.ctx, 50, 20*time.Millisecond, next)
			time.Sleep(5 * time.Second)
			north := w.latencies("rules", since, func(_, to zone.City) bool { return to == "north" })
			if len(north) < 2*175 {
				t.Errorf("%d rules came to the zones of north while the relay city was away, want %d", len(north), 2*175)
			}
			t.Logf("while the relay city was away a rule took %v to north at most, %v in the middle", at(north, 1), at(north, 0.5))
			if at(north, 1) > 6*time.Second {
				t.Errorf("a rule took %v", at(north, 1))
			}
			w.nodes["cz-west-a-1"].start()
			w.nodes["cz-west-a-1"].serves()
			p.steady(w.ctx, 300, 20*time.Millisecond, next)
			took := w.quiet(time.Minute)
			t.Logf("all came %v after the last", took)
		}
		w.check()
	})
}
