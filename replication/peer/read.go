package peer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// maxOpening bounds the payload of a frame that begins a session, in bytes: a
// lineage table and a residency of the largest legal size fit.
const maxOpening = 256 << 10

// maxOwn bounds the payload of a frame on session 0 after the greeting, in
// bytes.
const maxOwn = 4 << 10

// read is the reader: it takes frames until the connection ends, and returns
// why. It blocks on nothing but the socket.
func (c *conn) read() error {
	br := bufio.NewReaderSize(countingReader{c}, readBuffer)
	var armed time.Time
	for {
		// The deadline is for the next frame as a whole, so that one that drips
		// in ends too. Moving it costs little, but not nothing.
		if now := time.Now(); now.Sub(armed) > c.o.Timing.Dead/8 {
			armed = now
			if err := c.arm(now); err != nil {
				return err
			}
		}
		b, err := br.Peek(wire.HeaderSize)
		if err != nil {
			return ended(err)
		}
		h, err := wire.ParseHeader(b)
		if err != nil {
			return err
		}
		if _, err := br.Discard(wire.HeaderSize); err != nil {
			return err
		}
		if err := c.take(br, &h); err != nil {
			return ended(err)
		}
	}
}

// ended makes the plain end of a connection say so.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("peer: connection ended by the other side: %w", io.ErrUnexpectedEOF)
	}
	return err
}

type countingReader struct{ c *conn }

func (r countingReader) Read(p []byte) (int, error) {
	n, err := r.c.nc.Read(p)
	if n > 0 {
		r.c.heard.Store(int64(time.Since(r.c.started)))
	}
	r.c.stats.bytesIn.Add(uint64(n))
	return n, err
}

// take reads the payload that belongs to the header and hands it on. A payload
// that nobody wants is skipped without being kept.
func (c *conn) take(br *bufio.Reader, h *wire.Header) error {
	if h.Length > uint32(c.o.Limits.MaxPayload) {
		return &wire.FrameError{Type: h.Type, Code: wire.CodeMalformed, Field: "payload length", Err: errOwnLimit}
	}
	if h.Session == 0 {
		return c.takeOwn(br, h)
	}
	s := c.find(h.Session)
	if s == nil {
		s = c.begin(h)
	}
	if s == nil {
		c.stats.ignored.Add(1)
		return skip(br, h)
	}
	if h.Type == wire.TypeEnd {
		return c.takeEnd(br, h, s)
	}
	n := int64(h.Length)
	if !s.room(n) {
		c.stats.overflows.Add(1)
		s.reset(wire.CodeSlowPeer, "receive queue is full")
		return skip(br, h)
	}
	payload, err := payloadOf(br, h)
	if err != nil {
		c.release(n)
		return err
	}
	s.push(h.Frame(payload))
	return nil
}

var errOwnLimit = errors.New("above this node's limit")

func payloadOf(br *bufio.Reader, h *wire.Header) ([]byte, error) {
	if h.Length == 0 {
		return nil, h.Check(nil)
	}
	payload := make([]byte, h.Length)
	if _, err := io.ReadFull(br, payload); err != nil {
		return nil, err
	}
	return payload, h.Check(payload)
}

func skip(br *bufio.Reader, h *wire.Header) error {
	_, err := br.Discard(int(h.Length))
	return err
}

// begin starts the session that the frame opens, or returns nil. Late frames of
// sessions that have ended begin nothing.
func (c *conn) begin(h *wire.Header) *Session {
	if c.accept == nil || !opens(h.Type) {
		return nil
	}
	code, text := c.entitled(h)
	c.smu.Lock()
	var s *Session
	switch {
	case c.sessions == nil:
		code, text = wire.CodeShutdown, "connection is ending"
	case c.draining.Load():
		code, text = wire.CodeDraining, "about to stop"
	case code != wire.CodeOK:
	case len(c.sessions) >= c.o.Limits.Sessions:
		code, text = wire.CodeTooMany, "sessions of this connection"
	default:
		s = newSession(c, h.Session)
		c.sessions[h.Session] = s
	}
	c.smu.Unlock()
	if s == nil {
		c.stats.refusedSessions.Add(1)
		r := wire.Refuse{Code: code, Text: text}
		c.control(h.Session, wire.TypeRefuse, r.Append(nil))
		return nil
	}
	c.accept(s)
	return s
}

