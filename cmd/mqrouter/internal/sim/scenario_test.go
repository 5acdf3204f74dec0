package sim

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/internal/simnet"
	"github.com/mqrouter/mqrouter/zone"
)

// oneZoneEach is the smallest deployment of three cities.
func oneZoneEach() plan {
	return plan{epoch: 1, cities: []cityPlan{
		{name: "east", cache: true, zones: []zonePlan{{"rz1", 1, "0-39"}}},
		{name: "west", cache: true, zones: []zonePlan{{"rz2", 1, "40-69"}}},
		{name: "north", cache: true, zones: []zonePlan{{"rz3", 1, "70-99"}}},
	}}
}

// settleIn lets gossip, links and flows come about.
const settleIn = 5 * time.Second

// L10: what is published while the link is down is on its way, whatever happens
// to the routers, also when the cut outlasts every timer. X4: routers that have
// long declared each other dead meet again. The rest of the deployment does not
// notice.
func TestL10_PublishedDuringACutIsForwarded(t *testing.T) {
	for _, long := range []time.Duration{3 * time.Second, 3 * time.Minute} {
		t.Run(long.String(), func(t *testing.T) {
			t.Parallel()
			if long > time.Minute {
				slow(t)
			}
			bubble(t, 10, oneZoneEach(), func(t *testing.T, w *world) {
				w.consumers(w.ctx, 0)
				p := w.newProducer(w.ctx, "rz1", "p")
				other := w.newProducer(w.ctx, "rz1", "q")
				time.Sleep(settleIn)
				// Both other cities are out of reach: no third city leads there.
				w.sky.setBoth("east", "west", cut)
				w.sky.setBoth("north", "west", cut)
				p.steady(w.ctx, 50, 20*time.Millisecond, func(int) sending { return sending{topic: "transfer", user: "1050"} })
				rng := w.rng("crash")
				for _, r := range []zone.Node{"rt-east-1", "rt-east-2"} {
					w.nodes[r].crash(rng, true)
					time.Sleep(time.Second)
					w.nodes[r].start()
				}
				time.Sleep(settleIn)
				since := w.now()
				other.steady(w.ctx, 20, 50*time.Millisecond, func(int) sending { return sending{topic: "orders", to: "rz3"} })
				time.Sleep(long)
				if n := len(w.hist.open()); n != 50 {
					t.Errorf("%d messages wait for the cut to end, want 50", n)
				}
				if p99 := at(w.latencies("orders", since, anyPair), 0.99); p99 > 100*time.Millisecond {
					t.Errorf("I9: the other city's messages took %v", p99)
				}
				w.sky.fine()
				took := w.quiet(time.Minute)
				t.Logf("all came %v after the cut of %v", took, long)
				if took > 2*time.Second {
					t.Errorf("the backlog came %v after the path was back, at most a second is right, and one of polling", took)
				}
				w.check()
				if w.hist.levels["level=stored"] != 0 || w.hist.levels["level=origin"] != 70 {
					t.Errorf("L6: the answers were %v", w.hist.levels)
				}
			})
		})
	}
}

func anyPair(_, _ zone.City) bool { return true }

// L6: the answer to a publish says what was reached, also while the home of the
// message cannot be.
func TestL6_LevelToldIsTrueWhileTheHomeIsAway(t *testing.T) {
	bubble(t, 6, oneZoneEach(), func(t *testing.T, w *world) {
		w.consumers(w.ctx, 0)
		p := w.newProducer(w.ctx, "rz1", "p")
		time.Sleep(settleIn)
		for _, away := range []bool{false, true} {
			if away {
				w.nodes["rz2-a-1"].crash(w.rng("crash"), true)
			}
			for user, want := range map[string]string{"1001": "level=stored zone=rz1", "1050": "level=origin zone=rz2"} {
				// The checker of every world compares the other routes.
				if pub := p.publish(w.ctx, sending{topic: "transfer", user: user}); !pub.acked || pub.text != want {
					t.Errorf("away %v, user %s: acknowledged %v, %q; want %q", away, user, pub.acked, pub.text, want)
				}
			}
			p.publish(w.ctx, sending{topic: "notes"})
			p.publish(w.ctx, sending{topic: "orders", to: "rz2"})
			p.publish(w.ctx, sending{topic: "member", change: w.hist.change(w.rng("change"))})
		}
		w.nodes["rz2-a-1"].start()
		w.quiet(time.Minute)
		w.check()
	})
}

