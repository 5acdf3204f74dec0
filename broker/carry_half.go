package broker

import (
	"context"

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
