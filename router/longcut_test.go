package router

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// TestLongCutHealsByItself cuts a link for longer than every timer of the system,
// in one direction and in both: what may take no detour flows again within a
// second of the path's return and catches up, what may has gone round meanwhile,
// and who speaks with other cities has noticed nothing (I9).
func TestLongCutHealsByItself(t *testing.T) {
	top := simTopology(t, 3, 1)
	tls := pki(t, top)
	for name, cut := range map[string]func(w *simWorld, is bool){
		"both ways":  func(w *simWorld, is bool) { w.cutBoth("amber", "basil", is) },
		"to it":      func(w *simWorld, is bool) { w.cut("amber", "basil", is) },
		"back of it": func(w *simWorld, is bool) { w.cut("basil", "amber", is) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSimWorld(t, top, tls, 40*time.Millisecond, Limits{})
				defer w.close()
				w.linked()
				bound := w.lane("amber", "basil", 1, func(l *simLane) {
					l.residency = func(uint64) []zone.City { return []zone.City{"amber", "basil"} }
				})
				free := w.lane("amber", "basil", 2, func(l *simLane) { l.class = zone.ClassUrgent })
				others := []*simLane{w.lane("amber", "cedar", 3, nil), w.lane("cedar", "basil", 4, nil), w.lane("basil", "cedar", 5, nil)}
				defer func() {
					for _, l := range append(others, bound, free) {
						l.stop()
					}
				}()
				w.within(5*time.Second, "traffic", func() bool { n, _ := bound.settled(); return n > 10 })

				cut(w, true)
				time.Sleep(30 * time.Second) // an idle connection of QUIC ends after ten
				stood, waiting := bound.settled()
				if waiting-stood < 250 {
					t.Fatalf("%d of %d settled during the cut; it was to be cut off", stood, waiting)
				}
				if settled, all := free.settled(); all-settled > 20 {
					t.Errorf("what may go round is behind by %d of %d", all-settled, all)
				}
				cut(w, false)
				took := w.within(time.Second, "traffic after the cut", func() bool { n, _ := bound.settled(); return n > stood })
				caught := w.within(10*time.Second, "caught up", func() bool { n, all := bound.settled(); return all-n < 5 })
				t.Logf("traffic after %v, %d records caught up after %v", took, waiting-stood, caught)

				w.within(15*time.Second, "the direct link for all", func() bool {
					return w.pathsOf("amber", "basil", func(p PathStatus) bool { return p.Reason == PathDirect && p.Detoured == 0 })
				})
				for _, l := range others {
					if worst := l.worst(0); worst > 200*time.Millisecond {
						t.Errorf("%s to %s: a record waited for %v", l.from, l.to, worst)
					}
				}
				if worst := free.worst(0); worst > 4*time.Second {
					t.Errorf("what may go round waited for %v", worst)
				}
			})
		})
	}
}

// pathsOf reports whether every router of a city and every class says so of its
// path to another.
func (w *simWorld) pathsOf(from, to zone.City, is func(PathStatus) bool) bool {
	for _, n := range w.top.FindCity(from).Routers {
		for _, class := range classes {
			if !is(w.pathOf(n.Name, to, class)) {
				return false
			}
		}
	}
	return true
}
