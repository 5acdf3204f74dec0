package consumer

// patience is how many messages of the highest level that has some may be handed
// out in a row while lower ones wait; the next one is of a lower level, each in
// turn. So the first message of a level waits for no more than patience+1 messages
// for each level below the highest.
const patience = 15

// priority is what a dispatcher has in addition when Options.Priority is set: each
// queue is a level, the highest number goes first. Redeliveries stand in their
// queue's own list, so that they come before new messages of their level, and of no
// higher one.
type priority struct {
	ready  int // messages in the lists of all queues
	served int // messages of the highest level in a row
	turn   int // index of the level that was favoured last
}

// pushReady puts an entry that stands nowhere among those to be delivered now, the
// first of them if front is set.
func (d *Dispatcher) pushReady(slot int32, front bool) {
	l := &d.ready
	if d.prio != nil {
		l = &d.find(d.entries[slot].queue).again
		d.prio.ready++
	}
	if front {
		d.pushFront(l, slot, ready)
	} else {
		d.push(l, slot, ready)
	}
	if d.order != nil && d.order.lite != nil {
		d.order.lite.offer(d.order.ticket(slot).group.key)
	}
}

// unlinkReady takes an entry out of those to be delivered now.
func (d *Dispatcher) unlinkReady(slot int32) {
	if d.prio == nil {
		d.unlink(&d.ready, slot)
		return
	}
	d.unlink(&d.find(d.entries[slot].queue).again, slot)
	d.prio.ready--
}

// readyLen returns how many messages are to be delivered now.
func (d *Dispatcher) readyLen() int {
	if d.prio != nil {
		return d.prio.ready
	}
	return d.ready.len
}

// claimByPriority fills claims up to n, level by level.
func (d *Dispatcher) claimByPriority(claims []claim, n int) []claim {
	for len(claims) < n {
		q := d.nextLevel()
		if q == nil {
			break
		}
		if q.again.len == 0 {
			o := q.claim(1).From
			d.fresh--
			d.claimed++
			claims = append(claims, claim{place: place{offset: o, queue: q.queue}, slot: none, mark: q.mark})
			continue
		}
		slot := q.again.first
		d.unlinkReady(slot)
		e := &d.entries[slot]
		if e.attempts >= d.max { // the limit was lowered meanwhile
			d.push(&d.dead, slot, dead)
			continue
		}
		e.status = taken
		claims = append(claims, claim{place: e.place, slot: slot, mark: q.mark})
	}
	return claims
}

// nextLevel returns the queue whose message goes next; nil when there is none.
func (d *Dispatcher) nextLevel() *dispatchQueue {
	p, room := d.prio, d.room() > 0
	offers := func(q *dispatchQueue) bool {
		return q.again.len > 0 || room && (len(q.back) > 0 || q.cursor < q.end)
	}
	top := len(d.queues) - 1
	for top >= 0 && !offers(d.queues[top]) {
		top--
	}
	if top < 0 {
		return nil
	}
	if p.served < patience {
		p.served++
		return d.queues[top]
	}
	p.served = 0
	for range top {
		if p.turn++; p.turn >= top {
			p.turn = 0
		}
		if offers(d.queues[p.turn]) {
			return d.queues[p.turn]
		}
	}
	return d.queues[top]
}
