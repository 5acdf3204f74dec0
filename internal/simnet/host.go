package simnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// Host is a machine on the network. Its methods are safe for concurrent use.
type Host struct {
	net   *Net
	name  string
	label string
	addr  netip.Addr

	up      bool                   // guarded by net.mu
	port    uint16                 // guarded by net.mu; of the newest dial
	sockets map[uint16]*PacketConn // guarded by net.mu
	ports   map[uint16]*Listener   // guarded by net.mu
	conns   map[*Conn]struct{}     // guarded by net.mu; ends on this host
}

// errDown is what a host without power has to say.
var errDown = errors.New("simnet: the host is down")

// Host puts a machine on the network. It takes the address over from a host that
// is down. label is for the path function: the city, say.
func (n *Net) Host(name, label string, addr netip.Addr) (*Host, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts[addr] != nil {
		return nil, fmt.Errorf("simnet: %s has the address %s", n.hosts[addr].name, addr)
	}
	h := &Host{
		net: n, name: name, label: label, addr: addr, up: true, port: 32768,
		sockets: map[uint16]*PacketConn{}, ports: map[uint16]*Listener{}, conns: map[*Conn]struct{}{},
	}
	n.hosts[addr] = h
	return h, nil
}

// Name returns the host's name.
func (h *Host) Name() string { return h.name }

// Label returns the host's label.
func (h *Host) Label() string { return h.label }

// Crash takes the host off the network. With tell, the peers of its connections
// hear of it by a reset, as when a process dies and the machine lives; without,
// they hear nothing. It does not wait for what ran on the host.
func (h *Host) Crash(tell bool) {
	n := h.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if !h.up {
		return
	}
	h.up = false
	delete(n.hosts, h.addr)
	for _, c := range h.connsInOrder() {
		if tell {
			c.tellReset()
		}
		c.breakWith(errDown)
	}
	for _, l := range h.ports {
		l.end(errDown)
	}
	for _, s := range h.sockets {
		s.end(errDown)
	}
}

// connsInOrder returns the connections in the order of their making; net.mu is
// held.
func (h *Host) connsInOrder() []*Conn {
	all := make([]*Conn, 0, len(h.conns))
	for c := range h.conns {
		all = append(all, c)
	}
	sortConns(all)
	return all
}

// Reset breaks each connection between the two hosts, both ends at once.
func (n *Net) Reset(a, b *Host) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range a.connsInOrder() {
		if c.peer.host == b {
			n.stats.Resets++
			c.breakWith(syscall.ECONNRESET)
			c.peer.breakWith(syscall.ECONNRESET)
		}
	}
}

func (h *Host) parse(addr string) (netip.AddrPort, error) {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return ap, fmt.Errorf("simnet: address %q is not ip:port", addr)
	}
	if ap.Addr().IsLoopback() {
		ap = netip.AddrPortFrom(h.addr, ap.Port()) // the host itself
	}
	return ap, nil
}

// own reads an address that the host may bind; net.mu is held.
func (h *Host) own(addr string) (netip.AddrPort, error) {
	ap, err := h.parse(addr)
	switch {
	case err != nil:
		return ap, err
	case !h.up:
		return ap, errDown
	case ap.Addr() != h.addr:
		return ap, fmt.Errorf("simnet: %s is no address of %s", addr, h.name)
	}
	return ap, nil
}

// Listen binds a TCP port of the host.
func (h *Host) Listen(_ context.Context, addr string) (net.Listener, error) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	ap, err := h.own(addr)
	switch {
	case err != nil:
		return nil, err
	case h.ports[ap.Port()] != nil:
		return nil, syscall.EADDRINUSE
	}
	l := &Listener{host: h, addr: ap}
	l.cond.L = &h.net.mu
	h.ports[ap.Port()] = l
	return l, nil
}

// backlog is how many connections wait to be accepted; one more is refused.
const backlog = 128

// Listener is a net.Listener.
type Listener struct {
	host *Host
	addr netip.AddrPort

	cond sync.Cond // of net.mu
	wait []*Conn   // guarded by net.mu
	err  error     // guarded by net.mu; why it takes no more
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	l.host.net.mu.Lock()
	defer l.host.net.mu.Unlock()
	for len(l.wait) == 0 && l.err == nil {
		l.cond.Wait()
	}
	if l.err != nil {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: l.err}
	}
	c := l.wait[0]
	l.wait = l.wait[1:]
	return c, nil
}

// end stops the listener; net.mu is held.
func (l *Listener) end(err error) {
	if l.err != nil {
		return
	}
	l.err = err
	for _, c := range l.wait {
		c.tellReset()
		c.breakWith(err)
	}
	l.wait = nil
	l.cond.Broadcast()
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.host.net.mu.Lock()
	defer l.host.net.mu.Unlock()
	if l.host.ports[l.addr.Port()] == l {
		delete(l.host.ports, l.addr.Port())
	}
	l.end(net.ErrClosed)
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.addr) }

// socketQueue is how many packets wait in a socket; one more is dropped.
const socketQueue = 1024

// ListenPacket binds a UDP port of the host.
func (h *Host) ListenPacket(_ context.Context, addr string) (net.PacketConn, error) {
	s, err := h.bind(addr)
	if err != nil {
		return nil, err // not s: a nil *PacketConn is no nil net.PacketConn
	}
	return s, nil
}

