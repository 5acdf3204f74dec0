package simnet

import (
	"cmp"
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	segment = 32 << 10               // bytes that travel together at most
	window  = 256 << 10              // bytes under way or unread in a direction before a write waits
	rtoMin  = 200 * time.Millisecond // before what was lost is sent again; Linux's least
	rtoMax  = 5 * time.Second        // the pause doubles up to here
	giveUp  = 60 * time.Second       // a segment that does not pass for so long breaks the connection
)

var errTimeout = os.ErrDeadlineExceeded

// waiter is something that waits, until a deadline. Its methods need the lock of
// cond.
type waiter struct {
	cond     sync.Cond
	deadline time.Time // zero = none
	timer    *time.Timer
}

func (w *waiter) over() bool { return !w.deadline.IsZero() && !time.Now().Before(w.deadline) }

func (w *waiter) until(t time.Time) {
	w.stop()
	w.deadline = t
	if d := time.Until(t); !t.IsZero() && d > 0 {
		w.timer = time.AfterFunc(d, func() {
			w.cond.L.Lock()
			defer w.cond.L.Unlock()
			w.cond.Broadcast()
		})
	}
}

// stop ends the timer and lets everybody look again.
func (w *waiter) stop() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	w.cond.Broadcast()
}

// Conn is one end of a connection, a net.Conn. All its fields but the first six
// are guarded by net.mu.
type Conn struct {
	host  *Host
	peer  *Conn
	net   *Net
	local netip.AddrPort
	far   netip.AddrPort
	made  uint64 // number of the making

	read    waiter
	write   waiter
	in      []byte    // arrived and not read
	eof     bool      // the peer sends no more
	sent    int       // bytes under way to the peer, or unread there
	ordered time.Time // when the newest segment arrives
	flight  []*flight // segments under way, oldest first
	waiting []*flight // segments that the rate limit holds back, oldest first
	held    bool      // they are looked at again
	closed  bool      // this end was closed here
	err     error     // why the connection is broken
}

// flight is a segment, or the end, under way.
type flight struct {
	data  []byte
	end   bool
	rto   time.Duration // before the next attempt; 0 = none was needed yet
	since time.Time
	at    time.Time // when it arrives, if it is not lost
}

func sortConns(all []*Conn) {
	slices.SortFunc(all, func(a, b *Conn) int { return cmp.Compare(a.made, b.made) })
}

// Dial connects to a listener: a round trip, if nothing is cut.
func (h *Host) Dial(ctx context.Context, addr string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) { return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	ap, err := h.parse(addr)
	if err != nil {
		return fail(err)
	}
	type answer struct {
		c   *Conn
		err error
	}
	done := make(chan answer, 1)
	n := h.net
	var syn func()
	rto := rtoMin
	again := func(now time.Time) { // mu is held
		if ctx.Err() == nil {
			n.stats.Resent++
			n.after(now.Add(rto), syn)
			rto = min(2*rto, rtoMax)
		}
	}
	syn = func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		now, to := time.Now(), n.hosts[ap.Addr()]
		if !h.up {
			done <- answer{err: errDown}
			return
		}
		if to == nil || n.lossy(h, to) || n.lossy(to, h) {
			again(now)
			return
		}
		there, _ := n.linkOf(h.addr, to.addr).transit(now, n.path(h, to), 64, time.Hour)
		back := n.path(to, h).Delay
		n.after(there, func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			c, err := h.connect(to, ap)
			n.after(time.Now().Add(back), func() { done <- answer{c, err} })
		})
	}
	n.mu.Lock()
	n.after(time.Now(), syn)
	n.mu.Unlock()
	select {
	case a := <-done:
		if a.err != nil {
			return fail(a.err)
		}
		return a.c, nil
	case <-ctx.Done():
		go func() {
			// The connection may still come about; nobody wants it.
			select {
			case a := <-done:
				if a.c != nil {
					_ = a.c.Close()
				}
			case <-time.After(giveUp):
			}
		}()
		return fail(ctx.Err())
	}
}

// lossy draws whether a segment is lost now; mu is held.
func (n *Net) lossy(from, to *Host) bool {
	p := n.path(from, to)
	return p.Cut || n.linkOf(from.addr, to.addr).chance(p.Loss)
}

// connect makes both ends; mu is held.
func (h *Host) connect(to *Host, ap netip.AddrPort) (*Conn, error) {
	n := h.net
	switch {
	case !h.up:
		return nil, errDown
	case !to.up:
		return nil, syscall.EHOSTUNREACH
	}
	l := to.ports[ap.Port()]
	if l == nil || len(l.wait) >= backlog {
		return nil, syscall.ECONNREFUSED
	}
	h.port++
	near := &Conn{host: h, net: n, local: netip.AddrPortFrom(h.addr, h.port), far: ap, made: n.seq}
	far := &Conn{host: to, net: n, local: ap, far: near.local, made: n.seq}
	near.peer, far.peer = far, near
	for _, c := range []*Conn{near, far} {
		c.read.cond.L, c.write.cond.L = &n.mu, &n.mu
		c.host.conns[c] = struct{}{}
	}
	l.wait = append(l.wait, far)
	l.cond.Signal()
	n.note(h, to, Opened, 0)
	return near, nil
}

