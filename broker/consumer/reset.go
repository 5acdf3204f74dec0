package consumer

import (
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// A Reset makes a group go on at an offset of a queue that somebody chose: the
// operator, or a client that keeps its own place. Everything below the offset is
// settled then, nothing from it on, and what was known of retries is forgotten.
//
// A reset has a mark, which is greater than those of resets before. Deltas carry
// the mark under which they were collected; Progress takes no others. So what a
// group did before a reset cannot undo a part of it, however late it is logged. What
// consumers had in hands is delivered again, or not at all, by the new offset;
// their handles are the caller's to refuse.

// Reset applies a reset. A queue that the group does not have is made.
func (p *Progress) Reset(g zone.ConsumerGroup, t zone.Topic, queue uint16, offset, mark uint64) {
	q, _ := p.create(g, t, queue, offset)
	q.floor, q.mark = offset, mark
	q.acked, q.retries = nil, nil
}

// Floor returns the offset below which the group has settled everything; false when
// it does not have the queue.
func (p *Progress) Floor(g zone.ConsumerGroup, t zone.Topic, queue uint16) (uint64, bool) {
	q := p.lookup(g, t, queue)
	if q == nil {
		return 0, false
	}
	return q.floor, true
}

// StandsAt reports whether all below the offset is settled in a queue of the group,
// and nothing is known of what follows.
func (p *Progress) StandsAt(g zone.ConsumerGroup, t zone.Topic, queue uint16, offset uint64) bool {
	q := p.lookup(g, t, queue)
	return q != nil && q.floor == offset && len(q.acked) == 0 && len(q.retries) == 0
}

// QueueState returns a copy of the group's progress in one queue; false when it
// does not have the queue.
func (p *Progress) QueueState(g zone.ConsumerGroup, t zone.Topic, queue uint16) (QueueState, bool) {
	q := p.lookup(g, t, queue)
	if q == nil {
		return QueueState{}, false
	}
	return q.state(), true
}

// Marks calls fn for each queue of the group in a topic that was reset.
func (p *Progress) Marks(g zone.ConsumerGroup, t zone.Topic, fn func(queue uint16, mark uint64)) {
	if gp := p.groups[groupTopic{g, t}]; gp != nil {
		for _, q := range gp.queues {
			if q.mark > 0 {
				fn(q.queue, q.mark)
			}
		}
	}
}

// stale is the verdict of a claim whose queue was reset meanwhile.
const stale Verdict = 255

// Reset has the dispatcher go on from the state that a queue has after a reset. It
// costs what the queue has in hands, each of which was delivered before, and no more.
// What a running Take has matched is delivered
// nevertheless, under a handle that decides nothing; a message whose copy for the
// dead-letter topic is being written may be delivered again besides.
func (d *Dispatcher) Reset(s *QueueState, now Instant, wall time.Time) {
	d.mu.Lock()
	defer d.unlock()
	q := d.queue(s.Queue)
	if s.Mark <= q.mark {
		return // made after the reset
	}
	if d.order != nil {
		d.forgetGroups(q)
	}
	for q.entries != none {
		d.drop(q.entries)
	}
	d.buried.forget(s.Queue)
	d.fresh -= q.back.count() + q.end - q.cursor
	d.claimed -= int(q.claimed.count())
	end := q.end
	*q = dispatchQueue{queue: q.queue, again: emptyList, entries: none}
	d.load(s, now, wall)
	if end > q.end {
		d.fresh += end - q.end
		q.end = end
	}
}

// InHands returns how many messages of a queue from an offset on consumers have, or
// wait for a retry or the dead-letter topic. It looks at all of the queue.
func (d *Dispatcher) InHands(queue uint16, from uint64) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.find(queue)
	if q == nil {
		return 0
	}
	n := 0
	for slot := q.entries; slot != none; slot = d.entries[slot].qnext {
		if d.entries[slot].offset >= from {
			n++
		}
	}
	return n
}

// StandsAt reports whether a reset of the queue to the offset would change nothing:
// all below it is settled, and from it on nothing was ever looked at. It counts what
// is not logged yet.
func (d *Dispatcher) StandsAt(queue uint16, offset uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.find(queue)
	if q == nil {
		return offset == 0
	}
	return q.cursor == offset && len(q.back) == 0 && len(q.claimed) == 0 && q.entries == none && d.asleep() == 0
}

// overtaken is the delivery of a claim whose queue was reset meanwhile. Its number
// is of no entry: an acknowledgement by it is refused.
func (d *Dispatcher) overtaken(c *claim) Taken {
	d.number++
	return Taken{Queue: c.queue, Offset: c.offset, Attempt: 1, Delivery: d.number}
}
