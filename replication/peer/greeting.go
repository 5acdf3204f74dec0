package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// fault is why a greeting is not acceptable, and what to tell the peer.
type fault struct {
	code wire.Code
	text string
}

// judge compares a greeting with this node's, and with the identity in the
// peer's certificate when there is one. It is pure.
func judge(mine, theirs *wire.Hello, cert *Identity) *fault {
	switch {
	case theirs.VersionMin > mine.VersionMax || theirs.VersionMax < mine.VersionMin:
		return &fault{wire.CodeUnsupported, fmt.Sprintf("versions %d to %d, here %d to %d",
			theirs.VersionMin, theirs.VersionMax, mine.VersionMin, mine.VersionMax)}
	case theirs.Deployment != mine.Deployment:
		return &fault{wire.CodeWrongDeployment, fmt.Sprintf("deployment %s, here %s", theirs.Deployment, mine.Deployment)}
	case theirs.Node == mine.Node:
		return &fault{wire.CodeWrongIdentity, ErrSelf.Error()}
	case cert != nil && identityOf(theirs) != *cert:
		return &fault{wire.CodeWrongIdentity, fmt.Sprintf("greeting says %s, certificate %s", identityOf(theirs), cert)}
	case theirs.City != mine.City:
		return &fault{wire.CodeWrongIdentity, fmt.Sprintf("city %s, here %s: cities meet at routers", theirs.City, mine.City)}
	case theirs.Epoch == mine.Epoch && theirs.Digest != mine.Digest:
		return &fault{wire.CodeDiverged, fmt.Sprintf("topology %s has two contents: raise the epoch with every change", mine.Epoch)}
	case theirs.MaxFrame == 0 || theirs.MaxSessions == 0 || theirs.Incarnation == 0:
		return &fault{wire.CodeMalformed, "greeting without limits or incarnation"}
	}
	return nil
}

func identityOf(h *wire.Hello) Identity {
	return Identity{Deployment: h.Deployment, City: h.City, Zone: h.Zone, Role: h.Role, Name: h.Node}
}

// greetFirst is the dialling side's greeting, within nc's deadline.
func greetFirst(nc net.Conn, mine *wire.Hello, cert *Identity) (wire.Hello, error) {
	if err := writeFrame(nc, wire.TypeHello, mine.Append(nil)); err != nil {
		return wire.Hello{}, err
	}
	f, err := wire.ReadFrame(nc, wire.MaxHello)
	if err != nil {
		return wire.Hello{}, noSilence(err)
	}
	switch {
	case f.Session == 0 && f.Type == wire.TypeRefuse:
		r, err := wire.ParseRefuse(f.Payload)
		if err != nil {
			return wire.Hello{}, err
		}
		return wire.Hello{}, &wire.ClosedError{Code: r.Code, Text: r.Text}
	case f.Session != 0 || f.Type != wire.TypeHello:
		return wire.Hello{}, &wire.FrameError{Type: f.Type, Code: wire.CodeMalformed, Field: "type", Err: errNoHello}
	}
	theirs, err := wire.ParseHello(f.Payload)
	if err != nil {
		return wire.Hello{}, err
	}
	if bad := judge(mine, &theirs, cert); bad != nil {
		err := &wire.ClosedError{Code: bad.code, Text: bad.text, Local: true}
		return wire.Hello{}, errors.Join(err, refuse(nc, bad))
	}
	return theirs, nil
}

// greetSecond is the accepting side's greeting, within nc's deadline. The
// answer is a Hello, or a Refuse that says why.
func greetSecond(nc net.Conn, o *Options, cert *Identity, draining bool) (wire.Hello, error) {
	f, err := wire.ReadFrame(nc, wire.MaxHello)
	if err != nil {
		return wire.Hello{}, noSilence(err)
	}
	if f.Session != 0 || f.Type != wire.TypeHello {
		return wire.Hello{}, &wire.FrameError{Type: f.Type, Code: wire.CodeMalformed, Field: "type", Err: errNoHello}
	}
	theirs, err := wire.ParseHello(f.Payload)
	if err != nil {
		return wire.Hello{}, errors.Join(err, refuse(nc, &fault{codeOf(err), err.Error()}))
	}
	mine := o.hello(o.Self.City, theirs.Class)
	bad := judge(&mine, &theirs, cert)
	if bad == nil && draining {
		bad = &fault{wire.CodeDraining, "about to stop"}
	}
	if bad == nil && (theirs.Class < zone.ClassControl || theirs.Class > zone.ClassBulk) {
		bad = &fault{wire.CodeUnsupported, fmt.Sprintf("class %d", theirs.Class)}
	}
	if bad == nil {
		if code, text := o.Admit(theirs); code != wire.CodeOK {
			bad = &fault{code, text}
		}
	}
	if bad != nil {
		err := &wire.ClosedError{Code: bad.code, Text: bad.text, Local: true}
		return wire.Hello{}, errors.Join(err, refuse(nc, bad))
	}
	return theirs, writeFrame(nc, wire.TypeHello, mine.Append(nil))
}

var errNoHello = errors.New("first frame is no greeting")

// noSilence names the end of a connection that said nothing.
func noSilence(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("peer closed the connection without a greeting: %w", io.ErrUnexpectedEOF)
	}
	return err
}

func refuse(nc net.Conn, f *fault) error {
	r := wire.Refuse{Code: f.code, Text: f.text}
	return writeFrame(nc, wire.TypeRefuse, r.Append(nil))
}

func writeFrame(nc net.Conn, typ wire.Type, payload []byte) error {
	b, err := wire.AppendFrame(nil, &wire.Frame{Type: typ, Class: zone.ClassControl, Payload: payload})
	if err != nil {
		return err
	}
	_, err = nc.Write(b)
	return err
}

// secured is a connection after the TLS handshake.
type secured struct {
	net.Conn
	identity *Identity      // that the peer proved; nil without TLS
	other    func(net.Conn) // takes the connection, when it is of another protocol; see Options.Others
}

// secure runs the TLS handshake, within nc's deadline.
func secure(ctx context.Context, nc net.Conn, t *TLS, client bool, link string, expect *Identity, others map[string]func(net.Conn)) (secured, error) {
	if t == nil {
		return secured{Conn: nc}, nil
	}
	var tc *tls.Conn
	if client {
		tc = tls.Client(nc, t.Client(link, expect))
	} else {
		tc = tls.Server(nc, t.Server())
	}
	if err := tc.HandshakeContext(ctx); err != nil {
		return secured{}, err
	}
	state := tc.ConnectionState()
	other := others[state.NegotiatedProtocol]
	if state.NegotiatedProtocol != ALPN && other == nil {
		return secured{}, fmt.Errorf("peer: application protocol %.40q, want %q", state.NegotiatedProtocol, ALPN)
	}
	id, err := IdentityOf(state.PeerCertificates[0])
	if err != nil {
		return secured{}, err
	}
	return secured{Conn: tc, identity: &id, other: other}, nil
}
