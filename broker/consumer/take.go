package consumer

import "time"

// Verdict is what the caller of Take says of a message.
type Verdict uint8

// The verdicts. Any other value counts as Later.
const (
	Deliver Verdict = iota + 1
	Skip            // does not match the filter, or is gone: settled for the group
	Later           // cannot be read now: tried again after a second, without counting an attempt
	Stop            // matches, but there is no room: neither it nor more in this call
	Settled         // of Key: Skip, and Progress has it: no delta needs to name it again
)

// TakeRequest is one receive.
type TakeRequest struct {
	Now       Instant
	Max       int           // messages; below 1 takes none
	Invisible time.Duration // how long they stay in hands; at most 24 hours
	Renew     bool          // extended at expiry while Alive(Client)
	Client    string        // needed for Renew, and where clients choose
	Link      uint64        // of the connection, for Alive
	// Match is called without the mutex, for new messages in ascending runs
	// of a queue. nil delivers everything. The order in which it answers
	// Deliver is the order of the result, so that the caller can keep what it
	// read. It must let the first message through, however large: Stop for
	// the first one of a call would be asked again without end.
	Match func(queue uint16, offset uint64) Verdict
	// Key names a message's group by a number, for a dispatcher that keeps order. It is
	// called like Match, for ascending offsets, and says Deliver with the key, Skip
	// or Settled when the message is gone, or Later when it cannot say now: then nothing
	// behind the message is looked at for a second.
	Key func(queue uint16, offset uint64) (uint64, Verdict)
	// Attempt is the poll's attempt id, for a dispatcher that keeps order; nil =
	// none.
	Attempt *Attempt
}

// Taken is one delivery.
type Taken struct {
	Queue    uint16
	Offset   uint64
	Attempt  uint32 // from 1
	Delivery uint64 // for the handle
}

const (
	// maxClaims bounds how many messages one round of a Take withholds from
	// the others while it matches them.
	maxClaims = 1024
	// maxExamined bounds the work of one Take under a filter that matches
	// little; the caller sees more = true and calls again.
	maxExamined = 16 * maxClaims
)

// claim is a message that a running Take matches.
type claim struct {
	place
	slot    int32 // of its entry; none = fresh
	again   bool  // its present delivery is handed out once more
	verdict Verdict
	mark    uint64 // of its queue; another one means that the queue was reset meanwhile
}

// Take appends deliveries to dst: redeliveries whose time has come first, then
// new messages of all queues in turn. more reports that it ended early although
// there is more to look at now: Max was reached, Match said Stop, or many
// messages did not match. It does not allocate beyond dst in the long run.
func (d *Dispatcher) Take(r TakeRequest, dst []Taken) (out []Taken, more bool) {
	d.Expire(r.Now)
	if d.order != nil {
		return d.takeInOrder(&r, dst)
	}
	left, examined, skipped, stopped := r.Max, 0, 0, false
	for left > 0 && examined < maxExamined && !stopped {
		claims := d.claim(min(max(left, 2*skipped), maxClaims), examined == 0)
		if len(claims) == 0 {
			d.release(claims)
			break
		}
		examined += len(claims)
		skipped = 0
		for i := range claims {
			c := &claims[i]
			switch {
			case left == 0 || stopped:
				c.verdict = Stop
				continue
			case r.Match == nil:
				c.verdict = Deliver
			default:
				c.verdict = r.Match(c.queue, c.offset)
			}
			switch c.verdict {
			case Deliver:
				left--
			case Skip:
				skipped++
			case Stop:
				stopped = true
			}
		}
		dst = d.conclude(&r, claims, dst)
	}
	d.mu.Lock()
	defer d.unlock()
	return dst, (left <= 0 || stopped || examined >= maxExamined) && d.available()
}

