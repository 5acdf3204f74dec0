package consumer

// rescanRun is how many offsets one look at the index passes for message groups that
// are woken: most of them are of others.
const rescanRun = 4096

// sortable reports whether there is something to sort, or to wake, and room for it.
func (d *Dispatcher) sortable() bool {
	if d.order.lite == nil {
		return d.open()
	}
	return d.open() || d.rescannable()
}

// rescannable reports whether message groups are to be woken. Everything below the
// cursor must have been sorted once: what was not would be sorted twice.
func (d *Dispatcher) rescannable() bool {
	o := d.order
	if len(o.lite.waking) == 0 || o.scanning || o.resume != 0 || len(d.table) >= d.opts.MaxInFlight {
		return false
	}
	q := d.find(liteQueue)
	return q != nil && len(q.back) == 0
}

// lookOn sorts a run of what follows, or goes on with the rescan, in turn when both
// have something to do; it says how many offsets it looked at.
func (d *Dispatcher) lookOn(r *TakeRequest, n int) int {
	l := d.order.lite
	if l == nil {
		return d.sortRun(r, n)
	}
	if l.rescans = !l.rescans; d.rescannable() && (l.rescans || !d.open()) {
		return d.rescan(r)
	}
	if d.open() {
		return d.sortRun(r, n)
	}
	return 0
}

// rescan reads on in the index for message groups that are woken. What it finds of
// them is sorted; when it has reached the cursor they are awake. The mutex is held
// at call and return; meanwhile nobody else sorts.
func (d *Dispatcher) rescan(r *TakeRequest) (looked int) {
	o := d.order
	l := o.lite
	q := d.find(liteQueue)
	from, to, mark := l.at, min(l.at+rescanRun, q.cursor), q.mark
	list := o.run[:0]
	o.run, o.scanning, l.changed = nil, true, false
	d.unlock()
	for at := from; at < to; at++ {
		k := keyed{offset: at, verdict: Deliver}
		k.key, k.verdict = r.Key(liteQueue, at)
		list = append(list, k)
		if !k.told() {
			break
		}
	}
	d.mu.Lock()
	o.scanning, o.run = false, list
	if q.mark != mark || l.changed {
		return len(list) // begins elsewhere
	}
	for i := range list {
		k := &list[i]
		if !k.told() {
			o.resume = r.Now.Add(retryDelay)
			return len(list)
		}
		if d.wake(q, k); l.changed {
			return len(list) // the last that this one looked for sleeps on
		}
		l.at = k.offset + 1
	}
	if len(q.back) > 0 || l.at < q.cursor {
		return max(len(list), 1)
	}
	for key := range l.waking {
		delete(l.asleep, key)
	}
	clear(l.waking)
	l.nextPass()
	return max(len(list), 1)
}

// wake sorts an offset that the rescan has found, if it is of a message group that is
// being woken and was not sorted before.
func (d *Dispatcher) wake(q *dispatchQueue, k *keyed) {
	o := d.order
	l := o.lite
	p := place{offset: k.offset, queue: liteQueue}
	slot, known := d.table[p]
	if k.verdict != Deliver {
		if !known && k.verdict == Skip { // settled, perhaps for the second time, which harms nobody
			q.acked.add(Range{From: k.offset, To: k.offset + 1})
		}
		return
	}
	if _, waking := l.waking[k.key]; !waking || k.offset < l.asleep[k.key] {
		return
	}
	key := groupKey{key: k.key, queue: liteQueue}
	g := o.groups[key]
	if o.crowded(g) {
		l.asleep[k.key] = k.offset // the rest is woken when these are settled
		l.letSleep(k.key)
		return
	}
	l.asleep[k.key] = k.offset + 1
	if g != nil {
		if known {
			t := o.ticket(slot)
			t.group, t.sorted = key, true
		}
		g.wait = append(g.wait, k.offset)
		o.waiting++
		return
	}
	g = o.newGroup()
	o.groups[key] = g
	d.promote(key, g, p)
}

// Sort looks at what follows in the index, without delivering anything: what is new is
// sorted, what is gone settled. It looks at many offsets at most; more reports that
// there are others. For a dispatcher with Options.Chosen.
func (d *Dispatcher) Sort(r TakeRequest) (more bool) {
	d.Expire(r.Now)
	d.mu.Lock()
	defer d.unlock()
	for n := 0; n < maxExamined; {
		looked := d.lookOn(&r, maxClaims)
		if looked == 0 {
			return false
		}
		n += looked
	}
	return d.sortable()
}

