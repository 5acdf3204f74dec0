package consumer

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// Instant is a reading of a monotonic clock: the time since some fixed moment
// of this process (time.Since(start)).
type Instant time.Duration

// Add returns the instant d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

const (
	// defaultMaxInFlight bounds the memory of one dispatcher to about 15 MB.
	defaultMaxInFlight = 100_000
	// maxHold bounds how long a message can be made invisible at once. The
	// protocol allows 12 hours; a wall clock that was wrong when a retry was
	// logged can delay the message by no more than this.
	maxHold = 24 * time.Hour
	// retryDelay is the wait before something that failed here is tried again,
	// and before the messages of a client that went away come back (the
	// protocol facts give one second for that).
	retryDelay = time.Second
)

// Options configures a dispatcher.
type Options struct {
	Group       zone.ConsumerGroup
	Topic       zone.Topic
	MaxAttempts int // deliveries before the dead-letter topic; below 1 means 1
	MaxInFlight int // messages in hands or waiting for a retry; 0 means 100,000
	// FirstDelivery is where delivery numbers begin; it must be above all
	// numbers that earlier processes on this store gave (lineage epoch << 40).
	FirstDelivery uint64
	// Alive reports whether a client is connected; asked when a renewable delivery
	// runs out, never under the mutex. nil means always. link names the connection
	// that was to bring the delivery, until that is known to have arrived; 0 = any.
	Alive func(client string, link uint64) bool
	// InOrder keeps each message group in order, one message of it in hands at a
	// time; every Take then needs a Key. MaxWaiting bounds how many messages are
	// known to wait behind an earlier one of their message group: beyond, what
	// follows in the queue is not looked at. 0 means 1,048,576.
	InOrder    bool
	MaxWaiting int
	// Chosen has each client get messages of those message groups only that it has
	// chosen (Dispatcher.Choose), all of which stand in queue 0; every Take then needs
	// a Client. With InOrder only. What waits beyond MaxWaiting is left in the index.
	Chosen bool
	// Priority makes each queue a level: those of higher numbers go first, see
	// patience for how long others wait. Without effect beside InOrder.
	Priority bool
	// Kick, when not nil, gets a non-blocking send after NextWake moved to an
	// earlier instant than it last returned. Give it capacity 1; several
	// dispatchers may share it.
	Kick chan<- struct{}
}

// Stats counts what a dispatcher holds.
type Stats struct {
	InFlight int    // messages in hands, waiting for a retry, or for the dead-letter topic; in order, also the next of a message group
	Ready    int    // of these: to be delivered now
	Dead     int    // of these: waiting for the dead-letter topic
	Fresh    uint64 // messages never delivered by this process
	Waiting  int    // of these: known to wait behind an earlier one of their message group
	Groups   int    // message groups of which a message is in flight
	Asleep   int    // message groups that are not known but for their first message: nobody chose them, or too many wait
	Clients  int    // clients that chose message groups, or wait
	Waiters  int    // in the line
}

// Dispatcher hands out the messages of one topic to one consumer group. It is
// safe for concurrent use.
type Dispatcher struct {
	opts Options // read-only, MaxAttempts aside

	mu      sync.Mutex
	max     uint32           // attempts; guarded by mu, as is all below
	queues  []*dispatchQueue // ascending
	turn    int              // index of the queue that is asked first next time
	fresh   uint64           // sum of what the queues have and no entry stands for
	claimed int              // fresh offsets that a running Take matches
	number  uint64           // last delivery number given
	table   map[place]int32  // the entry of each message in hands, waiting or dying
	entries []entry          // slots; table, lists, heap and free refer to them
	free    int32            // first free slot; -1 = none
	heap    []int32          // held entries by deadline
	ready   list             // to be delivered again now
	dead    list             // to be copied to the dead-letter topic
	buried  graves           // lately dead-lettered
	armed   Instant          // what NextWake last returned; never = nothing
	line    []*Waiter        // first come, first woken
	baton   *Waiter          // woken, and has not taken or stopped yet
	spare   []claim          // a buffer for the next Take
	order   *order           // nil unless opts.InOrder
	prio    *priority        // nil unless opts.Priority
}

// never is later than every instant.
const never = Instant(1<<63 - 1)

// dispatchQueue is what a dispatcher knows of one queue. An offset below
// cursor is in exactly one of: an entry of the table, back, claimed; or it is
// settled. In order, it may wait in its message group instead, and back and
// claimed may have offsets of parked entries.
type dispatchQueue struct {
	queue   uint16
	cursor  uint64   // next offset never looked at
	end     uint64   // the queue holds the offsets below
	back    rangeSet // below cursor, not settled, not in the table: taken before cursor
	claimed rangeSet // a running Take matches them
	acked   rangeSet // settled since the last Collect
	retried []uint64 // offsets whose entry is dirty
	mark    uint64   // of the last reset
	again   list     // by priority: to be delivered again now
	entries int32    // first of its entries, linked through qnext; none = it has none
}

// NewDispatcher returns a dispatcher that goes on from the group's durable
// progress. A queue that is not in the state starts at offset 0. The caller then
// tells the end of every queue by Advance; handles of offsets behind it are
// refused. wall is the wall clock's reading at now: what is left of a retry's
// delay by it is waited for on the monotonic clock.
func NewDispatcher(o Options, state []QueueState, now Instant, wall time.Time) *Dispatcher {
	if o.MaxInFlight <= 0 {
		o.MaxInFlight = defaultMaxInFlight
	}
	d := &Dispatcher{
		opts:   o,
		max:    attemptLimit(o.MaxAttempts),
		number: o.FirstDelivery,
		table:  make(map[place]int32),
		free:   none,
		ready:  emptyList,
		dead:   emptyList,
		armed:  never,
	}
	switch {
	case o.InOrder:
		d.order = newOrder(o.MaxWaiting)
		if o.Chosen {
			d.order.lite = newLite()
		}
	case o.Priority:
		d.prio = &priority{}
	}
	for i := range state {
		d.load(&state[i], now, wall)
	}
	return d
}

