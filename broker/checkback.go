package broker

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/transaction"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// maxCheckRound is how many half messages one round looks at before the fold's
	// other readers have their turn.
	maxCheckRound = 256
	// checkAgain is when a check is tried again for which every stream had too much
	// waiting.
	checkAgain = time.Second
)

// CheckBack is a half message about which a producer is to be asked. Its methods
// may be called from any goroutine.
type CheckBack struct {
	Topic zone.Topic
	Size  int // bytes of its record; the message on the wire has no more

	b *Broker
	h *transaction.Half
}

// HalfMessage is what a producer is shown of its half message.
type HalfMessage struct {
	Record        record.View // points into bytes that nobody changes
	TransactionID string
}

// Load reads the half message; false when it was decided meanwhile, or cannot be
// read, which is logged. It reads the disk.
func (c *CheckBack) Load() (HalfMessage, bool) {
	b := c.b
	b.mu.RLock()
	decided := c.h.Decided()
	b.mu.RUnlock()
	if decided {
		return HalfMessage{}, false
	}
	v, err := b.readHalf(c.h)
	if err != nil {
		b.unreadableHalf(c.h, err)
		return HalfMessage{}, false
	}
	return HalfMessage{v, b.halves.sealer.Seal(v.Identity())}, true
}

// Sent counts the check: its command was written to a producer's stream. The count
// becomes durable a little later.
func (c *CheckBack) Sent() {
	b := c.b
	b.mu.Lock()
	if !c.h.Decided() {
		c.h.Asked++
		b.halves.asked[c.h.Key] = c.h
	}
	b.mu.Unlock()
	b.metrics.tx.checked(c.Topic)
	poke(b.kick)
}

// Lost says that the check reached nobody: its stream ended before it was written or,
// when Sent was called, before its client can have read it. It does not count then, and
// somebody is asked soon. As many checks of a half message as its topic asks for may be
// lost so; those beyond count, since a producer may end because of the check. What was
// lost becomes durable a little later.
func (c *CheckBack) Lost(sent bool) {
	b := c.b
	terms := b.termsOf(c.Topic)
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.h.Decided() || sent && c.h.Lost >= terms.Checks {
		return
	}
	if sent {
		c.h.Lost++
		b.halves.asked[c.h.Key] = c.h
		poke(b.kick)
	}
	b.halves.agenda.Set(c.h, time.Duration(b.now())+min(checkAgain, terms.Interval))
	poke(b.halves.check.kick)
}

// ProducerCame says that somebody can be asked about half messages of the topic now.
// Those whose time came while nobody could be are asked about at once, and do not wait
// for the rest of their interval. It may be called from any goroutine that does not hold
// what the function of SetProducers takes.
func (b *Broker) ProducerCame(t zone.Topic) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.halves.check.came++
	missed := b.halves.check.missed[t]
	if len(missed) == 0 {
		return
	}
	now := time.Duration(b.now())
	for h := range missed {
		if !h.Decided() {
			b.halves.agenda.Set(h, now)
		}
	}
	delete(b.halves.check.missed, t)
	poke(b.halves.check.kick)
}

// CheckOutcome says what became of a CheckBack that was handed out.
type CheckOutcome uint8

// The outcomes.
const (
	CheckQueued CheckOutcome = iota + 1 // a producer's stream will have it: Load, then Sent
	CheckNobody                         // no producer of the topic is connected that can be asked
	CheckFull                           // those that are have too much waiting
)

// SetProducers sets who asks producers. Without it nobody is asked and half
// messages wait. f must not block or call the broker; it keeps what it queues.
func (b *Broker) SetProducers(f func(*CheckBack) CheckOutcome) {
	b.halves.check.ask.Store(&f)
	poke(b.halves.check.kick)
}

// checkState is what the check loop knows beside the agenda.
type checkState struct {
	ask    atomic.Pointer[func(*CheckBack) CheckOutcome]
	kick   chan struct{}       // capacity 1: the agenda begins earlier than it did
	lonely map[zone.Topic]bool // whose last check found no producer; guarded by Broker.mu
	// missed are the half messages of lonely topics whose time came while nobody could
	// be asked; guarded by Broker.mu.
	missed map[zone.Topic]map[*transaction.Half]struct{}
	came   uint64        // calls of ProducerCame; guarded by Broker.mu
	wake   time.Duration // when the loop will look again; guarded by Broker.mu
}

// arriving bounds the half messages that are on their way into the log.
type arriving struct{ n atomic.Int64 }

func (a *arriving) take(room int64) bool {
	if a.n.Add(1) > room {
		a.n.Add(-1)
		return false
	}
	return true
}

