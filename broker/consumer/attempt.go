package consumer

import "slices"

// Attempt is one poll of a client under an attempt id. A client that lost an
// answer asks again under the same id, and then gets what it has in hands under it
// once more, with new handles. When two polls of one id run, the newer counts: the
// older takes nothing from then on.
type Attempt struct{ id uint64 }

// Begin tells of a poll under an attempt id, which is a hash of the client's name
// and the id that it chose; never 0. The caller tells the end of the poll by End.
// For a dispatcher that keeps order.
func (d *Dispatcher) Begin(id uint64) *Attempt {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := &Attempt{id: id}
	d.order.polls[id] = a
	return a
}

// End tells that a poll is over. What it took stays in hands under the id.
func (d *Dispatcher) End(a *Attempt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.order.polls[a.id] == a {
		delete(d.order.polls, a.id)
	}
}

// Newest reports whether no newer poll of the id has begun.
func (d *Dispatcher) Newest(a *Attempt) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.order.polls[a.id] == a
}

// claimAgain withholds what the attempt id has in hands. newest is false when the
// poll is not the newest of its id.
func (d *Dispatcher) claimAgain(r *TakeRequest) (claims []claim, newest bool) {
	o, id := d.order, r.Attempt.id
	d.mu.Lock()
	defer d.unlock()
	d.baton = nil
	if o.lite != nil {
		o.lite.taking(r.Client)
	}
	claims, d.spare = d.spare[:0], nil
	if o.polls[id] != r.Attempt {
		return claims, false
	}
	// What an earlier process handed out is in hands when its message group is known.
	for n := 0; n < maxExamined && d.open() && o.anyParked(d, id); {
		n += d.sortRun(r, maxClaims)
	}
	for _, slot := range o.attempts[id] {
		e := &d.entries[slot]
		if e.status == held || e.status == asking {
			d.leave(slot)
			e.status = taken
			claims = append(claims, claim{place: e.place, slot: slot, again: true, mark: d.find(e.queue).mark})
		}
	}
	return claims, true
}

func (o *order) anyParked(d *Dispatcher, id uint64) bool {
	return slices.ContainsFunc(o.attempts[id], func(slot int32) bool { return d.entries[slot].status == parked })
}

// inHands notes under which attempt an entry was handed out, and that a delta is
// to tell of it: a message group is not given out again by the next process while
// its message may be in hands.
func (d *Dispatcher) inHands(slot int32, a *Attempt) {
	d.touch(slot)
	id := uint64(0)
	if a != nil {
		id = a.id
	}
	if d.order.ticket(slot).attempt == id {
		return
	}
	d.forgetAttempt(slot)
	d.order.ticket(slot).attempt = id
	d.order.took(slot, id)
}

// took lists an entry under an attempt id.
func (o *order) took(slot int32, id uint64) {
	if id != 0 {
		o.attempts[id] = append(o.attempts[id], slot)
	}
}

// forgetAttempt notes that an entry is not in the hands of its attempt any more.
func (d *Dispatcher) forgetAttempt(slot int32) {
	o := d.order
	if o == nil {
		return
	}
	t := o.ticket(slot)
	if t.attempt == 0 {
		return
	}
	list := o.attempts[t.attempt]
	if i := slices.Index(list, slot); i >= 0 {
		list = slices.Delete(list, i, i+1)
	}
	if len(list) == 0 {
		delete(o.attempts, t.attempt)
	} else {
		o.attempts[t.attempt] = list
	}
	t.attempt = 0
}
