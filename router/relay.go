package router

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/mqrouter/mqrouter/policy"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/router/link"
	"github.com/mqrouter/mqrouter/zone"
)

// receiver is a stream that puts payloads where it is told; links' are.
type receiver interface {
	RecvInto(ctx context.Context, alloc func(ctx context.Context, n int) ([]byte, error)) (wire.Frame, error)
}

var _ receiver = (*link.Session)(nil)

// end is one side of a session.
type end struct {
	stream wire.Stream
	into   receiver // nil when the stream allocates payloads itself
	raise  bool     // frames sent here leave the city

	mu sync.Mutex // held while a frame is sent: the other side's, or Drain
}

func newEnd(s wire.Stream, raise bool) *end {
	e := &end{stream: s, raise: raise}
	e.into, _ = s.(receiver)
	return e
}

// send passes a frame on.
func (e *end) send(f wire.Frame) error {
	if e.raise {
		f.Hops++
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	// No context: the stream bounds its own writes, and closing it ends them.
	return e.stream.Send(context.Background(), f)
}

// session is a session that passes this router.
type session struct {
	number uint64
	city   zone.City // the other city
	class  zone.Class
	origin *end // towards the origin broker
	dest   *end // towards the destination broker

	over atomic.Bool // both ends have been closed
}

// close ends both sides; the first code given is the one that is told.
func (s *session) close(code wire.Code) {
	s.over.Store(true)
	_ = s.origin.stream.Close(code)
	_ = s.dest.stream.Close(code)
}

// relay passes frames in both directions until one side ends or ctx does, then
// ends the other side with the same code and joins.
func (r *Router) relay(ctx context.Context, s *session) {
	stop := context.AfterFunc(ctx, func() { s.close(wire.CodeShutdown) })
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { s.close(codeOf(r.pump(s, s.dest, s.origin))) })
	s.close(codeOf(r.pump(s, s.origin, s.dest)))
	wg.Wait()
}

// pump passes frames from one end to the other until one of them fails.
func (r *Router) pump(s *session, from, to *end) error {
	var h held
	defer h.release()
	bg := context.Background()
	alloc := func(ctx context.Context, n int) ([]byte, error) { return r.buffers.get(ctx, n, &h) }
	counts := r.counts(s.city)
	for {
		var f wire.Frame
		var err error
		if from.into != nil {
			f, err = from.into.RecvInto(bg, alloc)
		} else if f, err = from.stream.Recv(bg); err == nil {
			err = r.buffers.reserve(bg, len(f.Payload), &h)
		}
		switch {
		case err != nil:
			return err
		case f.Session != s.number:
			h.release() // another session's: not for anybody here
			continue
		case f.Hops >= policy.HopLimit && to.raise:
			return &wire.ClosedError{Code: wire.CodeNoRoute, Text: "hop limit", Local: true}
		}
		// Counted first: who has received a frame finds it in the counters.
		if n := uint64(len(f.Payload)); to.raise {
			counts.framesOut.Add(1)
			counts.bytesOut.Add(n)
		} else {
			counts.framesIn.Add(1)
			counts.bytesIn.Add(n)
		}
		if err := to.send(f); err != nil {
			return err
		}
		h.release()
	}
}

// codeOf returns what to tell the other side about an error.
func codeOf(err error) wire.Code {
	var (
		closed *wire.ClosedError
		frame  *wire.FrameError
	)
	switch {
	case err == nil:
		return wire.CodeOK
	case errors.As(err, &closed):
		return closed.Code
	case errors.As(err, &frame):
		return frame.Code
	case errors.Is(err, context.DeadlineExceeded):
		return wire.CodeTimeout
	case errors.Is(err, context.Canceled):
		return wire.CodeShutdown
	case errors.Is(err, link.ErrSessions):
		return wire.CodeTooMany
	case errors.Is(err, link.ErrNoLink):
		return wire.CodeNoRoute
	}
	return wire.CodeInternal
}

// traffic counts payloads to and from a city.
type traffic struct {
	framesIn, framesOut, bytesIn, bytesOut atomic.Uint64
}

// counts returns the counters of a city. Only cities of the topology get here.
func (r *Router) counts(city zone.City) *traffic {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.traffic[city]
	if c == nil {
		c = new(traffic)
		r.traffic[city] = c
	}
	return c
}
