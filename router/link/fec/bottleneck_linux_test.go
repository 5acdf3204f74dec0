package fec

import (
	"errors"
	"math"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// bottleneck is a line with a drop-tail queue in front, in simulated time: what
// comes when the queue is full is dropped.
type bottleneck struct {
	rate  float64       // bytes a second
	delay time.Duration // one way
	queue time.Duration // the longest wait
	pause time.Duration // of a link's connection after each write; 0 = it sends without end

	mu     sync.Mutex
	free   time.Time     // when the line has sent what it took
	waits  time.Duration // sum of all waits; guarded by mu
	taken  int           // guarded by mu
	drops  int           // guarded by mu
	before func() bool   // loses a packet ahead of the queue; nil = none
}

// send has a packet delivered, or drops it.
func (b *bottleneck) send(size int, deliver func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.free.Before(now) {
		b.free = now
	}
	wait := b.free.Sub(now)
	if wait > b.queue || b.before != nil && b.before() {
		b.drops++
		return
	}
	b.waits += wait
	b.taken++
	b.free = b.free.Add(time.Duration(float64(size) / b.rate * float64(time.Second)))
	time.AfterFunc(b.free.Sub(now)+b.delay, deliver)
}

// meanWait returns the mean wait of the packets since the last call.
func (b *bottleneck) meanWait() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	mean := b.waits / time.Duration(max(b.taken, 1))
	b.waits, b.taken, b.drops = 0, 0, 0
	return mean
}

// simUDP is a UDP socket of a simulated network with what QUIC uses of a real one:
// batches, segmentation, ECN.
type simUDP struct {
	addr  *net.UDPAddr
	route func(to *net.UDPAddr, size int, deliver func(*simUDP)) // sends a datagram

	inbox chan simDatagram
	gone  chan struct{} // closed by Close
	once  sync.Once

	mu   sync.Mutex
	late chan struct{} // closed while the read deadline has passed; guarded by mu
}

type simDatagram struct {
	from *net.UDPAddr
	data []byte
	ecn  byte
}

func newSimUDP(last byte) *simUDP {
	return &simUDP{
		addr:  &net.UDPAddr{IP: net.IPv4(10, 0, 0, last).To4(), Port: 4433},
		inbox: make(chan simDatagram, 1<<14), gone: make(chan struct{}), late: make(chan struct{}),
	}
}

func (s *simUDP) WriteMsgUDP(b, oob []byte, to *net.UDPAddr) (int, int, error) {
	segment, ecn := controls(oob)
	for rest := b; len(rest) > 0; {
		n := len(rest)
		if segment > 0 {
			n = min(n, segment)
		}
		d := simDatagram{from: s.addr, data: append([]byte(nil), rest[:n]...), ecn: ecn}
		rest = rest[n:]
		s.route(to, n+28, func(at *simUDP) {
			select {
			case at.inbox <- d:
			default: // its queue is full
			}
		})
	}
	return len(b), len(oob), nil
}

// ReadBatch reads one datagram with its ECN field.
func (s *simUDP) ReadBatch(ms []ipv4.Message, _ int) (int, error) {
	s.mu.Lock()
	late := s.late
	s.mu.Unlock()
	select {
	case <-s.gone:
		return 0, net.ErrClosed
	case <-late:
		return 0, os.ErrDeadlineExceeded
	case d := <-s.inbox:
		m := &ms[0]
		m.N, m.Addr, m.Flags = copy(m.Buffers[0], d.data), d.from, 0
		m.NN = copy(m.OOB, tosMessage(d.ecn))
		return 1, nil
	}
}

// tosMessage is the control message with which Linux tells the ECN field.
func tosMessage(ecn byte) []byte {
	b := make([]byte, unix.CmsgSpace(1))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = unix.IPPROTO_IP, unix.IP_TOS
	h.SetLen(unix.CmsgLen(1))
	b[unix.CmsgLen(0)] = ecn
	return b
}

func (s *simUDP) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.late:
		s.late = make(chan struct{})
	default:
	}
	if !t.IsZero() && !t.After(time.Now()) {
		close(s.late)
	}
	return nil
}

func (s *simUDP) Close() error {
	s.once.Do(func() { close(s.gone) })
	return nil
}