// S10: 200 topics, a burst on five of them, and a restart of the destination and
// of the origin in the middle: no topic keeps a backlog.
func TestS10_BurstAndRestartLeaveNoTopicStuck(t *testing.T) {
	slow(t)
	p := oneZoneEach()
	const topics = 200
	for i := range topics {
		p.topics = append(p.topics, fmt.Sprintf("{name: t%d, queues: 1, budget: 64MiB, route: {explicit: {property: to}}}", i))
		p.groups = append(p.groups, fmt.Sprintf("{name: t%d-get, topics: [t%d]}", i, i))
	}
	bubble(t, 10, p, func(t *testing.T, w *world) {
		prod := w.newProducer(w.ctx, "rz1", "p")
		time.Sleep(settleIn)
		rng := w.rng("burst")
		for i := range topics {
			w.hist.groups[fmt.Sprintf("t%d", i)] = fmt.Sprintf("t%d-get", i)
			prod.publish(w.ctx, sending{topic: fmt.Sprintf("t%d", i), to: "rz2"})
		}
		for i := range 600 {
			prod.publish(w.ctx, sending{topic: fmt.Sprintf("t%d", rng.IntN(5)), to: "rz2", size: 100})
			switch i {
			case 200:
				w.nodes["rz2-a-1"].crash(rng, true)
			case 300:
				w.nodes["rz2-a-1"].start()
			case 400:
				w.nodes["rz1-a-1"].crash(rng, false)
				w.nodes["rz1-a-1"].start()
			}
		}
		// The consumers come when all is over: what is there has come by itself.
		time.Sleep(10 * time.Second)
		ctx, cancel := context.WithCancel(w.ctx)
		for i := range topics {
			c := &consumer{w: w, zone: w.top.FindZone("rz2"), group: fmt.Sprintf("t%d-get", i), topic: fmt.Sprintf("t%d", i), name: fmt.Sprintf("c%d", i), wait: time.Second}
			w.wg.Go(func() { c.consume(ctx, 0) })
		}
		t.Logf("%d messages in %d topics, all received after %v", len(w.hist.pubs), topics, w.quiet(20*time.Second))
		cancel()
		w.check()
	})
}

// O2: a flow that is torn down again and again while it has much under way sends
// again, and each user's messages still come in order.
func TestO2_RewindsKeepTheOrder(t *testing.T) {
	bubble(t, 2, oneZoneEach(), func(t *testing.T, w *world) {
		w.consumers(w.ctx, 0)
		var pubs sync.WaitGroup
		done, finish := context.WithCancel(w.ctx)
		for i := range 4 {
			p := w.newProducer(w.ctx, "rz1", fmt.Sprintf("p%d", i))
			pubs.Go(func() {
				p.steady(w.ctx, 300, 30*time.Millisecond, func(n int) sending {
					return sending{topic: "transfer", user: fmt.Sprint(1040 + (n+i)%4), size: 500 * (n % 5)}
				})
			})
		}
		rng := w.rng("rewinds")
		w.wg.Go(func() {
			pubs.Wait()
			finish()
		})
		rewinds := 0
		for done.Err() == nil {
			time.Sleep(time.Duration(100+rng.IntN(500)) * time.Millisecond)
			m := w.nodes["rz2-a-1"]
			switch rng.IntN(5) {
			case 0: // the destination regresses to what it had synced
				m.crash(rng, true)
				m.start()
			case 1:
				r := w.nodes[zone.Node(fmt.Sprintf("rt-west-%d", 1+rng.IntN(2)))]
				r.crash(rng, false)
				r.start()
			case 2:
				for _, r := range []zone.Node{"rt-east-1", "rt-east-2"} {
					w.net.Reset(w.nodes["rz1-a-1"].run.host, w.nodes[r].run.host)
				}
			case 3:
				mem := m.mem
				mem.SetLimit(mem.Used())
				time.Sleep(200 * time.Millisecond)
				mem.SetLimit(0)
			default:
				w.sky.setWAN("west", "east", cut) // acknowledgements are lost
				time.Sleep(300 * time.Millisecond)
				w.sky.setWAN("west", "east", nil)
			}
			rewinds++
		}
		took := w.quiet(time.Minute)
		w.check()
		t.Logf("%d messages in order through %d rewinds, the last after %v", len(w.hist.pubs), rewinds, took)
	})
}

