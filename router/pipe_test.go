package router

import (
	"context"
	"errors"
	"sync"

	"github.com/mqrouter/mqrouter/replication/egress"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// pipe is one end of an in-memory stream: what an in-city connection carries.
type pipe struct {
	in, out chan wire.Frame
	s       *pipeState
}

type pipeState struct {
	once sync.Once
	done chan struct{}
	by   *pipe
	code wire.Code
}

func newPipe() (a, b *pipe) {
	x, y, s := make(chan wire.Frame, 1), make(chan wire.Frame, 1), &pipeState{done: make(chan struct{})}
	return &pipe{in: x, out: y, s: s}, &pipe{in: y, out: x, s: s}
}

func (p *pipe) Send(ctx context.Context, f wire.Frame) error {
	f.Payload = append([]byte(nil), f.Payload...)
	select {
	case <-p.s.done:
		return p.ended()
	default:
	}
	select {
	case p.out <- f:
		return nil
	case <-p.s.done:
		return p.ended()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *pipe) Recv(ctx context.Context) (wire.Frame, error) {
	select {
	case f := <-p.in:
		return f, nil
	default:
	}
	select {
	case f := <-p.in:
		return f, nil
	case <-p.s.done:
		if p.s.by != p { // what was sent before the end still arrives
			select {
			case f := <-p.in:
				return f, nil
			default:
			}
		}
		return wire.Frame{}, p.ended()
	case <-ctx.Done():
		return wire.Frame{}, ctx.Err()
	}
}

func (p *pipe) Close(code wire.Code) error {
	p.s.once.Do(func() {
		p.s.by, p.s.code = p, code
		close(p.s.done)
	})
	return nil
}

func (p *pipe) ended() error { return &wire.ClosedError{Code: p.s.code, Local: p.s.by == p} }

// brokerConn is a connection to a fake broker.
type brokerConn struct {
	serve func(wire.Stream)
	wg    *sync.WaitGroup
	once  sync.Once
	done  chan struct{}
	mu    sync.Mutex
	ends  []*pipe // guarded by mu
}

var _ egress.Conn = (*brokerConn)(nil)

func (c *brokerConn) Open(_ context.Context, _ uint64) (wire.Stream, error) {
	a, b := newPipe()
	c.mu.Lock()
	c.ends = append(c.ends, b)
	c.mu.Unlock()
	select {
	case <-c.done:
		return nil, errors.New("connection ended")
	default:
	}
	c.wg.Go(func() { c.serve(b) })
	return a, nil
}

func (c *brokerConn) Done() <-chan struct{} { return c.done }

func (c *brokerConn) Close() error {
	c.once.Do(func() {
		close(c.done)
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, p := range c.ends {
			_ = p.Close(wire.CodeShutdown)
		}
	})
	return nil
}
