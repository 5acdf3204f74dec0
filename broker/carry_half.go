package broker

import (
	"context"
	"errors"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/broker/transaction"
	"github.com/mqrouter/mqrouter/replication/record"
)

// carryHalves appends old half messages again that keep the log below floor, which
// nothing else needs, if they are few, as dead letters are carried. It returns
// where the half messages still need the log from.
func (b *Broker) carryHalves(ctx context.Context, floor record.Position) record.Position {
	var move []*transaction.Half
	lowest, bytes := ^record.Position(0), int64(0)
	b.mu.RLock()
	if b.state.halves.Len() > 0 {
		for _, h := range b.state.halves.Pending() {
			lowest = min(lowest, h.Position)
			if h.Position >= floor || len(move) > maxCarried {
				break
			}
			move, bytes = append(move, h), bytes+int64(h.Size)
		}
	}
	b.mu.RUnlock()
	begin := b.log.Begin()
	if len(move) == 0 || len(move) > maxCarried || floor <= begin || bytes > int64(floor-begin)/carriedPart {
		return lowest
	}
	batch := carrying{b: b}
	for _, h := range move {
		v, err := b.readHalf(h)
		if err == nil {
			err = batch.add(ctx, &carriedBody{dead: v.Stored(), record: v.Bytes()})
		}
		if err != nil {
			b.logger.Warn("old half messages cannot be appended again; they hold the log back", "messages", len(move), "err", err)
			return lowest
		}
	}
	if err := batch.flush(ctx); err != nil {
		b.logger.Warn("old half messages cannot be appended again; they hold the log back", "messages", len(move), "err", err)
		return lowest
	}
	b.logger.Info("old half messages are appended again, so that the log behind them can go", "messages", len(move), "bytes", bytes, "free", int64(floor-begin))
	return floor
}

// readHalf reads the record of a half message.
func (b *Broker) readHalf(h *transaction.Half) (record.View, error) {
	return b.readHalfAt(h, b.whereHalf(h))
}

func (b *Broker) whereHalf(h *transaction.Half) queue.Entry {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return halfEntry(h)
}

// readHalfAt reads a half message that was at e when the caller looked. It may be
// carried, and the log behind it trimmed, between that look and the read: it is
// read where it is now.
func (b *Broker) readHalfAt(h *transaction.Half, e queue.Entry) (record.View, error) {
	for {
		v, err := b.readRecord(e)
		if !errors.Is(err, commitlog.ErrTrimmed) {
			return v, err
		}
		now := b.whereHalf(h)
		if now.Position <= e.Position {
			return v, err
		}
		e = now
	}
}