func (h *Host) bind(addr string) (*PacketConn, error) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	ap, err := h.own(addr)
	switch {
	case err != nil:
		return nil, err
	case h.sockets[ap.Port()] != nil:
		return nil, syscall.EADDRINUSE
	}
	s := &PacketConn{host: h, addr: ap}
	s.read.cond.L = &h.net.mu
	h.sockets[ap.Port()] = s
	return s, nil
}

// PacketConn is a net.PacketConn.
type PacketConn struct {
	host *Host
	addr netip.AddrPort

	read  waiter   // guarded by net.mu
	queue []packet // guarded by net.mu
	err   error    // guarded by net.mu; why it is over
}

type packet struct {
	from netip.AddrPort
	data []byte
}

// end closes the socket; net.mu is held.
func (s *PacketConn) end(err error) {
	if s.err == nil {
		s.err, s.queue = err, nil
		s.read.stop()
	}
}

// ReadFrom implements net.PacketConn.
func (s *PacketConn) ReadFrom(b []byte) (int, net.Addr, error) {
	s.host.net.mu.Lock()
	defer s.host.net.mu.Unlock()
	for len(s.queue) == 0 && s.err == nil && !s.read.over() {
		s.read.cond.Wait()
	}
	switch {
	case s.err != nil:
		return 0, nil, &net.OpError{Op: "read", Net: "udp", Addr: s.LocalAddr(), Err: s.err}
	case s.read.over():
		return 0, nil, &net.OpError{Op: "read", Net: "udp", Addr: s.LocalAddr(), Err: errTimeout}
	}
	p := s.queue[0]
	s.queue = s.queue[1:]
	return copy(b, p.data), net.UDPAddrFromAddrPort(p.from), nil
}

// patience is how long a queue before a rate limit is, in time; packets beyond it
// are dropped.
const patience = 250 * time.Millisecond

// WriteTo implements net.PacketConn. It does not block and tells of no loss.
func (s *PacketConn) WriteTo(b []byte, addr net.Addr) (int, error) {
	to, err := addrPort(addr)
	if err != nil {
		return 0, err
	}
	n := s.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if s.err != nil {
		return 0, &net.OpError{Op: "write", Net: "udp", Addr: s.LocalAddr(), Err: s.err}
	}
	n.send(s.host, s.addr, to, b)
	return len(b), nil
}

func addrPort(a net.Addr) (netip.AddrPort, error) {
	if u, ok := a.(*net.UDPAddr); ok {
		ap := u.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
	}
	return netip.ParseAddrPort(a.String())
}

// send puts a packet on its way; mu is held.
func (n *Net) send(from *Host, src, dst netip.AddrPort, b []byte) {
	to := n.hosts[dst.Addr()]
	if to == nil {
		return
	}
	p, l, now := n.path(from, to), n.linkOf(src.Addr(), dst.Addr()), time.Now()
	copies := 1
	if l.chance(p.Repeat) {
		copies++
		n.stats.Repeated++
	}
	for range copies {
		if p.Cut || l.chance(p.Loss) {
			n.lose(from, to, len(b))
			continue
		}
		at, ok := l.transit(now, p, len(b), patience)
		if !ok {
			n.lose(from, to, len(b))
			continue
		}
		if l.chance(p.Overrun) {
			n.stats.Overrun++
			at = at.Add(p.Delay/2 + time.Millisecond)
		}
		data := append([]byte(nil), b...)
		n.after(at, func() { n.arrive(from, to, src, dst, data) })
	}
}

func (n *Net) lose(from, to *Host, size int) {
	n.stats.Lost++
	n.note(from, to, Lost, size)
}

// arrive hands a packet to the socket, if it is there and has room.
func (n *Net) arrive(from, to *Host, src, dst netip.AddrPort, data []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := to.sockets[dst.Port()]
	if !to.up || s == nil || len(s.queue) >= socketQueue || n.path(from, to).Cut {
		n.lose(from, to, len(data))
		return
	}
	n.stats.Packets++
	n.stats.Bytes += uint64(len(data))
	n.note(from, to, Packet, len(data))
	s.queue = append(s.queue, packet{src, data})
	s.read.cond.Signal()
}

// Close implements net.PacketConn.
func (s *PacketConn) Close() error {
	s.host.net.mu.Lock()
	defer s.host.net.mu.Unlock()
	if s.host.sockets[s.addr.Port()] == s {
		delete(s.host.sockets, s.addr.Port())
	}
	s.end(net.ErrClosed)
	return nil
}

// LocalAddr implements net.PacketConn.
func (s *PacketConn) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(s.addr) }

// SetDeadline implements net.PacketConn.
func (s *PacketConn) SetDeadline(t time.Time) error { return s.SetReadDeadline(t) }

// SetReadDeadline implements net.PacketConn.
func (s *PacketConn) SetReadDeadline(t time.Time) error {
	s.host.net.mu.Lock()
	defer s.host.net.mu.Unlock()
	s.read.until(t)
	return nil
}

// SetWriteDeadline implements net.PacketConn: writes never wait.
func (s *PacketConn) SetWriteDeadline(time.Time) error { return nil }

var (
	_ net.PacketConn = (*PacketConn)(nil)
	_ net.Listener   = (*Listener)(nil)
)
