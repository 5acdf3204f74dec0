package consumer

import (
	"slices"
)

const (
	// defaultMaxWaiting bounds the memory of those who wait behind an earlier
	// message of their message group to 8 MB.
	defaultMaxWaiting = 1 << 20
	// scanRun is how many messages one look at the index sorts into their message
	// groups, at least when there are so many.
	scanRun = 64
	// maxSpareGroups is how many emptied message groups are kept for reuse.
	maxSpareGroups = 1024
)

// order is what a dispatcher has in addition when Options.InOrder is set. Every
// unsettled offset below a queue's cursor is, besides what dispatchQueue says, the
// holder of its message group, or waits in one, or stands in back or claimed: not
// sorted into its message group yet. A message group without a holder does not
// exist, so idle ones cost nothing.
type order struct {
	groups   map[groupKey]*messageGroup
	spare    []*messageGroup
	tickets  []ticket           // by slot: what an entry has in addition
	attempts map[uint64][]int32 // in hands by attempt id; never an empty list
	polls    map[uint64]*Attempt
	waiting  int     // offsets in all message groups
	limit    int     // of waiting
	scanning bool    // a Take sorts a run; one at a time, as order is made here
	resume   Instant // when the index is asked again after it could not be read; 0 = at once
	run      []keyed // buffer of the scan
	lite     *lite   // nil unless clients choose message groups
}

// groupKey names a message group inside a topic. Groups of two queues are two:
// between queues there is no order.
type groupKey struct {
	key   uint64
	queue uint16
}

// messageGroup is a message group of which something is unsettled and known.
type messageGroup struct {
	holder int32    // slot of the one message that is or may be in hands
	wait   []uint64 // offsets behind it, ascending, from first on
	first  int
}

// ticket is the part of an entry that only order needs.
type ticket struct {
	group   groupKey
	attempt uint64 // id of the attempt that has it in hands; 0 = none
	sorted  bool   // holds or waits in its message group
}

// keyed is a message of a scan's run.
type keyed struct {
	offset  uint64
	key     uint64
	verdict Verdict
}

// told reports whether the index could be read.
func (k *keyed) told() bool {
	return k.verdict == Deliver || k.verdict == Skip || k.verdict == Settled
}

func newOrder(limit int) *order {
	if limit <= 0 {
		limit = defaultMaxWaiting
	}
	return &order{
		groups: make(map[groupKey]*messageGroup), attempts: make(map[uint64][]int32),
		polls: make(map[uint64]*Attempt), limit: limit,
	}
}

// ticket returns the ticket of a slot; valid until the next insert.
func (o *order) ticket(slot int32) *ticket {
	if n := int(slot) + 1 - len(o.tickets); n > 0 {
		o.tickets = append(o.tickets, make([]ticket, n)...)
	}
	return &o.tickets[slot]
}

// open reports whether there is something to sort, and room for it.
func (d *Dispatcher) open() bool {
	o := d.order
	return d.fresh > 0 && !o.scanning && o.resume == 0 && (o.waiting < o.limit || o.lite != nil) && len(d.table) < d.opts.MaxInFlight
}

// takeInOrder is Take of a dispatcher that keeps order.
func (d *Dispatcher) takeInOrder(r *TakeRequest, dst []Taken) (out []Taken, more bool) {
	left, examined, stopped := r.Max, 0, false
	if r.Attempt != nil {
		claims, newest := d.claimAgain(r)
		if !newest {
			d.release(claims)
			return dst, false
		}
		if len(claims) > 0 {
			d.judge(r, claims, &left)
			// What cannot be read now cannot be read at once either: only what was
			// settled here lets the next look find something else.
			settled := slices.ContainsFunc(claims, func(c claim) bool { return c.verdict == Skip })
			out = d.conclude(r, claims, dst)
			return out, len(out) == len(dst) && settled
		}
		d.release(claims)
	}
	for first := true; left > 0 && examined < maxExamined && !stopped; first = false {
		claims, looked := d.claimInOrder(r, min(left, maxClaims), first)
		examined += looked + len(claims)
		if len(claims) == 0 {
			d.release(claims)
			if looked == 0 {
				break
			}
			continue
		}
		stopped = d.judge(r, claims, &left)
		dst = d.conclude(r, claims, dst)
	}
	d.mu.Lock()
	defer d.unlock()
	if l := d.order.lite; l != nil {
		l.taking(r.Client)
		return dst, (left <= 0 || stopped || examined >= maxExamined) && (l.readyFor(r.Client) > 0 || d.sortable())
	}
	return dst, (left <= 0 || stopped || examined >= maxExamined) && d.available()
}

// judge asks for the verdicts of claims; left counts down what may be delivered.
func (d *Dispatcher) judge(r *TakeRequest, claims []claim, left *int) (stopped bool) {
	for i := range claims {
		c := &claims[i]
		switch {
		case *left == 0 || stopped:
			c.verdict = Stop
			continue
		case r.Match == nil:
			c.verdict = Deliver
		default:
			c.verdict = r.Match(c.queue, c.offset)
		}
		switch c.verdict {
		case Deliver:
			*left--
		case Stop:
			stopped = true
		}
	}
	return stopped
}