// claim withholds up to n messages from other calls; redeliveries first. The
// wake-up is passed on before they are matched, so that a slow match does not
// hold the line up.
func (d *Dispatcher) claim(n int, first bool) []claim {
	d.mu.Lock()
	defer d.unlock()
	if first {
		d.baton = nil
	}
	claims := d.spare[:0]
	d.spare = nil
	if d.prio != nil {
		return d.claimByPriority(claims, n)
	}
	claims = d.claimReady(claims, n)
	want := min(n-len(claims), d.room())
	if want <= 0 {
		return claims
	}
	share := uint64(max(1, want/len(d.queues)))
	for i, idle := d.turn, 0; want > 0 && idle < len(d.queues); i++ {
		q := d.queues[i%len(d.queues)]
		run := q.claim(min(share, uint64(want)))
		size := int(run.To - run.From)
		if idle++; size > 0 {
			idle = 0
		}
		for o := run.From; o < run.To; o++ {
			claims = append(claims, claim{place: place{offset: o, queue: q.queue}, slot: none, mark: q.mark})
		}
		want -= size
		d.fresh -= uint64(size)
		d.claimed += size
		d.turn = (i + 1) % len(d.queues)
	}
	return claims
}

// claimReady fills claims up to n with messages that are to be delivered now.
func (d *Dispatcher) claimReady(claims []claim, n int) []claim {
	for len(claims) < n && d.ready.len > 0 {
		slot := d.ready.first
		d.unlink(&d.ready, slot)
		e := &d.entries[slot]
		if e.attempts >= d.max { // the limit was lowered meanwhile
			d.push(&d.dead, slot, dead)
			continue
		}
		e.status = taken
		claims = append(claims, claim{place: e.place, slot: slot, mark: d.find(e.queue).mark})
	}
	return claims
}

// claim takes a run of at most n fresh offsets; an empty one when there are none.
func (q *dispatchQueue) claim(n uint64) Range {
	run := q.back.take(n)
	if run.From == run.To {
		run = Range{From: q.cursor, To: min(q.cursor+n, q.end)}
		q.cursor = run.To
	}
	q.claimed.add(run)
	return run
}

// release keeps a buffer for the next Take.
func (d *Dispatcher) release(claims []claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keep(claims)
}

func (d *Dispatcher) keep(claims []claim) {
	if cap(claims) > cap(d.spare) {
		d.spare = claims[:0]
	}
}

// conclude carries the verdicts out and appends what is delivered.
func (d *Dispatcher) conclude(r *TakeRequest, claims []claim, dst []Taken) []Taken {
	d.mu.Lock()
	defer d.unlock()
	for i := range claims {
		c := &claims[i]
		q := d.find(c.queue)
		if c.mark != q.mark {
			if c.verdict == Deliver {
				dst = append(dst, d.overtaken(c))
			}
			c.verdict = stale
			continue
		}
		if c.slot == none {
			q.claimed.remove(c.offset)
			d.claimed--
		}
		switch c.verdict {
		case Deliver:
			dst = append(dst, d.deliver(r, c))
		case Skip:
			d.settle(q, c)
		case Stop:
			if c.slot == none {
				q.back.add(Range{From: c.offset, To: c.offset + 1})
				d.fresh++
			}
		default:
			if c.slot == none {
				c.slot = d.insert(c.place)
			}
			d.hold(c.slot, r.Now.Add(retryDelay))
		}
	}
	for i := len(claims) - 1; i >= 0; i-- { // redeliveries go back in their order
		if c := &claims[i]; c.verdict == Stop && c.slot != none {
			d.forgetAttempt(c.slot)
			d.pushReady(c.slot, true)
		}
	}
	d.keep(claims)
	return dst
}

// deliver puts a claimed message into the client's hands.
func (d *Dispatcher) deliver(r *TakeRequest, c *claim) Taken {
	if c.slot == none {
		c.slot = d.insert(c.place)
	}
	d.number++
	e := &d.entries[c.slot]
	if !c.again {
		e.attempts++
		e.putOff = false
	}
	e.delivery, e.first = d.number, d.number
	e.received, e.client, e.renewals = r.Now, "", 0
	e.renew, e.renewed = r.Renew, r.Renew
	if r.Renew {
		e.client, e.link = r.Client, r.Link
	}
	if d.order != nil {
		d.inHands(c.slot, r.Attempt)
	}
	d.hold(c.slot, r.Now.Add(min(max(r.Invisible, 0), maxHold)))
	return Taken{Queue: c.queue, Offset: c.offset, Attempt: e.attempts, Delivery: e.delivery}
}

// settle marks a claimed message as settled for the group.
func (d *Dispatcher) settle(q *dispatchQueue, c *claim) {
	if c.slot != none {
		d.drop(c.slot)
	}
	q.acked.add(Range{From: c.offset, To: c.offset + 1})
}
