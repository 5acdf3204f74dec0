package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/router/link/datagram"
)

// dial makes one attempt and tells the link's loop how it ended. One deadline
// covers dial, TLS and greeting. moved keeps to the peer's first address.
func (m *Manager) dial(ctx context.Context, l *link, attempt uint64, extra int, moved bool) {
	ctx, cancel := context.WithTimeout(ctx, m.o.Timing.Handshake)
	defer cancel()
	c, err := m.attempt(ctx, l, attempt, extra, moved)
	if err != nil {
		l.tell(message{ev: evFailed{attempt}, err: err})
		return
	}
	if !l.tell(message{ev: evUp{attempt: attempt}, conn: c}) {
		c.close(wire.CodeShutdown, "")
	}
}

func (m *Manager) attempt(ctx context.Context, l *link, attempt uint64, extra int, moved bool) (*conn, error) {
	peer := l.peer.Load()
	fail := func(op string, err error) error {
		var own *Error
		if errors.As(err, &own) {
			return &Error{Op: op, Peer: peer.Node, Class: l.key.Class, Code: own.Code, Err: own.Err}
		}
		return &Error{Op: op, Peer: peer.Node, Class: l.key.Class, Code: codeOf(streamError(err)), Err: err}
	}
	to := peer.Addr
	if peer.Alt != "" && attempt%2 == 0 && !moved { // the first is number 1
		to = peer.Alt
	}
	addr, err := resolve(ctx, to)
	if err != nil {
		return nil, fail("dial", err)
	}
	if ap, ok := datagram.AddrPort(addr); ok {
		host := ap.Addr()
		l.host.Store(&host)
	}
	if moved && l.isAt(addr.String()) { // it was said to be elsewhere, and is not any more
		return nil, fail("dial", refused(wire.CodeSuperseded, "the connection leads to %s already", addr))
	}
	qc, err := m.transport.Dial(ctx, addr, m.tlsConfig(peer), m.quicConfig())
	if err != nil {
		return nil, fail("dial", err)
	}
	l.tell(message{ev: evConnected{attempt}})
	c, err := m.greet(ctx, qc, l, peer, extra)
	if err != nil {
		_ = qc.CloseWithError(quic.ApplicationErrorCode(codeOf(err)), "")
		return nil, fail("greet", err)
	}
	c.attempt = attempt
	return c, nil
}

// greet is the dialler's half of the greeting.
func (m *Manager) greet(ctx context.Context, qc *quic.Conn, l *link, peer *Peer, extra int) (*conn, error) {
	id, err := m.identity(qc)
	if err != nil {
		return nil, err
	}
	if id.Name != peer.Node || id.City != peer.City {
		return nil, refused(wire.CodeWrongIdentity, "%s of %s answers at %s", id.Name, id.City, qc.RemoteAddr())
	}
	stream, err := qc.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	hello := m.hello(peer.City, l.key.Class, extra)
	lease, seats := m.lease(qc, peer.Node, hello), m.seat(qc, hello)
	if err := sendHello(stream, hello); err != nil {
		return nil, err
	}
	h, err := m.readHello(stream, id)
	if err != nil {
		return nil, err
	}
	if h.Class != l.key.Class {
		return nil, refused(wire.CodeMalformed, "the greeting is for class %d", h.Class)
	}
	if extra != 0 && int(h.Extra) != extra {
		return nil, refused(wire.CodeUnsupported, "the peer takes no extra connection")
	}
	if !stop() {
		return nil, context.DeadlineExceeded
	}
	enable(lease, qc, &h)
	return &conn{m: m, link: l, qc: qc, control: stream, peer: h, lease: lease, extra: extra != 0, start: time.Now(), sides: sides{told: seats}}, nil
}

// tlsConfig returns the configuration to dial peer with, or to accept with.
func (m *Manager) tlsConfig(peer *Peer) *tls.Config {
	c := ours(m.o.TLS(peer))
	if pick := c.GetConfigForClient; pick != nil {
		c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := pick(hello)
			if chosen == nil || err != nil {
				return chosen, err
			}
			return ours(chosen), nil
		}
	}
	return c
}

// ours returns a copy with the link's protocol. Without tickets a session
// cannot outlive the certificate that it was made with.
func ours(c *tls.Config) *tls.Config {
	c = c.Clone()
	c.NextProtos = []string{ALPN}
	c.MinVersion = tls.VersionTLS13
	c.SessionTicketsDisabled = true
	return c
}

// quicConfig states every bound. The receive windows do not grow: they are
// upper bounds, no memory is held for them, and as all stream windows fit the
// connection's a stream that is not read cannot use up the others' room. Windows
// that quic-go lets grow would need a connection's that fits the largest of them
// for every stream, since nothing can stop a stream's from growing.
func (m *Manager) quicConfig() *quic.Config {
	l := m.o.Limits
	stream := uint64(l.StreamWindow)
	all := stream*uint64(2*l.Sessions+2*maxSides) + controlWindow // sessions of both ends
	return &quic.Config{
		HandshakeIdleTimeout:           m.o.Timing.Handshake / 2, // quic-go allows twice as long in all
		MaxIdleTimeout:                 m.o.Timing.Idle,
		KeepAlivePeriod:                m.o.Timing.Idle / 4,
		InitialStreamReceiveWindow:     stream,
		MaxStreamReceiveWindow:         stream,
		InitialConnectionReceiveWindow: all,
		MaxConnectionReceiveWindow:     all,
		MaxIncomingStreams:             int64(l.Sessions) + 1, // and the control stream
		MaxIncomingUniStreams:          2 * maxSides,          // of which the greeting says how many
		RequireStreamCreditRelease:     true,
	}
}

// resolve returns the UDP address of host:port.
func resolve(ctx context.Context, addr string) (net.Addr, error) {
	if ap, err := netip.ParseAddrPort(addr); err == nil {
		return net.UDPAddrFromAddrPort(ap), nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("link: port of %q: %w", addr, err)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(ips[0].Unmap(), uint16(n))), nil
}
