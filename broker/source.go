package broker

import (
	"context"
	"errors"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// ParkedTopic holds copies of records that a destination will never accept,
// with a Cause of kind CauseLeg, and delayed messages whose topic was gone when they
// were due (CauseStranded). It is received like any dead-letter topic.
const ParkedTopic = zone.Topic(DeadLetterPrefix)

var _ flow.Source = (*Broker)(nil)

// Legs implements flow.Source.
func (b *Broker) Legs() []flow.Leg {
	if !b.serves() {
		return nil
	}
	topo := b.Topology()
	b.mu.RLock()
	defer b.mu.RUnlock()
	var legs []flow.Leg
	for id, f := range b.state.out {
		for _, l := range f.legs {
			if l.end == 0 && l.cursor < f.head() {
				if leg, ok := liveLeg(topo, id, l.key); ok {
					legs = append(legs, leg)
				}
			}
		}
	}
	return b.relayLegs(topo, legs)
}

// IdleLegs returns the legs of which everything is settled: whose destinations
// may be asked whether they still have it.
func (b *Broker) IdleLegs() []flow.Leg {
	if !b.serves() {
		return nil
	}
	topo := b.Topology()
	b.mu.RLock()
	defer b.mu.RUnlock()
	var legs []flow.Leg
	add := func(id record.FlowID, l *leg, head uint64) {
		if l.end == 0 && l.cursor > 0 && l.cursor == head {
			if leg, ok := liveLeg(topo, id, l.key); ok {
				legs = append(legs, leg)
			}
		}
	}
	for id, f := range b.state.out {
		for _, l := range f.legs {
			add(id, l, f.head())
		}
	}
	for id, r := range b.state.relays {
		for _, l := range r.legs {
			add(id, l, r.settled)
		}
	}
	return legs
}

// liveLeg names the leg with its city; false when the topology no longer has
// its destination, which keeps its backlog then.
func liveLeg(t *zone.Topology, id record.FlowID, key legKey) (flow.Leg, bool) {
	g := t.FindGroup(key.group)
	if g == nil {
		return flow.Leg{Flow: id, City: key.city, Group: key.group}, false
	}
	return flow.Leg{Flow: id, City: g.Zone.City.Name, Group: key.group}, true
}

// LegsChanged implements flow.Source.
func (b *Broker) LegsChanged() <-chan struct{} { return b.legKick }

// Origin implements flow.Source.
func (b *Broker) Origin(id record.FlowID) (st flow.OriginState, ok bool) {
	begin := b.log.Begin()
	st, index, told := b.origin(id)
	if index == nil {
		return b.relayOrigin(id)
	}
	// What was given up is told with its own reason, although it is trimmed.
	defer func() { st.Oldest = min(st.Oldest, told) }()
	// Outside the lock: a destination that is far behind must not have the fold
	// wait for a disk.
	if e, err := index.Get(index.First()); err == nil && e.Position >= begin {
		return st, true
	}
	if i, _, err := index.Search(begin); err == nil {
		st.Oldest = min(max(st.Oldest, i+1), st.Head+1)
	}
	return st, true
}

// origin returns what the fold knows of a flow, its index, nil when there is no
// such flow, and the lowest number that was given up and is not told yet.
func (b *Broker) origin(id record.FlowID) (flow.OriginState, *queue.Index, uint64) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	f := b.state.out[id]
	if f == nil {
		return flow.OriginState{}, nil, 0
	}
	st := flow.OriginState{Head: f.head(), Oldest: f.oldest()}
	st.Lineage = append(st.Lineage, f.marks...)
	// The lineage in force counts from its start on, so that a store that came
	// back from an old copy differs from its original before it numbers anything.
	// The log knows it; the fold learns of it a sync later, when a session may have
	// been opened already, and its table must not grow behind its back.
	present := b.log.Present()
	if n := len(st.Lineage); n == 0 || st.Lineage[n-1].ID != present.ID {
		st.Lineage = append(st.Lineage, flow.Mark{Epoch: present.Epoch, ID: present.ID, First: f.head() + 1})
	}
	told := st.Head + 1
	for _, l := range f.legs {
		if l.gives() {
			told = min(told, l.cursor+1)
		}
	}
	return st, f.index, told
}

// Cursor implements flow.Source.
func (b *Broker) Cursor(leg flow.Leg) (uint64, flow.Fingerprint) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if l := b.state.legOf(leg.Flow, legKey{leg.City, leg.Group}); l != nil {
		return l.cursor, l.at
	}
	return 0, flow.Fingerprint{}
}

// FingerprintAt implements flow.Source.
func (b *Broker) FingerprintAt(id record.FlowID, number uint64) (flow.Fingerprint, bool) {
	if b.isRelay(id) {
		return b.relayFingerprint(id, number)
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	if f := b.state.out[id]; f != nil {
		return f.fingerprint(number)
	}
	return flow.Fingerprint{}, false
}

// Wait implements flow.Source. The channel may also close earlier, when the
// head moves without passing the number.
func (b *Broker) Wait(id record.FlowID, number uint64) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.state.out[id]
	if r := b.state.relays[id]; f == nil && r != nil {
		return b.relayWait(r, number)
	}
	if f == nil || f.head() > number {
		c := make(chan struct{})
		if f != nil {
			close(c)
		}
		return c
	}
	if f.advanced == nil {
		f.advanced = make(chan struct{})
	}
	return f.advanced
}

