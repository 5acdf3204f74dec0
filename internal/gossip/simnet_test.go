package gossip

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// simNetwork connects simTransports in memory. It drops rather than blocks, and
// cuts directions between addresses.
type simNetwork struct {
	mu    sync.Mutex
	nodes map[string]*simTransport
	cut   func(from, to string) bool          // nil = nothing is cut; guarded by mu
	delay func(from, to string) time.Duration // nil = none; guarded by mu
}

func newSimNetwork() *simNetwork { return &simNetwork{nodes: map[string]*simTransport{}} }

func (n *simNetwork) setCut(cut func(from, to string) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = cut
}

// setDelay sets how late packets arrive; streams are not delayed.
func (n *simNetwork) setDelay(delay func(from, to string) time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.delay = delay
}

func (n *simNetwork) late(from, to string) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.delay == nil {
		return 0
	}
	return n.delay(from, to)
}

func (n *simNetwork) peer(from, to string) *simTransport {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut != nil && n.cut(from, to) {
		return nil
	}
	return n.nodes[to]
}

func (n *simNetwork) listen(addr string) *simTransport {
	t := &simTransport{
		net: n, addr: netip.MustParseAddrPort(addr),
		packets: make(chan *memberlist.Packet, 64), streams: make(chan net.Conn, 8),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nodes[addr] = t
	return t
}

type simTransport struct {
	net     *simNetwork
	addr    netip.AddrPort
	packets chan *memberlist.Packet
	streams chan net.Conn
}

func (t *simTransport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.addr.Addr().AsSlice(), int(t.addr.Port()), nil
}

func (t *simTransport) WriteTo(b []byte, addr string) (time.Time, error) {
	now := time.Now()
	if peer := t.net.peer(t.addr.String(), addr); peer != nil {
		p := &memberlist.Packet{Buf: append([]byte(nil), b...), From: net.UDPAddrFromAddrPort(t.addr), Timestamp: now}
		arrive := func() {
			select {
			case peer.packets <- p:
			default:
			}
		}
		if late := t.net.late(t.addr.String(), addr); late > 0 {
			go func() {
				time.Sleep(late)
				arrive()
			}()
		} else {
			arrive()
		}
	}
	return now, nil
}

func (t *simTransport) PacketCh() <-chan *memberlist.Packet { return t.packets }

func (t *simTransport) DialTimeout(addr string, _ time.Duration) (net.Conn, error) {
	peer := t.net.peer(t.addr.String(), addr)
	if peer == nil || t.net.peer(addr, t.addr.String()) == nil {
		return nil, errors.New("unreachable")
	}
	here, there := net.Pipe()
	select {
	case peer.streams <- addressed{there}:
		return addressed{here}, nil
	default:
		return nil, errors.New("busy")
	}
}

func (t *simTransport) StreamCh() <-chan net.Conn { return t.streams }

func (t *simTransport) Shutdown() error {
	t.net.mu.Lock()
	defer t.net.mu.Unlock()
	if t.net.nodes[t.addr.String()] == t {
		delete(t.net.nodes, t.addr.String())
	}
	return nil
}

// addressed gives a pipe an address that memberlist can log.
type addressed struct{ net.Conn }

func (addressed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1} }
