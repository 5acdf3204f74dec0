package peer

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	readBuffer = 64 << 10 // bytes; TLS records have 16 KiB
	// writeChunk is written under one deadline, in bytes: a TLS record, which is
	// one system call in any case.
	writeChunk = 16 << 10
	// patienceFactor times Timing.Write is how long a connection may take no
	// bytes before it ends. Sessions that have something to send are reset
	// earlier; those that have not survive a shorter stall.
	patienceFactor = 3
	// maxControl bounds the control frames that wait to be written, in bytes: a
	// peer that asks and does not read is cut off.
	maxControl = 256 << 10
	// keepBuffer is the largest write buffer kept for the next round, in bytes.
	keepBuffer = 4 << 20
)

var errPeerLimit = errors.New("above the peer's limit")

// conn is one greeted connection. Its reader and writer are started by run.
type conn struct {
	o           *Options
	stats       *counters
	total       *atomic.Int64 // payload bytes that wait in all connections
	nc          net.Conn      // what is read and written; TLS over raw
	raw         net.Conn      // what is closed: closing TLS would wait for a peer that does not read
	link        string
	peer        wire.Hello
	class       zone.Class
	destination zone.City
	maxSend     int            // bytes of the largest payload that the peer takes
	accept      func(*Session) // starts the handler of a session; nil on the dialling side
	started     time.Time

	held     atomic.Int64 // payload bytes that wait in the sessions
	endBy    atomic.Int64 // after started; what shutdown left must be written by then; nanoseconds, 0 = no shutdown
	moved    atomic.Int64 // when the connection last took bytes, after started; nanoseconds
	heard    atomic.Int64 // when the connection last brought bytes, after started; nanoseconds
	rtt      atomic.Int64 // nanoseconds; 0 = not measured yet
	draining atomic.Bool  // the peer drains, or this side does
	done     chan struct{}
	wake     chan struct{} // capacity 1: the writer has something to do

	mu       sync.Mutex
	pending  []byte        // waits to be written; guarded by mu
	controls int           // bytes of control frames in pending; guarded by mu
	space    chan struct{} // closed when pending was taken; guarded by mu
	err      error         // why the connection ended; guarded by mu
	closing  bool          // the writer ends after what is pending; guarded by mu

	dmu     sync.Mutex
	lingers bool // the read deadline is the last one; guarded by dmu

	smu       sync.Mutex
	sessions  map[uint64]*Session // guarded by smu; nil after the end
	idleSince time.Time           // guarded by smu; meaningful without sessions
}

// newConn makes a connection of what the greeting agreed on: first is the
// dialling side's Hello, peer the other side's.
func newConn(o *Options, stats *counters, total *atomic.Int64, nc, raw net.Conn, link string, first, peer *wire.Hello) *conn {
	now := time.Now()
	return &conn{
		o: o, stats: stats, total: total, nc: nc, raw: raw, link: link, peer: *peer,
		class: first.Class, destination: first.DestinationCity,
		maxSend: min(int(peer.MaxFrame), wire.MaxPayload), started: now, idleSince: now,
		done: make(chan struct{}), wake: make(chan struct{}, 1), space: make(chan struct{}),
		sessions: make(map[uint64]*Session),
	}
}

