package flow

import (
	"context"
	"sync"

	"github.com/mqrouter/mqrouter/replication/wire"
)

// pipeDepth is how many frames a direction of a Pipe holds before Send waits.
const pipeDepth = 16

// Pipe returns the two ends of a stream inside this process: for a group that
// lands in itself, and for tests. Send copies the payload. It waits, without a
// bound of its own, while the other end does not receive.
func Pipe() (wire.Stream, wire.Stream) {
	p := &pipe{done: make(chan struct{})}
	ab, ba := make(chan wire.Frame, pipeDepth), make(chan wire.Frame, pipeDepth)
	return &pipeEnd{p: p, out: ab, in: ba, side: 0}, &pipeEnd{p: p, out: ba, in: ab, side: 1}
}

// pipe is what both ends share.
type pipe struct {
	done chan struct{} // closed when either end has closed

	mu     sync.Mutex
	closed bool
	code   wire.Code // guarded by mu
	by     int       // side that closed; guarded by mu
}

type pipeEnd struct {
	p    *pipe
	side int
	out  chan<- wire.Frame
	in   <-chan wire.Frame
}

var _ wire.Stream = (*pipeEnd)(nil)

// Send implements wire.Stream.
func (e *pipeEnd) Send(ctx context.Context, f wire.Frame) error {
	select {
	case <-e.p.done:
		return e.err()
	default:
	}
	f.Payload = append([]byte(nil), f.Payload...)
	select {
	case e.out <- f:
		return nil
	case <-e.p.done:
		return e.err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Recv implements wire.Stream. Frames sent before the end come before the
// error, unless this end closed.
func (e *pipeEnd) Recv(ctx context.Context) (wire.Frame, error) {
	select {
	case f := <-e.in:
		return f, nil
	default:
	}
	select {
	case f := <-e.in:
		return f, nil
	case <-e.p.done:
		err := e.err()
		if err.Local {
			return wire.Frame{}, err
		}
		select {
		case f := <-e.in:
			return f, nil
		default:
			return wire.Frame{}, err
		}
	case <-ctx.Done():
		return wire.Frame{}, ctx.Err()
	}
}

// Close implements wire.Stream.
func (e *pipeEnd) Close(code wire.Code) error {
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	if !e.p.closed {
		e.p.closed, e.p.code, e.p.by = true, code, e.side
		close(e.p.done)
	}
	return nil
}

func (e *pipeEnd) err() *wire.ClosedError {
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	return &wire.ClosedError{Code: e.p.code, Local: e.p.by == e.side}
}
