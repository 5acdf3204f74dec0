package flow

import (
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// nextResidency returns the cities that the first unsettled record may enter;
// nil = all. A router chooses a session's way by it: while the direct link is
// down, a record that may not enter the third city waits, and what is behind it
// in the lane waits with it, but a lane that has none goes round. When another
// record of the session is not allowed on its way, the router ends the session,
// and the next one begins with that record.
//
// A record that may not even enter its destination does not count: it is the
// destination that parks it.
func (l *lane) nextResidency(cursor uint64) []zone.City {
	if l.near || l.pulled || cursor >= l.state.Head || cursor+1 < l.state.Oldest {
		return nil
	}
	items, err := l.src.Read(l.leg, cursor+1, 1, 1, l.items[:0])
	if err != nil || len(items) == 0 || items[0].Skip {
		return nil // sending it meets the same fault and tells it
	}
	defer func() {
		clear(items) // drop the record
		l.items = items[:0]
	}()
	v, err := record.Parse(items[0].Record)
	if err != nil || v.Unrestricted() || !v.MayEnter(l.leg.City) {
		return nil
	}
	return residencyOf(v, nil)
}
