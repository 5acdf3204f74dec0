package consumer

import "slices"

// liteQueue is the queue in which a topic's message groups stand that clients choose
// by name.
const liteQueue = 0

// leastWaiting is how many offsets of a chosen message group may be known to wait
// when so many wait altogether that the others are left in the index.
const leastWaiting = 64

// lite is what an ordered dispatcher has in addition when its clients choose the
// message groups that they want (Options.Chosen). A message group that no client has
// chosen sleeps: of it only the first unsettled offset is known, whatever is behind
// it, so those that nobody asks for cost 16 bytes each and hold up nobody. When a
// client chooses it, it is woken: the index is read from there on (rescan). The tail
// of a chosen one sleeps, too, when too many offsets wait.
type lite struct {
	clients map[string]*liteClient
	chosen  map[uint64]sharers  // by message group; never empty ones
	asleep  map[uint64]uint64   // by message group: the first offset that is not sorted into it; all settled below, or sorted
	waking  map[uint64]struct{} // asleep, and chosen: the rescan looks for it
	later   map[uint64]struct{} // likewise, but begins before at: the next rescan looks for it
	at      uint64              // where the rescan goes on
	changed bool                // waking or asleep changed while the index was read
	rescans bool                // the next look at the index is the rescan's, if both have something to do
	touched []*liteClient       // may have somebody to wake
	trimmed uint64              // where the index began, as last told

	leastStale int // leastStale, or less in tests
}

// liteClient is a client that has chosen message groups, or waits.
type liteClient struct {
	name   string
	groups map[uint64]int32 // chosen; where it stands among the sharers
	ready  []uint64         // message groups whose holder may be delivered; some may be out of date
	first  int              // of ready
	passed int              // of ready: those before were passed on to other sharers, or need not be
	stale  int              // how many of ready it has unchosen since it was looked through, at most
	line   []*Waiter
	baton  *Waiter // woken, and has not taken or stopped yet
}

// sharers are the clients that have chosen a message group. The first of them do not have
// it listed in ready, the others do.
type sharers struct {
	list []*liteClient
	free int32 // how many do not
	turn int32 // whose turn of these it is, before a remainder is taken
}

// swap changes the places of two sharers of a message group.
func (s *sharers) swap(key uint64, i, k int32) {
	s.list[i], s.list[k] = s.list[k], s.list[i]
	s.list[i].groups[key], s.list[k].groups[key] = i, k
}

// add adds a client that does not have the message group listed.
func (s *sharers) add(key uint64, c *liteClient) {
	i := int32(len(s.list))
	s.list = append(s.list, c)
	c.groups[key] = i
	s.swap(key, i, s.free)
	s.free++
}

// remove takes a client out, and reports whether it had the message group listed.
func (s *sharers) remove(key uint64, c *liteClient) (listed bool) {
	i := c.groups[key]
	listed = i >= s.free
	if !listed {
		s.free--
		s.swap(key, i, s.free)
		i = s.free
	}
	last := int32(len(s.list)) - 1
	s.swap(key, i, last)
	s.list[last] = nil
	s.list = s.list[:last]
	delete(c.groups, key)
	return listed
}

// enlist lists the message group in ready of a client that does not have it there.
func (s *sharers) enlist(key uint64, i int32) *liteClient {
	c := s.list[i]
	s.free--
	s.swap(key, i, s.free)
	c.ready = append(c.ready, key)
	return c
}

func newLite() *lite {
	return &lite{
		clients: make(map[string]*liteClient), chosen: make(map[uint64]sharers),
		asleep: make(map[uint64]uint64), waking: make(map[uint64]struct{}), later: make(map[uint64]struct{}),
		leastStale: leastStale,
	}
}

// client returns the client, made when it is new; forget drops one of no use.
func (l *lite) client(name string) *liteClient {
	c := l.clients[name]
	if c == nil {
		c = &liteClient{name: name, groups: make(map[uint64]int32)}
		l.clients[name] = c
	}
	return c
}

func (l *lite) forget(c *liteClient) {
	if len(c.groups) == 0 && len(c.line) == 0 && c.baton == nil && l.clients[c.name] == c {
		delete(l.clients, c.name)
	}
}

// offer lists a message group as one of which something is ready: with the sharer whose
// turn it is and that waits, and those before it. The others are left alone, however many
// they are: who is woken and does not take it passes it on. If nobody waits it is listed
// with all, and comes to the first that asks. Each listing is paid for by what takes it
// out again (next), so that a message costs no look at every sharer.
func (l *lite) offer(key uint64) {
	s, chosen := l.chosen[key]
	if !chosen || s.free == 0 {
		return
	}
	for s.free > 0 {
		i := s.turn % s.free
		s.turn = i + 1
		c := s.enlist(key, i)
		if len(c.line) > 0 && c.baton == nil {
			l.touched = append(l.touched, c)
			break
		}
	}
	l.chosen[key] = s
}

