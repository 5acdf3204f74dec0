package broker

import (
	"context"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/replication/record"
)

// op is one append and what the fold made of it. It is the Result of its batch.
type op struct {
	batch    commitlog.Batch
	places   []placement // by entry; written by the fold
	folded   bool        // written by the fold: every entry was applied
	finished func(error) // called once, in log order for successes; must not block
}

// append hands the entries to the log. finished is called once unless append
// returns an error: with nil when they are committed and folded (or, buffered,
// handed to the operating system; places are not filled then).
func (b *Broker) append(ctx context.Context, o *op) error {
	o.places = make([]placement, len(o.batch.Entries))
	o.batch.Result = o
	o.batch.Done = func(batch *commitlog.Batch, err error) {
		if err == nil && !batch.Buffered && !o.folded {
			err = b.failure()
		}
		o.finished(err)
	}
	return b.log.Append(ctx, &o.batch)
}

// appendWait appends and waits until the entries are committed and folded. When
// ctx ends first, their fate is not known to the caller.
func (b *Broker) appendWait(ctx context.Context, o *op) error {
	done := make(chan error, 1)
	o.finished = func(err error) { done <- err }
	if err := b.append(ctx, o); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// own encodes a record of this group as an entry.
func (b *Broker) own(r *record.Record) (commitlog.Entry, error) {
	r.Identity.Group = b.self
	buf, err := record.AppendRecord(make([]byte, 0, record.EncodedLen(r)), r)
	return commitlog.Entry{Kind: commitlog.KindOwn, Record: buf}, err
}

// control encodes a control record.
func (b *Broker) control(t record.Type, body []byte) (commitlog.Entry, error) {
	return b.own(&record.Record{Type: t, Shard: record.NoShard, Stored: wallNow(), Body: body})
}

// deliver folds what the log committed. It is called by the log's deliver
// goroutine only.
func (b *Broker) deliver(c *commitlog.Committed) {
	if b.failure() != nil {
		return
	}
	b.mu.Lock()
	err := b.foldAll(c)
	woken := b.takeDirty()
	due := b.state.position-b.snapAt >= record.Position(b.limits.SnapshotBytes)
	b.mu.Unlock()
	if err != nil {
		b.fail(err)
	}
	if woken.flows {
		poke(b.legKick)
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
type woken struct{ flows bool }

// takeDirty tells dispatchers and waiters of what was touched. mu is held.
func (b *Broker) takeDirty() woken {
	var w woken
	s := b.state
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
	return w
}
