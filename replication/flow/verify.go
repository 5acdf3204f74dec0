package flow

import (
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// A destination may lose what it has while nothing is on its way to it: a wiped
// disk, a restored copy. So the Outbox asks on settled legs, too: it opens a
// session, compares, and closes it. That is on a schedule, and at once when a
// session of another leg finds the destination's store or start to be another.

const (
	// verifyTick is how often the schedule is looked at.
	verifyTick = time.Second
	// maxVerifies bounds the sessions that verify at a time: a destination with
	// thousands of settled legs is asked piece by piece.
	maxVerifies = 16
)

// destination is where legs end.
type destination struct {
	city  zone.City
	group zone.Group
}

// store says which store answers at a destination, and which start of it.
type store struct {
	incarnation record.Incarnation
	epoch       uint64
}

// verifier plans when settled legs are asked. It is guarded by Outbox.mu.
type verifier struct {
	due    map[Leg]time.Time // of the settled legs
	stores map[destination]store
}

// plan returns the legs to ask now, at most some, and when each is due next. A
// leg that is new here gets a place in the interval that spread gives.
func (v *verifier) plan(now time.Time, idle []Leg, every time.Duration, some int, spread func(time.Duration) time.Duration) []Leg {
	due := make(map[Leg]time.Time, len(idle))
	var ask []Leg
	for _, leg := range idle {
		at, known := v.due[leg]
		switch {
		case !known:
			at = now.Add(spread(every))
		case !now.Before(at) && len(ask) < some:
			ask = append(ask, leg)
			at = now.Add(every/2 + spread(every))
		}
		due[leg] = at
	}
	v.due = due // legs that are gone are forgotten
	return ask
}

// met takes in which store answered. It reports whether it is another than
// before; then all settled legs of the destination are due.
func (v *verifier) met(d destination, s store) bool {
	was, known := v.stores[d]
	if known && was == s {
		return false
	}
	if v.stores == nil {
		v.stores = map[destination]store{}
	}
	v.stores[d] = s
	if !known {
		return false
	}
	for leg := range v.due {
		if leg.City == d.city && leg.Group == d.group {
			v.due[leg] = time.Time{}
		}
	}
	return true
}

// verifies returns the settled legs whose destinations are to be asked now.
func (o *Outbox) verifies() []Leg {
	if o.idle == nil {
		return nil
	}
	idle := o.idle()
	o.mu.Lock()
	defer o.mu.Unlock()
	running := 0
	for _, l := range o.lanes {
		if l.verify.Load() {
			running++
		}
	}
	free := idle[:0:0]
	for _, leg := range idle {
		if o.lanes[leg] == nil {
			free = append(free, leg)
		}
	}
	return o.checks.plan(time.Now(), free, o.lim.VerifyEvery, maxVerifies-running, func(most time.Duration) time.Duration {
		return time.Duration(o.rng.Int64N(int64(most)))
	})
}

// answered notes which store a session met.
func (o *Outbox) answered(leg Leg, s store) {
	o.mu.Lock()
	changed := o.checks.met(destination{leg.City, leg.Group}, s)
	o.mu.Unlock()
	if changed {
		o.log.Info("destination has started anew, its settled legs are compared", "group", string(leg.Group), "city", string(leg.City))
		signal(o.recheck)
	}
}
