package node

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// acceptPause follows a failed accept, such as one without file descriptors.
const acceptPause = 50 * time.Millisecond

// door is an address whose connections go to one server after the other: what a
// replica serves its clients with, and what a master does. Between two servers new
// connections wait with the operating system.
type door struct {
	ln     net.Listener
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	now     *turn         // guarded by mu; nil = nobody serves
	changed chan struct{} // guarded by mu; closed when now is another
}

// newDoor takes the listener over.
func newDoor(ln net.Listener) *door {
	d := &door{ln: ln, changed: make(chan struct{})}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.wg.Go(d.accept)
	return d
}

// turn returns a listener for the next server, whose end is the end of its turn. From
// now on new connections are its; the server before keeps those that it has until it
// is stopped.
func (d *door) turn() net.Listener {
	t := &turn{d: d, conns: make(chan net.Conn), done: make(chan struct{})}
	d.set(t)
	return t
}

func (d *door) set(t *turn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now = t
	close(d.changed)
	d.changed = make(chan struct{})
}

// close ends the address and waits for what accepts. A second close returns nil.
func (d *door) close() error {
	d.cancel()
	err := d.ln.Close()
	d.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (d *door) accept() {
	for {
		c, err := d.ln.Accept()
		switch {
		case d.ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			if err == nil {
				_ = c.Close() // raced with close
			}
			return
		case err != nil:
			select {
			case <-d.ctx.Done():
			case <-time.After(acceptPause):
			}
		case !d.hand(c):
			_ = c.Close() // the address ends
			return
		}
	}
}

// hand gives a connection to whoever serves, and waits for somebody who does.
func (d *door) hand(c net.Conn) bool {
	for {
		d.mu.Lock()
		t, changed := d.now, d.changed
		d.mu.Unlock()
		var to chan net.Conn
		var over chan struct{}
		if t != nil {
			to, over = t.conns, t.done
		}
		select {
		case to <- c:
			return true
		case <-over:
			d.mu.Lock()
			if d.now == t {
				d.now = nil
			}
			d.mu.Unlock()
		case <-changed:
		case <-d.ctx.Done():
			return false
		}
	}
}

// turn is one server's time at the door.
type turn struct {
	d     *door
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

var _ net.Listener = (*turn)(nil)

// Accept implements net.Listener.
func (t *turn) Accept() (net.Conn, error) {
	select {
	case <-t.done: // first: a closed listener takes nothing
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-t.conns:
		return c, nil
	case <-t.done:
		return nil, net.ErrClosed
	case <-t.d.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close ends the turn; the address stays.
func (t *turn) Close() error {
	t.once.Do(func() { close(t.done) })
	return nil
}

// Addr implements net.Listener.
func (t *turn) Addr() net.Addr { return t.d.ln.Addr() }