// W1 and I9: one city takes 1 kB/s, or its broker's machine reads nothing, or it
// is gone: the messages of the others take as long as without that.
func TestW1_SlowCityCostsTheOthersNothing(t *testing.T) {
	slow(t)
	faults := []struct {
		name  string
		begin func(w *world)
	}{
		{"none", func(*world) {}},
		{"slow", func(w *world) {
			for _, c := range []string{"east", "west"} {
				w.sky.setWAN(c, "north", func(p *simnet.Path) { p.Rate = 1000 })
			}
		}},
		{"stopped", func(w *world) {
			for _, n := range []string{"rz3-a-1", "cz-north-a-1"} {
				w.sky.setHost(n, func(h *hostWeather) { h.rate = 10 })
			}
		}},
		{"gone", func(w *world) {
			for _, c := range []string{"east", "west"} {
				w.sky.setBoth(c, "north", cut)
			}
		}},
	}
	type figures struct{ orders, member time.Duration }
	got := make([]figures, len(faults))
	for i, f := range faults {
		bubble(t, 1, oneZoneEach(), func(t *testing.T, w *world) {
			w.consumers(w.ctx, 0)
			var all []*producer
			for _, z := range []zone.Zone{"rz1", "rz2"} {
				all = append(all, w.newProducer(w.ctx, z, "p-"+string(z)))
			}
			time.Sleep(settleIn)
			f.begin(w)
			since := w.now()
			var pubs sync.WaitGroup
			for k, p := range all {
				pubs.Go(func() {
					p.steady(w.ctx, 400, 25*time.Millisecond, func(i int) sending {
						switch i % 4 {
						case 0:
							return sending{topic: "member", change: &broadcast.Change{Op: broadcast.OpSet, Key: fmt.Sprint("k", k), Version: uint64(i + 1), Value: make([]byte, 300)}}
						case 1:
							return sending{topic: "orders", to: "rz3", size: 1000} // to the slow one
						}
						return sending{topic: "orders", to: []string{"rz2", "rz1"}[k], size: 200}
					})
				})
			}
			pubs.Wait()
			time.Sleep(2 * time.Second)
			near := func(from, to zone.City) bool { return to != "north" && from != to }
			orders, member := w.latencies("orders", since, near), w.latencies("member", since, near)
			if len(orders) != 400 || len(member) != 200 {
				t.Errorf("%s: %d orders and %d changes came to the other cities, want 400 and 200", f.name, len(orders), len(member))
			}
			got[i] = figures{at(orders, 0.99), at(member, 0.99)}
			t.Logf("%s: p99 of orders %v, of changes %v; p50 %v, %v", f.name, got[i].orders, got[i].member, at(orders, 0.5), at(member, 0.5))
			w.sky.fine()
			w.quiet(2 * time.Minute)
			w.check()
		})
	}
	for i, f := range faults {
		if slow := got[i].orders - got[0].orders; slow > 3*time.Millisecond {
			t.Errorf("I9: %s: orders of the other cities take %v more", f.name, slow)
		}
		if slow := got[i].member - got[0].member; slow > 3*time.Millisecond {
			t.Errorf("I9: %s: changes of the other cities take %v more", f.name, slow)
		}
	}
}

