package flow

import (
	"context"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// routeWait is how long a leg without a route waits at most for another leg to
// find one; full jitter over its second half.
const routeWait = 10 * time.Second

// routeKey names a way: legs of one class to one destination share it.
type routeKey struct {
	city  zone.City
	group zone.Group
	class zone.Class
}

// route is a way that is lost. One leg goes on trying as often as ever, so that
// the way is found within the bound of its back-off; the others wait for it.
type route struct {
	prober *lane
	found  chan struct{} // closed when the way is found or its prober leaves
}

func (l *lane) route() routeKey { return routeKey{l.leg.City, l.leg.Group, l.leg.Flow.Class} }

// routeLost returns what the leg may wait for instead of trying; nil when it is
// the one that tries.
func (o *Outbox) routeLost(l *lane) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.routes[l.route()]
	if r == nil {
		r = &route{prober: l, found: make(chan struct{})}
		o.routes[l.route()] = r
	}
	if r.prober == l {
		return nil
	}
	return r.found
}

// routeFound tells the legs that wait. A leg that leaves calls it, too, if it was
// the one that tries: another takes over.
func (o *Outbox) routeFound(l *lane, left bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r := o.routes[l.route()]; r != nil && (!left || r.prober == l) {
		close(r.found)
		delete(o.routes, l.route())
	}
}

// rest waits before the next attempt. It reports whether ctx is still alive.
func (l *lane) rest(ctx context.Context, wait time.Duration, code wire.Code) bool {
	if code != wire.CodeNoRoute {
		return sleep(ctx, wait)
	}
	found := l.o.routeLost(l)
	if found == nil {
		return sleep(ctx, wait)
	}
	t := time.NewTimer(routeWait/2 + time.Duration(l.rng.Int64N(int64(routeWait/2))))
	defer t.Stop()
	select {
	case <-found:
		return sleep(ctx, wait) // not all at the same moment
	case <-t.C:
		return true
	case <-l.sealC:
		signal(l.sealC)
		return true
	case <-ctx.Done():
		return false
	}
}