func (s *simUDP) LocalAddr() net.Addr                   { return s.addr }
func (s *simUDP) SetDeadline(t time.Time) error         { return s.SetReadDeadline(t) }
func (s *simUDP) SetWriteDeadline(time.Time) error      { return nil }
func (s *simUDP) SetReadBuffer(int) error               { return nil }
func (s *simUDP) SetWriteBuffer(int) error              { return nil }
func (s *simUDP) SyscallConn() (syscall.RawConn, error) { return noDescriptor{}, nil }

func (s *simUDP) WriteTo(b []byte, to net.Addr) (int, error) {
	n, _, err := s.WriteMsgUDP(b, nil, to.(*net.UDPAddr))
	return n, err
}

func (s *simUDP) ReadFrom([]byte) (int, net.Addr, error) {
	return 0, nil, errors.ErrUnsupported
}

func (s *simUDP) ReadMsgUDP(_, _ []byte) (n, oobn, flags int, addr *net.UDPAddr, err error) {
	return 0, 0, 0, nil, errors.ErrUnsupported
}

// noDescriptor takes every socket option and does nothing.
type noDescriptor struct{}

func (noDescriptor) Control(func(uintptr)) error    { return nil }
func (noDescriptor) Read(func(uintptr) bool) error  { return nil }
func (noDescriptor) Write(func(uintptr) bool) error { return nil }

// cubic is a TCP sender with CUBIC (RFC 9438) and selective acknowledgements that
// always has something to send. Its packets are numbered anew when they are sent
// again: only what it gets through counts.
type cubic struct {
	line *bottleneck
	back time.Duration // of acknowledgements

	mu        sync.Mutex
	stopped   bool
	next      uint64 // packet
	open      map[uint64]time.Time
	cwnd      float64 // packets
	threshold float64
	most      float64 // window before the last loss
	since     time.Time
	friendly  float64 // the window that New Reno would have
	recovered uint64  // losses below it belong to the loss before
	rtt       time.Duration
	done      int // packets delivered
}

const cubicPacket = 1500 // bytes

func newCubic(line *bottleneck, back time.Duration) *cubic {
	return &cubic{line: line, back: back, open: make(map[uint64]time.Time), cwnd: 10, threshold: math.Inf(1)}
}

// pump sends what the window allows. mu is held.
func (c *cubic) pump() {
	for !c.stopped && float64(len(c.open)) < c.cwnd {
		n := c.next
		c.next++
		c.open[n] = time.Now()
		c.line.send(cubicPacket, func() { time.AfterFunc(c.back, func() { c.acked(n) }) })
	}
}

func (c *cubic) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pump()
}

func (c *cubic) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
}

func (c *cubic) delivered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done
}

func (c *cubic) acked(n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.open[n]
	if !ok {
		return
	}
	delete(c.open, n)
	c.done++
	c.rtt = time.Since(at)
	for m := range c.open { // three packets later count as a loss (RFC 5681)
		if m+3 > n {
			continue
		}
		delete(c.open, m)
		if m >= c.recovered {
			c.loss()
		}
	}
	if n >= c.recovered {
		c.grow()
	}
	c.pump()
}

func (c *cubic) loss() {
	const beta = 0.7
	c.recovered = c.next
	if c.most = max(c.cwnd, 2); c.cwnd < c.threshold && !math.IsInf(c.threshold, 1) {
		c.most = c.cwnd * (1 + beta) / 2 // fast convergence
	}
	c.cwnd = max(c.cwnd*beta, 2)
	c.threshold, c.friendly, c.since = c.cwnd, c.cwnd, time.Now()
}

func (c *cubic) grow() {
	if c.cwnd < c.threshold {
		c.cwnd++
		return
	}
	const factor, alpha = 0.4, 3 * (1 - 0.7) / (1 + 0.7)
	k := math.Cbrt((c.most - c.threshold) / factor)
	target := factor*math.Pow(time.Since(c.since).Seconds()+c.rtt.Seconds()-k, 3) + c.most
	target = min(max(target, c.cwnd), 1.5*c.cwnd)
	c.friendly += alpha / c.cwnd
	c.cwnd = max(c.cwnd+(target-c.cwnd)/c.cwnd, c.friendly)
}
