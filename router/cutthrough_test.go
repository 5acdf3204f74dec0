package router

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// pathOf returns what a router says of its path.
func (w *simWorld) pathOf(node zone.Node, to zone.City, class zone.Class) PathStatus {
	if r := w.router(node); r != nil {
		for _, p := range r.Status().Paths {
			if p.City == to && p.Class == class {
				return p
			}
		}
	}
	return PathStatus{}
}

// TestCutThroughTakesOverAndGivesBack is the whole story of a detour: the direct
// link is cut, sessions go round over a third city and lose nothing, and they
// go back once the link has worked for long enough, and not before.
func TestCutThroughTakesOverAndGivesBack(t *testing.T) {
	top := simTopology(t, 3, 1)
	tls := pki(t, top)
	for name, cut := range map[string]func(w *simWorld, is bool){
		"both ways":  func(w *simWorld, is bool) { w.cutBoth("amber", "basil", is) },
		"to it":      func(w *simWorld, is bool) { w.cut("amber", "basil", is) },
		"back of it": func(w *simWorld, is bool) { w.cut("basil", "amber", is) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSimWorld(t, top, tls, 20*time.Millisecond, Limits{})
				defer w.close()
				w.linked()
				l := w.lane("amber", "basil", 1, nil)
				other := w.lane("amber", "cedar", 2, nil)
				defer func() { l.stop(); other.stop() }()
				w.within(5*time.Second, "traffic", func() bool { n, _ := l.settled(); return n > 10 })
				cut(w, true)
				w.within(time.Second+w.limit.Timing.RedAfter+5*time.Second, "a detour", func() bool {
					p := w.pathOf("rt-amber-1", "basil", zone.ClassBulk)
					return p.Via == "cedar" && p.Detoured == 1
				})
				before, _ := l.settled()
				w.within(time.Second, "traffic on the detour", func() bool { n, _ := l.settled(); return n > before })
				if worst := l.worst(0); worst > 4*time.Second {
					t.Errorf("a record waited for %v; the cut is seen after two seconds", worst)
				}
				time.Sleep(3 * time.Second)
				if _, hops, _ := l.inflow(); hops[len(hops)-1] != 2 {
					t.Errorf("the last record came over %d cities, want 2", hops[len(hops)-1])
				}

				healed := time.Now()
				cut(w, false)
				w.within(2*time.Second, "the direct link", func() bool { return w.pathOf("rt-amber-1", "basil", zone.ClassBulk).Up })
				at, _ := l.settled()
				took := w.within(20*time.Second, "the way back", func() bool {
					p := w.pathOf("rt-amber-1", "basil", zone.ClassBulk)
					return p.Via == "" && p.Detoured == 0 && p.Direct == 1
				})
				if all := time.Since(healed); all < 10*time.Second || took > 12*time.Second {
					t.Errorf("the direct link was taken again after %v, want ten seconds of its working", all)
				}
				time.Sleep(2 * time.Second)
				if worst := l.worst(at); worst > 600*time.Millisecond {
					t.Errorf("a record waited for %v while the session moved back", worst)
				}
				if _, hops, _ := l.inflow(); hops[len(hops)-1] != 1 {
					t.Errorf("the last record came over %d cities, want 1", hops[len(hops)-1])
				}
				if worst := other.worst(0); worst > 200*time.Millisecond {
					t.Errorf("another city's record waited for %v", worst)
				}
				if p := w.pathOf("rt-amber-1", "basil", zone.ClassBulk); p.Changes != 2 {
					t.Errorf("%d changes of path, want one away and one back", p.Changes)
				}
				if b := w.router("rt-basil-1").Status().Brought; len(b) != 1 || b[0].Origin != "amber" || b[0].Via != "cedar" || b[0].Sessions == 0 {
					t.Errorf("the destination's city counts %+v, want sessions of amber over cedar", b)
				}
				if s := w.router("rt-cedar-1").Status(); s.Passed == 0 || s.Passing != 0 {
					t.Errorf("the third city passed %d sessions on and still passes %d", s.Passed, s.Passing)
				}
			})
		})
	}
}
