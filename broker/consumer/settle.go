package consumer

import (
	"slices"
	"time"
)

// Ack settles a message. nil when it is settled, now or before. *HandleError
// by the rule in the package comment.
func (d *Dispatcher) Ack(now Instant, queue uint16, offset, delivery uint64) error {
	d.mu.Lock()
	defer d.unlock()
	slot, reason := d.own(now, queue, offset, delivery, true)
	if reason == ReasonSettled {
		return nil
	}
	if reason != 0 {
		return &HandleError{Reason: reason}
	}
	if slot == none { // settled by own
		return nil
	}
	d.drop(slot)
	d.find(queue).acked.add(Range{From: offset, To: offset + 1})
	return nil
}

// ChangeInvisible lets the message stay invisible for delay from now on (at
// most 24 hours; 0 or less makes it visible at once) and ends renewal. It
// returns the delivery number of the new handle; the old handle is refused from
// then on, except the first one of a renewable delivery, which stays valid
// beside the new one. *HandleError as Ack, and with ReasonSettled; in order also
// for a handle of an earlier process whose message group is not known yet.
func (d *Dispatcher) ChangeInvisible(now Instant, queue uint16, offset, delivery uint64, delay time.Duration) (uint64, error) {
	return d.changeInvisible(now, queue, offset, delivery, delay, false)
}

// Suspend is ChangeInvisible for a consumer that did not begin with the message: its
// delivery does not count as an attempt. That is taken back once, however often the
// delivery is suspended by this process.
func (d *Dispatcher) Suspend(now Instant, queue uint16, offset, delivery uint64, delay time.Duration) (uint64, error) {
	return d.changeInvisible(now, queue, offset, delivery, delay, true)
}

func (d *Dispatcher) changeInvisible(now Instant, queue uint16, offset, delivery uint64, delay time.Duration, suspend bool) (uint64, error) {
	d.mu.Lock()
	defer d.unlock()
	slot, reason := d.own(now, queue, offset, delivery, false)
	if reason != 0 {
		return 0, &HandleError{Reason: reason}
	}
	d.leave(slot)
	d.forgetAttempt(slot)
	d.number++
	number := d.number
	e := &d.entries[slot]
	if e.delivery == 0 {
		e.first = number
	}
	e.delivery = number
	e.renew = false
	if suspend && !e.putOff && e.attempts > 0 {
		e.attempts--
		e.putOff = true
	}
	if e.status == parked {
		e.deadline = now.Add(min(max(delay, 0), maxHold))
		d.touch(slot)
		return number, nil
	}
	if e.attempts >= d.max && delay <= 0 {
		// Nothing to wait for, and nothing of it is left to deliver.
		d.lapse(slot)
		return number, nil
	}
	d.touch(slot)
	d.hold(slot, now.Add(min(max(delay, 0), maxHold)))
	d.expire(now, nil)
	return number, nil
}

// EndRenewal has a delivery run out when its time is over, although its client lives:
// it may not have arrived. It stays in the hands of its attempt until then. *HandleError
// as Ack, and with ReasonSettled.
func (d *Dispatcher) EndRenewal(now Instant, queue uint16, offset, delivery uint64) error {
	d.mu.Lock()
	defer d.unlock()
	slot, reason := d.own(now, queue, offset, delivery, false)
	if reason != 0 {
		return &HandleError{Reason: reason}
	}
	d.entries[slot].renew = false
	return nil
}

// Condemn takes a message out of delivery because its consumer asked for the
// dead-letter topic. The caller appends the copy and then calls DeadLettered
// or DeadLetterFailed. *HandleError as Ack; ReasonSettled and
// ReasonDeadLettered mean that there is nothing left to do.
func (d *Dispatcher) Condemn(now Instant, queue uint16, offset, delivery uint64) (Dead, error) {
	d.mu.Lock()
	defer d.unlock()
	slot, reason := d.own(now, queue, offset, delivery, false)
	if reason != 0 {
		return Dead{}, &HandleError{Reason: reason}
	}
	d.leave(slot)
	e := &d.entries[slot]
	e.status, e.condemn = dying, true
	return Dead{Queue: queue, Offset: offset, Attempts: e.attempts, Mark: d.find(queue).mark}, nil
}

