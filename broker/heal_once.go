package broker

import (
	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/once"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// ignores reports whether the fold ignored the record, since its first copy is in
// the log, too: the message was sent twice, or its tail offered twice. A copy whose
// first one is not makes the count doubtful; see doubtSends.
func (h *healing) ignores(e *commitlog.Entry, v *record.View) bool {
	if v.Type() != record.TypeMessage {
		return false
	}
	a, again := comesAgain(v)
	o, counted := countsOnce(v)
	answer := once.New
	if counted {
		_, answer = h.once.Look(zone.Topic(v.Topic()), &o, v.Stored())
	}
	if again && h.again.has(&a) || answer == once.Conflict {
		h.ignored[e.Position] = true
		return true
	}
	if again {
		h.again.add(&a)
	}
	if answer != once.New {
		h.ignored[e.Position] = true
		return true
	}
	if counted {
		h.once.Enter(zone.Topic(v.Topic()), &o, v.Stored(), once.Place{}, uint64(e.Position))
	}
	return false
}

// doubtSends doubts every count when the fold ignored sends that the log no longer
// tells from first ones.
func (h *healing) doubtSends() {
	if c := &h.s.counts; c.RepeatedSends+c.ConflictingSends+c.AgainRepeated+c.AgainRefused > uint64(len(h.ignored)) {
		for id := range h.damaged {
			h.doubt[id] = "the fold ignored sends that came again, which the log may still hold"
		}
	}
}