// S9: one of the two brokers of the destination's zone is started anew again and
// again: the other one's messages do not notice, its own wait seconds at most.
func TestS9_RestartedDestinationHaltsNobodyElse(t *testing.T) {
	p := oneZoneEach()
	p.cities[1].zones[0].groups = 2
	bubble(t, 9, p, func(t *testing.T, w *world) {
		for _, g := range []string{"rz2-a", "rz2-b"} { // a consumer each: neither waits for the other
			c := &consumer{w: w, zone: w.top.FindZone("rz2"), group: "orders-pack", topic: "orders", name: "c-" + g, wait: 500 * time.Millisecond}
			w.wg.Go(func() { c.consume(w.ctx, 0) })
		}
		prod := w.newProducer(w.ctx, "rz1", "p")
		time.Sleep(settleIn)
		rng := w.rng("restarts")
		stop, cancel := context.WithCancel(w.ctx)
		w.wg.Go(func() {
			defer cancel()
			prod.steady(w.ctx, 1200, 50*time.Millisecond, func(int) sending { return sending{topic: "orders", to: "rz2"} })
		})
		restarts := 0
		for wait(stop, 6*time.Second) {
			w.nodes["rz2-a-1"].crash(rng, rng.IntN(2) == 0)
			time.Sleep(time.Second)
			w.nodes["rz2-a-1"].start()
			restarts++
		}
		w.quiet(30 * time.Second)
		w.check()
		slowest := map[string]time.Duration{}
		for _, d := range w.hist.got {
			slowest[d.broker] = max(slowest[d.broker], w.hist.first[arrival{d.id, d.zone, d.group}]-w.hist.byID[d.id].begun)
		}
		t.Logf("%d restarts; the slowest message of the restarted broker took %v, of the other one %v", restarts, slowest["rz2-a"], slowest["rz2-b"])
		// Both consumers ask both brokers in turn, so half a second of polling, twice.
		if slowest["rz2-b"] > 5*time.Second || slowest["rz2-a"] > 15*time.Second {
			t.Error("that is too slow")
		}
	})
}

// K1: a cache whose city was cut off replays every change that it missed, in
// order, and serves nothing stale afterwards.
func TestK1_CutCityCatchesUpWithEveryChange(t *testing.T) {
	slow(t)
	for name, p := range map[string]plan{"from the origin": oneZoneEach(), "from what another city has landed": relayed()} {
		t.Run(name, func(t *testing.T) { cutCityCatchesUp(t, p) })
	}
}

func cutCityCatchesUp(t *testing.T, p plan) {
	bubble(t, 1, p, func(t *testing.T, w *world) {
		w.hist.keys = nil
		for i := range 200 {
			w.hist.keys = append(w.hist.keys, fmt.Sprintf("member:%d", i))
		}
		w.consumers(w.ctx, 0)
		w.readCaches(w.ctx)
		p := w.newProducer(w.ctx, "rz1", "p")
		time.Sleep(settleIn)
		rng := w.rng("changes")
		next := func(int) sending { return sending{topic: "member", change: w.hist.change(rng)} }
		p.steady(w.ctx, 300, 5*time.Millisecond, next)
		w.quiet(time.Minute)
		for _, c := range []string{"east", "west"} {
			w.sky.setBoth(c, "north", cut)
		}
		p.steady(w.ctx, 2000, 10*time.Millisecond, next)
		before := w.caches["north"].steps()
		w.sky.fine()
		took := w.quiet(time.Minute)
		w.check()
		t.Logf("2000 changes behind, caught up after %v in %d batches", took, w.caches["north"].steps()-before)
	})
}
