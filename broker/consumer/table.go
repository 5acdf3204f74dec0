package consumer

import "maps"

// place names a message inside a topic.
type place struct {
	offset uint64
	queue  uint16
}

// status is where the entry of a message stands.
type status uint8

const (
	held   status = iota + 1 // in hands, or waiting for a retry: in the heap
	asking                   // ran out; whether its client is alive is being asked
	ready                    // in the list of redeliveries
	taken                    // a running Take matches it
	dead                     // in the list of dead letters
	dying                    // its copy is being written
	parked                   // waits for its turn in its message group
)

// entry is a message that is not settled and was delivered, or waits.
type entry struct {
	place
	delivery uint64  // number of the current handle; 0 = not known to this process
	first    uint64  // number of the attempt's first handle
	deadline Instant // while held
	received Instant // when the attempt was delivered; bounds its renewals
	client   string  // to whom, when renewable
	link     uint64  // over which connection
	attempts uint32  // deliveries so far
	logged   uint32  // attempts that a delta told last
	at       int32   // index in the heap, while held
	prev     int32   // in the list; none = first
	next     int32   // in the list or the free list; none = last
	qprev    int32   // among the entries of its queue; none = first
	qnext    int32   // likewise; none = last
	status   status
	renewals uint8
	renew    bool // to be extended at expiry
	renewed  bool // was delivered as renewable: its first handle stays valid
	condemn  bool // goes to the dead-letter topic whatever its attempts
	dirty    bool // in retried of its queue
	putOff   bool // its present delivery was suspended: its attempt is taken back
}

// none marks the absence of a slot.
const none = int32(-1)

// insert makes an entry, which belongs nowhere yet.
func (d *Dispatcher) insert(p place) int32 {
	slot := d.free
	if slot == none {
		slot = int32(len(d.entries))
		d.entries = append(d.entries, entry{})
	} else {
		d.free = d.entries[slot].next
	}
	d.entries[slot] = entry{place: p, at: none, prev: none, next: none, qprev: none, qnext: none}
	d.table[p] = slot
	d.enter(d.find(p.queue), slot)
	return slot
}

// drop forgets an entry, wherever it stands.
func (d *Dispatcher) drop(slot int32) {
	d.leave(slot)
	e := &d.entries[slot]
	p := e.place
	delete(d.table, p)
	d.exit(d.find(p.queue), slot)
	*e = entry{at: none, prev: none, next: d.free}
	d.free = slot
	if d.order != nil {
		d.leaveGroup(slot, p)
	}
}

// enter puts an entry among those of its queue.
func (d *Dispatcher) enter(q *dispatchQueue, slot int32) {
	if q.entries != none {
		d.entries[q.entries].qprev = slot
	}
	d.entries[slot].qnext = q.entries
	q.entries = slot
}

// exit takes an entry out of those of its queue.
func (d *Dispatcher) exit(q *dispatchQueue, slot int32) {
	e := &d.entries[slot]
	if e.qnext != none {
		d.entries[e.qnext].qprev = e.qprev
	}
	if e.qprev != none {
		d.entries[e.qprev].qnext = e.qnext
	} else {
		q.entries = e.qnext
	}
}

// leave takes an entry out of the heap or list in which it stands.
func (d *Dispatcher) leave(slot int32) {
	switch d.entries[slot].status {
	case held:
		d.unheap(slot)
	case ready:
		d.unlinkReady(slot)
	case dead:
		d.unlink(&d.dead, slot)
	}
}

// hold puts an entry that stands nowhere into the heap.
func (d *Dispatcher) hold(slot int32, until Instant) {
	e := &d.entries[slot]
	e.status, e.deadline = held, until
	e.at = int32(len(d.heap))
	d.heap = append(d.heap, slot)
	d.up(int(e.at))
}

// list is a queue of entries, linked through their slots.
type list struct {
	first, last int32
	len         int
}

var emptyList = list{first: none, last: none}

// push puts an entry that stands nowhere at the end of a list.
func (d *Dispatcher) push(l *list, slot int32, s status) {
	e := &d.entries[slot]
	e.status, e.prev, e.next = s, l.last, none
	if l.last == none {
		l.first = slot
	} else {
		d.entries[l.last].next = slot
	}
	l.last = slot
	l.len++
}

// pushFront puts an entry that stands nowhere at the front of a list.
func (d *Dispatcher) pushFront(l *list, slot int32, s status) {
	e := &d.entries[slot]
	e.status, e.prev, e.next = s, none, l.first
	if l.first == none {
		l.last = slot
	} else {
		d.entries[l.first].prev = slot
	}
	l.first = slot
	l.len++
}

func (d *Dispatcher) unlink(l *list, slot int32) {
	e := &d.entries[slot]
	if e.prev == none {
		l.first = e.next
	} else {
		d.entries[e.prev].next = e.next
	}
	if e.next == none {
		l.last = e.prev
	} else {
		d.entries[e.next].prev = e.prev
	}
	e.prev, e.next = none, none
	l.len--
}

// less orders the heap: by deadline, then as delivered.
func (d *Dispatcher) less(i, j int) bool {
	a, b := &d.entries[d.heap[i]], &d.entries[d.heap[j]]
	if a.deadline != b.deadline {
		return a.deadline < b.deadline
	}
	if a.delivery != b.delivery {
		return a.delivery < b.delivery
	}
	return a.offset < b.offset
}

func (d *Dispatcher) swap(i, j int) {
	h := d.heap
	h[i], h[j] = h[j], h[i]
	d.entries[h[i]].at, d.entries[h[j]].at = int32(i), int32(j)
}

func (d *Dispatcher) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !d.less(i, parent) {
			return
		}
		d.swap(i, parent)
		i = parent
	}
}

func (d *Dispatcher) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(d.heap) {
			return
		}
		if r := child + 1; r < len(d.heap) && d.less(r, child) {
			child = r
		}
		if !d.less(child, i) {
			return
		}
		d.swap(i, child)
		i = child
	}
}

// unheap takes a held entry out of the heap.
func (d *Dispatcher) unheap(slot int32) {
	i, last := int(d.entries[slot].at), len(d.heap)-1
	d.swap(i, last)
	d.heap = d.heap[:last]
	d.entries[slot].at = none
	if i < last {
		d.down(i)
		d.up(i)
	}
}

// graves remembers the messages that went to the dead-letter topic lately, so
// that a late acknowledgement is told apart from a repeated one.
type graves struct {
	known map[place]struct{}
	ring  []place // oldest at next once full
	next  int
}

// maxGraves bounds the memory of dead-lettered messages of one dispatcher to
// some 100 KB. A late acknowledgement of an older one is answered as success.
const maxGraves = 1024

func (g *graves) add(p place) {
	if _, ok := g.known[p]; ok {
		return
	}
	if g.known == nil {
		g.known = make(map[place]struct{})
	}
	if len(g.ring) < maxGraves {
		g.ring = append(g.ring, p)
	} else {
		delete(g.known, g.ring[g.next])
		g.ring[g.next] = p
		g.next = (g.next + 1) % maxGraves
	}
	g.known[p] = struct{}{}
}

// forget drops the places of a queue. Their places in the ring are used up.
func (g *graves) forget(queue uint16) {
	maps.DeleteFunc(g.known, func(p place, _ struct{}) bool { return p.queue == queue })
}

func (g *graves) has(p place) bool {
	_, ok := g.known[p]
	return ok
}
