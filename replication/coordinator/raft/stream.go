package raft

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
)

// The application protocols of a voter's connections.
const (
	// ALPNRaft is between voters.
	ALPNRaft = "mqrouter-raft/1"
	// ALPNCoordinator is between members or operators and voters.
	ALPNCoordinator = "mqrouter-coordinator/1"
)

// Bounds of accepted connections; one more is closed at once.
const (
	maxWaiting     = 16   // that wait to be taken by the library or the server
	maxConnections = 1024 // open: two of each member of a city's groups, and operators'
)

// Dial opens a connection to a node of the city for the protocol, after mutual TLS.
type Dial func(ctx context.Context, to zone.Node, protocol string) (net.Conn, error)

// funnel is a net.Listener fed with connections that somebody else accepted.
type funnel struct {
	ready chan net.Conn
	done  chan struct{}
	once  sync.Once
	open  chan struct{} // a place for each open connection
	name  name
}

// name is the address of a node: its name, which the topology makes an address.
type name string

// Network implements net.Addr.
func (name) Network() string { return "node" }

// String implements net.Addr.
func (n name) String() string { return string(n) }

func newFunnel(self zone.Node) *funnel {
	return &funnel{ready: make(chan net.Conn, maxWaiting), done: make(chan struct{}), open: make(chan struct{}, maxConnections), name: name(self)}
}

// give hands a connection over, or closes it.
func (f *funnel) give(c net.Conn, from peer.Identity) {
	select {
	case <-f.done:
		_ = c.Close() // there is nobody to tell
		return
	case f.open <- struct{}{}:
	default:
		_ = c.Close() // a bound; the peer tries again
		return
	}
	counted := &counted{Conn: c, from: from, leave: sync.OnceFunc(func() { <-f.open })}
	select {
	case f.ready <- counted:
	default:
		_ = counted.Close() // likewise
	}
}

// counted is a connection that gives its place back.
type counted struct {
	net.Conn
	from  peer.Identity
	leave func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}

// Accept implements net.Listener.
func (f *funnel) Accept() (net.Conn, error) {
	select {
	case c := <-f.ready:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener; connections that were not taken are closed.
func (f *funnel) Close() error {
	f.once.Do(func() { close(f.done) })
	for {
		select {
		case c := <-f.ready:
			_ = c.Close() // nobody has read from it
		default:
			return nil
		}
	}
}

// Addr implements net.Listener.
func (f *funnel) Addr() net.Addr { return f.name }

// stream is the library's way to the other voters. Addresses are node names.
type stream struct {
	*funnel
	dial Dial
}

var _ raft.StreamLayer = (*stream)(nil)

// Dial implements raft.StreamLayer.
func (s *stream) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return s.dial(ctx, zone.Node(to), ALPNRaft)
}
