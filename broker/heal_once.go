package broker

import (
	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/once"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// ignores reports whether the fold ignored the record, since its first copy is in
// the log, too. A copy whose first one is not makes the count doubtful; see
// doubtSends.
func (h *healing) ignores(e *commitlog.Entry, v *record.View) bool {
	o, counted := countsOnce(v)
	if !counted || v.Type() != record.TypeMessage {
		return false
	}
	if _, answer := h.once.Look(zone.Topic(v.Topic()), &o, v.Stored()); answer != once.New {
		h.ignored[e.Position] = true
		return true
	}
	h.once.Enter(zone.Topic(v.Topic()), &o, v.Stored(), once.Place{}, uint64(e.Position))
	return false
}

// doubtSends doubts every count when the fold ignored sends that the log no longer
// tells from first ones.
func (h *healing) doubtSends() {
	if c := &h.s.counts; c.RepeatedSends+c.ConflictingSends > uint64(len(h.ignored)) {
		for id := range h.damaged {
			h.doubt[id] = "the fold ignored sends that came again, which the log may still hold"
		}
	}
}