// opens reports whether a frame of the type begins a session.
func opens(t wire.Type) bool {
	switch t {
	case wire.TypeOpen, wire.TypeWant, wire.TypeSeal, wire.TypeCall, wire.TypeFollow, wire.TypeFetch:
		return true
	}
	return false
}

// entitled judges the frame that opens a session before its payload is read. Only
// brokers of one zone call each other: the others' bodies must not cost memory.
// Only members of one group follow each other's log, or fetch of it: it holds everything.
func (c *conn) entitled(h *wire.Header) (code wire.Code, text string) {
	limit := uint32(maxOpening)
	if h.Type == wire.TypeCall {
		me, them := c.o.Self, identityOf(&c.peer)
		if me.Role != zone.RoleBroker || them.Role != zone.RoleBroker || me.Zone != them.Zone || me.City != them.City || me.Deployment != them.Deployment {
			return wire.CodeWrongIdentity, "calls are for the brokers of one zone"
		}
		limit = uint32(wire.CallSize(wire.MaxCall))
	}
	if (h.Type == wire.TypeFollow || h.Type == wire.TypeFetch) && !c.fellow() {
		return wire.CodeWrongIdentity, "the log of a group is for its members"
	}
	if h.Length > limit {
		return wire.CodeMalformed, "opening frame too large"
	}
	return wire.CodeOK, ""
}

// fellow reports whether the other side is another member of this node's group: by
// its certificate, as the topology knows it now, and by its own word.
func (c *conn) fellow() bool {
	them := identityOf(&c.peer)
	return c.o.Group != "" && c.peer.Group == c.o.Group && them != c.o.Self && c.o.Fellow(them)
}

func (c *conn) takeEnd(br *bufio.Reader, h *wire.Header, s *Session) error {
	if h.Length > maxOwn {
		return &wire.FrameError{Type: h.Type, Code: wire.CodeMalformed, Field: "payload length", Err: errOwnLimit}
	}
	payload, err := payloadOf(br, h)
	if err != nil {
		return err
	}
	e, err := wire.ParseEnd(payload)
	if err != nil {
		return err
	}
	s.finish(&wire.ClosedError{Code: e.Code, Text: e.Text})
	return nil
}

// takeOwn handles a frame about the connection itself. Types that a later
// version may have are ignored.
func (c *conn) takeOwn(br *bufio.Reader, h *wire.Header) error {
	if h.Length > maxOwn {
		return &wire.FrameError{Type: h.Type, Code: wire.CodeMalformed, Field: "payload length", Err: errOwnLimit}
	}
	payload, err := payloadOf(br, h)
	if err != nil {
		return err
	}
	switch h.Type {
	case wire.TypeProbe:
		p, err := wire.ParseProbe(payload)
		if err != nil {
			return err
		}
		r := wire.ProbeReply{Nonce: p.Nonce, SentAt: p.SentAt}
		c.control(0, wire.TypeProbeReply, r.Append(nil))
	case wire.TypeProbeReply:
		p, err := wire.ParseProbeReply(payload)
		if err != nil {
			return err
		}
		if rtt := time.Since(c.started) - time.Duration(p.SentAt); rtt > 0 { // what the peer returns may be anything
			c.rtt.Store(int64(rtt))
		}
	case wire.TypeDrain:
		if _, err := wire.ParseDrain(payload); err != nil {
			return err
		}
		c.spread(h.Frame(payload))
	case wire.TypeEnd:
		e, err := wire.ParseEnd(payload)
		if err != nil {
			return err
		}
		return &wire.ClosedError{Code: e.Code, Text: e.Text}
	case wire.TypeHello, wire.TypeRefuse:
		return &wire.FrameError{Type: h.Type, Code: wire.CodeMalformed, Field: "type", Err: errLate}
	}
	return nil
}

var errLate = errors.New("not legal after the greeting")

// spread gives a Drain on to every session and lets no new one begin.
func (c *conn) spread(f wire.Frame) {
	c.smu.Lock()
	c.draining.Store(true)
	open := make([]*Session, 0, len(c.sessions))
	for _, s := range c.sessions {
		open = append(open, s)
	}
	c.smu.Unlock()
	for _, s := range open {
		f.Session = s.id
		if s.room(int64(len(f.Payload))) {
			s.push(f)
		}
	}
}
