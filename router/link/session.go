package link

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

var _ wire.Stream = (*Session)(nil)

// sendCopy is how many bytes of a payload are written together with the
// header: about a packet, so that no packet carries a header alone. The rest is
// handed over without a copy.
const sendCopy = 4 << 10

// Session is one session on a link: a QUIC stream that carries frames, and side
// streams when one window does not suffice. It is a wire.Stream.
type Session struct {
	conn   *conn
	stream *quic.Stream
	number atomic.Uint64 // the session's number; 0 until the first frame has told it

	recv recvState // only Recv
	in   inSides
	from atomic.Pointer[quic.ReceiveStream] // what Recv reads instead of stream; nil = nothing
	out  outSides
	to   atomic.Pointer[quic.SendStream] // likewise of Send

	sendMu  sync.Mutex // held while a frame is being written
	sendBuf []byte     // guarded by sendMu
	broken  bool       // guarded by sendMu; a frame was cut off
	period  uint64     // guarded by sendMu; the sample in which it was last counted as busy

	closeOnce sync.Once
	closed    atomic.Pointer[wire.ClosedError]
}

// recvState is a frame that has arrived in part, so that a Recv whose context
// ended can be followed by another.
type recvState struct {
	head     [wire.HeaderSize]byte
	gotHead  int
	parsed   bool
	header   wire.Header
	payload  []byte
	got      int
	deadline bool // the stream has a read deadline

	aside wire.Aside          // the last one that came
	named bool                // the next frame is on the side stream of aside
	side  *quic.ReceiveStream // where the frame comes from; nil = the session's stream
	small [wire.MaxAside]byte // the payload of Aside
}

// newSession returns a session and makes it known to the connection.
func newSession(c *conn, s *quic.Stream, number uint64) *Session {
	out := &Session{conn: c, stream: s}
	out.number.Store(number)
	out.in.came = make(chan struct{}, 1)
	c.sessions.Add(1)
	c.sides.own(out)
	return out
}

// Peer returns the router at the other end.
func (s *Session) Peer() zone.Node { return s.conn.peer.Node }

// City returns the city of the router at the other end.
func (s *Session) City() zone.City { return s.conn.peer.City }

// Class returns the class of the link.
func (s *Session) Class() zone.Class { return s.conn.link.key.Class }

// Send implements wire.Stream. The payload is not kept. A stream that takes no
// byte for Timing.Write is reset and returns a *wire.ClosedError with
// wire.CodeSlowPeer; a context that ends in the middle of a frame resets it,
// too. A payload above what the peer takes is a *wire.FrameError and harms
// nothing. It also waits for Limits.Rate, before the frame is begun.
func (s *Session) Send(ctx context.Context, f wire.Frame) error {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	if c := s.closed.Load(); c != nil {
		return c
	}
	if most := s.conn.peer.MaxFrame; uint64(len(f.Payload)) > uint64(most) {
		return &wire.FrameError{Type: f.Type, Code: wire.CodeUnsupported, Field: "payload length", Err: ErrTooLarge}
	}
	buf, err := wire.AppendHeader(s.sendBuf[:0], &f)
	if err != nil {
		return err
	}
	n := min(len(f.Payload), sendCopy)
	buf = append(buf, f.Payload[:n]...)
	s.sendBuf = buf[:0]
	if f.Type == wire.TypeBatch {
		s.conn.seen(&s.period, 1+s.out.count())
	}
	if err := s.conn.pace(ctx, wire.HeaderSize+len(f.Payload)); err != nil {
		return err
	}

	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() {
			_ = s.stream.SetWriteDeadline(time.Unix(1, 0))
			if side := s.to.Load(); side != nil {
				_ = side.SetWriteDeadline(time.Unix(1, 0))
			}
		})
		defer stop()
	}
	sent, err := s.put(ctx, &f, buf, n)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && sent == 0 {
		return ctx.Err()
	}
	s.broken = true
	if c := s.closed.Load(); c != nil {
		return c
	}
	err = streamError(err)
	s.reset(codeOf(err))
	return err
}

