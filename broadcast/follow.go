package broadcast

import (
	"context"
	"errors"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// follower is the applying half of a session. It is used by Run's goroutine.
type follower struct {
	*Sync
	stream  wire.Stream
	next    uint64 // offset after the last landing received
	bytes   uint64 // of the session's landings that are applied
	pending []landing
}

// grant tells the landing group what is applied and what may be sent.
func (f *follower) grant(ctx context.Context) error {
	a := wire.Applied{Offset: f.place.Offset, Credit: wire.Credit{
		Number: f.place.Offset + uint64(f.o.Window), Bytes: f.bytes + uint64(f.o.WindowBytes)}}
	return f.stream.Send(ctx, wire.Frame{Type: wire.TypeApplied, Payload: a.Append(nil)})
}

// take applies landings, together with those that have come meanwhile.
func (f *follower) take(ctx context.Context, some []landing, in <-chan []landing) error {
	f.add(some)
	for len(f.pending) > 0 {
		f.gather(in)
		if err := f.step(ctx); err != nil {
			return err
		}
		if err := f.grant(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (f *follower) add(some []landing) {
	f.pending = append(f.pending, some...)
	f.next += uint64(len(some))
	f.board.received(f.next)
}

// gather adds what has come, up to a batch.
func (f *follower) gather(in <-chan []landing) {
	for len(f.pending) < f.o.BatchChanges {
		select {
		case some, ok := <-in:
			if !ok {
				return
			}
			f.add(some)
		default:
			return
		}
	}
}

// step applies one batch from the front of what waits.
func (f *follower) step(ctx context.Context) error {
	f.skip()
	if len(f.pending) == 0 {
		return nil
	}
	if err := f.tellHole(ctx); err != nil {
		return err
	}
	b, used := f.batch()
	spans, began := f.traceApply(f.pending[:used]), time.Now()
	err := f.apply(ctx, b)
	kind := errorKind(err)
	f.metrics.processed(ctx, used, time.Since(began), kind)
	spans.end(kind, err)
	var moved *MovedError
	if errors.As(err, &moved) {
		return nil // somebody else is ahead; the place says how far
	}
	if err != nil {
		return err
	}
	f.drop(used)
	return nil
}

// skip drops landings that are applied already.
func (f *follower) skip() {
	n := 0
	for n < len(f.pending) && f.pending[n].offset < f.place.Offset {
		n++
	}
	f.drop(n)
}

// drop forgets the first n landings; their bytes may be sent anew.
func (f *follower) drop(n int) {
	for i := range n {
		f.bytes += uint64(f.pending[i].size)
		f.pending[i] = landing{}
	}
	if f.pending = f.pending[n:]; len(f.pending) == 0 {
		f.pending = nil
	}
}

// tellHole tells of what is missing at or before the first landing.
func (f *follower) tellHole(ctx context.Context) error {
	l := &f.pending[0]
	if miss := f.missing(l); miss.First > 0 {
		if err := f.gap(ctx, Gap{Kind: GapNumbers, Flow: l.envelope.Flow, Missing: miss}); err != nil {
			return err
		}
	}
	if l.lost() && f.marks.Judge(&l.envelope).Moved {
		miss := Range{l.envelope.Number, l.envelope.Through}
		if err := f.gap(ctx, Gap{Kind: GapDeclared, Flow: l.envelope.Flow, Missing: miss}); err != nil {
			return err
		}
	}
	if l.damaged {
		return f.gap(ctx, Gap{Kind: GapDamaged, Missing: Range{l.offset + 1, l.offset + 1}})
	}
	return nil
}

// missing returns the numbers that should have come before the landing.
func (f *follower) missing(l *landing) Range {
	if l.envelope.Number == 0 || !f.o.Exclusive {
		return Range{}
	}
	return f.marks.Judge(&l.envelope).Missing
}

// batch makes a batch of the first landings: within the limits, a flush-prefix
// alone, and nothing from behind a hole.
func (f *follower) batch() (*Batch, int) {
	b := &Batch{To: f.place}
	marks := map[record.FlowID]int{} // where in b.Marks
	bytes, used := 0, 0
	for used < min(len(f.pending), f.o.BatchChanges) {
		l := &f.pending[used]
		flush := !l.absent && l.rejected == nil && l.change.Op == OpFlushPrefix
		if used > 0 && (bytes+l.size > f.o.BatchBytes || flush || l.damaged || l.lost() || f.missing(l).First > 0) {
			break
		}
		bytes += l.size
		used++
		b.To.Offset = l.offset + 1
		if l.envelope.Number > 0 {
			f.mark(b, f.marks.Judge(&l.envelope), marks)
		}
		if l.absent {
			continue
		}
		if l.rejected != nil {
			f.reject(l)
			continue
		}
		b.Changes = append(b.Changes, l.change)
		if flush {
			break
		}
	}
	return b, used
}

// mark moves a watermark with the batch.
func (f *follower) mark(b *Batch, s Step, at map[record.FlowID]int) {
	if !s.Moved {
		return
	}
	f.marks.Move(s)
	b.Drop = append(b.Drop, s.Drop...)
	if i, ok := at[s.Mark.Flow]; ok {
		b.Marks[i] = s.Mark
		return
	}
	at[s.Mark.Flow] = len(b.Marks)
	b.Marks = append(b.Marks, s.Mark)
}

// reject counts a message that is no change. The stream goes on.
func (f *follower) reject(l *landing) {
	f.metrics.changes(context.Background(), "rejected", 1)
	f.board.rejected(l)
	f.log.Warn("a message is no change; it is skipped", "seq", l.offset, "message", l.id, "err", l.rejected)
}

// apply does a batch from the present place. The error is a *MovedError when
// somebody else has applied more; the place is the new one then.
func (s *Sync) apply(ctx context.Context, b *Batch) error {
	b.Topic, b.From, b.Horizon = s.o.Topic, s.place, s.o.Horizon
	var r Result
	err := s.patiently(ctx, func() (err error) {
		b.Now = time.Now()
		r, err = s.o.Applier.Apply(ctx, b)
		return err
	})
	var moved *MovedError
	switch {
	case errors.As(err, &moved) && sameSpot(moved.At, b.To):
		// An earlier attempt was applied, but its answer was lost.
		r = Result{Applied: len(b.Changes)}
	case moved != nil:
		if lost := s.moved(ctx, moved.At); lost != nil {
			return lost
		}
		return err
	case err != nil:
		return err
	}
	s.place = b.To
	s.metrics.applied(ctx, b, r)
	s.board.applied(b, r, s.marks)
	return nil
}