// claimInOrder withholds up to n messages that hold their message groups. When
// there are too few it sorts a run of what follows, and says how many it looked at.
func (d *Dispatcher) claimInOrder(r *TakeRequest, n int, first bool) (claims []claim, looked int) {
	d.mu.Lock()
	if first {
		d.baton = nil
	}
	l := d.order.lite
	if l != nil && first {
		l.taking(r.Client)
	}
	have := d.ready.len
	if l != nil {
		have = l.readyFor(r.Client)
	}
	if have < n && d.sortable() {
		looked = d.lookOn(r, max(n, scanRun))
	}
	defer d.unlock()
	claims, d.spare = d.spare[:0], nil
	if l != nil {
		return d.claimChosen(r.Client, claims, n), looked
	}
	return d.claimReady(claims, n), looked
}

// sortRun takes a run of fresh offsets and lets each hold its message group, or
// wait in it. The index is read without the mutex; meanwhile nobody else sorts.
// The mutex is held at call and return.
func (d *Dispatcher) sortRun(r *TakeRequest, n int) (looked int) {
	o := d.order
	n = min(n, d.opts.MaxInFlight-len(d.table), maxClaims)
	if o.lite == nil {
		n = min(n, o.limit-o.waiting)
	}
	q, run := d.nextRun(uint64(n))
	if q == nil {
		return 0
	}
	list, mark := o.run[:0], q.mark
	o.run, o.scanning = nil, true
	d.unlock()
	for at := run.From; at < run.To; at++ {
		k := keyed{offset: at, verdict: Deliver}
		k.key, k.verdict = r.Key(q.queue, at)
		if list = append(list, k); k.verdict == Later {
			break // what follows could be of its message group
		}
	}
	d.mu.Lock()
	o.scanning, o.run = false, list
	if q.mark != mark {
		return len(list) // the queue was reset meanwhile
	}
	for _, k := range list {
		d.sort(q, &k, r.Now)
	}
	for at := run.From + uint64(len(list)); at < run.To; at++ {
		d.unsorted(q, at)
	}
	return len(list)
}

// nextRun withholds a run of at most n fresh offsets of the next queue in turn.
func (d *Dispatcher) nextRun(n uint64) (*dispatchQueue, Range) {
	for i := range d.queues {
		at := (d.turn + i) % len(d.queues)
		q := d.queues[at]
		if run := q.claim(n); run.From < run.To {
			d.turn = (at + 1) % len(d.queues)
			d.fresh -= run.To - run.From
			d.claimed += int(run.To - run.From)
			return q, run
		}
	}
	return nil, Range{}
}

// unsorted gives an offset of a run back, unless it was settled meanwhile.
func (d *Dispatcher) unsorted(q *dispatchQueue, offset uint64) {
	if q.claimed.remove(offset) {
		d.claimed--
		q.back.add(Range{From: offset, To: offset + 1})
		d.fresh++
	}
}

// sort carries out what was learned of an offset of a run.
func (d *Dispatcher) sort(q *dispatchQueue, k *keyed, now Instant) {
	if !k.told() {
		d.order.resume = now.Add(retryDelay)
		d.unsorted(q, k.offset)
		return
	}
	if !q.claimed.remove(k.offset) {
		return // settled while its key was read
	}
	d.claimed--
	p := place{offset: k.offset, queue: q.queue}
	slot, known := d.table[p]
	if k.verdict != Deliver {
		if known {
			d.drop(slot)
		}
		q.acked.add(Range{From: k.offset, To: k.offset + 1})
		return
	}
	o, key := d.order, groupKey{key: k.key, queue: q.queue}
	g := o.groups[key]
	if o.lite != nil && o.dozes(k.key, g, known) {
		o.lite.doze(k.key, k.offset)
		return
	}
	if known {
		t := o.ticket(slot)
		t.group, t.sorted = key, true
	}
	if g != nil {
		g.wait = append(g.wait, k.offset)
		o.waiting++
		return
	}
	g = o.newGroup()
	o.groups[key] = g
	d.promote(key, g, p)
}

func (o *order) newGroup() *messageGroup {
	if n := len(o.spare); n > 0 {
		g := o.spare[n-1]
		o.spare = o.spare[:n-1]
		return g
	}
	return &messageGroup{}
}

// promote makes a message the holder of its message group.
func (d *Dispatcher) promote(key groupKey, g *messageGroup, p place) {
	slot, known := d.table[p]
	if !known {
		slot = d.insert(p)
	}
	t := d.order.ticket(slot)
	t.group, t.sorted = key, true
	g.holder = slot
	switch e := &d.entries[slot]; {
	case !known:
		d.pushReady(slot, false)
	case e.status == parked:
		d.hold(slot, e.deadline)
	}
}

