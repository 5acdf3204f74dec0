package consumer

import (
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// Instant is a reading of a monotonic clock: the time since some fixed moment
// of this process (time.Since(start)).
type Instant time.Duration

// Options configures a dispatcher.
type Options struct {
	Group       zone.ConsumerGroup
	Topic       zone.Topic
	MaxAttempts int // deliveries before the dead-letter topic; below 1 means 1
	MaxInFlight int // messages in hands or waiting for a retry; 0 means 100,000
	// FirstDelivery is where delivery numbers begin; it must be above all
	// numbers that earlier processes on this store gave (lineage epoch << 40).
	FirstDelivery uint64
	// Alive reports whether a client is connected; asked when a renewable
	// delivery runs out, never under the mutex. nil means always.
	Alive func(client string) bool
	// Kick, when not nil, gets a non-blocking send after NextWake moved to an
	// earlier instant. Give it capacity 1; several dispatchers may share it.
	Kick chan<- struct{}
}

// Verdict is what the caller of Take says of a message.
type Verdict uint8

// The verdicts.
const (
	Deliver Verdict = iota + 1
	Skip            // does not match the filter, or is gone: settled for the group
	Later           // cannot be read now: tried again after a second, without counting an attempt
	Stop            // matches, but there is no room: neither it nor more in this call
)

// TakeRequest is one receive.
type TakeRequest struct {
	Now       Instant
	Max       int           // messages
	Invisible time.Duration // how long they stay in hands
	Renew     bool          // extended at expiry while Alive(Client)
	Client    string
	// Match is called without the mutex, for new messages in ascending runs
	// of a queue. nil delivers everything. The order in which it answers
	// Deliver is the order of the result.
	Match func(queue uint16, offset uint64) Verdict
}

// Taken is one delivery.
type Taken struct {
	Queue    uint16
	Offset   uint64
	Attempt  uint32 // from 1
	Delivery uint64 // for the handle
}

// Dead is a message that reached its maximum of attempts.
type Dead struct {
	Queue    uint16
	Offset   uint64
	Attempts uint32
}

// Stats counts what a dispatcher holds.
type Stats struct {
	InFlight int // in hands or waiting for a retry
	Ready    int // of these: waiting to be taken now
	Dead     int // of these: waiting for the dead-letter topic
	Waiters  int
}

// Dispatcher hands out the messages of one topic to one consumer group. It is
// safe for concurrent use.
type Dispatcher struct{}

// NewDispatcher returns a dispatcher that goes on from the group's durable
// progress. Queues that are not in the state start at offset 0.
func NewDispatcher(o Options, state []QueueState, now Instant, wall time.Time) *Dispatcher {
	return &Dispatcher{}
}

// Advance tells that the queue has offsets below end, and wakes a waiter when
// there are new ones. It never moves back.
func (d *Dispatcher) Advance(queue uint16, end uint64) {}

// SetMaxAttempts changes the limit; it applies from the next expiry on.
func (d *Dispatcher) SetMaxAttempts(n int) {}

// Take appends deliveries to dst: redeliveries whose time has come first, then
// new messages of all queues in turn. more reports that it stopped although
// there may be more to deliver at once (Max reached, or the bound of messages
// examined in one call).
func (d *Dispatcher) Take(r TakeRequest, dst []Taken) (taken []Taken, more bool) { return dst, false }

// Ack settles a message. nil when it is settled, now or before. *HandleError
// by the rule in the package comment.
func (d *Dispatcher) Ack(now Instant, queue uint16, offset, delivery uint64) error { return nil }

// ChangeInvisible lets the message stay invisible for delay from now on and
// ends renewal. It returns the delivery number of the new handle; the old
// handle is refused from then on, except the first one of a renewable delivery,
// which stays valid beside the new one.
func (d *Dispatcher) ChangeInvisible(now Instant, queue uint16, offset, delivery uint64, delay time.Duration) (uint64, error) {
	return 0, nil
}

// Condemn takes a message out of delivery because its consumer asked for the
// dead-letter topic. The caller appends the copy and then calls DeadLettered
// or DeadLetterFailed. *HandleError with ReasonSettled or ReasonDeadLettered
// when there is nothing left to do.
func (d *Dispatcher) Condemn(now Instant, queue uint16, offset, delivery uint64) (Dead, error) {
	return Dead{}, nil
}

// TakeDead appends up to max messages that must go to the dead-letter topic.
// For each the caller appends the copy and then calls DeadLettered or
// DeadLetterFailed; until then the message is neither delivered nor settled.
func (d *Dispatcher) TakeDead(now Instant, max int, dst []Dead) []Dead { return dst }

// DeadLettered tells that the copy is committed and settles the message here;
// the record of the copy settles it in Progress, so no delta names it.
func (d *Dispatcher) DeadLettered(queue uint16, offset uint64) {}

// DeadLetterFailed tells that the copy could not be written; the message is
// offered by TakeDead again after a second.
func (d *Dispatcher) DeadLetterFailed(now Instant, queue uint16, offset uint64) {}

// Expire takes back what has run out and renews what is renewable.
func (d *Dispatcher) Expire(now Instant) {}

// ClientGone brings the renewable deliveries of a client back after a second.
func (d *Dispatcher) ClientGone(now Instant, client string) {}

// NextWake returns when Expire or TakeDead has something to do; false when
// nothing is waiting for time.
func (d *Dispatcher) NextWake() (Instant, bool) { return 0, false }

// Collect moves the changes since the last call out; false when there are
// none. wall is the wall clock's reading at now.
func (d *Dispatcher) Collect(now Instant, wall time.Time) (GroupDelta, bool) { return GroupDelta{}, false }

// Restore gives back a delta whose record could not be appended; newer changes win.
func (d *Dispatcher) Restore(now Instant, wall time.Time, g GroupDelta) {}

// Held returns a delta with the attempts of everything in hands, so that an
// orderly stop loses none: collected after the last Take, it makes deliveries
// in hands visible again at the end of their time and not before.
func (d *Dispatcher) Held(now Instant, wall time.Time) (GroupDelta, bool) { return GroupDelta{}, false }

// Stats returns what the dispatcher holds.
func (d *Dispatcher) Stats() Stats { return Stats{} }

// Waiter is a place in the line of those who wait for messages.
type Waiter struct {
	c chan struct{}
}

// Wait joins the line. When there is something to take, the first in the line
// is woken; a Take that leaves something wakes the next. Call Stop when done,
// woken or not.
func (d *Dispatcher) Wait() *Waiter { return &Waiter{c: make(chan struct{}, 1)} }

// C receives one value when it is this waiter's turn to Take.
func (w *Waiter) C() <-chan struct{} { return w.c }

// Stop leaves the line and passes an unused wake-up on. It may be called again.
func (w *Waiter) Stop() {}
