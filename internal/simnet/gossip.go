package simnet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	gossipPackets = 256 // that wait for memberlist; one more is dropped
	gossipStreams = 16  // likewise; one more is closed
)

// Transport is a memberlist.Transport: a UDP socket and a TCP listener on one
// port. It drops where it would have to wait.
type Transport struct {
	host    *Host
	addr    netip.AddrPort
	udp     *PacketConn
	tcp     net.Listener
	packets chan *memberlist.Packet
	streams chan net.Conn
	wg      sync.WaitGroup
}

// Gossip binds a port of the host for gossip.
func (h *Host) Gossip(addr string) (memberlist.Transport, error) {
	tcp, err := h.Listen(context.Background(), addr)
	if err != nil {
		return nil, err
	}
	udp, err := h.bind(addr)
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	t := &Transport{
		host: h, addr: udp.addr, udp: udp, tcp: tcp,
		packets: make(chan *memberlist.Packet, gossipPackets), streams: make(chan net.Conn, gossipStreams),
	}
	t.wg.Go(t.readPackets)
	t.wg.Go(t.acceptStreams)
	return t, nil
}

func (t *Transport) readPackets() {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := t.udp.ReadFrom(buf)
		if err != nil {
			return
		}
		select {
		case t.packets <- &memberlist.Packet{Buf: append([]byte(nil), buf[:n]...), From: from, Timestamp: time.Now()}:
		default: // memberlist is late: gossip is made for that
		}
	}
}

func (t *Transport) acceptStreams() {
	for {
		c, err := t.tcp.Accept()
		if err != nil {
			return
		}
		select {
		case t.streams <- c:
		default:
			_ = c.Close() // there is nothing to tell the peer
		}
	}
}

// FinalAdvertiseAddr implements memberlist.Transport.
func (t *Transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.addr.Addr().AsSlice(), int(t.addr.Port()), nil
}

// WriteTo implements memberlist.Transport.
func (t *Transport) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return time.Time{}, err
	}
	_, err = t.udp.WriteTo(b, net.UDPAddrFromAddrPort(to))
	return time.Now(), err
}

// PacketCh implements memberlist.Transport.
func (t *Transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *Transport) StreamCh() <-chan net.Conn { return t.streams }

// DialTimeout implements memberlist.Transport.
func (t *Transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialContext(context.Background(), addr, timeout)
}

// DialContext dials within the timeout and until ctx is done.
func (t *Transport) DialContext(ctx context.Context, addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return t.host.Dial(ctx, addr)
}

// Shutdown implements memberlist.Transport. It joins the goroutines.
func (t *Transport) Shutdown() error {
	err := errors.Join(t.tcp.Close(), t.udp.Close())
	t.wg.Wait()
	for {
		select {
		case c := <-t.streams:
			_ = c.Close() // nobody took it
		default:
			return err
		}
	}
}

var _ memberlist.Transport = (*Transport)(nil)