// passOn offers what a client has listed and does not come for to the other sharers.
func (d *Dispatcher) passOn(c *liteClient) {
	if c.baton != nil || len(c.line) > 0 { // it does
		return
	}
	for c.passed = max(c.passed, c.first); c.passed < len(c.ready); c.passed++ {
		if key := c.ready[c.passed]; d.isReady(key) {
			d.order.lite.offer(key)
		}
	}
}

// isReady reports whether a message of the message group is to be delivered now.
func (d *Dispatcher) isReady(key uint64) bool {
	g := d.order.groups[groupKey{key: key, queue: liteQueue}]
	return g != nil && d.entries[g.holder].status == ready
}

// next returns the message group that was ready first.
func (l *lite) next(c *liteClient) (uint64, bool) {
	for c.first < len(c.ready) {
		key := c.ready[c.first]
		c.first++
		if c.first >= 64 && 2*c.first >= len(c.ready) {
			c.ready = slices.Delete(c.ready, 0, c.first)
			c.passed = max(c.passed-c.first, 0)
			c.first = 0
		}
		i, chosen := c.groups[key]
		if !chosen {
			continue
		}
		if s := l.chosen[key]; i >= s.free {
			s.swap(key, i, s.free)
			s.free++
			l.chosen[key] = s
		}
		return key, true
	}
	c.ready, c.first, c.passed, c.stale = c.ready[:0], 0, 0, 0
	return 0, false
}

func (l *lite) touch(c *liteClient) {
	if len(c.line) > 0 && c.baton == nil {
		l.touched = append(l.touched, c)
	}
}

// Choose has a client get messages of message groups besides those that it has
// chosen. Clients that chose the same one share it. For a dispatcher with
// Options.Chosen.
func (d *Dispatcher) Choose(client string, groups ...uint64) {
	d.mu.Lock()
	defer d.unlock()
	l := d.order.lite
	c := l.client(client)
	for _, key := range groups {
		if _, already := c.groups[key]; already {
			continue
		}
		s := l.chosen[key]
		s.add(key, c)
		if d.isReady(key) {
			s.enlist(key, c.groups[key])
		}
		l.chosen[key] = s
		l.wakeUp(key)
	}
	l.touch(c)
	l.forget(c)
}

// Unchoose ends that a client gets messages of message groups. What it has in hands
// stays there.
func (d *Dispatcher) Unchoose(client string, groups ...uint64) {
	d.mu.Lock()
	defer d.unlock()
	l := d.order.lite
	c := l.clients[client]
	if c == nil {
		return
	}
	for _, key := range groups {
		if _, chosen := c.groups[key]; !chosen {
			continue
		}
		s := l.chosen[key]
		listed := s.remove(key, c)
		if l.chosen[key] = s; len(s.list) > 0 {
			if listed && d.isReady(key) {
				l.offer(key)
			}
		} else {
			delete(l.chosen, key)
			l.letSleep(key)
			d.sleep(key)
		}
		if listed {
			l.unlisted(c)
		}
	}
	l.forget(c)
}

// wakeUp has a rescan look for a message group that sleeps and is chosen: the one that
// is under way, if it has not passed it yet, else the next. It does not begin anew, or
// who wakes one after the other would keep it from ever coming to its end.
func (l *lite) wakeUp(key uint64) {
	from, sleeps := l.asleep[key]
	if !sleeps || len(l.chosen[key].list) == 0 || l.wakes(key) {
		return
	}
	switch {
	case len(l.waking) == 0:
		l.at, l.changed = from, true
	case from < l.at:
		l.later[key] = struct{}{}
		return
	}
	l.waking[key] = struct{}{}
}

// wakes reports whether a rescan looks for the message group, or will.
func (l *lite) wakes(key uint64) bool {
	_, now := l.waking[key]
	_, later := l.later[key]
	return now || later
}

// letSleep has no rescan look for the message group.
func (l *lite) letSleep(key uint64) {
	delete(l.waking, key)
	delete(l.later, key)
	l.nextPass()
}

// nextPass begins the next rescan when there is nothing left for the one before.
func (l *lite) nextPass() {
	if len(l.waking) > 0 || len(l.later) == 0 {
		return
	}
	l.waking, l.later = l.later, l.waking
	first := true
	for key := range l.waking {
		if from := l.asleep[key]; first || from < l.at {
			l.at, first = from, false
		}
	}
	l.changed = true
}

// doze notes that an offset of a message group is not sorted into it.
func (l *lite) doze(key, offset uint64) {
	if from, sleeps := l.asleep[key]; !sleeps || offset < from {
		l.asleep[key] = offset
	}
}

// sleep lets a message group sleep that nobody has chosen any more. Its holder stays
// if it was delivered: it is in somebody's hands, or its attempts count.
func (d *Dispatcher) sleep(key uint64) {
	k := groupKey{key: key, queue: liteQueue}
	g := d.order.groups[k]
	if g == nil {
		return
	}
	d.unwaitAll(g)
	e := &d.entries[g.holder]
	if e.status != ready || e.attempts > 0 {
		return
	}
	d.order.lite.doze(key, e.offset)
	d.discard(g.holder)
	d.order.drop(k, g)
}

