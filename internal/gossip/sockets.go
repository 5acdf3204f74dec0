package gossip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	packetQueue   = 256       // packets waiting for memberlist; a further one is dropped and counted
	streamQueue   = 16        // streams waiting; a further one is closed and counted
	maxPacket     = 64 << 10  // bytes; no UDP packet is larger
	readBuffer    = 512 << 10 // bytes asked of the kernel for the UDP socket
	bindTries     = 10        // free ports tried until one is free for TCP and UDP
	acceptBackoff = 50 * time.Millisecond
)

// sockets is the real transport: one UDP socket and one TCP listener on the
// same port. It owns two goroutines, which Shutdown joins.
type sockets struct {
	udp     *net.UDPConn
	tcp     *net.TCPListener
	stats   *counters
	packets chan *memberlist.Packet
	streams chan net.Conn
	done    chan struct{}
	wg      sync.WaitGroup
}

var _ memberlist.Transport = (*sockets)(nil)

func listen(bind netip.AddrPort, stats *counters) (*sockets, error) {
	var errs []error
	for range bindTries {
		s, err := listenOnce(bind, stats)
		if err == nil {
			s.wg.Go(s.readPackets)
			s.wg.Go(s.acceptStreams)
			return s, nil
		}
		errs = append(errs, err)
		if bind.Port() != 0 {
			break // a given port does not become another by trying again
		}
	}
	return nil, fmt.Errorf("gossip: listen on %s: %w", bind, errors.Join(errs...))
}

func listenOnce(bind netip.AddrPort, stats *counters) (*sockets, error) {
	tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(bind))
	if err != nil {
		return nil, err
	}
	port := tcp.Addr().(*net.TCPAddr).AddrPort().Port()
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(bind.Addr(), port)))
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	_ = udp.SetReadBuffer(readBuffer) // best effort: a smaller buffer only drops more under load
	return &sockets{
		udp: udp, tcp: tcp, stats: stats,
		packets: make(chan *memberlist.Packet, packetQueue),
		streams: make(chan net.Conn, streamQueue),
		done:    make(chan struct{}),
	}, nil
}

// addr is what is bound.
func (s *sockets) addr() netip.AddrPort {
	ap := s.tcp.Addr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

func (s *sockets) readPackets() {
	buf := make([]byte, maxPacket)
	for {
		n, from, err := s.udp.ReadFromUDP(buf)
		now := time.Now()
		if err != nil {
			if s.pause() {
				return
			}
			continue
		}
		if n == 0 {
			continue
		}
		// memberlist decrypts in place and keeps parts: it gets its own copy.
		p := &memberlist.Packet{Buf: append([]byte(nil), buf[:n]...), From: from, Timestamp: now}
		select {
		case s.packets <- p:
		default:
			s.stats.packetsDropped.Add(1)
		}
	}
}

func (s *sockets) acceptStreams() {
	for {
		c, err := s.tcp.AcceptTCP()
		if err != nil {
			if s.pause() {
				return
			}
			continue
		}
		select {
		case s.streams <- c:
		default:
			s.stats.streamsRefused.Add(1)
			_ = c.Close() // refused: there is nothing to tell the peer
		}
	}
}

// pause waits after a failed read or accept, and reports whether the transport
// is shut down.
func (s *sockets) pause() bool {
	t := time.NewTimer(acceptBackoff)
	defer t.Stop()
	select {
	case <-s.done:
		return true
	case <-t.C:
		return false
	}
}

// FinalAdvertiseAddr implements memberlist.Transport.
func (s *sockets) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	if ip == "" {
		a := s.addr()
		return a.Addr().AsSlice(), int(a.Port()), nil
	}
	return advertised(ip, port)
}

func advertised(ip string, port int) (net.IP, int, error) {
	a, err := netip.ParseAddr(ip)
	if err != nil {
		return nil, 0, fmt.Errorf("gossip: advertised address: %w", err)
	}
	return a.Unmap().AsSlice(), port, nil
}

// WriteTo implements memberlist.Transport. The address is ip:port.
func (s *sockets) WriteTo(b []byte, addr string) (time.Time, error) {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return time.Time{}, fmt.Errorf("gossip: packet address: %w", err)
	}
	_, err = s.udp.WriteToUDPAddrPort(b, ap)
	return time.Now(), err
}

// PacketCh implements memberlist.Transport.
func (s *sockets) PacketCh() <-chan *memberlist.Packet { return s.packets }

// StreamCh implements memberlist.Transport.
func (s *sockets) StreamCh() <-chan net.Conn { return s.streams }

// DialTimeout implements memberlist.Transport.
func (s *sockets) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return s.DialContext(context.Background(), addr, timeout)
}

// DialContext dials within the timeout and until ctx is done.
func (s *sockets) DialContext(ctx context.Context, addr string, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout}
	return d.DialContext(ctx, "tcp", addr)
}

// Shutdown implements memberlist.Transport. It joins the goroutines and closes
// the streams that nobody has taken.
func (s *sockets) Shutdown() error {
	close(s.done)
	err := errors.Join(s.tcp.Close(), s.udp.Close())
	s.wg.Wait()
	for {
		select {
		case c := <-s.streams:
			_ = c.Close() // never taken
		default:
			return err
		}
	}
}