// put writes a frame: head, which is its header with the first n bytes of its
// payload, and the rest. sendMu is held.
func (s *Session) put(ctx context.Context, f *wire.Frame, head []byte, n int) (sent int, err error) {
	var to sink = s.stream
	side := s.out.pick(len(f.Payload))
	if side != nil {
		if sent, err = s.aside(ctx, side, f); err != nil {
			return sent, err
		}
		to = side.stream
		s.to.Store(side.stream)
		defer s.to.Store(nil)
	}
	k, err := s.write(ctx, to, head)
	sent += k
	if err == nil && n < len(f.Payload) {
		k, err = s.write(ctx, to, f.Payload[n:])
		sent += k
	}
	if err == nil {
		s.fit(time.Now(), side, wire.HeaderSize+len(f.Payload))
	}
	return sent, err
}

// sink is a stream that frames are written to.
type sink interface {
	Write(p []byte) (int, error)
	SetWriteDeadline(t time.Time) error
}

// write writes p; it gives up when no byte was taken for Timing.Write.
func (s *Session) write(ctx context.Context, to sink, p []byte) (sent int, err error) {
	for {
		start := time.Now()
		_ = to.SetWriteDeadline(start.Add(s.conn.m.o.Timing.Write))
		if err := ctx.Err(); err != nil {
			return sent, err
		}
		n, err := to.Write(p[sent:])
		sent += n
		s.conn.sent(n, time.Since(start))
		switch {
		case err == nil:
			return sent, nil
		case ctx.Err() != nil:
			return sent, ctx.Err()
		case n == 0 || !isTimeout(err):
			return sent, err
		}
	}
}

// Recv implements wire.Stream. After the context's error it may be called
// again.
func (s *Session) Recv(ctx context.Context) (wire.Frame, error) {
	return s.RecvInto(ctx, func(_ context.Context, n int) ([]byte, error) { return make([]byte, n), nil })
}

// RecvInto is Recv with the payload in memory that alloc provides once the
// length is known; alloc may block until there is room, its slice must hold at
// least n bytes, and its error ends the session.
func (s *Session) RecvInto(ctx context.Context, alloc func(ctx context.Context, n int) ([]byte, error)) (wire.Frame, error) {
	if ctx.Done() != nil {
		defer s.interrupt(ctx)()
	}
	for {
		f, err := s.next(ctx, alloc)
		if err != nil {
			if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
				return wire.Frame{}, err
			}
			if c := s.closed.Load(); c != nil {
				return wire.Frame{}, c
			}
			return wire.Frame{}, streamError(err)
		}
		if n := s.number.Load(); n == 0 && f.Session != 0 {
			s.number.Store(f.Session)
		} else if f.Session != n {
			continue // a frame of another session is not for anybody here
		}
		if f.Type == wire.TypeEnd {
			e, err := wire.ParseEnd(f.Payload)
			if err != nil {
				return wire.Frame{}, err
			}
			return wire.Frame{}, &wire.ClosedError{Code: e.Code, Text: e.Text}
		}
		return f, nil
	}
}

// interrupt has the end of ctx end a Read, until what it returns is called.
func (s *Session) interrupt(ctx context.Context) (stop func()) {
	over := make(chan struct{})
	end := context.AfterFunc(ctx, func() {
		defer close(over)
		_ = s.stream.SetReadDeadline(time.Unix(1, 0))
		if side := s.from.Load(); side != nil {
			_ = side.SetReadDeadline(time.Unix(1, 0))
		}
	})
	return func() {
		if !end() {
			<-over // else it would end the next Read
			s.recv.deadline = true
		}
	}
}

// next returns the next frame, wherever it is.
func (s *Session) next(ctx context.Context, alloc func(context.Context, int) ([]byte, error)) (wire.Frame, error) {
	r := &s.recv
	for {
		if r.named {
			side, err := s.find(ctx, r.aside.Stream)
			if err != nil {
				return wire.Frame{}, err
			}
			r.side, r.named = side, false
			s.from.Store(side)
		}
		f, err := s.whole(ctx, alloc)
		switch {
		case err != nil:
			return wire.Frame{}, err
		case f.Type != wire.TypeAside:
			if r.side != nil {
				if r.aside.Last {
					s.lose(r.side)
				}
				r.side = nil
				s.from.Store(nil)
			}
			return f, nil
		case r.side != nil:
			return wire.Frame{}, &wire.FrameError{Type: f.Type, Code: wire.CodeMalformed, Field: "place", Err: errAside}
		}
		if r.aside, err = wire.ParseAside(f.Payload); err != nil {
			return wire.Frame{}, err
		}
		r.named = true
	}
}

