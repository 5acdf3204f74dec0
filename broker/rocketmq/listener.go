package rocketmq

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// handshakeTime covers a connection's first bytes and its TLS handshake.
	handshakeTime = 5 * time.Second
	// maxHandshakes is how many connections may be in that state at one time. One
	// more ends the oldest of the address that has most: a client shakes hands within
	// milliseconds, so those that stay silent cannot keep it out, however many come.
	maxHandshakes = 512
	// acceptPause follows a failed accept, such as one without file descriptors.
	acceptPause = 50 * time.Millisecond
)

// First bytes of the two protocols that share the port.
const (
	tlsRecord    = 0x16 // TLS record of type handshake (RFC 8446, 5.1)
	http2Preface = 'P'  // of "PRI * HTTP/2.0" (RFC 9113, 3.4)
)

// sniffer is a listener that serves TLS and plaintext on one port. A connection is
// handed out by Accept when it has shown its protocol and, with TLS, finished the
// handshake; both happen outside the accept loop.
type sniffer struct {
	inner     net.Listener
	tls       *tls.Config // nil: plaintext only
	plaintext bool
	limit     int // open connections
	log       *slog.Logger
	refused   func(reason string)
	answers   *answers // counts what each connection has not read

	ready  chan net.Conn // unbuffered: Accept takes, or Close drops
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	open    int                // guarded by mu: connections not yet closed
	placed  crowd[*conn]       // guarded by mu: of these, but fellows' and those that were ended for others
	pending map[*conn]struct{} // guarded by mu: in their handshake
	shaking crowd[*conn]       // guarded by mu: of these, those that were not given up
	closed  bool               // guarded by mu
	full    uint64             // guarded by mu: connections that found the limit reached
	givenUp uint64             // guarded by mu: handshakes ended for a newer one
}

// newSniffer takes over inner and starts accepting.
func newSniffer(inner net.Listener, o *Options, refused func(reason string), a *answers) *sniffer {
	s := &sniffer{
		inner: inner, plaintext: !o.PlaintextOff, limit: o.MaxConnections, log: o.Logger, refused: refused, answers: a,
		ready: make(chan net.Conn), pending: map[*conn]struct{}{},
	}
	if o.TLS != nil {
		s.tls = o.TLS.Clone()
		if !slices.Contains(s.tls.NextProtos, "h2") {
			s.tls.NextProtos = []string{"h2"}
		}
		if o.Fellow != nil {
			fellow := fellowServer(o.Fellow)
			s.tls.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
				if slices.Contains(hello.SupportedProtos, fellowProto) {
					return fellow, nil
				}
				return nil, nil //nolint:nilnil // what tls asks for: the configuration as it is
			}
		}
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.loop)
	return s
}

