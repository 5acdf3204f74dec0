package fec

import (
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/router/link/datagram"
)

// Options tells a Layer what it may do. The zero value of a field takes the
// default.
type Options struct {
	// Extra is the most that parity may add to each byte of a peer that has much
	// to send, 24 MiB/s or more; default 0.25. ExtraSparse is that of one that has
	// little: less than 3 MiB/s; default 1.1. Between the two it falls evenly. Headers
	// (14 bytes a packet) come on top.
	Extra, ExtraSparse float64
	// Queue is the least delay beyond that of the empty path from which a loss
	// counts as congestion: it is not hidden from QUIC, and no parity is sent.
	// Default 15 ms.
	Queue time.Duration
	// Rate is the most that is sent to one peer, bytes a second with the headers of
	// this layer; 0 = any. Who would send more waits.
	Rate float64
	// Rand draws tags and first numbers; nil takes a random seed.
	Rand *rand.Rand
}

func (o Options) withDefaults() Options {
	if o.Extra <= 0 {
		o.Extra = 0.25
	}
	if o.ExtraSparse <= 0 {
		o.ExtraSparse = 1.1
	}
	if o.Queue <= 0 {
		o.Queue = 15 * time.Millisecond
	}
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	return o
}

// Layer corrects what goes over one socket. Its methods are safe for concurrent
// use.
type Layer struct {
	o     Options
	conn  socket
	outer net.PacketConn
	start time.Time // of the clock of ticks

	timers  sync.WaitGroup // armed timers of peers
	stopped chan struct{}  // closed by Close
	unknown atomic.Uint64  // frames with a tag that nobody has, or that are malformed
	dropped atomic.Uint32  // datagrams that the socket had no room for, modulo 2^32
	told    atomic.Int64   // when the last unknown frame was answered, nanoseconds since start

	byTag  atomic.Pointer[map[uint32]*peer]         // never changed, replaced
	byAddr atomic.Pointer[map[netip.AddrPort]*peer] // likewise

	mu    sync.Mutex
	rand  *rand.Rand       // guarded by mu
	peers map[string]*peer // guarded by mu
}

// socket writes datagrams to the network. oob are control messages, which only
// some sockets take; segment is the size of the datagrams that b is made of, 0 =
// one.
type socket interface {
	write(b, oob []byte, segment int, to net.Addr) error
}

// New returns a layer over a socket, which it does not close. Nothing is changed
// before a lease is enabled.
func New(inner net.PacketConn, o Options) *Layer {
	o = o.withDefaults()
	l := &Layer{o: o, rand: o.Rand, start: time.Now(), stopped: make(chan struct{}), peers: make(map[string]*peer)}
	l.byTag.Store(&map[uint32]*peer{})
	l.byAddr.Store(&map[netip.AddrPort]*peer{})
	l.conn, l.outer = l.wrap(inner)
	return l
}

// PacketConn is what a quic.Transport gets in place of the socket.
func (l *Layer) PacketConn() net.PacketConn { return l.outer }

// Close stops the timers and joins them. What is sent later goes as it is.
func (l *Layer) Close() {
	l.mu.Lock()
	select {
	case <-l.stopped:
		l.mu.Unlock()
		return
	default:
	}
	close(l.stopped)
	for _, p := range l.peers {
		p.stop()
	}
	l.mu.Unlock()
	l.timers.Wait()
}

// Unknown returns how many frames came that belong to no peer.
func (l *Layer) Unknown() uint64 { return l.unknown.Load() }

// Lease is a share in the stream of a peer: each connection with it holds one.
type Lease struct {
	p     *peer
	over  bool             // guarded by the layer's mu; released
	addrs []netip.AddrPort // guarded by the layer's mu
}

// Lease returns a share in the stream of the named node, whose frames are taken
// from now on if they carry the lease's tag. Release it.
func (l *Layer) Lease(node string) *Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.peers[node]
	if p == nil {
		p = newPeer(l, node, l.freshTag())
		l.peers[node] = p
		tags := copyMap(*l.byTag.Load())
		tags[p.own] = p
		l.byTag.Store(&tags)
	}
	p.leases++
	return &Lease{p: p}
}

