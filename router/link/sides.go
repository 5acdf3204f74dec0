package link

import (
	"context"
	"encoding/binary"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// maxSides bounds the side streams that a connection's peer is told of; QUIC
	// lets it open twice as many, see windowMemory.
	maxSides = 16
	// sessionSides bounds those of a session: with its own stream 16 MiB by default,
	// which is the most that a flow's credit lets it have on its way.
	sessionSides = 7
	// sideFrame is the payload in bytes from which a frame may go aside: a smaller
	// one is not worth the frame that tells of it.
	sideFrame = 16 << 10
	// fitEvery is the least time over which a session's flight is measured.
	fitEvery = 20 * time.Millisecond
	// fitEasy is for how long a side stream has to be more than enough before it ends.
	fitEasy = 10 * time.Second
	// fitTrips is how many round trips pass between two side streams that a session
	// opens: a window that grows no faster keeps slow start from sending far more at
	// once than path and receiver take, which on a long path costs minutes.
	fitTrips = 3
	// sideOwner is the length in bytes of what a side stream begins with.
	sideOwner = 8
)

// windowMemory is the memory that the windows of side streams may take, of all
// connections together. A connection takes its share when it greets: a part of what
// is left, so that there is some for those that come later. It reserves two windows
// for each side stream that its peer is told of: one that the peer has ended may
// wait to be read while the next one fills.
type windowMemory struct {
	mu   sync.Mutex
	left int // guarded by mu; windows
}

// windowsShare is the part of the windows left that a connection may reserve.
const windowsShare = 8

func newWindowMemory(l Limits) *windowMemory {
	return &windowMemory{left: int(max(l.WindowMemory, 0) / int64(l.StreamWindow))}
}

// take reserves windows and returns for how many side streams they are.
func (w *windowMemory) take() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(w.left/windowsShare/2, maxSides)
	w.left -= 2 * n
	return n
}

func (w *windowMemory) give(n int) {
	w.mu.Lock()
	w.left += 2 * n
	w.mu.Unlock()
}

// seat puts into the greeting how many side streams the peer may have, and
// reserves their windows until the connection ends. Urgent links get none: what
// they carry is small.
func (m *Manager) seat(qc *quic.Conn, h *wire.Hello) int {
	if h.Class != zone.ClassBulk {
		return 0
	}
	n := m.windows.take()
	if n == 0 {
		return 0
	}
	context.AfterFunc(qc.Context(), func() { m.windows.give(n) })
	h.Features |= wire.FeatureSides
	h.Sides = uint8(n)
	return n
}

// sides are the side streams of a connection, of both ends.
type sides struct {
	told    int          // how many the peer may have
	in, out atomic.Int64 // the peer's and this end's

	mu     sync.Mutex
	owners map[quic.StreamID]*Session // guarded by mu; the sessions by their own stream
}

func (x *sides) own(s *Session) {
	x.mu.Lock()
	if x.owners == nil {
		x.owners = make(map[quic.StreamID]*Session)
	}
	x.owners[s.stream.StreamID()] = s
	x.mu.Unlock()
}

func (x *sides) disown(s *Session) {
	x.mu.Lock()
	delete(x.owners, s.stream.StreamID())
	x.mu.Unlock()
}

func (x *sides) owner(id quic.StreamID) *Session {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.owners[id]
}

// acceptSides gives the peer's side streams to the sessions that they are for,
// until the connection ends.
func (c *conn) acceptSides(ctx context.Context) {
	for {
		stream, err := c.qc.AcceptUniStream(ctx)
		if err != nil {
			return
		}
		if c.sides.in.Add(1) > int64(2*c.sides.told) {
			c.close(wire.CodeTooMany, "more side streams than were allowed")
			return
		}
		var owner [sideOwner]byte
		_ = stream.SetReadDeadline(time.Now().Add(c.m.o.Timing.Stall))
		_, err = io.ReadFull(stream, owner[:])
		s := c.sides.owner(quic.StreamID(binary.LittleEndian.Uint64(owner[:])))
		if err != nil || s == nil || !s.in.add(stream) {
			c.dropSide(stream, wire.CodeShutdown) // its session has ended
		}
	}
}

// dropSide ends a side stream of the peer, which may open another one.
func (c *conn) dropSide(stream *quic.ReceiveStream, code wire.Code) {
	stream.CancelRead(quic.StreamErrorCode(code))
	stream.ReleaseStreamCredit()
	c.sides.in.Add(-1)
}

