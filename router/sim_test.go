package router

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run the simulation of paths with this seed only, and log")
	seedsFlag = flag.Uint64("seeds", simSeeds, "run the simulation of paths with this many seeds")
)

// TestPathsSurviveFaults runs a schedule of faults for each seed: cuts in one
// direction and in both, long and flapping ones, isolated cities, slow and lossy
// links, killed routers, receivers that take nothing. A seed fixes the
// deployment, its traffic and the schedule; how goroutines interleave, and what
// QUIC draws, it does not.
//
// What must hold: every number settles once and in order; none enters a city that
// its residency forbids (I7); nothing passes more than one third city; whom no
// fault touches waits for nobody (I9); and when all is well again, everything is
// settled and on the direct link, with one live session for each flow.
func TestPathsSurviveFaults(t *testing.T) {
	var seeds []uint64
	for s := range *seedsFlag {
		seeds = append(seeds, s+1)
	}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			cities := 3 + rng.IntN(3)
			routers := 1
			if cities < 5 {
				routers += rng.IntN(2)
			}
			top := simTopology(t, cities, routers)
			tls := pki(t, top)
			defer func() {
				if t.Failed() {
					t.Logf("replay with: go test ./router -run TestPathsSurviveFaults -count 10 -seed %d", seed)
				}
			}()
			synctest.Test(t, func(t *testing.T) { simulate(t, rng, seed, top, tls) })
		})
	}
}

// fate is what happens in a simulation, and whom it touches.
type fate struct {
	w       *simWorld
	rng     *rand.Rand
	cities  []zone.City
	touched map[[2]zone.City]bool // pairs whose traffic a fault may hold up
	undo    []undo
	log     bool
}

// undo ends a fault.
type undo struct {
	at time.Time
	do func()
}

func simulate(t *testing.T, rng *rand.Rand, seed uint64, top *zone.Topology, tls map[zone.Node]*peer.TLS) {
	limit := Limits{Path: PathTiming{ReturnMost: 20 * time.Second}}
	w := newSimWorld(t, top, tls, 10*time.Millisecond, limit)
	defer w.close()
	f := &fate{w: w, rng: rng, touched: make(map[[2]zone.City]bool), log: *seedFlag != 0}
	for _, c := range top.Cities {
		f.cities = append(f.cities, c.Name)
	}
	for i, a := range f.cities {
		for _, b := range f.cities[:i] {
			w.slow(a, b, ms(20+rng.IntN(25))) // no way round is clearly faster than a good direct link
		}
	}
	w.linked()
	lanes := f.traffic(seed)
	defer func() {
		for _, l := range lanes {
			l.stop()
		}
	}()
	time.Sleep(2 * time.Second)
	for range 6 + rng.IntN(5) {
		f.strike()
		f.pass(ms(500 + rng.IntN(8000)))
	}
	f.pass(ms(rng.IntN(20000)))
	for len(f.undo) > 0 {
		u := f.undo[0]
		f.undo = f.undo[1:]
		u.do()
	}
	f.settle(lanes)
}

// traffic starts lanes between most pairs of cities, some of whose records may
// not go everywhere.
func (f *fate) traffic(seed uint64) []*simLane {
	var lanes []*simLane
	for _, a := range f.cities {
		for _, b := range f.cities {
			if a == b || f.rng.IntN(4) == 0 {
				continue
			}
			here := []zone.City{a, b}
			wider := append([]zone.City{f.cities[f.rng.IntN(len(f.cities))]}, here...)
			kind, every := f.rng.IntN(3), ms(50+f.rng.IntN(200))
			lanes = append(lanes, f.w.lane(a, b, seed, func(l *simLane) {
				l.every = every
				l.class = classes[f.rng.IntN(len(classes))]
				l.residency = func(number uint64) []zone.City {
					switch {
					case kind == 1 || kind == 2 && number%7 == 0:
						return here
					case kind == 2 && number%7 < 4:
						return wider
					}
					return nil
				}
			}))
		}
	}
	return lanes
}

// pass lets time pass and ends the faults whose time has come.
func (f *fate) pass(d time.Duration) {
	end := time.Now().Add(d)
	for time.Now().Before(end) {
		time.Sleep(50 * time.Millisecond)
		kept := f.undo[:0]
		for _, u := range f.undo {
			if time.Now().Before(u.at) {
				kept = append(kept, u)
				continue
			}
			u.do()
		}
		f.undo = kept
	}
}

func (f *fate) later(d time.Duration, do func()) {
	f.undo = append(f.undo, undo{time.Now().Add(d), do})
}

func (f *fate) say(format string, args ...any) {
	if f.log {
		f.w.t.Logf("%v "+format, append([]any{time.Since(simStart)}, args...)...)
	}
}

// touch marks a pair in both directions.
func (f *fate) touch(a, b zone.City) {
	f.touched[[2]zone.City{a, b}], f.touched[[2]zone.City{b, a}] = true, true
}

func (f *fate) touchAll(c zone.City) {
	for _, o := range f.cities {
		f.touch(c, o)
	}
}

