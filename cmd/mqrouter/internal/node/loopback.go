package node

import (
	"context"
	"sync"

	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// loopback is a dialler that serves legs which end in this very group over a
// pipe: a city's CZone group lands its own broadcasts like everybody else's.
type loopback struct {
	group  zone.Group
	far    flow.Dialer
	serve  func(context.Context, wire.Stream) error
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool // guarded by mu
	wg     sync.WaitGroup
}

func newLoopback(group zone.Group, far flow.Dialer, serve func(context.Context, wire.Stream) error) *loopback {
	l := &loopback{group: group, far: far, serve: serve}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Open implements flow.Dialer.
func (l *loopback) Open(ctx context.Context, leg flow.Leg, session uint64) (wire.Stream, error) {
	if leg.Group != l.group {
		return l.far.Open(ctx, leg, session)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, &wire.ClosedError{Code: wire.CodeShutdown}
	}
	near, end := flow.Pipe()
	l.wg.Go(func() {
		// The outbox sees the end of its session and logs why.
		_ = l.serve(l.ctx, end)
	})
	return near, nil
}

// close ends the sessions and waits for them.
func (l *loopback) close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.wg.Wait()
	return nil
}

var _ flow.Dialer = (*loopback)(nil)