// openSide opens a side stream for the session whose stream is owner; nil when
// the peer takes no more.
func (c *conn) openSide(owner quic.StreamID) *quic.SendStream {
	if c.sides.out.Add(1) > int64(c.peer.Sides) {
		c.sides.out.Add(-1)
		return nil
	}
	stream, err := c.qc.OpenUniStream()
	if err != nil {
		c.sides.out.Add(-1)
		return nil
	}
	if err := stream.TryWriteAll(binary.LittleEndian.AppendUint64(nil, uint64(owner))); err != nil {
		c.endSide(stream, wire.CodeInternal, false)
		return nil
	}
	return stream
}

// endSide ends a side stream of this end: behind what was sent, or at once.
func (c *conn) endSide(stream *quic.SendStream, code wire.Code, flush bool) {
	if !flush || stream.Close() != nil {
		stream.CancelWrite(quic.StreamErrorCode(code))
	}
	c.sides.out.Add(-1)
}

// inSides are the side streams that a session receives on.
type inSides struct {
	came chan struct{} // capacity 1: open has another one, or over is true

	mu   sync.Mutex
	open map[quic.StreamID]*quic.ReceiveStream // guarded by mu
	over bool                                  // guarded by mu; the session has ended
}

// add takes a side stream; false when the session has ended.
func (x *inSides) add(stream *quic.ReceiveStream) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return false
	}
	if x.open == nil {
		x.open = make(map[quic.StreamID]*quic.ReceiveStream)
	}
	x.open[stream.StreamID()] = stream
	x.signal()
	return true
}

func (x *inSides) signal() {
	select {
	case x.came <- struct{}{}:
	default:
	}
}

func (x *inSides) get(id uint64) (stream *quic.ReceiveStream, over bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.open[quic.StreamID(id)], x.over
}

// find waits for a side stream that the peer has named; it may come later than its
// name, but not by more than Timing.Stall.
func (s *Session) find(ctx context.Context, id uint64) (*quic.ReceiveStream, error) {
	if stream, _ := s.in.get(id); stream != nil {
		return stream, nil
	}
	t := time.NewTimer(s.conn.m.o.Timing.Stall)
	defer t.Stop()
	for {
		switch stream, over := s.in.get(id); {
		case stream != nil:
			return stream, nil
		case over:
			return nil, &wire.ClosedError{Code: wire.CodeShutdown, Local: true}
		}
		select {
		case <-s.in.came:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.conn.qc.Context().Done():
			return nil, context.Cause(s.conn.qc.Context())
		case <-t.C:
			return nil, &wire.ClosedError{Code: wire.CodeTimeout, Text: "a side stream did not come", Local: true}
		}
	}
}

// lose ends one side stream that the peer uses no more.
func (s *Session) lose(stream *quic.ReceiveStream) {
	s.in.mu.Lock()
	_, had := s.in.open[stream.StreamID()]
	delete(s.in.open, stream.StreamID())
	s.in.mu.Unlock()
	if had {
		s.conn.dropSide(stream, wire.CodeOK)
	}
}

// outSides are the side streams that a session sends on.
type outSides struct {
	mu   sync.Mutex
	open []*outSide // guarded by mu; changed only by who holds sendMu, or with over
	over bool       // guarded by mu; the session has ended

	own   uint64    // guarded by sendMu; bytes on the session's own stream
	since time.Time // guarded by sendMu; when sent began
	sent  uint64    // guarded by sendMu; bytes since then
	easy  time.Time // guarded by sendMu; since when fewer would do; zero = they would not
	grow  time.Time // guarded by sendMu; no further one is opened before
	lost  uint64    // guarded by sendMu; packets that the connection had lost
	last  *outSide  // guarded by sendMu; ends with its next frame; nil = none
}

// outSide is one of them.
type outSide struct {
	stream *quic.SendStream
	bytes  uint64 // counted like outSides.own, from the least of the others on
}

// pick returns the side stream for a frame of n bytes: the one with the fewest bytes
// of all the session's streams, so that their windows are used up alike; nil = the
// session's own. sendMu is held.
func (x *outSides) pick(n int) *outSide {
	if n < sideFrame {
		return nil
	}
	if x.last != nil {
		return x.last
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	var best *outSide
	least := x.own
	for _, o := range x.open {
		if o.bytes < least {
			best, least = o, o.bytes
		}
	}
	return best
}

// count returns how many there are.
func (x *outSides) count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.open)
}