// own returns the entry of a message when the delivery may still decide about
// it, else why not. In order, a message without an entry may only be settled, which
// own then does: it returns none and no reason.
func (d *Dispatcher) own(now Instant, queue uint16, offset, delivery uint64, settle bool) (int32, Reason) {
	q := d.find(queue)
	if q == nil || offset >= q.end {
		return none, ReasonForeign
	}
	p := place{offset: offset, queue: queue}
	slot, ok := d.table[p]
	if !ok && d.order != nil {
		if settle {
			return none, d.settleUnseen(q, p, delivery)
		}
		return none, d.unseen(q, p, delivery)
	}
	if !ok {
		return d.adopt(now, q, p, delivery)
	}
	e := &d.entries[slot]
	switch {
	case e.status == dead || e.status == dying || e.condemn:
		return none, ReasonDeadLettered
	case e.status == taken:
		return none, ReasonExpired // is being delivered again at this moment
	case e.delivery == 0:
		if delivery <= d.opts.FirstDelivery {
			e.attempts = max(e.attempts, 1) // at least that one
			return slot, 0
		}
		return none, ReasonExpired
	case delivery == e.delivery, e.renewed && delivery == e.first:
		return slot, 0
	case delivery >= e.first:
		return none, ReasonReplaced
	}
	return none, ReasonExpired
}

// adopt makes an entry for a message that this process has not delivered, when
// the handle is of an earlier process: nobody else can have the message.
func (d *Dispatcher) adopt(now Instant, q *dispatchQueue, p place, delivery uint64) (int32, Reason) {
	switch {
	case d.buried.has(p):
		return none, ReasonDeadLettered
	case q.claimed.contains(p.offset):
		return none, ReasonExpired
	case p.offset < q.cursor && !q.back.contains(p.offset):
		return none, ReasonSettled
	case delivery > d.opts.FirstDelivery:
		return none, ReasonForeign
	}
	if p.offset >= q.cursor {
		q.back.add(Range{From: q.cursor, To: p.offset + 1})
		q.cursor = p.offset + 1
	}
	q.back.remove(p.offset)
	d.fresh--
	slot := d.insert(p)
	d.entries[slot].attempts = 1 // at least; the earlier process may have known more
	d.hold(slot, now)
	return slot, 0
}

// Dead is a message for the dead-letter topic.
type Dead struct {
	Queue    uint16
	Offset   uint64
	Attempts uint32 // deliveries so far
	Mark     uint64 // of the last Reset of its queue
}

// TakeDead appends up to limit messages that must go to the dead-letter topic.
// For each the caller appends the copy and then calls DeadLettered or
// DeadLetterFailed; until then the message is neither delivered nor settled.
func (d *Dispatcher) TakeDead(now Instant, limit int, dst []Dead) []Dead {
	d.Expire(now)
	d.mu.Lock()
	defer d.unlock()
	for ; limit > 0 && d.dead.len > 0; limit-- {
		slot := d.dead.first
		d.unlink(&d.dead, slot)
		e := &d.entries[slot]
		e.status = dying
		dst = append(dst, Dead{Queue: e.queue, Offset: e.offset, Attempts: e.attempts, Mark: d.find(e.queue).mark})
	}
	return dst
}

// DeadLettered tells that the copy is committed and settles the message here;
// the record of the copy settles it in Progress, so no delta names it.
func (d *Dispatcher) DeadLettered(queue uint16, offset uint64) {
	d.mu.Lock()
	defer d.unlock()
	p := place{offset: offset, queue: queue}
	if slot, ok := d.table[p]; ok && d.entries[slot].status == dying {
		d.drop(slot)
		d.buried.add(p)
	}
}