// Settle implements flow.Source. Copies of parked and moved records are durable
// in ParkedTopic before the cursor moves past them.
func (b *Broker) Settle(ctx context.Context, leg flow.Leg, s flow.Settlement) error {
	if err := b.ready("settle"); err != nil {
		return err
	}
	cursor, _ := b.Cursor(leg)
	if s.Through <= cursor {
		return nil
	}
	c := copier{b: b, leg: leg}
	if err := c.all(ctx, cursor, s); err != nil {
		return &Error{Op: "settle", Kind: kindOfLog(err), Err: err}
	}
	if len(c.entries) > 0 {
		if err := c.flush(ctx, settled{s.Through, s.Lineage}); err != nil {
			return &Error{Op: "settle", Kind: kindOfLog(err), Err: err}
		}
		return nil
	}
	b.mu.Lock()
	b.settles[leg] = b.settles[leg].then(settled{s.Through, s.Lineage})
	b.mu.Unlock()
	poke(b.kick)
	return nil
}

// What one append of dead-letter copies holds at most; a settlement with more
// takes several.
const (
	maxCopies    = 1024
	maxCopyBytes = 4 << 20
)

// copier appends the dead-letter copies that a settlement asks for.
type copier struct {
	b       *Broker
	leg     flow.Leg
	entries []commitlog.Entry // not appended yet
	bytes   int
}

// all copies everything parked or moved above the cursor; what is left in
// entries at the end is for the caller to flush.
func (c *copier) all(ctx context.Context, cursor uint64, s flow.Settlement) error {
	for _, o := range s.Outcomes {
		c.b.metrics.outcome(o)
		told := o.Outcome == record.OutcomeGap && o.Reason == record.ReasonBudget // by the decision
		if o.Outcome != record.OutcomeSkipped && o.Outcome != record.OutcomeLanded && !told {
			c.b.logger.Warn("records settled without landing", "group", string(c.leg.Group), "city", string(c.leg.City),
				"flow", c.leg.Flow.Target, "seq", o.First, "through", o.Through, "outcome", int(o.Outcome), "reason", int(o.Reason))
		}
		if o.Outcome != record.OutcomeParked && o.Outcome != record.OutcomeMoved {
			continue
		}
		for n := max(o.First, cursor+1); n <= min(o.Through, s.Through); n++ {
			e, ok, err := c.b.parkedCopy(c.leg, n, o)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			c.entries = append(c.entries, e)
			if c.bytes += len(e.Record); len(c.entries) < maxCopies && c.bytes < maxCopyBytes {
				continue
			}
			if err := c.flush(ctx, settled{n, s.Lineage}); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush appends the copies and, behind them, the cursor: a crash between leaves
// copies whose repetition the fold ignores.
func (c *copier) flush(ctx context.Context, to settled) error {
	e, err := c.b.control(record.TypeSettle, appendSettleBody(nil, []settleItem{{c.leg, to}}))
	if err != nil {
		return err
	}
	o := &op{batch: commitlog.Batch{Entries: append(c.entries, e), Reserved: true}}
	c.entries, c.bytes = nil, 0
	return c.b.appendWait(ctx, o)
}

// parkedCopy is false when the record is no longer readable, trimmed or damaged:
// nothing can be kept of it then but the count.
func (b *Broker) parkedCopy(leg flow.Leg, number uint64, o flow.Outcome) (commitlog.Entry, bool, error) {
	if b.isRelay(leg.Flow) {
		return b.relayCopy(leg, number, o)
	}
	entry, ok, err := b.entryOf(leg.Flow, number)
	if errors.Is(err, flow.ErrTrimmed) || (err == nil && !ok) {
		return commitlog.Entry{}, false, nil
	}
	if err != nil {
		return commitlog.Entry{}, false, err
	}
	v, err := b.readRecord(entry)
	var corrupt *commitlog.CorruptError
	if errors.As(err, &corrupt) {
		b.logger.Error("parked record cannot be copied", "flow", leg.Flow.Target, "seq", number, "err", err)
		return commitlog.Entry{}, false, nil
	}
	if errors.Is(err, commitlog.ErrTrimmed) {
		return commitlog.Entry{}, false, nil
	}
	if err != nil {
		return commitlog.Entry{}, false, err
	}
	e, err := b.copyTo(ParkedTopic, v, legCause(leg, number, o, v))
	return e, err == nil, err
}

// legCause says why the record of a leg's number is a dead letter.
func legCause(leg flow.Leg, number uint64, o flow.Outcome, v record.View) *Cause {
	return &Cause{
		Kind: CauseLeg, Topic: zone.Topic(v.Topic()), Queue: int(v.Queue()),
		Flow: leg.Flow, City: leg.City, Destination: leg.Group, Number: number,
		Outcome: o.Outcome, Reason: o.Reason, Original: v.Identity(),
	}
}
