package peer

import (
	"crypto/tls"
	"fmt"
	"time"
)

// TLS makes configurations for mutual TLS 1.3, for TCP as well as QUIC. Both
// sides verify the other's chain against the store's authorities as they are at
// that moment, then its identity; host names play no part.
type TLS struct {
	Store *CertStore
	// Authorize says whether the topology knows the identity, and as what; see
	// AuthorizeBy. It is called during handshakes, concurrently, and must not
	// block. Required.
	Authorize func(Identity) error
	// NextProtos are the application protocols; see tls.Config.
	NextProtos []string
	// Now is the clock for validity; nil means time.Now.
	Now func() time.Time
}

// Server returns the configuration of the accepting side. A refusal is an
// *IdentityError of the handshake.
func (t *TLS) Server() *tls.Config {
	c := t.config("incoming", nil)
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		link := "incoming"
		if hello.Conn != nil {
			link = "from " + hello.Conn.RemoteAddr().String()
		}
		return t.config(link, nil), nil
	}
	return c
}

// Client returns the configuration of the dialling side. link names the link in
// errors; expect, when not nil, is the only identity that may answer. A refusal
// is an *IdentityError of the handshake. With TLS 1.3 the other side's refusal
// shows only at the first read.
func (t *TLS) Client(link string, expect *Identity) *tls.Config {
	return t.config(link, expect)
}

func (t *TLS) config(link string, expect *Identity) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             t.NextProtos,
		Time:                   t.Now,
		SessionTicketsDisabled: true, // a resumed session would outlive its certificate
		ClientAuth:             tls.RequireAnyClientCert,
		// The usual verification is about host names and fixed roots;
		// VerifyConnection does what is needed instead, on both sides.
		InsecureSkipVerify: true, //nolint:gosec // see VerifyConnection
		VerifyConnection: func(cs tls.ConnectionState) error {
			return t.verify(link, expect, cs)
		},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return t.Store.Certificate(), nil
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return t.Store.Certificate(), nil
		},
	}
}

func (t *TLS) verify(link string, expect *Identity, cs tls.ConnectionState) error {
	if len(cs.PeerCertificates) == 0 {
		return &IdentityError{Link: link, Offered: "none", Err: ErrCertificate}
	}
	leaf := cs.PeerCertificates[0]
	offered := fmt.Sprintf("of subject %.100q", leaf.Subject)
	id, err := IdentityOf(leaf)
	if err == nil {
		offered = id.String()
	}
	refuse := func(err error) error { return &IdentityError{Link: link, Offered: offered, Err: err} }
	if err != nil {
		return refuse(fmt.Errorf("%w: %w", ErrCertificate, err))
	}
	now := time.Now()
	if t.Now != nil {
		now = t.Now()
	}
	// What explains a fault best comes first: a staging node's certificate is of
	// another authority, too, but that it is of another deployment says more.
	// Nothing is trusted before all checks have passed.
	self := t.Store.Identity()
	if id.Deployment != self.Deployment {
		return refuse(fmt.Errorf("%w: this is %s", ErrDeployment, self.Deployment))
	}
	if err := verifyChain(t.Store.Roots(), leaf, cs.PeerCertificates[1:], now); err != nil {
		return refuse(fmt.Errorf("%w: %w", ErrCertificate, err))
	}
	switch {
	case id == self || id.Name == self.Name:
		return refuse(ErrSelf)
	case expect != nil && id != *expect:
		return refuse(fmt.Errorf("%w: %s", ErrUnexpected, expect))
	}
	if err := t.Authorize(id); err != nil {
		return refuse(err)
	}
	return nil
}
