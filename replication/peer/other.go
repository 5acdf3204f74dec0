package peer

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
)

// IdentityOn returns the identity that the other side of a connection proved, which
// was verified when the connection was made. It fails for one without TLS.
func IdentityOn(c net.Conn) (Identity, error) {
	tc, ok := c.(*tls.Conn)
	if !ok || len(tc.ConnectionState().PeerCertificates) == 0 {
		return Identity{}, ErrCertificate
	}
	return IdentityOf(tc.ConnectionState().PeerCertificates[0])
}

// DialOther connects to the node for another application protocol than this
// package's, with mutual TLS, and returns the connection to use it at will. dial
// replaces TCP; nil means TCP. ctx bounds connect and TLS together. The error is a
// *DialError.
func DialOther(ctx context.Context, t *TLS, addr string, expect Identity, protocol string, dial func(ctx context.Context, addr string) (net.Conn, error)) (net.Conn, error) {
	link := fmt.Sprintf("%s at %s", expect.Name, addr)
	fail := func(step Step, err error) (net.Conn, error) {
		return nil, &DialError{Link: link, As: t.Store.Identity(), Step: step, Err: timedOut(ctx, err)}
	}
	if dial == nil {
		dial = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	raw, err := dial(ctx, addr)
	if err != nil {
		return fail(StepConnect, err)
	}
	mine := *t
	mine.NextProtos = []string{protocol}
	tc := tls.Client(raw, mine.Client(link, &expect))
	if err := tc.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // err says what happened
		return fail(StepTLS, err)
	}
	return tc, nil
}
