package peer

import (
	"context"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

var _ wire.Stream = (*Session)(nil)

// Session is one session of a connection. It is a wire.Stream.
type Session struct {
	c    *conn
	id   uint64
	head [wire.HeaderSize]byte // only Send

	ready chan struct{} // capacity 1: something was queued
	done  chan struct{} // closed when end is set

	mu    sync.Mutex
	queue []wire.Frame      // guarded by mu
	next  int               // index of the first in queue; guarded by mu
	bytes int64             // payload bytes in queue; guarded by mu
	deaf  bool              // this side ended or closed it: nothing is queued any more; guarded by mu
	end   *wire.ClosedError // set once; guarded by mu
}

func newSession(c *conn, id uint64) *Session {
	return &Session{c: c, id: id, ready: make(chan struct{}, 1), done: make(chan struct{})}
}

// ID is the session's number.
func (s *Session) ID() uint64 { return s.id }

// Heard is when the session's connection last brought any bytes.
func (s *Session) Heard() time.Time { return s.c.started.Add(time.Duration(s.c.heard.Load())) }

// Peer is the greeting of the node at the other end.
func (s *Session) Peer() wire.Hello { return s.c.peer }

// Identity is who the node at the other end is, as its certificate says too.
// The topology may have changed since the handshake.
func (s *Session) Identity() Identity { return identityOf(&s.c.peer) }

// Class is the connection's class.
func (s *Session) Class() zone.Class { return s.c.class }

// Destination is the city that the dialling side named for the connection.
func (s *Session) Destination() zone.City { return s.c.destination }

// Done is closed when the session has ended in either way. Frames that had
// arrived before can still be received unless this side ended it.
func (s *Session) Done() <-chan struct{} { return s.done }

// Send implements wire.Stream. The payload is copied. The frame's session is
// set, and its class when it has none. It blocks while the connection's write
// buffer is full; when the connection takes no bytes for Timing.Write, the
// session is reset and the error is a *wire.ClosedError with CodeSlowPeer. A payload above the peer's limit is a
// *wire.FrameError and harms nothing else.
func (s *Session) Send(ctx context.Context, f wire.Frame) error {
	f.Session = s.id
	if f.Class == 0 {
		f.Class = s.c.class
	}
	if f.Type == wire.TypeCall && s.c.peer.Features&wire.FeatureCalls == 0 {
		return &wire.ClosedError{Code: wire.CodeUnsupported, Text: "the peer takes no calls: its version is older", Local: true}
	}
	if len(f.Payload) > s.c.maxSend {
		return &wire.FrameError{Type: f.Type, Code: wire.CodeUnsupported, Field: "payload length", Err: errPeerLimit}
	}
	head, err := wire.AppendHeader(s.head[:0], &f)
	if err != nil {
		return err
	}
	var timer *time.Timer // made only when the buffer is full
	var since time.Time
	for {
		if end := s.ended(); end != nil {
			return end
		}
		space, err := s.c.tryWrite(head, f.Payload)
		if err != nil {
			return err
		}
		if space == nil {
			return nil
		}
		if timer == nil {
			since = time.Now()
			timer = time.NewTimer(s.c.o.Timing.Write)
			defer timer.Stop()
		}
		select {
		case <-space:
		case <-s.done:
		case <-ctx.Done():
			return ctx.Err()
		case now := <-timer.C:
			// What counts is whether the hop passes bytes on, not whether this
			// session was quick enough to get at its share of them.
			if left := s.c.o.Timing.Write - s.c.stalled(since, now); left > 0 {
				timer.Reset(left)
				continue
			}
			s.c.stats.slowPeers.Add(1)
			s.reset(wire.CodeSlowPeer, "the connection took no bytes in time")
		}
	}
}

func (s *Session) ended() *wire.ClosedError {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// Recv implements wire.Stream. After the peer ended the session, or the
// connection broke, it returns what had arrived before, then the
// *wire.ClosedError.
func (s *Session) Recv(ctx context.Context) (wire.Frame, error) {
	for {
		f, ok, end := s.pop()
		if ok {
			return f, nil
		}
		if end != nil {
			return wire.Frame{}, end
		}
		select {
		case <-s.ready:
		case <-s.done:
		case <-ctx.Done():
			return wire.Frame{}, ctx.Err()
		}
	}
}

func (s *Session) pop() (wire.Frame, bool, *wire.ClosedError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == len(s.queue) {
		return wire.Frame{}, false, s.end
	}
	f := s.queue[s.next]
	s.queue[s.next] = wire.Frame{}
	if s.next++; s.next == len(s.queue) {
		s.queue, s.next = s.queue[:0], 0
	}
	n := int64(len(f.Payload))
	s.bytes -= n
	s.c.release(n)
	return f, true, nil
}

// room reports whether a payload of n bytes fits into the queue, and reserves
// it at the connection. Only the connection's reader calls it, and either push
// or release after it.
func (s *Session) room(n int64) bool {
	l := &s.c.o.Limits
	s.mu.Lock()
	fits := s.end == nil && len(s.queue)-s.next < l.Frames && s.bytes+n <= l.SessionBytes
	s.mu.Unlock()
	return fits && s.c.reserve(n)
}

// push queues a frame that room has accepted. Only the connection's reader
// calls it.
func (s *Session) push(f wire.Frame) {
	s.mu.Lock()
	dropped := s.deaf
	if !dropped {
		if s.next > 0 && len(s.queue) == cap(s.queue) { // use the room of what was taken
			n := copy(s.queue, s.queue[s.next:])
			clear(s.queue[n:])
			s.queue, s.next = s.queue[:n], 0
		}
		s.queue = append(s.queue, f)
		s.bytes += int64(len(f.Payload))
	}
	s.mu.Unlock()
	if dropped {
		s.c.release(int64(len(f.Payload)))
		return
	}
	select {
	case s.ready <- struct{}{}:
	default: // a signal already waits
	}
}

// Close implements wire.Stream. It also gives back what waits in the session's
// queue, so it must be called for every session in the end.
func (s *Session) Close(code wire.Code) error {
	s.reset(code, "")
	return nil
}

// CloseText is Close with a detail for people at the other side.
func (s *Session) CloseText(code wire.Code, text string) {
	s.reset(code, text)
}

// reset ends the session from this side and tells the peer.
func (s *Session) reset(code wire.Code, text string) {
	first := s.finish(&wire.ClosedError{Code: code, Text: text, Local: true})
	s.drop()
	if !first {
		return
	}
	e := wire.End{Code: code, Text: text}
	s.c.control(s.id, wire.TypeEnd, e.Append(nil))
}

// drop forgets what waits in the queue: nobody will receive it.
func (s *Session) drop() {
	s.mu.Lock()
	freed := s.bytes
	s.deaf, s.queue, s.next, s.bytes = true, nil, 0, 0
	s.mu.Unlock()
	s.c.release(freed)
}

// finish ends the session here, once. What has arrived can still be received
// until drop.
func (s *Session) finish(end *wire.ClosedError) bool {
	s.mu.Lock()
	if s.end != nil {
		s.mu.Unlock()
		return false
	}
	s.end = end
	close(s.done)
	s.mu.Unlock()
	s.c.forget(s)
	return true
}
