package rocketmq

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/peer"
)

// connections are the open ones, by a number of their own. What a push consumer
// receives is held in the name of its connection as well as its own: when that
// breaks, an answer may have been lost with it, and a client that does not ask
// again under the same attempt id would have the message renewed for ever without
// knowing that it has it. It is safe for concurrent use.
type connections struct {
	mu   sync.Mutex
	last uint64              // guarded by mu: number of the newest
	open map[uint64]struct{} // guarded by mu
}

func newConnections() *connections { return &connections{open: map[uint64]struct{}{}} }

// over returns a listener that numbers the connections of l.
func (c *connections) over(l net.Listener) net.Listener { return &numbering{Listener: l, all: c} }

func (c *connections) enter(raw net.Conn) *connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	c.open[c.last] = struct{}{}
	n := &connection{Conn: raw, all: c, number: c.last}
	n.remote = &connectionAddr{Addr: raw.RemoteAddr(), of: n}
	return n
}

func (c *connections) leave(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, number)
}

func (c *connections) isOpen(number uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.open[number]
	return ok
}

// numbering is a listener whose connections have numbers.
type numbering struct {
	net.Listener
	all *connections
}

// Accept is the listener's below.
func (l *numbering) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.all.enter(raw), nil
}

// connection is a client's, with a number.
type connection struct {
	net.Conn
	all    *connections
	number uint64
	remote *connectionAddr
	newest atomic.Pointer[holder] // of the last receive; most connections have one client
	once   sync.Once
}

// RemoteAddr is the peer's address, by which handlers find the connection.
func (c *connection) RemoteAddr() net.Addr { return c.remote }

// Close closes the connection; what is held in its name is renewed no more.
func (c *connection) Close() error {
	c.once.Do(func() { c.all.leave(c.number) })
	return c.Conn.Close()
}

// connectionAddr is an address that knows its connection.
type connectionAddr struct {
	net.Addr
	of *connection
}

// holder is a client on a connection, and the name under which it holds messages.
type holder struct{ client, name string }

// holder returns the name under which the client holds what this connection brings.
func (c *connection) holder(client string) string {
	if h := c.newest.Load(); h != nil && h.client == client {
		return h.name
	}
	h := &holder{client: client, name: strconv.FormatUint(c.number, 10) + " " + client}
	c.newest.Store(h)
	return h.name
}

// holderOf returns the name under which the caller holds what it receives.
func holderOf(ctx context.Context, client string) string {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(*connectionAddr); ok {
			return a.of.holder(client)
		}
	}
	return client
}

// Alive reports whether whoever holds a delivery is there to finish it: the client
// is connected or was heard of lately, and the connection that brought the delivery
// still stands. The broker asks it whether to renew one (SetLiveness). It does not
// block.
func (s *Server) Alive(holder string) bool {
	number, client, ok := strings.Cut(holder, " ")
	n, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil {
		return s.clients.alive(holder)
	}
	return s.conns.isOpen(n) && s.clients.alive(client)
}
