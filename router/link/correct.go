package link

import (
	"context"
	"net"

	"github.com/quic-go/quic-go"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/router/link/datagram"
	"github.com/mqrouter/mqrouter/router/link/fec"
	"github.com/mqrouter/mqrouter/zone"
)

// correct returns what QUIC gets in place of a socket: with the correction layer on
// it, if there is to be one.
func (m *Manager) correct(conn net.PacketConn) net.PacketConn {
	if m.reader = datagram.Wrap(conn); m.reader != nil {
		conn = m.reader
	}
	if m.o.Correction == nil {
		return conn
	}
	m.layer = fec.New(conn, *m.o.Correction)
	return m.layer.PacketConn()
}

// lease returns the share of a connection with the node in its corrected stream,
// and puts its tag into this end's greeting; nil without correction. Frames of the
// node are taken from now on, until the connection ends.
func (m *Manager) lease(qc *quic.Conn, node zone.Node, h *wire.Hello) *fec.Lease {
	m.watch(qc)
	if m.layer == nil {
		return nil
	}
	lease := m.layer.Lease(string(node))
	context.AfterFunc(qc.Context(), lease.Release)
	h.Features |= wire.FeatureCorrection
	h.Correction = lease.Tag()
	return lease
}

// watch has the socket's reader wait for a connection that has not taken what came for
// it, until the connection ends.
func (m *Manager) watch(qc *quic.Conn) {
	if m.reader == nil {
		return
	}
	stop := m.reader.Watch(qc.RemoteAddr(), func() uint64 { return qc.ConnectionStats().BytesReceived })
	context.AfterFunc(qc.Context(), stop)
}

// enable begins to correct what goes to the connection's peer, if its greeting says
// that it takes that.
func enable(lease *fec.Lease, qc *quic.Conn, h *wire.Hello) {
	if lease != nil && h.Features&wire.FeatureCorrection != 0 {
		lease.Enable(qc.RemoteAddr(), h.Correction)
	}
}

// crowded reports whether the node has lost packets of this one's for want of room
// since the last sample, and whether a queue stands on the way to it. Correction hides
// losses from QUIC, not these: it marks what it repairs, which QUIC's own counts do not
// tell from a loss here and there.
func (l *link) crowded() (lost, queued bool) {
	for _, c := range l.conns {
		if c.lease != nil {
			st, was := c.lease.Status(), l.sampler.crowded
			l.sampler.crowded = st.Crowded
			return st.Crowded > was, st.Congested
		}
	}
	return false, false
}