// leaveGroup is told of an entry that is being dropped: its message is settled.
// The next of its message group becomes the holder.
func (d *Dispatcher) leaveGroup(slot int32, p place) {
	o := d.order
	t := *o.ticket(slot)
	d.forgetAttempt(slot)
	*o.ticket(slot) = ticket{}
	if !t.sorted {
		d.forgetFresh(d.find(p.queue), p.offset)
		return
	}
	g := o.groups[t.group]
	if g == nil {
		return // the queue is being reset
	}
	if g.holder != slot {
		o.unwait(g, p.offset)
		return
	}
	if g.first < len(g.wait) {
		next := g.wait[g.first]
		g.first++
		o.waiting--
		if g.first >= 64 && g.first*2 >= len(g.wait) {
			g.wait = slices.Delete(g.wait, 0, g.first)
			g.first = 0
		}
		d.promote(t.group, g, place{offset: next, queue: t.group.queue})
		return
	}
	o.drop(t.group, g)
	if o.lite != nil {
		o.lite.wakeUp(t.group.key)
	}
}

// drop forgets a message group behind whose holder nothing waits.
func (o *order) drop(key groupKey, g *messageGroup) {
	delete(o.groups, key)
	if len(o.spare) < maxSpareGroups && cap(g.wait) <= scanRun {
		*g = messageGroup{holder: g.holder, wait: g.wait[:0]}
		o.spare = append(o.spare, g)
	}
}

// forgetGroups drops the message groups of a queue; their entries and offsets go with
// the queue.
func (d *Dispatcher) forgetGroups(q *dispatchQueue) {
	o := d.order
	for slot := q.entries; slot != none; slot = d.entries[slot].qnext {
		t := o.ticket(slot)
		if g := o.groups[t.group]; t.sorted && g != nil && g.holder == slot {
			o.waiting -= len(g.wait) - g.first
			delete(o.groups, t.group)
		}
	}
	if l := o.lite; l != nil && q.queue == liteQueue {
		clear(l.asleep)
		clear(l.waking)
		clear(l.later)
		l.changed = true
	}
}

// unwait takes an offset out of those who wait and reports whether it was there.
func (o *order) unwait(g *messageGroup, offset uint64) bool {
	i, ok := g.find(offset)
	if !ok {
		return false
	}
	g.wait = slices.Delete(g.wait, i, i+1)
	o.waiting--
	return true
}

// find returns where an offset waits, false when it does not.
func (g *messageGroup) find(offset uint64) (int, bool) {
	i, ok := slices.BinarySearch(g.wait[g.first:], offset)
	return g.first + i, ok
}

// waits reports whether an offset waits behind others of its message group. It looks
// at all of them.
func (o *order) waits(p place) bool {
	for key, g := range o.groups {
		if key.queue == p.queue {
			if _, ok := g.find(p.offset); ok {
				return true
			}
		}
	}
	return false
}

// forgetFresh takes an offset that is settled out of what is to be sorted, and
// reports whether it was there.
func (d *Dispatcher) forgetFresh(q *dispatchQueue, offset uint64) bool {
	switch {
	case q.claimed.remove(offset):
		d.claimed--
	case q.back.remove(offset):
		d.fresh--
	default:
		return false
	}
	return true
}

// settleUnseen settles a message that this process has no entry of, for a handle
// of an earlier process. It looks at every message group, which only such handles
// cost. One that may sleep behind the first of its message group it does not settle:
// what is settled of those are always the first ones.
func (d *Dispatcher) settleUnseen(q *dispatchQueue, p place, delivery uint64) Reason {
	if d.buried.has(p) {
		return ReasonDeadLettered
	}
	if delivery > d.opts.FirstDelivery {
		if p.offset >= q.cursor {
			return ReasonForeign
		}
		return ReasonSettled // this process delivered it, and has no entry of it
	}
	if p.offset >= q.cursor {
		q.back.add(Range{From: q.cursor, To: p.offset + 1})
		q.cursor = p.offset + 1
	}
	found := d.forgetFresh(q, p.offset)
	unclear := false
	if l := d.order.lite; l != nil && !found {
		for key, from := range l.asleep {
			if from == p.offset {
				l.asleep[key], found = from+1, true
				break
			}
			unclear = unclear || from < p.offset
		}
	}
	if !found {
		for key, g := range d.order.groups {
			if key.queue == p.queue && d.order.unwait(g, p.offset) {
				found = true
				break
			}
		}
	}
	switch {
	case !found && unclear:
		return ReasonExpired // it may sleep behind another, and then it comes again
	case !found:
		return ReasonSettled
	}
	q.acked.add(Range{From: p.offset, To: p.offset + 1})
	return 0
}

// unseen returns why a handle cannot decide about a message without an entry. Only one
// of an earlier process makes it look at every message group.
func (d *Dispatcher) unseen(q *dispatchQueue, p place, delivery uint64) Reason {
	switch {
	case d.buried.has(p):
		return ReasonDeadLettered
	case p.offset >= q.cursor, q.claimed.contains(p.offset), q.back.contains(p.offset):
		return ReasonExpired // it is delivered anew
	case delivery <= d.opts.FirstDelivery && d.order.waits(p):
		return ReasonExpired // likewise, behind others
	}
	return ReasonSettled
}
