package router

import (
	"context"
	"sync"

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
