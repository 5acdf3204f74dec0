package broker

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// TimerStatus is what a broker tells of its delayed messages.
type TimerStatus struct {
	Pending uint64        // messages that wait, overdue and blocked ones included
	Limit   int           // of Pending: beyond it publishes are refused
	Buckets int           // hours for which there are any
	Next    time.Time     // when the next one falls due that nothing blocks; zero = none within two minutes at least
	Overdue time.Duration // how late it is; 0 = in time
	Held    int64         // log bytes that they hold back, as of the last look at retention; -1 = unknown
	Refused string        // why what is due cannot be stored, or not be looked at; empty when it can
	Blocked []BlockedTimers
	// ClockStep is how far the wall clock is from the clock by which messages fall
	// due, while that step is not believed yet. ClockSteps counts those that were.
	ClockStep  time.Duration
	ClockSteps uint64
}

// BlockedTimers are due messages that share an obstacle. They are tried for ever.
type BlockedTimers struct {
	Topic zone.Topic // empty when it cannot be read
	Count int
	Since time.Time
	Why   string
}

// dueStatus is what the due loop tells of itself.
type dueStatus struct {
	mu      sync.Mutex
	next    int64 // Unix milliseconds; 0 = none; guarded by mu, as is all below
	overdue time.Duration
	held    string
	blocked []BlockedTimers
}

// tell publishes the loop's state.
func (d *dueLoop) tell(now int64) {
	var list []BlockedTimers
	for _, l := range d.blocked.lanes {
		if l.count > 0 {
			list = append(list, BlockedTimers{Topic: l.obstacle.topic, Count: l.count, Since: l.since, Why: l.obstacle.text})
		}
	}
	slices.SortFunc(list, func(x, y BlockedTimers) int { return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.Why, y.Why)) })
	first, ok := d.window.First()
	s := &d.b.due
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next, s.overdue, s.held, s.blocked = 0, 0, cmp.Or(d.held, d.unread), list
	if ok {
		s.next, s.overdue = first.Due, max(time.Duration(now-first.Due)*time.Millisecond, 0)
	}
}

// timerStatus returns the state of delayed messages.
func (b *Broker) timerStatus() TimerStatus {
	st := TimerStatus{Limit: b.limits.MaxTimers, Held: b.timerHold.Load()}
	st.ClockStep, st.ClockSteps = b.clock.Trial()
	b.mu.RLock()
	st.Pending, st.Buckets = b.state.timers.pending, len(b.state.timers.list)
	b.mu.RUnlock()
	b.due.mu.Lock()
	defer b.due.mu.Unlock()
	if b.due.next > 0 {
		st.Next = time.UnixMilli(b.due.next)
	}
	st.Overdue, st.Refused, st.Blocked = b.due.overdue, b.due.held, b.due.blocked
	return st
}

// describeTimer tells what the fold made of a delayed message or a recall.
func (b *Broker) describeTimer(f *Found, v record.View) {
	f.DeliverAt = v.DeliverAt()
	if v.Type() == record.TypeRecall {
		return
	}
	if i, ok := b.state.timers.at(dueMillis(f.DeliverAt) / bucketMillis); ok {
		k := b.state.timers.list[i]
		n, found, err := k.index.Search(f.Position)
		f.Waits = err == nil && found && k.waits(n)
	}
}

// findCarriedTimer adds a delayed message that was appended again, if it waits
// there.
func (b *Broker) findCarriedTimer(found *[]Found, e *commitlog.Entry, c *carriedBody, v record.View) error {
	f := Found{Type: v.Type(), Position: e.Position, Topic: zone.Topic(v.Topic()), Original: v.Identity(), Stored: v.Stored(), DeliverAt: v.DeliverAt()}
	b.mu.RLock()
	defer b.mu.RUnlock()
	if k := b.state.timers.bucketOf(c.bucket); k != nil {
		n, ok, err := k.index.Search(e.Position)
		f.Waits = err == nil && ok && k.waits(n)
	}
	*found = append(*found, f)
	return nil
}
