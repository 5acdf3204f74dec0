package broker

import (
	"context"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/internal/bounds"
	"github.com/mqrouter/mqrouter/replication/record"
)

// groupLog is what the broker needs of its group's log, by purpose. The
// embedded commitlog.Log is the default; a driver on another replicated engine
// can take its place, and fold and flows stay as they are. Ordering and
// aliasing are as commitlog.Log states them.
type groupLog interface {
	logWriter
	logReader
	logIdentity
	logLife
}

// logWriter appends and trims. Append blocks while too much is waiting.
type logWriter interface {
	Append(ctx context.Context, b *commitlog.Batch) error
	Writable() error
	Usage() bounds.Usage
	Trim(before record.Position) (record.Position, error)
}

// logReader reads what is committed, from memory or disk.
type logReader interface {
	Begin() record.Position
	Committed() record.Position
	ReadAt(pos record.Position, sizeHint int) (commitlog.Entry, error)
	Scan(ctx context.Context, from, to record.Position, fn func(commitlog.Entry) error) error
	SegmentTimes(ctx context.Context) ([]commitlog.SegmentTime, error)
}

// logIdentity never blocks and does not change after opening.
type logIdentity interface {
	Incarnation() record.Incarnation
	Present() commitlog.LineageStart
	Epoch() uint64
	Lineage() []commitlog.LineageStart
	Lanes() int
}

// logLife is Replay, then Start, then Close, in this order.
type logLife interface {
	Replay(ctx context.Context, from record.Position, fn func(commitlog.Entry) error) error
	Start()
	Close() error
}

var _ groupLog = (*commitlog.Log)(nil)
