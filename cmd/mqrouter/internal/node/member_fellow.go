package node

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
)

// errSomebodyElse says that another process answers, or asks, where this one should.
var errSomebodyElse = errors.New("somebody else is at the other end of this node's connection to itself")

// fellow reports whether the topology names a node as another member of this group.
func (m *memberNode) fellow(id peer.Identity) bool {
	t := m.topologyNow()
	g := t.FindGroup(m.self.Group.Name)
	if g == nil || id.Name == m.self.Name {
		return false
	}
	n := g.Member(id.Name)
	return n != nil && peer.IdentityFor(t.Deployment, n) == id
}

// own reports whether the other end of a connection has this node's certificate, as it
// has when a replica passes the calls that waited on to itself. Package peer refuses that.
func (m *memberNode) own(cs tls.ConnectionState) bool {
	return len(cs.PeerCertificates) > 0 && bytes.Equal(cs.PeerCertificates[0].Raw, m.certs.Certificate().Certificate[0])
}

// clientTLSOf returns what a member's front end is met with: it proves to be that node,
// and this one that it is a fellow.
func (m *memberNode) clientTLSOf(node zone.Node) *tls.Config {
	if node == m.self.Name {
		return &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, //nolint:gosec // see VerifyConnection
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return m.certs.Certificate(), nil },
			VerifyConnection: func(cs tls.ConnectionState) error {
				if !m.own(cs) {
					return errSomebodyElse
				}
				return nil
			}}
	}
	t := m.topologyNow()
	id := peer.IdentityFor(t.Deployment, t.FindNode(node))
	return m.tls(m.topologyNow, zone.RoleBroker).Client("to "+string(node), &id)
}

// fellowTLS returns what members meet at the client address that pass their clients on:
// it lets other members of this group in, and this node itself.
func (m *memberNode) fellowTLS() *tls.Config {
	guard := m.tls(m.topologyNow, zone.RoleBroker)
	declared := guard.Authorize
	guard.Authorize = func(id peer.Identity) error {
		if !m.fellow(id) {
			return fmt.Errorf("%w: it is no member of broker group %s", peer.ErrUnknown, m.self.Group.Name)
		}
		return declared(id)
	}
	c := guard.Server()
	verify := c.VerifyConnection
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		if m.own(cs) {
			return nil
		}
		return verify(cs)
	}
	return c
}