// First returns the first offset of a message group that is not settled; false when
// all that is known of it is.
func (d *Dispatcher) First(group uint64) (uint64, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g := d.order.groups[groupKey{key: group, queue: liteQueue}]; g != nil {
		return d.entries[g.holder].offset, true
	}
	from, ok := d.order.lite.asleep[group]
	return from, ok
}

// Abandon forgets a message group and what is in hands of it, whose handles decide
// nothing from then on, and returns its first unsettled offset; false when there is
// none. What follows of it from there on belongs nowhere: the caller tells what
// becomes of it, by Settle or Rewind. Nobody may take meanwhile, but for a message
// group that is gone.
func (d *Dispatcher) Abandon(group uint64) (uint64, bool) {
	d.mu.Lock()
	defer d.unlock()
	return d.abandon(group)
}

func (d *Dispatcher) abandon(group uint64) (uint64, bool) {
	o := d.order
	l := o.lite
	k := groupKey{key: group, queue: liteQueue}
	if g := o.groups[k]; g != nil {
		d.unwaitAll(g)
		l.doze(group, d.entries[g.holder].offset)
		o.drop(k, g)
		d.discard(g.holder)
	}
	from, ok := l.asleep[group]
	delete(l.asleep, group)
	l.letSleep(group)
	return from, ok
}

// Settle marks offsets, ascending, as settled for the group: those of a message group
// that Abandon has returned.
func (d *Dispatcher) Settle(offsets []uint64) {
	d.mu.Lock()
	defer d.unlock()
	q := d.queue(liteQueue)
	for _, o := range offsets {
		d.passOver(q, o)
		q.acked.add(Range{From: o, To: o + 1})
	}
}

// passOver makes sure that an offset which is settled is not looked at any more.
func (d *Dispatcher) passOver(q *dispatchQueue, offset uint64) {
	if slot, known := d.table[place{offset: offset, queue: liteQueue}]; known {
		d.discard(slot)
	}
	if offset >= q.cursor {
		to := min(offset+1, q.end)
		q.back.add(Range{From: q.cursor, To: to})
		q.cursor = to
	}
	d.forgetFresh(q, offset)
}

// Trimmed tells that the index begins at an offset: what is before it is settled, but
// for what is in hands, and no message group begins before it.
func (d *Dispatcher) Trimmed(first uint64) {
	d.mu.Lock()
	defer d.unlock()
	l, q := d.order.lite, d.find(liteQueue)
	if q == nil || first <= l.trimmed {
		return
	}
	late := false
	for key, from := range l.asleep {
		if from < first {
			l.asleep[key], late = first, true
		}
	}
	if late {
		q.acked.add(Range{From: l.trimmed, To: min(first, q.cursor)})
	}
	l.trimmed, l.changed = first, true
	l.at = max(l.at, first)
}

// Rewind has a message group go on at the next of its offsets, which ascend: those
// before it are settled in Progress, and from there on all are delivered, again or for
// the first time. Nobody may take or settle meanwhile.
func (d *Dispatcher) Rewind(group uint64, offsets []uint64, next int) {
	d.mu.Lock()
	defer d.unlock()
	d.abandon(group)
	q := d.queue(liteQueue)
	for _, o := range offsets[:next] {
		d.passOver(q, o)
	}
	for _, o := range offsets[next:] {
		if slot, known := d.table[place{offset: o, queue: liteQueue}]; known {
			d.discard(slot)
		}
	}
	if next < len(offsets) {
		d.resume(group, offsets[next])
	}
}

// Resume has a message group that was abandoned go on at an offset of its own, the
// first that it has now. Nobody may take meanwhile.
func (d *Dispatcher) Resume(group, offset uint64) {
	d.mu.Lock()
	defer d.unlock()
	d.resume(group, offset)
}

func (d *Dispatcher) resume(group, offset uint64) {
	if q := d.find(liteQueue); q == nil || offset >= q.cursor {
		return // it is sorted when its turn comes
	}
	d.order.lite.asleep[group] = offset
	d.order.lite.wakeUp(group)
}

// asleep returns how many message groups sleep.
func (d *Dispatcher) asleep() int {
	if d.order == nil || d.order.lite == nil {
		return 0
	}
	return len(d.order.lite.asleep)
}
