package broker

import (
	"cmp"
	"context"
	"slices"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/record"
)

// A delayed message may wait for a month, and a log is trimmed by whole segments.
// Messages that are few among what lies behind them are appended to the log again,
// as they are, so that the log up to them can go. Otherwise the log is kept: to
// write everything again for the few would cost more than it frees.
const (
	// maxTimersCarried bounds what one look at retention carries; the next one goes
	// on.
	maxTimersCarried      = 1 << 16
	maxTimersCarriedBytes = 64 << 20
)

// stray is a message that waits in an old part of the log.
type stray struct {
	bucket *timerBucket
	number uint64
	entry  queue.Entry
}

// keepTimers returns where delayed messages need the log from, at most floor, below
// which nothing else needs it. It carries those that are in the way if they are few.
func (b *Broker) keepTimers(ctx context.Context, floor record.Position) (record.Position, error) {
	begin, end := b.log.Begin(), b.log.Committed()
	lowest, err := b.timersFrom(begin)
	if err != nil {
		return begin, err
	}
	if lowest < floor && floor > begin {
		move, through, err := b.strays(ctx, begin, floor)
		if err != nil {
			return begin, err
		}
		if err := b.carryTimers(ctx, move); err != nil {
			if ctx.Err() == nil {
				b.logger.Warn("delayed messages cannot be appended again; they hold the log back", "group", string(b.self), "messages", len(move), "err", err)
			}
		} else if through > begin {
			if len(move) > 0 {
				b.metrics.timersCarried(len(move))
				b.logger.Info("delayed messages are appended again, so that the log behind them can go", "group", string(b.self),
					"messages", len(move), "free", uint64(through-begin))
			}
			if lowest, err = b.timersFrom(through); err != nil {
				return begin, err
			}
		}
	}
	b.timerHold.Store(int64(end - min(end, lowest)))
	return min(floor, lowest), nil
}

// timersFrom returns the position of the oldest message that waits, from a position
// on; the end of time when none does.
func (b *Broker) timersFrom(begin record.Position) (record.Position, error) {
	lowest := ^record.Position(0)
	for _, k := range b.buckets() {
		n, _, err := k.index.Search(begin)
		if err != nil {
			return 0, err
		}
		b.mu.RLock()
		n = k.settled.NextOut(n, k.index.Next())
		b.mu.RUnlock()
		lowest = min(lowest, positionOf(k.index, n))
	}
	return lowest, nil
}

// buckets returns the buckets that have messages that wait.
func (b *Broker) buckets() []*timerBucket {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.DeleteFunc(slices.Clone(b.state.timers.list), func(k *timerBucket) bool { return k.pending() == 0 })
}

// timersPending returns how many delayed messages wait.
func (b *Broker) timersPending() uint64 {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.state.timers.pending
}

// strays returns what to carry so that the log is free up to through: the furthest
// segment up to which the messages that wait are a small part (carriedPart) of what
// goes.
func (b *Broker) strays(ctx context.Context, begin, floor record.Position) (move []stray, through record.Position, err error) {
	times, err := b.log.SegmentTimes(ctx)
	if err != nil {
		return nil, begin, err
	}
	buckets := b.buckets()
	at := make([]uint64, len(buckets))
	for i, k := range buckets {
		if at[i], _, err = k.index.Search(begin); err != nil {
			return nil, begin, err
		}
	}
	var all []stray
	var bytes int64
	through = begin
	for _, s := range times {
		if s.End > floor {
			break
		}
		for i, k := range buckets {
			got, next, err := b.straysOf(k, at[i], s.End, maxTimersCarried-len(all))
			if err != nil {
				return nil, begin, err
			}
			at[i] = next
			for _, x := range got {
				bytes += int64(x.entry.Size)
			}
			if all = append(all, got...); len(all) >= maxTimersCarried || bytes > maxTimersCarriedBytes {
				return move, through, nil
			}
		}
		if bytes <= int64(s.End-begin)/carriedPart {
			move, through = all, s.End
		}
	}
	return move, through, nil
}

// straysOf returns the messages of a bucket from entry n on that wait before a
// position, at most limit, and the entry to go on from.
func (b *Broker) straysOf(k *timerBucket, n uint64, before record.Position, limit int) (list []stray, next uint64, err error) {
	end := k.index.Next()
	for ; len(list) < limit; n++ {
		b.mu.RLock()
		n = k.settled.NextOut(n, end)
		b.mu.RUnlock()
		if n >= end {
			break
		}
		e, err := k.index.Get(n)
		if err != nil {
			return nil, n, err
		}
		if e.Position >= before {
			break
		}
		list = append(list, stray{k, n, e})
	}
	return list, n, nil
}

// carryTimers appends the messages and waits until they are folded. One that is
// settled meanwhile is not carried by the fold.
func (b *Broker) carryTimers(ctx context.Context, move []stray) error {
	slices.SortFunc(move, func(x, y stray) int { return cmp.Compare(x.entry.Position, y.entry.Position) })
	o, size := &op{}, 0
	for i, x := range move {
		e, err := b.carriedTimer(x)
		if err != nil {
			return err
		}
		o.batch.Entries = append(o.batch.Entries, e)
		if size += len(e.Record); size < carryBatch && i+1 < len(move) {
			continue
		}
		o.batch.Reserved = true
		if err := b.appendWait(ctx, o); err != nil {
			return err
		}
		o, size = &op{}, 0
	}
	return nil
}

// carriedTimer makes the record that carries a message.
func (b *Broker) carriedTimer(x stray) (commitlog.Entry, error) {
	bytes, origin, err := b.readStray(&x)
	if err != nil {
		return commitlog.Entry{}, err
	}
	body := carriedBody{bucket: x.bucket.name(), number: x.number, origin: origin, due: x.bucket.due(x.entry), record: bytes}
	return b.control(record.TypeCarried, body.append(nil))
}

// readStray reads the record of a message that waits, and the number that its handle
// names.
func (b *Broker) readStray(x *stray) (bytes []byte, origin uint64, err error) {
	entry, err := b.log.ReadAt(x.entry.Position, int(x.entry.Size))
	if err != nil {
		return nil, 0, err
	}
	v, err := record.Parse(entry.Record)
	if err != nil || v.Type() != record.TypeCarried {
		return v.Bytes(), x.number, err
	}
	c, err := parseCarried(v.Body()) // it was carried before
	return c.record, c.origin, err
}
