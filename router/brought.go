package router

import (
	"cmp"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/internal/loglimit"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// BroughtStatus counts the sessions that a third city has brought for another.
// Nothing but the word of the third city's routers says where they come from, so
// this is what shows one that speaks for others without their knowing.
type BroughtStatus struct {
	Origin   zone.City
	Via      zone.City // whose routers brought them
	Sessions uint64    // since the start
}

// way is how a session of another city came.
type way struct{ origin, via zone.City }

// Lines about sessions that come over a third city.
const (
	broughtLines  = 5
	broughtWindow = time.Minute
)

func newBroughtLimit() loglimit.Limit {
	return loglimit.Limit{Lines: broughtLines, Window: broughtWindow}
}

// noteBrought counts and logs a session that has come over a third city. Both
// cities are the topology's (see judge), which bounds what is kept.
func (r *Router) noteBrought(from caller, f wire.Frame, o *wire.Open) {
	r.mu.Lock()
	r.brought[way{o.OriginCity, from.city}]++
	r.mu.Unlock()
	if missed, ok := r.broughtLog.Allow(time.Now()); ok {
		// A direct link that works here is no proof that the origin has one: it may
		// be another router's, or slow. Many such lines are worth a question.
		r.log.Info("session of another city comes over a third one", "city", o.OriginCity, "via", from.city, "peer", from.node,
			"group", o.Flow.Origin, "direct", r.paths.to(o.OriginCity, f.Class).up, "suppressed", missed)
	}
}

// broughtStatus returns the counts in order. The caller holds mu.
func (r *Router) broughtStatus() []BroughtStatus {
	var all []BroughtStatus
	for w, n := range r.brought {
		all = append(all, BroughtStatus{Origin: w.origin, Via: w.via, Sessions: n})
	}
	slices.SortFunc(all, func(a, b BroughtStatus) int {
		return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Via, b.Via))
	})
	return all
}