// aside says on the session's own stream that f follows on o. sendMu is held.
func (s *Session) aside(ctx context.Context, o *outSide, f *wire.Frame) (sent int, err error) {
	a := wire.Aside{Stream: uint64(o.stream.StreamID()), Last: o == s.out.last}
	say := wire.Frame{Type: wire.TypeAside, Session: f.Session, Class: f.Class, Hops: f.Hops, Payload: a.Append(nil)}
	b, err := wire.AppendFrame(nil, &say)
	if err != nil {
		return 0, err
	}
	return s.write(ctx, s.stream, b)
}

// fit notes that n bytes went on o, and sees to it that the windows of the session's
// streams hold twice what it has on its way: its rate over the round trip. sendMu
// is held.
func (s *Session) fit(now time.Time, o *outSide, n int) {
	x := &s.out
	if o == nil {
		x.own += uint64(n)
	} else {
		o.bytes += uint64(n)
	}
	if o != nil && o == x.last {
		s.endLast(o)
	}
	x.sent += uint64(n)
	rtt, over := time.Duration(s.conn.rtt.Load()), now.Sub(x.since)
	if s.conn.peer.Sides == 0 || rtt == 0 || over < max(rtt, fitEvery) {
		return
	}
	flight := float64(x.sent) / over.Seconds() * rtt.Seconds()
	x.since, x.sent = now, 0
	want, have := sidesFor(flight, s.conn.m.o.Limits.StreamWindow), x.count()
	switch {
	case want >= have:
		x.easy = time.Time{}
		s.grow(now, rtt, want > have)
	case x.easy.IsZero():
		x.easy = now
	case now.Sub(x.easy) >= fitEasy && x.last == nil:
		x.mu.Lock()
		x.last, x.easy = x.open[have-1], now
		x.mu.Unlock()
	}
}

// grow opens a side stream when one is wanted and it is time. It is not time for a
// while after a loss: then it is not the window that the session waits for.
func (s *Session) grow(now time.Time, rtt time.Duration, want bool) {
	x := &s.out
	if lost := s.conn.qc.ConnectionStats().PacketsLost; lost != x.lost {
		x.lost, x.grow = lost, now.Add(fitEasy)
	}
	if want && !now.Before(x.grow) && s.widen() {
		x.grow = now.Add(fitTrips * rtt)
	}
}

// sidesFor returns how many side streams a session needs that has flight bytes on
// its way.
func sidesFor(flight float64, window int) int {
	return int(min(max(math.Ceil(2*flight/float64(window))-1, 0), sessionSides))
}

// widen opens a side stream; false when there is none to be had.
func (s *Session) widen() bool {
	stream := s.conn.openSide(s.stream.StreamID())
	if stream == nil {
		return false
	}
	x := &s.out
	x.mu.Lock()
	over := x.over
	if !over {
		least := x.own
		for _, o := range x.open {
			least = min(least, o.bytes)
		}
		x.open = append(x.open, &outSide{stream: stream, bytes: least})
	}
	x.mu.Unlock()
	if over {
		s.conn.endSide(stream, wire.CodeOK, false)
	}
	return !over
}

// endLast ends the side stream that has had its last frame.
func (s *Session) endLast(o *outSide) {
	x := &s.out
	x.last = nil
	x.mu.Lock()
	at := -1
	for i := range x.open {
		if x.open[i] == o {
			at = i
		}
	}
	if at >= 0 {
		x.open = append(x.open[:at], x.open[at+1:]...)
	}
	x.mu.Unlock()
	if at >= 0 {
		s.conn.endSide(o.stream, wire.CodeOK, true)
	}
}

// endSides ends all side streams of the session, once it has ended. flush says that
// what was sent shall arrive.
func (s *Session) endSides(code wire.Code, flush bool) {
	s.out.mu.Lock()
	out := s.out.open
	s.out.open, s.out.over = nil, true
	s.out.mu.Unlock()
	for _, o := range out {
		s.conn.endSide(o.stream, code, flush)
	}
	s.in.mu.Lock()
	in := s.in.open
	s.in.open, s.in.over = nil, true
	s.in.signal()
	s.in.mu.Unlock()
	for _, stream := range in {
		s.conn.dropSide(stream, code)
	}
}
