package node

import (
	"context"
	"net"

	"github.com/hashicorp/memberlist"
)

// Network is the network as a node sees it; addresses are host:port. Methods are
// safe for concurrent use.
type Network interface {
	// Listen binds a TCP address.
	Listen(ctx context.Context, addr string) (net.Listener, error)
	// Dial connects over TCP within ctx.
	Dial(ctx context.Context, addr string) (net.Conn, error)
	// ListenPacket binds a UDP address.
	ListenPacket(ctx context.Context, addr string) (net.PacketConn, error)
	// Gossip binds UDP and TCP of an address for gossip; nil lets package gossip
	// do it.
	Gossip(addr string) (memberlist.Transport, error)
}

// sockets is the operating system's network.
type sockets struct{}

// Listen implements Network.
func (sockets) Listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", addr)
}

// Dial implements Network.
func (sockets) Dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// ListenPacket implements Network.
func (sockets) ListenPacket(ctx context.Context, addr string) (net.PacketConn, error) {
	var lc net.ListenConfig
	return lc.ListenPacket(ctx, "udp", addr)
}

// Gossip implements Network.
func (sockets) Gossip(string) (memberlist.Transport, error) { return nil, nil } //nolint:nilnil // stands for the pool's own sockets

var _ Network = sockets{}