// freshTag draws a tag that nobody has; mu is held.
func (l *Layer) freshTag() uint32 {
	for {
		tag := l.rand.Uint32()
		if _, taken := (*l.byTag.Load())[tag]; !taken && tag != 0 {
			return tag
		}
	}
}

// Tag is what frames to this node have to carry; tell the peer. It is not 0.
func (a *Lease) Tag() uint32 { return a.p.own }

// Enable begins to send frames with the peer's tag to the address, once the peer
// has said that it takes them. A tag other than before is a later start of the
// peer: all that is known of it begins anew.
func (a *Lease) Enable(addr net.Addr, tag uint32) {
	ap, ok := datagram.AddrPort(addr)
	l := a.p.layer
	if !ok || tag == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.over {
		return
	}
	a.p.enable(tag, l.rand.Uint32())
	addrs := copyMap(*l.byAddr.Load())
	addrs[ap] = a.p
	l.byAddr.Store(&addrs)
	a.p.addrs[ap]++
	a.addrs = append(a.addrs, ap)
}

// Status returns what is known of the peer's stream.
func (a *Lease) Status() Status { return a.p.status() }

// Release gives the share back; with the last one the stream ends, and packets to
// the peer go as they are. A second call does nothing.
func (a *Lease) Release() {
	p, l := a.p, a.p.layer
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.over {
		return
	}
	a.over = true
	addrs := copyMap(*l.byAddr.Load())
	for _, ap := range a.addrs {
		if p.addrs[ap]--; p.addrs[ap] <= 0 {
			delete(p.addrs, ap)
			if addrs[ap] == p {
				delete(addrs, ap)
			}
		}
	}
	if p.leases--; p.leases == 0 {
		p.stop()
		delete(l.peers, p.node)
		tags := copyMap(*l.byTag.Load())
		delete(tags, p.own)
		l.byTag.Store(&tags)
		maps.DeleteFunc(addrs, func(_ netip.AddrPort, q *peer) bool { return q == p }) // where it moved to
	}
	l.byAddr.Store(&addrs)
}

// moved notes that the peer sends from another address: what goes there is
// corrected as well. It reports nothing and takes no address of another peer.
func (l *Layer) moved(p *peer, from netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	addrs := copyMap(*l.byAddr.Load())
	if _, taken := addrs[from]; taken || p.leases == 0 || len(p.addrs) == 0 {
		return
	}
	if p.alias.IsValid() && addrs[p.alias] == p && p.addrs[p.alias] == 0 {
		delete(addrs, p.alias)
	}
	p.alias = from
	addrs[from] = p
	l.byAddr.Store(&addrs)
}

func copyMap[K comparable, V any](m map[K]V) map[K]V {
	out := make(map[K]V, len(m)+1)
	for k, v := range m {
		out[k] = v
	}
	return out
}

// ticks is the clock of send times.
func (l *Layer) ticks(now time.Time) uint16 { return uint16(now.Sub(l.start) / tick) }

// sending returns the peer whose frames go to the address; nil = packets go as
// they are. So do those with a long header (RFC 9000 section 17.2): a handshake
// must get through whatever the other end still knows.
func (l *Layer) sending(b []byte, to net.Addr) *peer {
	if len(b) == 0 || len(b) > 0 && b[0]&0x80 != 0 {
		return nil
	}
	ap, ok := datagram.AddrPort(to)
	if !ok {
		return nil
	}
	return (*l.byAddr.Load())[ap]
}

// enabled reports whether a peer at the address takes frames, and sends them: who says
// that it does, does.
func (l *Layer) enabled(a net.Addr) bool {
	ap, _ := datagram.AddrPort(a)
	return (*l.byAddr.Load())[ap] != nil
}
