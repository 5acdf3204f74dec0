package broker

import (
	"context"
	"slices"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/replication/record"
)

// op is one append and what the fold made of it. It is the Result of its batch.
type op struct {
	batch    commitlog.Batch
	places   []placement // by entry; written by the fold
	folded   bool        // written by the fold: every entry was applied
	owner    *Broker     // set by append
	finished func(error) // called once, in log order for successes; must not block
	waiter   chan error  // capacity 1; told when finished is nil
	lites    []liteName  // that have a place until the batch ends; see liteRoom
	inSync   int         // members that must be in sync when it is done; see enoughInSync
}

// append hands the entries to the log. finished is called once unless append
// returns an error: with nil when they are committed and folded (or, buffered,
// handed to the operating system; places are not filled then).
func (b *Broker) append(ctx context.Context, o *op) error {
	n := len(o.batch.Entries)
	o.places = slices.Grow(o.places[:0], n)[:n]
	clear(o.places)
	o.folded, o.owner = false, b
	o.batch.Result, o.batch.Done = o, endOp
	err := b.log.Append(ctx, &o.batch)
	if err != nil {
		b.lites.give(o)
	}
	if err != nil && b.member != nil {
		return b.unanswered(err)
	}
	return err
}

// endOp tells the owner of a batch what became of it.
func endOp(batch *commitlog.Batch, err error) {
	o := batch.Result.(*op)
	o.owner.lites.give(o)
	if err == nil && !batch.Buffered && !o.folded && !batch.EarlyDone() {
		err = o.owner.failure()
	}
	if m := o.owner.member; m != nil && (err != nil || !o.owner.mayAnswer()) {
		err = o.owner.unanswered(err)
	}
	if err == nil && o.inSync > 1 {
		err = o.owner.enoughInSync(o.inSync)
	}
	if o.finished == nil {
		o.waiter <- err
		return
	}
	o.finished(err)
}

// appendWait appends and waits until the entries are committed and folded. When
// ctx ends first, their fate is not known to the caller, and o must not be used
// again.
func (b *Broker) appendWait(ctx context.Context, o *op) error {
	o.finished = nil
	if o.waiter == nil {
		o.waiter = make(chan error, 1)
	}
	if err := b.append(ctx, o); err != nil {
		return err
	}
	select {
	case err := <-o.waiter:
		return err
	case <-ctx.Done():
		return &waitError{ctx.Err()}
	}
}

// waitError says that the wait for an append ended before the append.
type waitError struct{ err error }

func (e *waitError) Error() string { return e.err.Error() }
func (e *waitError) Unwrap() error { return e.err }

// own encodes a record of this group as an entry.
func (b *Broker) own(r *record.Record) (commitlog.Entry, error) {
	r.Identity.Group = b.self
	buf, err := record.AppendRecord(make([]byte, 0, record.EncodedLen(r)), r)
	return commitlog.Entry{Kind: commitlog.KindOwn, Record: buf}, err
}

// control encodes a control record.
func (b *Broker) control(t record.Type, body []byte) (commitlog.Entry, error) {
	return b.own(&record.Record{Type: t, Shard: record.NoShard, Stored: b.wallNow(), Body: body})
}

// deliver folds what the log committed. It is called by the log's deliver
// goroutine only.
func (b *Broker) deliver(c *commitlog.Committed) {
	if b.failure() != nil {
		return
	}
	b.mu.Lock()
	if b.cold {
		b.mu.Unlock()
		if err := b.warm(c.End); err != nil {
			b.fail(err)
		}
		return
	}
	err := b.foldAll(c)
	b.tellLed()
	woken := b.takeDirty()
	due := b.state.position-b.snapAt >= record.Position(b.limits.SnapshotBytes)
	b.mu.Unlock()
	if err != nil {
		b.fail(err)
	}
	if woken.flows {
		poke(b.legKick)
	}
	if woken.receipts {
		poke(b.receiptKick)
	}
	if woken.due {
		poke(b.dueKick)
	}
	if due {
		poke(b.snapKick)
	}
}

// foldAll applies the entries and tells each batch what became of it.
func (b *Broker) foldAll(c *commitlog.Committed) error {
	next, at := 0, 0 // batch, and entry in it
	for i := range c.Entries {
		e := &c.Entries[i]
		p, err := b.state.apply(e)
		if err != nil {
			return err
		}
		if next >= len(c.Batches) || c.Batches[next].Entries[at].Position != e.Position {
			continue
		}
		batch := c.Batches[next]
		o, _ := batch.Result.(*op)
		if o != nil && !batch.Buffered {
			o.places[at] = p
		}
		if at++; at == len(batch.Entries) {
			if o != nil && !batch.Buffered {
				o.folded = true
			}
			next, at = next+1, 0
		}
	}
	return nil
}

// woken says who has something to do after a delivery.
type woken struct{ flows, due, receipts bool }

// takeDirty tells dispatchers and waiters of what was touched. mu is held.
func (b *Broker) takeDirty() woken {
	var w woken
	s := b.state
	b.takeResets()
	for _, t := range s.dirtyTopics {
		t.dirty = false
		for _, sub := range t.subs {
			sub.hands.advance(t)
		}
		if t.grown != nil {
			close(t.grown)
			t.grown = nil
		}
	}
	s.dirtyTopics = s.dirtyTopics[:0]
	for _, f := range s.dirtyFlows {
		f.dirty = false
		w.flows = true
		if f.advanced != nil && f.head() > f.seen {
			close(f.advanced)
			f.advanced = nil
		}
		f.seen = f.head()
	}
	s.dirtyFlows = s.dirtyFlows[:0]
	b.schedule()
	w.flows = s.takeDirtyRelays() || w.flows
	w.due = s.timers.soonest > 0 && s.timers.soonest < b.dueBefore.Load()
	s.timers.soonest = 0
	w.receipts, s.receiptsDue = s.receiptsDue, false
	return w
}