// unwaitAll lets all offsets behind the holder of a message group sleep.
func (d *Dispatcher) unwaitAll(g *messageGroup) {
	o := d.order
	for _, offset := range g.wait[g.first:] {
		if slot, known := d.table[place{offset: offset, queue: liteQueue}]; known {
			o.ticket(slot).sorted = false
		}
		o.lite.doze(o.ticket(g.holder).group.key, offset)
	}
	o.waiting -= len(g.wait) - g.first
	g.wait, g.first = g.wait[:0], 0
}

// discard forgets an entry whose message stays unsettled and belongs nowhere.
func (d *Dispatcher) discard(slot int32) {
	d.leave(slot)
	d.forgetAttempt(slot)
	*d.order.ticket(slot) = ticket{}
	e := &d.entries[slot]
	delete(d.table, e.place)
	d.exit(d.find(e.queue), slot)
	*e = entry{at: none, prev: none, next: d.free}
	d.free = slot
}

// dozes reports whether an offset that is to be sorted into its message group is
// left in the index instead.
func (o *order) dozes(key uint64, g *messageGroup, known bool) bool {
	l := o.lite
	if _, sleeps := l.asleep[key]; sleeps {
		return true // it is behind one that does
	}
	switch {
	case known:
		return false
	case len(l.chosen[key].list) == 0:
		return true
	}
	return o.crowded(g)
}

// crowded reports whether a message group has as many known to wait as it may have
// when there are too many altogether.
func (o *order) crowded(g *messageGroup) bool {
	return g != nil && o.waiting >= o.limit && len(g.wait)-g.first >= min(leastWaiting, o.limit)
}

// claimChosen fills claims up to n with messages of what the client has chosen.
func (d *Dispatcher) claimChosen(client string, claims []claim, n int) []claim {
	c := d.order.lite.clients[client]
	if c == nil {
		return claims
	}
	for len(claims) < n {
		key, ok := d.order.lite.next(c)
		if !ok {
			break
		}
		g := d.order.groups[groupKey{key: key, queue: liteQueue}]
		if g == nil || d.entries[g.holder].status != ready {
			continue // another client has it, or it was settled
		}
		slot := g.holder
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

// taking is told that a client looks for messages: whoever was woken for it has come.
func (l *lite) taking(client string) {
	if c := l.clients[client]; c != nil {
		c.baton = nil
		l.touch(c)
	}
}

// readyFor returns about how many messages wait for the client; never fewer than
// there are, but for those that another sharer was woken for.
func (l *lite) readyFor(client string) int {
	if c := l.clients[client]; c != nil {
		return len(c.ready) - c.first
	}
	return 0
}

// WaitFor is Wait for a client of a dispatcher with Options.Chosen: it is woken when
// there is something of what the client has chosen, or the index is to be looked at.
func (d *Dispatcher) WaitFor(client string) *Waiter {
	w := &Waiter{d: d, c: make(chan struct{}, 1)}
	d.mu.Lock()
	defer d.unlock()
	if d.order != nil && d.order.lite != nil {
		w.client = d.order.lite.client(client)
		w.client.line = append(w.client.line, w)
		d.order.lite.touch(w.client)
	}
	d.line = append(d.line, w)
	return w
}

// passChosen returns whom to wake: of each client that has something, one, and one
// of all to look at the index.
func (d *Dispatcher) passChosen() []*Waiter {
	l := d.order.lite
	var wake []*Waiter
	for _, c := range l.touched {
		if len(c.line) > 0 && c.baton == nil && len(c.ready) > c.first {
			c.baton = c.line[0]
			wake = append(wake, c.baton)
			d.leaveLines(c.baton)
		}
	}
	clear(l.touched)
	l.touched = l.touched[:0]
	if d.baton == nil && len(d.line) > 0 && d.sortable() {
		w := d.line[0]
		d.baton = w
		d.leaveLines(w)
		wake = append(wake, w)
	}
	return wake
}

// leaveLines takes a waiter out of the lines in which it stands.
func (d *Dispatcher) leaveLines(w *Waiter) {
	if i := slices.Index(d.line, w); i >= 0 {
		d.line = slices.Delete(d.line, i, i+1)
	}
	if c := w.client; c != nil {
		if i := slices.Index(c.line, w); i >= 0 {
			c.line = slices.Delete(c.line, i, i+1)
		}
	}
}

// stopChosen is Stop of a waiter for a client.
func (d *Dispatcher) stopChosen(w *Waiter) {
	if d.baton == w {
		d.baton = nil
	}
	if w.client.baton == w {
		w.client.baton = nil
	}
	d.leaveLines(w)
	d.order.lite.touch(w.client)
	d.passOn(w.client)
	d.order.lite.forget(w.client)
}