// run reads and writes until the connection has ended, and returns why.
func (c *conn) run() error {
	var wg sync.WaitGroup
	wg.Go(c.write)
	err := c.read()
	var bad *wire.FrameError
	if errors.As(err, &bad) {
		// The peer is told before the end; what else it says is not listened to.
		c.shutdown(bad.Code, bad.Error())
		_, _ = io.Copy(io.Discard, c.nc) // ends at the latest with linger's deadline
	} else if c.isClosing() {
		err = &wire.ClosedError{Code: wire.CodeShutdown, Local: true}
	}
	c.fail(err)
	wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// fail ends the connection and every session; the first reason counts.
func (c *conn) fail(err error) {
	c.mu.Lock()
	first := c.err == nil
	if first {
		c.err = err
		c.pending = nil
		close(c.done)
		close(c.space)
		c.space = make(chan struct{})
	}
	c.mu.Unlock()
	if !first {
		return
	}
	_ = c.raw.Close() // what ended the connection is known; this can add nothing
	c.smu.Lock()
	open := c.sessions
	c.sessions = nil
	c.smu.Unlock()
	for _, s := range open {
		s.finish(&wire.ClosedError{Code: codeOf(err), Text: err.Error()})
	}
}

// shutdown tells the peer why, writes what waits as far as the peer takes it in
// time, and ends the connection. It does not wait; run returns within a few times
// Timing.Write, however slowly the peer reads.
func (c *conn) shutdown(code wire.Code, text string) {
	c.endBy.CompareAndSwap(0, int64(time.Since(c.started)+patienceFactor*c.o.Timing.Write))
	e := wire.End{Code: code, Text: text}
	c.control(0, wire.TypeEnd, e.Append(nil))
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	c.wakeWriter()
}

func (c *conn) isClosing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closing
}

func (c *conn) wakeWriter() {
	select {
	case c.wake <- struct{}{}:
	default: // it is awake
	}
}

// tryWrite appends a frame to what waits. When the buffer is full it returns a
// channel that is closed as soon as it is not; nil when the frame was taken.
func (c *conn) tryWrite(head, payload []byte) (space <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return nil, &wire.ClosedError{Code: codeOf(c.err), Text: c.err.Error()}
	case c.closing:
		return nil, &wire.ClosedError{Code: wire.CodeShutdown, Local: true}
	case len(c.pending) >= c.o.Limits.WriteBuffer:
		return c.space, nil
	}
	c.pending = append(append(c.pending, head...), payload...)
	c.wakeWriter()
	return nil, nil
}

// control appends a small frame that this package itself sends. It never
// blocks: a peer that does not read its answers loses the connection.
func (c *conn) control(session uint64, typ wire.Type, payload []byte) {
	class := c.class
	if session == 0 {
		class = zone.ClassControl
	}
	b, err := wire.AppendFrame(nil, &wire.Frame{Type: typ, Session: session, Class: class, Payload: payload})
	if err != nil {
		c.fail(err) // no such payload is ever built
		return
	}
	c.mu.Lock()
	over := c.controls+len(b) > maxControl
	if c.err == nil && !c.closing && !over {
		c.controls += len(b)
		c.pending = append(c.pending, b...)
	}
	c.mu.Unlock()
	if over {
		c.fail(&wire.ClosedError{Code: wire.CodeSlowPeer, Text: "answers are not read", Local: true})
		return
	}
	c.wakeWriter()
}

// write is the writer goroutine: it writes whatever waits in one go, and keeps
// the connection alive.
func (c *conn) write() {
	tick := time.NewTicker(c.o.Timing.Probe)
	defer tick.Stop()
	var spare []byte
	for {
		select {
		case <-c.done:
			return
		case <-tick.C:
			c.tick(time.Now())
			continue
		case <-c.wake:
		}
		c.mu.Lock()
		out, closing := c.pending, c.closing
		c.pending, c.controls = spare[:0], 0
		close(c.space)
		c.space = make(chan struct{})
		c.mu.Unlock()
		if err := c.flush(out); err != nil {
			c.fail(err)
			return
		}
		if spare = out; cap(spare) > keepBuffer {
			spare = nil
		}
		if closing {
			c.linger()
			return
		}
	}
}

// stalled is how long the connection has taken no bytes at now, at most since
// the given time.
func (c *conn) stalled(since, now time.Time) time.Duration {
	last := c.started.Add(time.Duration(c.moved.Load()))
	if last.Before(since) {
		last = since
	}
	return now.Sub(last)
}

