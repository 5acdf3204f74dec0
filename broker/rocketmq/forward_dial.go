package rocketmq

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
)

// maxDials is how many connections to the master a replica may be making at one time. A
// new master is dialled for every client at once, and a handshake costs both ends about
// a millisecond: with all of them side by side none is done within dialTime, all are
// begun anew, and so for ever. As many as this take tens of milliseconds.
const maxDials = 32

// dials are the places of connections that are being made.
type dials struct {
	places chan struct{} // holds one for each; of capacity maxDials
	waited atomic.Uint64 // connections that found all taken
	dial   func(context.Context, string) (net.Conn, error)
}

func newDials(dial func(context.Context, string) (net.Conn, error)) *dials {
	return &dials{places: make(chan struct{}, maxDials), dial: dial}
}

// connect waits for a place until ctx ends, and connects within dialTime. The place is
// given back when the handshake is over, or the connection closed.
func (d *dials) connect(ctx context.Context, addr string) (net.Conn, error) {
	select {
	case d.places <- struct{}{}:
	default:
		d.waited.Add(1)
		select {
		case d.places <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	done := sync.OnceFunc(func() { <-d.places })
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := d.dial(ctx, addr)
	if err != nil {
		done()
		return nil, err
	}
	return &dialled{Conn: conn, done: done}, nil
}

// dialled is a connection that may have a place in dials.
type dialled struct {
	net.Conn
	done func() // gives the place back; more than once does no harm
}

// Close closes the connection.
func (c *dialled) Close() error {
	c.done()
	return c.Conn.Close()
}

// promptly has handshakes take no more than dialTime, and give their place back.
type promptly struct {
	credentials.TransportCredentials
}

// ClientHandshake implements credentials.TransportCredentials.
func (p promptly) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	if c, ok := conn.(*dialled); ok {
		defer c.done()
	}
	return p.TransportCredentials.ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (p promptly) Clone() credentials.TransportCredentials {
	return promptly{p.TransportCredentials.Clone()}
}
