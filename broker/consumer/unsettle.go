package consumer

import "github.com/mqrouter/mqrouter/zone"

// Unsettle takes ranges of offsets of a queue, ascending, out of what the group has
// settled, so that they are delivered again, or for the first time; what was known of
// their retries is forgotten. Deltas that settle them and were collected before are
// the caller's to apply first.
func (p *Progress) Unsettle(g zone.ConsumerGroup, t zone.Topic, queue uint16, ranges []Range) {
	q := p.lookup(g, t, queue)
	if q == nil || len(ranges) == 0 {
		return
	}
	for o := range q.retries {
		if rangeSet(ranges).contains(o) {
			delete(q.retries, o)
		}
	}
	if first := ranges[0].From; first < q.floor {
		settled := append(rangeSet{{From: first, To: q.floor}}, q.acked...)
		q.floor, q.acked = first, settled
	}
	q.acked = Subtract(q.acked, ranges)
}