func (a *arriving) give(n int) { a.n.Add(-int64(n)) }

// schedule brings the agenda up to date with the fold. mu is held. Time counts
// from when this process has heard of the half message, so a step of the wall clock
// changes nothing; over a restart the wall clock counts (scheduleAll).
func (b *Broker) schedule() {
	if !b.state.halves.HasChanged() {
		return
	}
	now := time.Duration(b.now())
	b.state.halves.Changed(func(h *transaction.Half) {
		if h.Decided() {
			b.halves.agenda.Remove(h)
			delete(b.halves.asked, h.Key)
			delete(b.halves.check.missed[h.Topic], h)
			if b.state.halves.LenOf(h.Topic) == 0 {
				delete(b.halves.check.lonely, h.Topic)
				delete(b.halves.check.missed, h.Topic)
			}
			return
		}
		b.halves.agenda.Set(h, now+b.presentWait(h))
	})
	if next, ok := b.halves.agenda.Next(); ok && next < b.halves.check.wake {
		b.halves.check.wake = next
		poke(b.halves.check.kick)
	}
}

// scheduleAll puts every half message that the fold knows on the agenda when this
// process begins to ask: once it is open, or once it is the group's master. What is left
// of its present wait is known by the wall clock only: one that was set back makes it at
// most the whole wait again.
//
// Whether the last check of who asked before was read is not known, nor whether its
// answer found nobody here. If no other is left it is forgiven, as Lost forgives one: a
// half message is parked only after a question that this process has asked.
func (b *Broker) scheduleAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.schedule()
	now := time.Duration(b.now())
	for _, h := range b.state.halves.Pending() {
		from := h.Stored
		if h.Asked > 0 {
			from = h.Last
		}
		wait := b.presentWait(h)
		left := wait
		if !from.IsZero() {
			// Both times are whole milliseconds, rounded down.
			left = min(max(from.Add(wait+time.Millisecond).Sub(b.wallNow()), 0), wait)
		}
		if terms := b.termsOf(h.Topic); h.Asked-h.Lost >= terms.Checks && h.Lost < min(h.Asked, terms.Checks) {
			h.Lost++
			b.halves.asked[h.Key] = h
		}
		b.halves.agenda.Set(h, now+left)
	}
}

// presentWait is how long a half message that is not due is left alone.
func (b *Broker) presentWait(h *transaction.Half) time.Duration {
	if h.Asked > 0 {
		return b.termsOf(h.Topic).Interval
	}
	return h.Immunity
}

// termsOf returns how half messages of the topic are checked; the defaults when
// the topic is gone.
func (b *Broker) termsOf(name zone.Topic) zone.Transaction {
	if t := b.view.Load().topics[name]; t != nil && t.info.Kind == zone.KindTransaction {
		return t.info.Transaction
	}
	return zone.DefaultTransaction
}

// checkLoop asks producers about half messages whose time has come, and parks
// those about which it has asked often enough.
func (b *Broker) checkLoop() { b.loop(0, b.halves.check.kick, b.checkRound) }

// checkRound looks at what is due and returns how long nothing will be.
func (b *Broker) checkRound() time.Duration {
	full := map[zone.Topic]bool{}
	for range maxCheckRound {
		b.mu.Lock()
		now := time.Duration(b.now())
		h := b.halves.agenda.Due(now)
		if h == nil {
			wait := farWake
			if next, ok := b.halves.agenda.Next(); ok {
				wait = next - now
			}
			b.halves.check.wake = now + wait
			b.mu.Unlock()
			return wait
		}
		terms, asked := b.termsOf(h.Topic), h.Asked-h.Lost
		b.halves.agenda.Set(h, now+terms.Interval)
		b.mu.Unlock()
		b.lookAt(h, terms, asked, full)
	}
	return 0
}

// lookAt does what a due half message needs. full are the topics whose producers
// have too much waiting already.
func (b *Broker) lookAt(h *transaction.Half, terms zone.Transaction, asked int, full map[zone.Topic]bool) {
	t := b.view.Load().topics[h.Topic]
	switch {
	case t == nil || t.info.Kind != zone.KindTransaction:
		b.park(h, asked, record.ReasonUnknownTopic)
		return
	case asked >= terms.Checks:
		b.park(h, asked, record.ReasonNone)
		return
	}
	outcome := CheckFull
	b.mu.RLock()
	came := b.halves.check.came
	b.mu.RUnlock()
	if !full[h.Topic] {
		outcome = b.askProducer(h)
	}
	switch outcome {
	case CheckNobody:
		b.metrics.tx.unasked(h.Topic)
	case CheckFull:
		full[h.Topic] = true
		b.mu.Lock()
		if !h.Decided() {
			b.halves.agenda.Set(h, time.Duration(b.now())+min(checkAgain, terms.Interval))
		}
		b.mu.Unlock()
		return
	}
	b.tellLonely(h, outcome == CheckNobody, came)
}

