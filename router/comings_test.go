package router

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// TestS5_RoutersComeAndGoUnderLoad takes routers out of two cities and puts them
// back fifty times, some with a farewell and some without, while flows run both
// ways: every flow goes on after each change, and at the end each has one live
// session at the routers, which is the one that its origin has, and everything is
// settled once.
func TestS5_RoutersComeAndGoUnderLoad(t *testing.T) {
	top := simTopology(t, 3, 3)
	tls := pki(t, top)
	synctest.Test(t, func(t *testing.T) {
		w := newSimWorld(t, top, tls, 20*time.Millisecond, Limits{})
		defer w.close()
		w.linked()
		var lanes []*simLane
		for i, way := range [][2]zone.City{{"amber", "basil"}, {"basil", "amber"}, {"amber", "cedar"}, {"cedar", "basil"}} {
			for k, class := range classes {
				lanes = append(lanes, w.lane(way[0], way[1], uint64(10*i+k), func(l *simLane) { l.class = class }))
			}
		}
		defer func() {
			for _, l := range lanes {
				l.stop()
			}
		}()
		rng := rand.New(rand.NewPCG(5, 5))
		out := map[zone.City]zone.Node{}
		for range 50 {
			city := []zone.City{"amber", "basil"}[rng.IntN(2)]
			if n, ok := out[city]; ok {
				w.start(n, "")
				delete(out, city)
			} else {
				n := zone.Node(fmt.Sprintf("rt-%s-%d", city, 1+rng.IntN(3)))
				out[city] = n
				if rng.IntN(2) == 0 {
					w.kill(n)
				} else {
					w.leave(n)
				}
			}
			before := make([]int, len(lanes))
			for i, l := range lanes {
				before[i], _ = l.settled()
			}
			for i, l := range lanes {
				w.within(6*time.Second, fmt.Sprintf("%s to %s goes on", l.from, l.to), func() bool {
					n, _ := l.settled()
					return n > before[i]
				})
			}
		}
		for _, n := range out {
			w.start(n, "")
		}
		w.linked()
		for _, l := range lanes {
			w.within(10*time.Second, "caught up", func() bool { n, all := l.settled(); return all-n < 5 })
		}
		time.Sleep(3 * time.Second) // whatever was left over has ended
		live := 0
		for _, c := range top.Cities {
			for _, n := range c.Routers {
				for _, p := range w.router(n.Name).Status().Paths {
					live += p.Direct + p.Detoured
				}
			}
		}
		if live != len(lanes) {
			t.Errorf("%d sessions live at the origins' routers, for %d flows", live, len(lanes))
		}
		for _, l := range lanes {
			l.finish()
		}
		for _, l := range lanes {
			w.within(5*time.Second, "all settled", func() bool { n, all := l.settled(); return n == all })
			settled, hops, _ := l.inflow()
			if _, all := l.settled(); settled != uint64(all) || len(hops) != all {
				t.Errorf("%s to %s: %d given, %d settled, %d landed", l.from, l.to, all, settled, len(hops))
			}
		}
	})
}

// TestR3_FlappingMembersDisturbNoLink lets gossip forget routers, remember them at
// other addresses and call them draining, for three minutes: links and sessions
// that work stay as they are.
func TestR3_FlappingMembersDisturbNoLink(t *testing.T) {
	top := simTopology(t, 2, 2)
	tls := pki(t, top)
	synctest.Test(t, func(t *testing.T) {
		w := newSimWorld(t, top, tls, 20*time.Millisecond, Limits{})
		defer w.close()
		w.linked()
		l := w.lane("amber", "basil", 1, nil)
		defer func() { l.stop() }()
		w.within(5*time.Second, "traffic", func() bool { n, _ := l.settled(); return n > 5 })
		rng := rand.New(rand.NewPCG(1, 1))
		all := simView{w: w}.Routers()
		for range 900 {
			w.mu.Lock()
			clear(w.members)
			for _, m := range all {
				switch rng.IntN(4) {
				case 0:
					continue
				case 1:
					m.QUIC = "10.9.9.9:9"
				case 2:
					m.Draining = true
				}
				w.members[m.Node] = m
			}
			w.mu.Unlock()
			time.Sleep(200 * time.Millisecond)
		}
		if _, _, opened := l.inflow(); opened != 1 {
			t.Errorf("the flow was opened %d times", opened)
		}
		if worst := l.worst(0); worst > 200*time.Millisecond {
			t.Errorf("a record waited for %v", worst)
		}
		for _, c := range top.Cities {
			for _, n := range c.Routers {
				for _, s := range w.router(n.Name).Status().Links {
					if s.Reconnects != 0 {
						t.Errorf("%s: %+v", n.Name, s)
					}
				}
			}
		}
	})
}