// breakWith ends this end; net.mu is held.
func (c *Conn) breakWith(err error) {
	if c.err == nil {
		c.err, c.flight, c.waiting = err, nil, nil
	}
	delete(c.host.conns, c)
	c.read.stop()
	c.write.stop()
}

// tellReset lets the peer hear that this end is gone; net.mu is held.
func (c *Conn) tellReset() {
	n, p := c.net, c.peer
	path := n.path(c.host, p.host)
	if path.Cut {
		return // lost, as a single segment is
	}
	n.after(time.Now().Add(path.Delay), func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.stats.Resets++
		p.breakWith(syscall.ECONNRESET)
	})
}

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	for len(c.in) == 0 && !c.eof && c.err == nil && !c.closed && !c.read.over() {
		c.read.cond.Wait()
	}
	switch {
	case c.closed:
		return 0, c.fail("read", net.ErrClosed)
	case c.read.over():
		return 0, c.fail("read", errTimeout)
	case len(c.in) == 0 && c.err != nil:
		return 0, c.fail("read", c.err)
	case len(c.in) == 0:
		return 0, io.EOF
	}
	k := copy(b, c.in)
	c.in = c.in[k:]
	if len(c.in) == 0 {
		c.in = nil
	}
	c.peer.sent -= k
	c.peer.write.cond.Broadcast()
	return k, nil
}

func (c *Conn) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	done := 0
	for {
		switch {
		case c.closed:
			return done, c.fail("write", net.ErrClosed)
		case c.err != nil:
			return done, c.fail("write", c.err)
		case c.write.over():
			return done, c.fail("write", errTimeout)
		case done == len(b):
			return done, nil
		case c.eof && c.peer.closed:
			c.breakWith(syscall.EPIPE)
			continue
		case c.sent >= window:
			c.write.cond.Wait()
			continue
		}
		k := min(len(b)-done, segment, window-c.sent)
		c.sent += k
		c.launch(&flight{data: append([]byte(nil), b[done:done+k]...)})
		done += k
	}
}

// launch sends a segment behind those before it; net.mu is held.
func (c *Conn) launch(f *flight) {
	f.since = time.Now()
	c.waiting = append(c.waiting, f)
	if !c.held {
		c.depart()
	}
}

// depart puts on their way the segments that the rate limit lets through; the
// others wait at the sender, so that a limit that ends is not felt any longer.
// net.mu is held.
func (c *Conn) depart() {
	n, now := c.net, time.Now()
	l, p := n.linkOf(c.host.addr, c.peer.host.addr), n.path(c.host, c.peer.host)
	c.held = false
	for len(c.waiting) > 0 && c.err == nil {
		f := c.waiting[0]
		at, ok := l.transit(now, p, len(f.data)+64, patience)
		if !ok {
			c.held = true
			n.after(now.Add(patience/4), func() {
				n.mu.Lock()
				defer n.mu.Unlock()
				c.depart()
			})
			return
		}
		c.waiting = c.waiting[1:]
		if !at.After(c.ordered) {
			at = c.ordered.Add(1)
		}
		c.ordered, f.at, f.since = at, at, now
		c.flight = append(c.flight, f)
		n.after(at, func() { c.arrive(f) })
	}
}

// arrive delivers the oldest segment under way, and f when it is that; if it is
// lost, those behind it wait for it.
func (c *Conn) arrive(f *flight) {
	n := c.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(c.flight) == 0 || c.flight[0] != f || c.err != nil {
		return // it goes with the one that is lost before it, or nowhere
	}
	now := time.Now()
	// Of a host that is down nothing comes back; its next start knows nothing of
	// the connection and says so.
	to := n.hosts[c.peer.host.addr]
	lost := to == nil || n.lossy(c.host, to)
	if !lost && (to != c.peer.host || c.peer.err != nil) {
		c.peer.tellReset()
		lost = true
	}
	if lost {
		if now.Sub(f.since) > giveUp {
			n.stats.Resets++
			c.breakWith(syscall.ETIMEDOUT)
			return
		}
		n.stats.Resent++
		f.rto = min(max(2*f.rto, rtoMin), rtoMax)
		n.after(now.Add(f.rto), func() { c.arrive(f) })
		return
	}
	n.take(c, f)
	// Those behind it that had arrived waited for it.
	for len(c.flight) > 0 && !c.flight[0].at.After(now) {
		n.take(c, c.flight[0])
	}
}

// take hands the oldest segment over; mu is held.
func (n *Net) take(c *Conn, f *flight) {
	c.flight = c.flight[1:]
	p := c.peer
	if f.end {
		n.note(c.host, p.host, Closed, 0)
		p.eof = true
		p.read.cond.Broadcast()
		p.write.cond.Broadcast()
		return
	}
	n.stats.Segments++
	n.stats.Bytes += uint64(len(f.data))
	n.note(c.host, p.host, Segment, len(f.data))
	if p.closed {
		p.tellReset()
		return
	}
	p.in = append(p.in, f.data...)
	p.read.cond.Signal()
}

// Close implements net.Conn. What was written is still delivered.
func (c *Conn) Close() error {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	c.read.stop()
	c.write.stop()
	delete(c.host.conns, c)
	if c.err == nil {
		c.launch(&flight{end: true})
	}
	return nil
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.local) }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.far) }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	c.read.until(t)
	c.write.until(t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	c.read.until(t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	c.write.until(t)
	return nil
}

var _ net.Conn = (*Conn)(nil)
