package admin

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
)

// maxConns is how many connections may be open: an operator, a scraper and a probe have
// a handful. One more ends the one that has been without a request for longest, or, when
// each has one, the one that has had it for longest: those that connect and say nothing,
// or little, or do not read what they asked for, keep nobody out.
const maxConns = 256

// conns are the open connections.
type conns struct {
	max int

	mu   sync.Mutex
	line list.List                  // guarded by mu: of *connection, those that have waited, or been served, for longest first
	all  map[net.Conn]*list.Element // guarded by mu
}

// connection is one of them.
type connection struct {
	net.Conn
	busy bool // a request of it is being served; guarded by conns.mu
}

type connectionKey struct{}

func newConns(limit int) *conns {
	return &conns{max: limit, all: map[net.Conn]*list.Element{}}
}

// open counts a new connection. It is the server's ConnContext.
func (c *conns) open(ctx context.Context, conn net.Conn) context.Context {
	c.mu.Lock()
	var end net.Conn
	if len(c.all) >= c.max {
		end = c.line.Front().Value.(*connection).Conn
		for e := c.line.Front(); e != nil; e = e.Next() {
			if other := e.Value.(*connection); !other.busy {
				end = other.Conn
				break
			}
		}
		c.drop(end)
	}
	c.all[conn] = c.line.PushBack(&connection{Conn: conn})
	c.mu.Unlock()
	if end != nil {
		_ = end.Close() // the server sees that
	}
	return context.WithValue(ctx, connectionKey{}, conn)
}

// changed is the server's ConnState.
func (c *conns) changed(conn net.Conn, s http.ConnState) {
	if s == http.StateClosed || s == http.StateHijacked {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.drop(conn)
	}
}

// drop forgets a connection. mu is held.
func (c *conns) drop(conn net.Conn) {
	if e := c.all[conn]; e != nil {
		c.line.Remove(e)
		delete(c.all, conn)
	}
}

// serving notes that a request of a connection begins, and returns what its end is told.
func (c *conns) serving(r *http.Request) (end func()) {
	conn, _ := r.Context().Value(connectionKey{}).(net.Conn)
	set := func(busy bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if e := c.all[conn]; e != nil {
			e.Value.(*connection).busy = busy
			c.line.MoveToBack(e)
		}
	}
	set(true)
	return func() { set(false) }
}

// size returns how many are open.
func (c *conns) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}
