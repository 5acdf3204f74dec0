package gossip

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// ErrClosed is returned by every call on a pool or a transport after Close.
var ErrClosed = errors.New("gossip: closed")

// errForeign ends a stream that belongs to another pool.
var errForeign = errors.New("gossip: stream of another pool")

// maxStreams bounds the inbound streams that are open at a time. Each costs a
// goroutine of memberlist for at most its stream deadline; one above the bound
// is closed at once and counted.
const maxStreams = 128

// fence stands between memberlist and the network. It drops what belongs to
// another pool before memberlist sees it, and after Shutdown it refuses every
// call, because memberlist's goroutines outlive its Shutdown.
type fence struct {
	inner   memberlist.Transport
	admit   *admission
	stats   *counters
	packets chan *memberlist.Packet // unbuffered: the inner transport buffers and drops
	streams chan net.Conn           // unbuffered
	closed  atomic.Bool
	cut     context.Context // done: no dial may go on
	cutDial context.CancelFunc
	stop    chan struct{} // closed when the inner transport is down
	wg      sync.WaitGroup

	mu      sync.Mutex
	conns   map[*fencedConn]bool // open streams; true for inbound. guarded by mu
	inbound int                  // guarded by mu
}

var _ memberlist.NodeAwareTransport = (*fence)(nil)

func newFence(inner memberlist.Transport, admit *admission, stats *counters) *fence {
	f := &fence{
		inner: inner, admit: admit, stats: stats,
		packets: make(chan *memberlist.Packet),
		streams: make(chan net.Conn),
		stop:    make(chan struct{}),
		conns:   make(map[*fencedConn]bool),
	}
	f.cut, f.cutDial = context.WithCancel(context.Background())
	f.wg.Go(f.pump)
	return f
}

// pump moves what may pass from the inner transport to memberlist. After
// Shutdown has begun it discards, so that the inner transport never blocks.
func (f *fence) pump() {
	for {
		select {
		case p := <-f.inner.PacketCh():
			if f.closed.Load() || !f.admit.packet(p.Buf, f.stats) {
				continue
			}
			select {
			case f.packets <- p:
			case <-f.cut.Done():
			}
		case c := <-f.inner.StreamCh():
			fc := f.track(c, true)
			if fc == nil {
				continue
			}
			select {
			case f.streams <- fc:
			case <-f.cut.Done():
				_ = fc.Close() // nobody will read it
			}
		case <-f.stop:
			return
		}
	}
}

// track registers a stream, or closes it and returns nil.
func (f *fence) track(c net.Conn, inbound bool) *fencedConn {
	fc := &fencedConn{Conn: c, fence: f}
	if inbound {
		fc.want = f.admit.streamPrefix
	}
	f.mu.Lock()
	refuse := f.closed.Load() || (inbound && f.inbound >= maxStreams)
	if !refuse {
		f.conns[fc] = inbound
		if inbound {
			f.inbound++
		}
	}
	f.mu.Unlock()
	if refuse {
		if !f.closed.Load() {
			f.stats.streamsRefused.Add(1)
		}
		_ = c.Close() // refused: there is nothing to tell the peer
		return nil
	}
	return fc
}

func (f *fence) forget(fc *fencedConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	inbound, ok := f.conns[fc]
	if ok && inbound {
		f.inbound--
	}
	delete(f.conns, fc)
}

// FinalAdvertiseAddr implements memberlist.Transport.
func (f *fence) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	if f.closed.Load() {
		return nil, 0, ErrClosed
	}
	return f.inner.FinalAdvertiseAddr(ip, port)
}

// WriteTo implements memberlist.Transport.
func (f *fence) WriteTo(b []byte, addr string) (time.Time, error) {
	if f.closed.Load() {
		return time.Time{}, ErrClosed
	}
	return f.inner.WriteTo(b, addr)
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (f *fence) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return f.WriteTo(b, a.Addr)
}

// PacketCh implements memberlist.Transport. The channel is never closed.
func (f *fence) PacketCh() <-chan *memberlist.Packet { return f.packets }

// StreamCh implements memberlist.Transport. The channel is never closed.
func (f *fence) StreamCh() <-chan net.Conn { return f.streams }

// contextDialer is a transport whose dials can be cut short.
type contextDialer interface {
	DialContext(ctx context.Context, addr string, timeout time.Duration) (net.Conn, error)
}

// DialTimeout implements memberlist.Transport.
func (f *fence) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	if f.closed.Load() || f.cut.Err() != nil {
		return nil, ErrClosed
	}
	var c net.Conn
	var err error
	if d, ok := f.inner.(contextDialer); ok {
		c, err = d.DialContext(f.cut, addr, timeout)
	} else {
		c, err = f.inner.DialTimeout(addr, timeout)
	}
	if err != nil {
		return nil, err
	}
	if fc := f.track(c, false); fc != nil {
		return fc, nil
	}
	return nil, ErrClosed
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (f *fence) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return f.DialTimeout(a.Addr, timeout)
}

// stopStreams ends every dial and stream and lets no new one begin; packets
// still pass, so that the farewell can go out.
func (f *fence) stopStreams() {
	f.cutDial()
	f.mu.Lock()
	open := make([]*fencedConn, 0, len(f.conns))
	for fc := range f.conns {
		open = append(open, fc)
	}
	f.mu.Unlock()
	for _, fc := range open {
		_ = fc.Close() // its user sees the failure
	}
}

// Shutdown implements memberlist.Transport. It returns when the sockets are
// closed and the fence's goroutine has ended. A second call returns nil.
func (f *fence) Shutdown() error {
	if f.closed.Swap(true) {
		return nil
	}
	f.stopStreams()
	err := f.inner.Shutdown()
	close(f.stop)
	f.wg.Wait()
	return err
}

// fencedConn is a stream that the fence can close, and whose first bytes must
// be the pool's label when it is inbound. Like every conn it has one reader.
type fencedConn struct {
	net.Conn
	fence *fence
	want  []byte // what of the label has still to be seen; only the reader
	once  sync.Once
}

// Read checks the label as its bytes pass and ends a foreign stream.
func (c *fencedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if len(c.want) == 0 {
		return n, err
	}
	for i := 0; i < n && len(c.want) > 0; i++ {
		if b[i] != c.want[0] {
			c.fence.stats.foreignLabel.Add(1)
			return 0, errForeign
		}
		c.want = c.want[1:]
	}
	return n, err
}

// Close closes the stream. A second Close returns nil.
func (c *fencedConn) Close() error {
	var err error
	c.once.Do(func() {
		c.fence.forget(c)
		err = c.Conn.Close()
	})
	return err
}