// whole reads one frame from where it stands.
func (s *Session) whole(ctx context.Context, alloc func(context.Context, int) ([]byte, error)) (wire.Frame, error) {
	r := &s.recv
	if !r.parsed {
		if err := s.fill(ctx, r.head[:], &r.gotHead); err != nil {
			return wire.Frame{}, err
		}
		h, err := wire.ParseHeader(r.head[:])
		if err != nil {
			return wire.Frame{}, err
		}
		most := s.conn.m.o.Limits.MaxPayload
		if h.Type == wire.TypeAside {
			most = len(r.small)
		}
		if int(h.Length) > most {
			return wire.Frame{}, &wire.FrameError{Type: h.Type, Code: wire.CodeMalformed, Field: "payload length", Err: ErrTooLarge}
		}
		r.header = h
		if h.Type == wire.TypeAside {
			r.payload = r.small[:]
		} else if r.payload, err = alloc(ctx, int(h.Length)); err != nil {
			return wire.Frame{}, err
		}
		r.payload, r.got, r.parsed = r.payload[:h.Length], 0, true
	}
	if err := s.fill(ctx, r.payload, &r.got); err != nil {
		return wire.Frame{}, err
	}
	payload := r.payload
	r.payload, r.parsed, r.gotHead = nil, false, 0
	if err := r.header.Check(payload); err != nil {
		return wire.Frame{}, err
	}
	return r.header.Frame(payload), nil
}

// fill reads until p is full. Between frames it waits for ever; within one it
// gives up when no byte comes for Timing.Stall.
func (s *Session) fill(ctx context.Context, p []byte, got *int) error {
	for *got < len(p) {
		r := &s.recv
		from := s.await()
		if err := ctx.Err(); err != nil {
			r.deadline = true
			return err
		}
		n, err := from.Read(p[*got:])
		*got += n
		s.conn.received(n)
		switch {
		case err == nil || *got == len(p):
		case ctx.Err() != nil:
			r.deadline = true
			return ctx.Err()
		case isTimeout(err):
			if n == 0 {
				return &wire.ClosedError{Code: wire.CodeTimeout, Text: "a frame stopped in its middle", Local: true}
			}
		default:
			return err
		}
	}
	return nil
}

// await returns where the frame comes from, with the deadline for its next byte.
func (s *Session) await() io.Reader {
	r := &s.recv
	mid := r.parsed || r.gotHead > 0
	if r.side != nil {
		_ = r.side.SetReadDeadline(time.Now().Add(s.conn.m.o.Timing.Stall))
		return r.side
	}
	if mid || r.deadline {
		var at time.Time
		if mid {
			at = time.Now().Add(s.conn.m.o.Timing.Stall)
		}
		_ = s.stream.SetReadDeadline(at)
		r.deadline = mid
	}
	return s.stream
}

// Close implements wire.Stream: it sends End behind what was sent when that is
// possible at once, else it resets the stream.
func (s *Session) Close(code wire.Code) error {
	s.closeOnce.Do(func() {
		s.closed.Store(&wire.ClosedError{Code: code, Local: true})
		ended := false
		if s.sendMu.TryLock() {
			if !s.broken {
				ended = s.end(code)
			}
			s.endSides(code, ended)
			s.sendMu.Unlock()
		}
		s.endSides(code, false)
		if !ended {
			s.stream.CancelWrite(quic.StreamErrorCode(code))
		}
		s.stream.CancelRead(quic.StreamErrorCode(code))
		s.conn.forget(s)
	})
	return nil
}

// end writes End and FIN if there is room.
func (s *Session) end(code wire.Code) bool {
	e := wire.End{Code: code}
	f := wire.Frame{Type: wire.TypeEnd, Session: s.number.Load(), Class: s.Class(), Payload: e.Append(nil)}
	b, err := wire.AppendFrame(s.sendBuf[:0], &f)
	if err != nil || s.stream.TryWriteAll(b) != nil {
		return false
	}
	return s.stream.Close() == nil
}

// reset ends the session without a word: the stream does not take any.
func (s *Session) reset(code wire.Code) {
	s.closeOnce.Do(func() {
		s.closed.Store(&wire.ClosedError{Code: code, Local: true})
		s.stream.CancelWrite(quic.StreamErrorCode(code))
		s.stream.CancelRead(quic.StreamErrorCode(code))
		s.endSides(code, false)
		s.conn.forget(s)
	})
}
