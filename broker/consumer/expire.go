package consumer

import "time"

// renewSteps is how long each renewal of a delivery lasts; the last repeats.
// Steps and bound are those of Apache's proxy: clients are written against
// them (section 6 of the protocol facts).
var renewSteps = [...]time.Duration{
	time.Minute, 3 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour,
}

// maxRenewed is how long a delivery may be renewed in all.
const maxRenewed = 3 * time.Hour

// question is a delivery that ran out and whose client has to be asked for.
type question struct {
	slot     int32
	delivery uint64
	client   string
	link     uint64 // 0 = whichever: the delivery has arrived
	alive    bool
}

// arrived is how many renewals prove that a delivery has reached its client: the
// first lasts a minute, and a connection that brings nothing breaks within the 50 s of
// the front end's keepalive.
const arrived = 2

// Expire takes back what has run out by now: to be delivered again, or to the
// dead-letter topic when its attempts are used up. What is renewable and whose
// client is alive is extended instead; when the client is gone the message
// comes back after a second.
func (d *Dispatcher) Expire(now Instant) {
	d.mu.Lock()
	if o := d.order; o != nil && o.resume != 0 && o.resume <= now {
		o.resume = 0
		d.unlock() // somebody may go on
		d.mu.Lock()
	}
	if len(d.heap) == 0 || d.entries[d.heap[0]].deadline > now {
		d.mu.Unlock()
		return
	}
	var asked []question
	d.expire(now, &asked)
	d.unlock()
	if len(asked) == 0 {
		return
	}
	for i := range asked {
		q := &asked[i]
		switch {
		case d.opts.Alive == nil:
			q.alive = true
		case i > 0 && asked[i-1].client == q.client && asked[i-1].link == q.link:
			q.alive = asked[i-1].alive
		default:
			q.alive = d.opts.Alive(q.client, q.link)
		}
	}
	d.mu.Lock()
	defer d.unlock()
	for i := range asked {
		d.answer(now, &asked[i])
	}
}

// expire lets everything lapse whose deadline is over. Renewable deliveries
// are put into asked; when that is nil they stay where they are, and so does
// everything behind them, for the next Expire.
func (d *Dispatcher) expire(now Instant, asked *[]question) {
	for len(d.heap) > 0 {
		slot := d.heap[0]
		e := &d.entries[slot]
		if e.deadline > now || (e.renew && asked == nil) {
			return
		}
		d.unheap(slot)
		if e.renew {
			e.status = asking
			q := question{slot: slot, delivery: e.delivery, client: e.client}
			if e.renewals < arrived {
				q.link = e.link
			}
			*asked = append(*asked, q)
			continue
		}
		d.lapse(slot)
	}
}

// lapse puts an entry that stands nowhere among the redeliveries, or among the
// dead when nothing of it is left to deliver.
func (d *Dispatcher) lapse(slot int32) {
	d.forgetAttempt(slot)
	e := &d.entries[slot]
	if e.attempts != e.logged {
		d.touch(slot)
	}
	if e.condemn || e.attempts >= d.max {
		d.push(&d.dead, slot, dead)
		return
	}
	d.pushReady(slot, false)
}

// answer carries out what was learned of a client, unless the delivery was
// decided meanwhile.
func (d *Dispatcher) answer(now Instant, q *question) {
	e := &d.entries[q.slot]
	if e.status != asking || e.delivery != q.delivery {
		return
	}
	end := e.received.Add(maxRenewed)
	switch {
	case now >= end:
		e.renew = false
		d.lapse(q.slot)
	case q.alive:
		step := renewSteps[min(int(e.renewals), len(renewSteps)-1)]
		e.renewals++
		d.hold(q.slot, min(now.Add(step), end))
	default:
		e.renew = false
		d.hold(q.slot, now.Add(retryDelay))
	}
}

// goneRun is how many entries ClientsGone looks at before others have their turn.
const goneRun = 4096

// ClientsGone has the renewable deliveries of these clients run out at once: the next
// Expire asks Alive about them, and brings them back or renews them. It looks at all
// entries, some at a time.
func (d *Dispatcher) ClientsGone(now Instant, clients map[string]struct{}) {
	for from, more := 0, true; more; from += goneRun {
		more = d.clientsGone(now, clients, from)
	}
}

func (d *Dispatcher) clientsGone(now Instant, clients map[string]struct{}, from int) (more bool) {
	d.mu.Lock()
	defer d.unlock()
	to := min(from+goneRun, len(d.entries))
	for i := from; i < to; i++ {
		e := &d.entries[i]
		if e.status != held || !e.renew || e.deadline <= now {
			continue
		}
		if _, ok := clients[e.client]; ok {
			d.unheap(int32(i))
			d.hold(int32(i), now)
		}
	}
	return to < len(d.entries)
}

// NextWake returns when Expire or TakeDead has something to do; false when
// nothing waits for time. An instant of the past means now.
func (d *Dispatcher) NextWake() (Instant, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed = d.next()
	return d.armed, d.armed != never
}

func (d *Dispatcher) next() Instant {
	if d.dead.len > 0 {
		return 0
	}
	at := never
	if d.order != nil && d.order.resume != 0 {
		at = d.order.resume
	}
	if len(d.heap) > 0 {
		at = min(at, d.entries[d.heap[0]].deadline)
	}
	return at
}