// strike lets one fault happen.
func (f *fate) strike() {
	a := f.cities[f.rng.IntN(len(f.cities))]
	b := f.cities[f.rng.IntN(len(f.cities))]
	for a == b {
		b = f.cities[f.rng.IntN(len(f.cities))]
	}
	d := ms(200 + f.rng.IntN(15000))
	switch f.rng.IntN(8) {
	case 0:
		f.say("cut %s to %s for %v", a, b, d)
		f.touch(a, b)
		f.w.cut(a, b, true)
		f.later(d, func() { f.w.cut(a, b, false) })
	case 1, 2:
		d *= 2 // longer than any timer of a link
		f.say("cut %s and %s for %v", a, b, d)
		f.touch(a, b)
		f.w.cutBoth(a, b, true)
		f.later(d, func() { f.w.cutBoth(a, b, false) })
	case 3:
		f.say("isolate %s for %v", a, d)
		f.touchAll(a)
		for _, c := range f.cities {
			if c != a {
				f.w.cutBoth(a, c, true)
			}
		}
		f.later(d, func() {
			for _, c := range f.cities {
				f.w.cutBoth(a, c, false)
			}
		})
	case 4:
		f.kill(a, d)
	case 5:
		f.say("%s takes nothing for %v", b, d/2)
		for _, c := range f.cities {
			f.touched[[2]zone.City{c, b}] = true // the others' sessions are not its
		}
		f.w.brokers[groupOf(b)].pause(d / 2)
	case 6:
		f.say("%s and %s flap", a, b)
		f.touch(a, b)
		for i := range 10 {
			is := i%2 == 0
			f.later(time.Duration(i)*ms(300+f.rng.IntN(1500)), func() { f.w.cutBoth(a, b, is) })
		}
		f.later(16*time.Second, func() { f.w.cutBoth(a, b, false) })
	case 7:
		f.say("%s and %s lose packets for %v", a, b, d)
		f.touch(a, b)
		f.w.lose(a, b, 2+f.rng.IntN(20))
		f.later(d, func() { f.w.lose(a, b, 0) })
	}
}

// kill ends a router; it comes back later, perhaps elsewhere.
func (f *fate) kill(c zone.City, d time.Duration) {
	routers := f.w.top.FindCity(c).Routers
	n := routers[f.rng.IntN(len(routers))]
	if f.w.router(n.Name) == nil {
		return
	}
	f.touchAll(c)
	addr := ""
	if f.rng.IntN(2) == 0 {
		addr = fmt.Sprintf("10.9.%d.%d:4433", f.rng.IntN(256), f.rng.IntN(256))
	}
	f.say("kill %s for %v, back at %q", n.Name, d, addr)
	f.w.kill(n.Name)
	f.later(d, func() { f.w.start(n.Name, addr) })
}

// settle waits for the good end and checks it.
func (f *fate) settle(lanes []*simLane) {
	w := f.w
	w.within(5*time.Second, "links after the last fault", w.allUp)
	w.within(40*time.Second, "every session on the direct link", func() bool {
		for _, c := range w.top.Cities {
			for _, n := range c.Routers {
				for _, p := range w.router(n.Name).Status().Paths {
					if p.Reason != PathDirect || p.Detoured > 0 || !p.Up {
						return false
					}
				}
			}
		}
		return true
	})
	for _, l := range lanes {
		l.finish()
	}
	for _, l := range lanes {
		w.within(5*time.Second, fmt.Sprintf("%s to %s: everything settled", l.from, l.to), func() bool {
			n, all := l.settled()
			return n == all
		})
	}
	f.check(lanes)
}

func (f *fate) check(lanes []*simLane) {
	w := f.w
	sessions, owners := 0, 0
	for _, c := range w.top.Cities {
		for _, n := range c.Routers {
			s := w.router(n.Name).Status()
			if s.Astray > 0 {
				w.t.Errorf("%s was sent %d batches that may not enter %s", n.Name, s.Astray, c.Name)
			}
			if s.Passing > 0 {
				w.t.Errorf("%s still passes %d sessions on", n.Name, s.Passing)
			}
			for _, p := range s.Paths {
				sessions += p.Direct
			}
		}
	}
	for _, l := range lanes {
		name := fmt.Sprintf("%s to %s", l.from, l.to)
		settled, hops, _ := l.inflow()
		if _, all := l.settled(); uint64(all) != settled || len(hops) != all {
			w.t.Errorf("%s: %d numbers given, %d settled, %d landed", name, all, settled, len(hops))
		}
		for i, h := range hops {
			if r := l.cities(uint64(i + 1)); len(r) == 2 && h != 1 {
				w.t.Errorf("%s: number %d may enter two cities and came over %d", name, i+1, h)
			}
		}
		l.mu.Lock()
		if l.session != 0 {
			owners++
		}
		l.mu.Unlock()
		if !f.touched[[2]zone.City{l.from, l.to}] {
			if worst := l.worst(0); worst > 350*time.Millisecond {
				w.t.Errorf("%s: a number waited for %v, and no fault touched the two", name, worst)
			}
		}
	}
	if sessions != owners {
		w.t.Errorf("%d sessions live at routers, and %d flows have one", sessions, owners)
	}
}
