package router

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// TestWhatMayTakeNoDetourWaitsAtHome cuts the direct link for a flow whose records
// may enter the two ends only. The origin's own router holds them back and says
// that it may be otherwise later, so that nobody gives them up; the third city is
// not even asked; and they cross once the link is back.
func TestWhatMayTakeNoDetourWaitsAtHome(t *testing.T) {
	top := simTopology(t, 3, 1)
	tls := pki(t, top)
	synctest.Test(t, func(t *testing.T) {
		w := newSimWorld(t, top, tls, 20*time.Millisecond, Limits{})
		defer w.close()
		w.linked()
		l := w.lane("amber", "basil", 1, func(l *simLane) {
			l.residency = func(uint64) []zone.City { return []zone.City{"amber", "basil"} }
		})
		defer l.stop()
		w.within(5*time.Second, "traffic", func() bool { n, _ := l.settled(); return n > 10 })
		w.cutBoth("amber", "basil", true)
		w.within(10*time.Second, "a detour for others", func() bool {
			return w.pathOf("rt-amber-1", "basil", zone.ClassBulk).Via == "cedar"
		})
		held, _ := l.settled()
		time.Sleep(10 * time.Second)
		l.mu.Lock()
		refused, final := l.refusals[wire.CodeResidency], l.final
		l.mu.Unlock()
		if refused == 0 || final > 0 {
			t.Errorf("%d refusals for residency, %d of all for good; want some and none", refused, final)
		}
		if n, _ := l.settled(); n != held {
			t.Errorf("%d records crossed while the only way was over cedar", n-held)
		}
		if s := w.router("rt-cedar-1").Status(); s.Passed+s.Refused+s.Opened > 0 {
			t.Errorf("cedar was asked: %d passed, %d refused, %d opened", s.Passed, s.Refused, s.Opened)
		}
		w.cutBoth("amber", "basil", false)
		w.within(20*time.Second, "all that waited", func() bool { n, all := l.settled(); return n > held && n+2 >= all })
		if _, hops, _ := l.inflow(); hops[len(hops)-1] != 1 {
			t.Errorf("the last record came over %d cities, want 1", hops[len(hops)-1])
		}
	})
}