func attemptLimit(n int) uint32 { return uint32(min(max(n, 1), maxAttempts)) }

// load sets a queue up: what is neither settled nor waiting for a retry goes
// into back, so that everything from cursor on was never looked at. In order, what
// waits for a retry is in back too, parked until its message group is known.
func (d *Dispatcher) load(s *QueueState, now Instant, wall time.Time) {
	q := d.queue(s.Queue)
	q.mark = s.Mark
	known := rangeSet{{From: 0, To: s.Floor}}
	end := uint64(0) // of parked entries
	for _, r := range s.Acked {
		known.add(r)
	}
	for _, r := range s.Retries {
		if known.contains(r.Offset) {
			continue
		}
		if d.order == nil {
			known.add(Range{From: r.Offset, To: r.Offset + 1})
		}
		slot := d.insert(place{offset: r.Offset, queue: s.Queue})
		e := &d.entries[slot]
		e.attempts, e.logged = r.Attempts, r.Attempts
		wait := time.Duration(0)
		if !r.Visible.IsZero() {
			wait = min(max(r.Visible.Sub(wall), 0), maxHold)
		}
		if d.order == nil {
			d.hold(slot, now.Add(wait))
			continue
		}
		e.status, e.deadline = parked, now.Add(wait)
		d.order.ticket(slot).attempt = r.Attempt
		d.order.took(slot, r.Attempt)
		end = max(end, r.Offset+1)
	}
	last := uint64(0)
	for _, r := range known {
		q.back.add(Range{From: last, To: r.From})
		last = r.To
	}
	if end > last {
		q.back.add(Range{From: last, To: end})
		last = end
	}
	q.cursor, q.end = last, last
	d.fresh += q.back.count()
}

// queue returns the queue, which is made to start at 0 when it is new.
func (d *Dispatcher) queue(n uint16) *dispatchQueue {
	if q := d.find(n); q != nil {
		return q
	}
	q := &dispatchQueue{queue: n, again: emptyList, entries: none}
	i, _ := slices.BinarySearchFunc(d.queues, n, compareQueue)
	d.queues = slices.Insert(d.queues, i, q)
	return q
}

func (d *Dispatcher) find(n uint16) *dispatchQueue {
	if int(n) < len(d.queues) && d.queues[n].queue == n {
		return d.queues[n] // the usual case: queues 0 to n-1
	}
	if i, ok := slices.BinarySearchFunc(d.queues, n, compareQueue); ok {
		return d.queues[i]
	}
	return nil
}

func compareQueue(q *dispatchQueue, n uint16) int { return cmp.Compare(q.queue, n) }

// Advance tells that the queue has offsets below end, and wakes a waiter when
// there are new ones. It never moves back.
func (d *Dispatcher) Advance(queue uint16, end uint64) {
	d.mu.Lock()
	defer d.unlock()
	if q := d.queue(queue); end > q.end {
		d.fresh += end - q.end
		q.end = end
	}
}

// SetMaxAttempts changes the limit. A message that reached it meanwhile goes
// to the dead-letter topic when its delivery runs out, or instead of its next
// delivery.
func (d *Dispatcher) SetMaxAttempts(n int) {
	d.mu.Lock()
	defer d.unlock()
	d.max = attemptLimit(n)
}

// unlock hands the wake-up on, and tells the timekeeper when the next instant
// moved forward. Every method that changes something ends with it.
func (d *Dispatcher) unlock() {
	kick := false
	if next := d.next(); next < d.armed {
		d.armed = next
		kick = d.opts.Kick != nil
	}
	if d.order != nil && d.order.lite != nil {
		d.unlockChosen(kick)
		return
	}
	w := d.pass()
	d.mu.Unlock()
	if w != nil {
		w.c <- struct{}{} // capacity 1, one send in a waiter's life
	}
	d.kick(kick)
}

func (d *Dispatcher) kick(kick bool) {
	if kick {
		select {
		case d.opts.Kick <- struct{}{}:
		default:
		}
	}
}

// unlockChosen is unlock where clients choose: several may have to be woken.
func (d *Dispatcher) unlockChosen(kick bool) {
	wake := d.passChosen()
	d.mu.Unlock()
	for _, w := range wake {
		select {
		case w.c <- struct{}{}:
		default: // it is woken for both reasons
		}
	}
	d.kick(kick)
}

// available reports whether a Take would find something to look at.
func (d *Dispatcher) available() bool {
	if d.readyLen() > 0 {
		return true
	}
	if d.order != nil {
		return d.open()
	}
	return d.room() > 0
}

// room returns how many fresh offsets may be claimed now.
func (d *Dispatcher) room() int {
	left := d.opts.MaxInFlight - len(d.table) - d.claimed
	if left <= 0 {
		return 0
	}
	return int(min(uint64(left), d.fresh))
}

// Stats returns what the dispatcher holds.
func (d *Dispatcher) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := Stats{InFlight: len(d.table), Ready: d.readyLen(), Dead: d.dead.len, Fresh: d.fresh, Waiters: len(d.line)}
	if o := d.order; o != nil {
		s.Waiting, s.Groups = o.waiting, len(o.groups)
		s.Fresh += uint64(o.waiting)
		if o.lite != nil {
			s.Asleep, s.Clients = len(o.lite.asleep), len(o.lite.clients)
		}
	}
	return s
}
