package link

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/router/link/datagram"
	"github.com/mqrouter/mqrouter/zone"
)

// errBusy refuses a connection before it costs more than a packet.
var errBusy = errors.New("link: too many handshakes")

// admission is the place of an incoming connection that has not greeted.
type admission struct {
	once    sync.Once
	release func()
	since   time.Time
}

type admissionKey struct{}

func (a *admission) done() { a.once.Do(a.release) }

// admit is quic-go's ConnContext: it bounds the handshakes in progress. The last quarter
// of the places is for who has shown that it comes from where a peer is dialled: a stranger
// can take all others again and again, and links have to come back meanwhile.
func (m *Manager) admit(ctx context.Context, from *quic.ClientInfo) (context.Context, error) {
	most := int64(m.o.Limits.Handshakes)
	n := m.handshakes.Add(1)
	if n > most || n > most-most/4 && (!from.AddrVerified || !m.dials(from.RemoteAddr)) {
		m.handshakes.Add(-1)
		m.refusals.Add(1)
		return nil, errBusy
	}
	a := &admission{release: func() { m.handshakes.Add(-1) }, since: time.Now()}
	context.AfterFunc(ctx, a.done)
	return context.WithValue(ctx, admissionKey{}, a), nil
}

// dials reports whether a peer is dialled at the host of an address.
func (m *Manager) dials(a net.Addr) bool {
	ap, ok := datagram.AddrPort(a)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.links {
		if host := l.host.Load(); ok && host != nil && *host == ap.Addr() {
			return true
		}
	}
	return false
}

// suspicious is quic-go's VerifySourceAddress: with half the places taken a
// stranger first has to show that it owns its address, which costs it a round
// trip and this node no memory.
func (m *Manager) suspicious(net.Addr) bool {
	return m.handshakes.Load() >= int64(m.o.Limits.Handshakes)/2
}

func (m *Manager) acceptLoop(ctx context.Context, ln *quic.Listener) error {
	for {
		qc, err := ln.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		m.handlers.Go(func() { m.incoming(ctx, qc) })
	}
}

// mostConnections returns how many connections there may be for another one to
// be taken. Extra ones leave half of the places to links that have none yet.
func (m *Manager) mostConnections(extra bool) int64 {
	most := int64(m.o.Limits.Connections)
	if extra {
		most /= 2
	}
	return most
}

// extrasOf returns how many extra connections a link of the class takes.
func (m *Manager) extrasOf(class zone.Class) int {
	x := newExtras(m.o.Limits.parallel(class))
	return x.takes()
}

// incoming is the acceptor's half of the greeting.
func (m *Manager) incoming(ctx context.Context, qc *quic.Conn) {
	start := time.Now()
	if a, ok := qc.Context().Value(admissionKey{}).(*admission); ok {
		start = a.since
		defer a.done()
	}
	ctx, cancel := context.WithDeadline(ctx, start.Add(m.o.Timing.Handshake))
	defer cancel()
	if err := m.welcome(ctx, qc); err != nil {
		code := codeOf(streamError(err))
		_ = qc.CloseWithError(quic.ApplicationErrorCode(code), code.Text())
		m.refusals.Add(1)
		m.o.Logger.Debug("link refused", "addr", qc.RemoteAddr().String(), "err", err)
	}
}

func (m *Manager) welcome(ctx context.Context, qc *quic.Conn) error {
	id, err := m.identity(qc)
	if err != nil {
		return err
	}
	stream, err := qc.AcceptStream(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	h, err := m.readHello(stream, id)
	switch {
	case err != nil:
		return err
	case !slices.Contains(m.o.Classes, h.Class):
		return refused(wire.CodeUnsupported, "class %d", h.Class)
	case m.drains():
		return refused(wire.CodeDraining, "about to stop")
	case m.connections.Load() >= m.mostConnections(h.Extra != 0):
		return refused(wire.CodeTooMany, "%d connections", m.connections.Load())
	case h.Extra != 0 && m.extrasOf(h.Class) == 0:
		return refused(wire.CodeUnsupported, "extra connections of class %d", h.Class)
	}
	l, err := m.linkTo(Key{id.Name, h.Class}, id.City)
	if err != nil {
		return err
	}
	hello := m.hello(id.City, h.Class, int(h.Extra))
	lease, seats := m.lease(qc, id.Name, hello), m.seat(qc, hello)
	enable(lease, qc, &h)
	if err := sendHello(stream, hello); err != nil {
		return err
	}
	if !stop() {
		return context.DeadlineExceeded
	}
	c := &conn{
		m: m, link: l, qc: qc, control: stream, peer: h, lease: lease, extra: h.Extra != 0, start: time.Now(),
		sides: sides{told: seats},
	}
	if !l.tell(message{ev: evUp{}, conn: c}) {
		return refused(wire.CodeShutdown, "stopping")
	}
	return nil
}
