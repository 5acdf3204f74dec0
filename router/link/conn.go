package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/router/link/fec"
	"github.com/mqrouter/mqrouter/zone"
)

// conn is one greeted connection.
type conn struct {
	m       *Manager
	link    *link
	qc      *quic.Conn
	control *quic.Stream
	peer    wire.Hello
	lease   *fec.Lease // in the corrected stream; nil = none
	attempt uint64     // 0: the peer dialled
	extra   bool       // it is one more for sessions, without the link's control
	id      uint64     // given by the link's loop before run
	start   time.Time

	sessions atomic.Int64 // both ends' open sessions
	opened   atomic.Int64 // those that this end opened

	nonce   atomic.Uint64 // of the last probe sent
	replied atomic.Uint64 // nonce of the last answer
	rtt     atomic.Int64  // smoothed round trip of probes, nanoseconds; 0 = not measured
	minRTT  atomic.Int64

	sides sides

	meter // what this end sends and receives, see load.go

	toMove atomic.Int64 // sessions of this end that would do better elsewhere; see Session.Displaced

	reach atomic.Pointer[heardReach] // what the peer told last; nil = nothing yet

	controlMu sync.Mutex // one writer of control frames at a time
}

// run serves the connection until it ends and returns why.
func (c *conn) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.control.SetPriority(0, true) // RFC 9218: 0 is the most urgent, sessions have 3
	var streams error
	var wg sync.WaitGroup
	wg.Go(func() {
		streams = c.acceptStreams(ctx)
		cancel()
	})
	wg.Go(func() { c.acceptSides(ctx) })
	stop := context.AfterFunc(ctx, func() { c.close(wire.CodeShutdown, "") })
	err := c.readControl()
	c.close(codeOf(err), "control stream ended")
	cancel()
	stop()
	wg.Wait()
	if err == nil {
		err = streams
	}
	return err
}

// close ends the connection; the first code given is the one that the peer is
// told.
func (c *conn) close(code wire.Code, text string) {
	_ = c.qc.CloseWithError(quic.ApplicationErrorCode(code), text)
}

func (c *conn) acceptStreams(ctx context.Context) error {
	for {
		stream, err := c.qc.AcceptStream(ctx)
		if err != nil {
			return streamError(err)
		}
		s := newSession(c, stream, 0)
		c.m.handlers.Go(func() {
			// Only now may the peer open another stream in its place.
			defer stream.ReleaseStreamCredit()
			defer s.Close(wire.CodeOK) //nolint:errcheck // it has none
			c.m.o.Handle(c.m.handlerCtx, s)
		})
	}
}

// open opens a stream for a session. It does not block.
func (c *conn) open(number uint64) (*Session, error) {
	if c.opened.Add(1) > int64(c.peer.MaxSessions) {
		c.opened.Add(-1)
		return nil, ErrSessions
	}
	stream, err := c.qc.OpenStream()
	if err != nil {
		c.opened.Add(-1)
		var limit *quic.StreamLimitReachedError
		if errors.As(err, &limit) {
			return nil, ErrSessions
		}
		return nil, streamError(err)
	}
	return newSession(c, stream, number), nil
}

// forget is called once for each session that ends.
func (c *conn) forget(s *Session) {
	c.sessions.Add(-1)
	c.sides.disown(s)
	// The lowest bit of a stream's id tells who opened it; a client's are even.
	if byClient := s.stream.StreamID()&1 == 0; byClient == (c.attempt != 0) {
		c.opened.Add(-1)
	}
}

// readControl answers probes and reports answers until the stream ends.
func (c *conn) readControl() error {
	for {
		f, err := wire.ReadFrame(c.control, wire.MaxHello)
		if err != nil {
			return streamError(err)
		}
		switch f.Type {
		case wire.TypeProbe:
			p, err := wire.ParseProbe(f.Payload)
			if err != nil {
				return err
			}
			r := wire.ProbeReply{Nonce: p.Nonce, SentAt: p.SentAt}
			c.say(wire.TypeProbeReply, r.Append(nil))
		case wire.TypeProbeReply:
			r, err := wire.ParseProbeReply(f.Payload)
			if err != nil {
				return err
			}
			c.measure(r)
		case wire.TypeReach:
			r, err := wire.ParseReach(f.Payload)
			if err != nil {
				return err
			}
			c.reach.Store(&heardReach{at: time.Now(), cities: r.Cities})
		case wire.TypeDrain:
			c.link.tell(message{ev: evDrain{c.id}})
		}
	}
}

// probe sends a probe if the stream takes it; if not, its silence is the answer.
// What this node reaches goes along.
func (c *conn) probe() {
	p := wire.Probe{Nonce: c.nonce.Add(1), SentAt: uint64(time.Since(c.start))}
	c.say(wire.TypeProbe, p.Append(nil))
	if !c.extra {
		c.sayReach()
	}
}

