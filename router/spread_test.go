package router

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/router/link"
	"github.com/mqrouter/mqrouter/zone"
)

// TestW6_SessionsSpreadOverTheConnectionsOfABusyLink has more to send in four
// lanes than one connection takes on a lossy path: the link grows, the router asks
// each lane to open its session again, and each goes on in order (which the far
// end checks), settling more than before. In the end one connection is left.
func TestW6_SessionsSpreadOverTheConnectionsOfABusyLink(t *testing.T) {
	top := simTopology(t, 3, 1)
	tls := pki(t, top)
	synctest.Test(t, func(t *testing.T) {
		w := newSimWorld(t, top, tls, 15*time.Millisecond, Limits{Link: link.Limits{Parallel: 4}})
		defer w.close()
		w.linked()
		from, to := top.Cities[0].Name, top.Cities[1].Name
		w.lose(from, to, 100)
		var lanes []*simLane
		for i := range uint8(4) {
			lanes = append(lanes, w.lane(from, to, uint64(i), func(l *simLane) {
				l.lane, l.size, l.burst, l.every = i, 64<<10, 1, 60*time.Millisecond
			}))
		}
		stop := func() {
			for _, l := range lanes {
				l.stop()
			}
		}
		defer stop()
		near, far := w.routersIn(from, 0)[0], w.routersIn(to, 0)[0]
		w.within(30*time.Second, "four connections and the link's own, at both ends", func() bool {
			return bulkOf(near, to).Connections == 5 && bulkOf(far, from).Connections == 5
		})
		w.within(10*time.Second, "a session of the four on each", func() bool { return near.Status().Spread >= 4 })
		time.Sleep(2 * time.Second)
		var before []int
		for _, l := range lanes {
			n, _ := l.settled()
			before = append(before, n)
		}
		time.Sleep(5 * time.Second)
		for i, l := range lanes {
			if n, all := l.settled(); n-before[i] < 10 {
				t.Errorf("lane %d settled %d records in five seconds, of %d", i, n-before[i], all)
			}
		}
		if s := bulkOf(near, to); s.Rates.Bound != link.BoundPath || s.Reconnects != 0 {
			t.Errorf("the link is %+v, want it bound by its path", s)
		}
		for _, l := range lanes {
			l.finish()
		}
		w.lose(from, to, 0)
		w.within(2*time.Minute, "all is settled", func() bool {
			for _, l := range lanes {
				if n, all := l.settled(); n < all {
					return false
				}
			}
			return true
		})
		stop()
		w.within(2*time.Minute, "one connection is left", func() bool {
			return bulkOf(near, to).Connections == 1 && bulkOf(far, from).Connections == 1
		})
		if s := near.Status(); s.Spread > s.Moved || s.Sessions != 0 {
			t.Errorf("%d sessions spread, %d moved, %d left", s.Spread, s.Moved, s.Sessions)
		}
	})
}

// bulkOf returns what a router knows of its bulk link to a city.
func bulkOf(r *simRouter, city zone.City) link.Status {
	for _, l := range r.Status().Links {
		if l.City == city && l.Class == zone.ClassBulk {
			return l
		}
	}
	return link.Status{}
}