// Accept blocks until a connection is ready. After Close it returns net.ErrClosed.
func (s *sniffer) Accept() (net.Conn, error) {
	select {
	case c := <-s.ready:
		return c, nil
	case <-s.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Addr is the address of the listener below.
func (s *sniffer) Addr() net.Addr { return s.inner.Addr() }

// Close stops accepting, ends the handshakes and waits for their goroutines. Open
// connections stay. A second Close returns nil.
func (s *sniffer) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	pending := make([]*conn, 0, len(s.pending))
	for c := range s.pending {
		pending = append(pending, c)
	}
	s.mu.Unlock()
	s.cancel()
	err := s.inner.Close()
	for _, c := range pending {
		_ = c.cut() // its goroutine reports nothing any more
	}
	s.wg.Wait()
	return err
}

// loop accepts until Close, or until the listener below is closed by others:
// Accept fails then, too.
func (s *sniffer) loop() {
	defer s.cancel()
	for {
		raw, err := s.inner.Accept()
		switch {
		case s.ctx.Err() != nil, errors.Is(err, net.ErrClosed):
			if err == nil {
				_ = raw.Close() // raced with Close
			}
			return
		case err != nil:
			s.log.Warn("accept failed", "err", err)
			select {
			case <-s.ctx.Done():
				return
			case <-time.After(acceptPause):
			}
		default:
			c := s.enter(raw)
			if c == nil {
				s.refused("connections")
				_ = raw.Close() // over the limit: the peer sees a reset
				continue
			}
			s.wg.Go(func() { s.greet(c) })
		}
	}
}

// enter counts the connection, unless the listener is closed, or the limit reached and
// nobody has to make room: then it returns nil. Those that do are closing, and pass the
// limit until they are. It gives a handshake up when there are too many.
func (s *sniffer) enter(raw net.Conn) *conn {
	from, _ := addressOf(raw.RemoteAddr().String())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if s.open >= s.limit {
		s.full++
		if s.answers.endIdle(time.Now()) == 0 && !s.endOther(from) {
			return nil
		}
	}
	s.open++
	if s.shaking.size >= maxHandshakes {
		oldest := s.shaking.oldest(from)
		s.shaking.leave(oldest)
		s.givenUp++
		_ = oldest.place.cut() // its goroutine sees that and uncounts it
	}
	c := &conn{Conn: raw, sniffer: s, gone: make(chan struct{})}
	c.place, c.shake = s.placed.enter(from, c), s.shaking.enter(from, c)
	s.pending[c] = struct{}{}
	return c
}

// endOther ends the newest connection of the address that has most, for one of another
// address, and reports whether there is one to end. mu is held.
func (s *sniffer) endOther(from netip.Addr) bool {
	other := s.placed.yields(from)
	if other == nil {
		return false
	}
	s.placed.leave(other)
	_ = other.place.cut() // gRPC sees that and ends its calls
	return true
}

// leave uncounts a connection that is closed for good.
func (s *sniffer) leave(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	s.placed.leave(c.place)
}

// greet reads the first byte and finishes the handshake within one deadline.
func (s *sniffer) greet(c *conn) {
	c.link = s.answers.open(c.Conn, c.cut)
	served, reason := s.handshake(c)
	s.mu.Lock()
	s.shaking.leave(c.shake)
	delete(s.pending, c)
	if c.link.fellow { // it brings clients of many addresses, whom its node judges
		s.placed.leave(c.place)
	}
	s.mu.Unlock()
	if reason == "" {
		select {
		case s.ready <- served:
			return
		case <-s.ctx.Done():
		}
	} else {
		s.refused(reason)
	}
	_ = c.Close() // nothing was promised to the peer yet
}

// handshake returns the connection to serve, or the reason why there is none.
func (s *sniffer) handshake(c *conn) (net.Conn, string) {
	deadline := time.Now().Add(handshakeTime)
	if err := c.SetDeadline(deadline); err != nil {
		return nil, "handshake"
	}
	if _, err := c.Conn.Read(c.first[:]); err != nil {
		return nil, "handshake"
	}
	c.held = true
	var served net.Conn = c
	switch {
	case c.first[0] == tlsRecord && s.tls != nil:
		ctx, cancel := context.WithDeadline(s.ctx, deadline)
		defer cancel()
		t := tls.Server(c, s.tls)
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, "handshake"
		}
		served, c.link.fellow = t, ofFellow(t)
	case c.first[0] == http2Preface && s.plaintext:
	case c.first[0] == tlsRecord:
		return nil, "tls off"
	case c.first[0] == http2Preface:
		return nil, "plaintext off"
	default:
		return nil, "protocol"
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		return nil, "handshake"
	}
	return served, ""
}

// conn gives back the first byte and tells the listener when it is closed.
type conn struct {
	net.Conn
	sniffer *sniffer
	place   *spot[*conn] // guarded by sniffer.mu
	shake   *spot[*conn] // guarded by sniffer.mu
	link    *link
	once    sync.Once
	gone    chan struct{} // closed by the first cut
	cutOnce sync.Once
	first   [1]byte
	held    bool // first is to be read again; only the reader
}

// Read returns the held byte first. It may return that byte alone, which every
// reader of a stream has to expect anyway.
func (c *conn) Read(p []byte) (int, error) {
	if c.held && len(p) > 0 {
		c.held = false
		p[0] = c.first[0]
		return 1, nil
	}
	return c.Conn.Read(c.link.pause(p, c.gone))
}

// Close closes the connection and frees its place.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.sniffer.leave(c)
		c.link.leave()
	})
	return c.cut()
}

// cut closes the connection, and leaves its place to be freed by Close: whoever reads
// or rests sees that and calls it.
func (c *conn) cut() error {
	c.cutOnce.Do(func() { close(c.gone) })
	return c.Conn.Close()
}

// RemoteAddr is the peer's address, by which calls find the connection.
func (c *conn) RemoteAddr() net.Addr { return c.link }