// measure takes an answer: a nonce that was sent and not answered yet, and a time that was.
func (c *conn) measure(r wire.ProbeReply) {
	now := time.Since(c.start)
	if r.Nonce > c.nonce.Load() || r.Nonce <= c.replied.Load() || r.SentAt > uint64(now) {
		return
	}
	rtt := now - time.Duration(r.SentAt)
	c.replied.Store(r.Nonce)
	smoothed := time.Duration(c.rtt.Load())
	if smoothed == 0 {
		smoothed = rtt
	} else {
		smoothed += (rtt - smoothed) / 8 // the gain of RFC 9002 section 5.3
	}
	c.rtt.Store(int64(smoothed))
	if least := c.minRTT.Load(); least == 0 || int64(rtt) < least {
		c.minRTT.Store(int64(rtt))
	}
	c.link.tell(message{ev: evReply{c.id}})
}

// say writes a control frame if the stream takes it at once.
func (c *conn) say(t wire.Type, payload []byte) {
	f := wire.Frame{Type: t, Class: c.link.key.Class, Payload: payload}
	b, err := wire.AppendFrame(nil, &f)
	if err != nil {
		return
	}
	c.controlMu.Lock()
	_ = c.control.TryWriteAll(b)
	c.controlMu.Unlock()
}

// udpOverhead returns the bytes of UDP and IP headers of a packet to addr.
func udpOverhead(addr net.Addr) uint64 {
	if u, ok := addr.(*net.UDPAddr); ok && u.IP.To4() == nil {
		return 8 + 40 // RFC 768, RFC 8200
	}
	return 8 + 20 // RFC 768, RFC 791
}

// traffic returns the bytes on the wire so far, headers of UDP and IP included.
func (c *conn) traffic() Traffic {
	st := c.qc.ConnectionStats()
	over := udpOverhead(c.qc.RemoteAddr())
	return Traffic{
		BytesOut: st.BytesSent + over*st.PacketsSent, PacketsOut: st.PacketsSent,
		BytesIn: st.BytesReceived + over*st.PacketsReceived, PacketsIn: st.PacketsReceived,
		PacketsLost: st.PacketsLost,
	}
}

// hello returns this node's greeting to a node of the city.
// extra is the number of a connection beside the link's own one.
func (m *Manager) hello(to zone.City, class zone.Class, extra int) *wire.Hello {
	epoch, digest := m.o.Epoch()
	takes := m.extrasOf(class)
	var features uint64
	if takes > 0 {
		features |= wire.FeatureExtras
	}
	return &wire.Hello{
		Features: features, VersionMin: protocolVersion, VersionMax: protocolVersion,
		Deployment: m.o.Deployment, Role: zone.RoleRouter, City: m.o.City, Node: m.o.Node,
		Incarnation: m.o.Incarnation, MaxFrame: uint32(m.o.Limits.MaxPayload),
		MaxSessions: uint32(m.o.Limits.Sessions), Epoch: epoch, Digest: digest,
		DestinationCity: to, Class: class,
		Extra: uint8(extra), Extras: uint8(takes),
	}
}

// sendHello writes the greeting within the stream's deadline.
func sendHello(w io.Writer, h *wire.Hello) error {
	f := wire.Frame{Type: wire.TypeHello, Class: h.Class, Payload: h.Append(nil)}
	b, err := wire.AppendFrame(nil, &f)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// readHello reads the peer's greeting and compares it with its certificate.
func (m *Manager) readHello(r io.Reader, id peer.Identity) (wire.Hello, error) {
	f, err := wire.ReadFrame(r, wire.MaxHello)
	if err != nil {
		return wire.Hello{}, streamError(err)
	}
	if f.Type != wire.TypeHello || f.Session != 0 {
		return wire.Hello{}, refused(wire.CodeMalformed, "the first frame is %s", f.Type)
	}
	h, err := wire.ParseHello(f.Payload)
	switch {
	case err != nil:
		return h, err
	case h.VersionMin > protocolVersion || h.VersionMax < protocolVersion:
		return h, refused(wire.CodeUnsupported, "versions %d to %d", h.VersionMin, h.VersionMax)
	case h.Deployment != m.o.Deployment:
		return h, refused(wire.CodeWrongDeployment, "deployment %q", h.Deployment)
	case h.Node != id.Name || h.City != id.City || h.Role != id.Role:
		return h, refused(wire.CodeWrongIdentity, "the greeting says %s of %s, the certificate %s of %s", h.Node, h.City, id.Name, id.City)
	case h.DestinationCity != "" && h.DestinationCity != m.o.City:
		return h, refused(wire.CodeWrongIdentity, "the greeting is for city %s", h.DestinationCity)
	case h.Incarnation == 0:
		return h, refused(wire.CodeMalformed, "the greeting has no incarnation")
	}
	return h, nil
}

// refused returns an error that tells the peer the code.
func refused(code wire.Code, format string, args ...any) error {
	return &Error{Op: "greet", Code: code, Err: fmt.Errorf(format, args...)}
}

// identity reads the peer's verified certificate and asks whether it may link.
func (m *Manager) identity(qc *quic.Conn) (peer.Identity, error) {
	certs := qc.ConnectionState().TLS.PeerCertificates
	if len(certs) == 0 {
		return peer.Identity{}, refused(wire.CodeWrongIdentity, "no certificate")
	}
	id, err := m.o.Identify(certs[0])
	if err != nil {
		return id, &Error{Op: "greet", Code: wire.CodeWrongIdentity, Err: err}
	}
	if err := m.o.Authorize(id); err != nil {
		return id, &Error{Op: "greet", Peer: id.Name, Code: wire.CodeWrongIdentity, Err: err}
	}
	return id, nil
}