// linger gives the peer a moment to read what was written last and to close:
// closing first could destroy it on its way. The reader ends the connection.
func (c *conn) linger() {
	c.dmu.Lock()
	defer c.dmu.Unlock()
	c.lingers = true
	if err := c.nc.SetReadDeadline(time.Now().Add(c.o.Timing.Write)); err != nil {
		c.fail(err)
	}
}

// arm moves the read deadline, unless the connection lingers.
func (c *conn) arm(now time.Time) error {
	c.dmu.Lock()
	defer c.dmu.Unlock()
	if c.lingers {
		return nil
	}
	return c.nc.SetReadDeadline(now.Add(c.o.Timing.Dead))
}

// flush writes all of b, in pieces that each have their own deadline. After
// shutdown there is one for all that is left.
func (c *conn) flush(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), writeChunk)
		by := time.Now().Add(patienceFactor * c.o.Timing.Write)
		if end := c.endBy.Load(); end != 0 {
			if last := c.started.Add(time.Duration(end)); last.Before(by) {
				by = last
			}
		}
		if err := c.nc.SetWriteDeadline(by); err != nil {
			return err
		}
		if _, err := c.nc.Write(b[:n]); err != nil {
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() {
				c.stats.slowPeers.Add(1)
				return &wire.ClosedError{Code: wire.CodeSlowPeer, Text: "the connection took no bytes in time", Local: true}
			}
			return err
		}
		c.moved.Store(int64(time.Since(c.started)))
		c.stats.bytesOut.Add(uint64(n))
		b = b[n:]
	}
	return nil
}

// tick sends a probe, or ends a connection that nobody uses.
func (c *conn) tick(now time.Time) {
	limit := c.o.Timing.Idle
	if c.accept != nil {
		limit *= 2 // the dialling side decides; this is for those that do not
	}
	c.smu.Lock()
	idle := len(c.sessions) == 0 && (c.draining.Load() || now.Sub(c.idleSince) >= limit)
	if idle {
		c.draining.Store(true) // under smu: open sees it, or tick sees the session
	}
	c.smu.Unlock()
	if idle {
		c.shutdown(wire.CodeOK, "idle")
		return
	}
	p := wire.Probe{SentAt: uint64(now.Sub(c.started))}
	c.control(0, wire.TypeProbe, p.Append(nil))
}

// open registers a session of this side.
func (c *conn) open(id uint64) (*Session, error) {
	c.smu.Lock()
	defer c.smu.Unlock()
	switch {
	case c.sessions == nil || c.draining.Load():
		return nil, errGone
	case id == 0 || c.sessions[id] != nil:
		return nil, ErrSession
	case len(c.sessions) >= min(c.o.Limits.Sessions, int(c.peer.MaxSessions)):
		return nil, &wire.ClosedError{Code: wire.CodeTooMany, Text: "sessions of this connection", Local: true}
	}
	s := newSession(c, id)
	c.sessions[id] = s
	return s, nil
}

// errGone says that a connection ended between being found and being used.
var errGone = errors.New("peer: connection is ending")

func (c *conn) forget(s *Session) {
	c.smu.Lock()
	defer c.smu.Unlock()
	if c.sessions[s.id] == s {
		delete(c.sessions, s.id)
		c.idleSince = time.Now()
	}
}

func (c *conn) find(id uint64) *Session {
	c.smu.Lock()
	defer c.smu.Unlock()
	return c.sessions[id]
}

func (c *conn) count() int {
	c.smu.Lock()
	defer c.smu.Unlock()
	return len(c.sessions)
}

// reserve takes n bytes of the connection's and the node's bounds, or nothing.
func (c *conn) reserve(n int64) bool {
	if c.held.Add(n) > c.o.Limits.ConnBytes {
		c.held.Add(-n)
		return false
	}
	if c.total.Add(n) > c.o.Limits.TotalBytes {
		c.release(n)
		return false
	}
	return true
}

func (c *conn) release(n int64) {
	c.held.Add(-n)
	c.total.Add(-n)
}