func (b *Broker) askProducer(h *transaction.Half) CheckOutcome {
	ask := b.halves.check.ask.Load()
	if ask == nil {
		return CheckNobody
	}
	return (*ask)(&CheckBack{Topic: h.Topic, Size: int(h.Size), b: b, h: h})
}

// tellLonely notes whether a topic's half messages have somebody to ask, now that one
// was looked at, and tells when that changes. came is how many producers had come before
// it was looked for one.
func (b *Broker) tellLonely(h *transaction.Half, lonely bool, came uint64) {
	t, state := h.Topic, &b.halves.check
	b.mu.Lock()
	was := state.lonely[t]
	switch {
	case !lonely:
		delete(state.lonely, t)
		delete(state.missed[t], h)
	case h.Decided():
	case state.came != came: // perhaps one of this topic
		state.lonely[t] = true
		b.halves.agenda.Set(h, time.Duration(b.now())+min(checkAgain, b.termsOf(t).Interval))
	default:
		state.lonely[t] = true
		if state.missed[t] == nil {
			state.missed[t] = map[*transaction.Half]struct{}{}
		}
		state.missed[t][h] = struct{}{}
	}
	b.mu.Unlock()
	switch {
	case lonely && !was:
		b.logger.Warn("half messages wait for a decision and no producer of their topic is connected", "topic", string(t))
	case was && !lonely:
		b.logger.Info("a producer is asked about half messages again", "topic", string(t))
	}
}

// park gives a half message up: it becomes a dead letter that operators see. What
// cannot be appended is tried again at the next interval.
func (b *Broker) park(h *transaction.Half, asked int, reason record.Reason) {
	_, done := b.claim(h)
	if done == nil {
		return // its decision is under way
	}
	v, err := b.readHalf(h)
	if err != nil {
		done()
		b.unreadableHalf(h, err)
		return
	}
	cause := Cause{Kind: CauseUndecided, Topic: h.Topic, Attempts: asked, Reason: reason, Original: v.Identity()}
	e, err := b.copyTo(UndecidedTopic, v, &cause)
	if err == nil {
		o := &op{batch: commitlog.Batch{Entries: []commitlog.Entry{e}}}
		o.finished = func(err error) {
			done()
			if err == nil {
				b.metrics.tx.decided(transaction.Parked, h.Topic)
			}
		}
		if err = b.append(b.ctx, o); err == nil {
			return
		}
	}
	done()
	b.logger.Warn("half message cannot be parked, trying again", "topic", string(h.Topic), "seq", uint64(h.Key.Position), "err", err)
}

// unreadableHalf reports damage. The half message stays: nothing is decided about
// what cannot be read.
func (b *Broker) unreadableHalf(h *transaction.Half, err error) {
	b.metrics.unreadable()
	if missed, ok := b.damage.Allow(time.Now()); ok {
		b.logger.Error("half message cannot be read", "topic", string(h.Topic), "seq", uint64(h.Key.Position), "suppressed", missed, "err", err)
	}
}

// collectChecks returns the record of all checks that are not logged yet, if any.
func (b *Broker) collectChecks() []*op {
	b.mu.Lock()
	list := make([]checkedItem, 0, len(b.halves.asked))
	for k, h := range b.halves.asked {
		list = append(list, checkedItem{k, h.Asked, min(h.Lost, h.Asked)})
	}
	b.halves.asked = map[transaction.Key]*transaction.Half{}
	b.mu.Unlock()
	var ops []*op
	for items := range slices.Chunk(list, maxCheckedItems) {
		o := &op{finished: func(err error) {
			if err != nil {
				b.restoreChecks(items)
			}
		}}
		if o = b.sealOp(o, record.TypeChecked, appendChecked(nil, items)); o != nil {
			ops = append(ops, o)
		}
	}
	return ops
}

// maxCheckedItems bounds one record of checks to about a megabyte.
const maxCheckedItems = 1 << 16

func (b *Broker) restoreChecks(items []checkedItem) {
	b.metrics.progressFailed()
	b.mu.Lock()
	for _, it := range items {
		if h := b.state.halves.Get(it.key); h != nil {
			b.halves.asked[it.key] = h // its numbers only rise
		}
	}
	b.mu.Unlock()
	poke(b.kick)
}