// DeadLetterFailed tells that the copy could not be written; the message is
// offered by TakeDead again after a second.
func (d *Dispatcher) DeadLetterFailed(now Instant, queue uint16, offset uint64) {
	d.mu.Lock()
	defer d.unlock()
	slot, ok := d.table[place{offset: offset, queue: queue}]
	if ok && d.entries[slot].status == dying {
		d.entries[slot].condemn = true
		d.hold(slot, now.Add(retryDelay))
	}
}

// Burying returns how many messages have a dead-letter copy being written.
func (d *Dispatcher) Burying() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, slot := range d.table {
		if d.entries[slot].status == dying {
			n++
		}
	}
	return n
}

// LastDelivery returns the last delivery number that was given: where a dispatcher
// that takes over may begin.
func (d *Dispatcher) LastDelivery() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.number
}

// touch notes that the retry state of a message is to be told by the next delta.
func (d *Dispatcher) touch(slot int32) {
	e := &d.entries[slot]
	if !e.dirty {
		e.dirty = true
		q := d.find(e.queue)
		q.retried = append(q.retried, e.offset)
	}
}

// Collect moves the changes since the last call out; false when there are
// none. wall is the wall clock's reading at now. The caller logs the delta, or
// gives it back by Restore.
func (d *Dispatcher) Collect(now Instant, wall time.Time) (GroupDelta, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.collect(now, wall)
}

// Held is Collect for an orderly stop, after the last Take: the delta names
// the attempts of everything in hands besides, so that after the start each
// message stays invisible until its time is over, and its attempts count on.
func (d *Dispatcher) Held(now Instant, wall time.Time) (GroupDelta, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, slot := range d.table {
		if d.entries[slot].attempts > 0 {
			d.touch(slot)
		}
	}
	return d.collect(now, wall)
}

func (d *Dispatcher) collect(now Instant, wall time.Time) (GroupDelta, bool) {
	g := GroupDelta{Group: d.opts.Group, Topic: d.opts.Topic}
	for _, q := range d.queues {
		if len(q.acked) == 0 && len(q.retried) == 0 {
			continue
		}
		c := QueueDelta{Queue: q.queue, Mark: q.mark, Acked: q.acked, Retries: d.retries(q, now, wall)}
		q.acked = nil
		if len(c.Acked) > 0 || len(c.Retries) > 0 {
			g.Queues = append(g.Queues, c)
		}
	}
	return g, len(g.Queues) > 0
}

// retries returns the state of the queue's dirty entries and makes them clean.
func (d *Dispatcher) retries(q *dispatchQueue, now Instant, wall time.Time) []Retry {
	if len(q.retried) == 0 {
		return nil
	}
	out := make([]Retry, 0, len(q.retried))
	for _, offset := range q.retried {
		slot, ok := d.table[place{offset: offset, queue: q.queue}]
		if !ok || !d.entries[slot].dirty {
			continue // settled meanwhile
		}
		e := &d.entries[slot]
		e.dirty, e.logged = false, e.attempts
		r := Retry{Offset: offset, Attempts: e.attempts}
		if d.order != nil {
			r.Attempt = d.order.ticket(slot).attempt
		}
		if (e.status == held || e.status == parked) && e.deadline > now {
			r.Visible = wall.Add(e.deadline.Sub(now)).Truncate(time.Millisecond)
		}
		out = append(out, r)
	}
	q.retried = q.retried[:0]
	slices.SortFunc(out, compareRetry)
	return out
}

func compareRetry(a, b Retry) int {
	if a.Offset < b.Offset {
		return -1
	}
	return 1
}

// Restore gives back a delta whose record could not be appended; the next
// Collect names its settled offsets and the present state of its retries.
func (d *Dispatcher) Restore(g GroupDelta) {
	d.mu.Lock()
	defer d.unlock()
	for i := range g.Queues {
		c := &g.Queues[i]
		q := d.queue(c.Queue)
		if c.Mark != q.mark {
			continue // void
		}
		for _, r := range c.Acked {
			q.acked.add(r)
		}
		for _, r := range c.Retries {
			if slot, ok := d.table[place{offset: r.Offset, queue: c.Queue}]; ok {
				d.touch(slot)
			}
		}
	}
}
