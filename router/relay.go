package router

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

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
	into   receiver  // nil when the stream allocates payloads itself
	city   zone.City // at the other end of the link; empty = this router's own
	node   zone.Node // at the other end of the link; empty with city

	mu sync.Mutex // held while a frame is sent: the other side's, or Drain
}

func newEnd(s wire.Stream) *end {
	e := &end{stream: s}
	if l, ok := s.(*link.Session); ok {
		e.city, e.node = l.City(), l.Peer()
	}
	e.into, _ = s.(receiver)
	return e
}

// send passes a frame on.
func (e *end) send(f wire.Frame) error {
	if e.city != "" {
		f.Hops++ // it leaves the city
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	// No context: the stream bounds its own writes, and closing it ends them.
	return e.stream.Send(context.Background(), f)
}

// session is a session that passes this router.
type session struct {
	number uint64
	city   zone.City // the destination's, for sessions of this city; else the origin's
	class  zone.Class
	origin *end // towards the origin broker
	dest   *end // towards the destination broker

	outbound  bool        // a broker of this city opened it
	via       zone.City   // the third city that it passes; empty = none. This router's own when it is passed on here
	residency []zone.City // of what the origin sends next; empty = all cities
	asked     bool        // guarded by the router's mu; to open again on another path

	over atomic.Bool // both ends have been closed
}

// drain asks the origin to open the session again. One that takes no frame now
// is left to end by itself.
func (s *session) drain(payload []byte) {
	_ = s.origin.send(wire.Frame{Type: wire.TypeDrain, Session: s.number, Class: s.class, Payload: payload})
}

// displaced reports whether the session's link has a better connection for it.
// It is asked when the session can be moved, see link.Session.Displaced.
func (s *session) displaced() bool {
	l, ok := s.dest.stream.(*link.Session)
	return ok && l.Displaced()
}

// allowed checks the records of a frame that is about to enter, or has entered,
// a third city. Open told the residency of the first of them only.
func (s *session) allowed(f *wire.Frame) error {
	if s.via == "" || f.Type != wire.TypeBatch {
		return nil
	}
	ok, err := wire.BatchMayEnter(f.Payload, s.via)
	if err == nil && !ok {
		err = &wire.ClosedError{Code: wire.CodeResidency, Text: "the records may not enter " + string(s.via), Local: true}
	}
	return err
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
	in, out := r.counts(from.city), r.counts(to.city)
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
		case f.Hops >= policy.HopLimit && to.city != "":
			return &wire.ClosedError{Code: wire.CodeHops, Text: "hop limit", Local: true}
		}
		if err := s.allowed(&f); err != nil {
			if s.via == r.city {
				// The router before this one should have seen it.
				r.paths.astray.Add(1)
				if missed, ok := r.astrayLog.Allow(time.Now()); ok {
					r.log.Error("records of a detour may not enter this city", "peer", from.node, "city", s.city, "err", err, "suppressed", missed)
				}
			}
			return err
		}
		// Counted first: who has received a frame finds it in the counters.
		n := uint64(len(f.Payload))
		if in != nil {
			in.framesIn.Add(1)
			in.bytesIn.Add(n)
		}
		if out != nil {
			out.framesOut.Add(1)
			out.bytesOut.Add(n)
		}
		if r.tracer.On() && f.Flags&wire.FlagTrace != 0 {
			err = r.tracedSend(s, from, to, &f)
		} else {
			err = to.send(f)
		}
		if err != nil {
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

// counts returns the counters of a city; nil for none. Only cities of the
// topology get here.
func (r *Router) counts(city zone.City) *traffic {
	if city == "" {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.traffic[city]
	if c == nil {
		c = new(traffic)
		r.traffic[city] = c
	}
	return c
}
