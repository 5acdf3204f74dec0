package datagram

import (
	"encoding/binary"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// Sizes of reading.
const (
	joinedBatch  = 4        // datagrams of one system call where each may be many joined
	joinedBuffer = 64 << 10 // bytes
	singleBatch  = 8        // where none is, as quic-go reads
	singleBuffer = 2 << 10  // bytes; QUIC has no longer datagram
	controlSize  = 256      // bytes of control messages: those for QUIC (128), and the socket's
)

// receiveBuffer is what the socket is asked to hold, in bytes, of which the kernel
// takes as much again for its own: what comes at 300 MB/s while the reader waits for a
// processor for 50 ms. Who may not have so much gets what net.core.rmem_max allows.
const receiveBuffer = 16 << 20

// defaultMost is more than sockets have that nobody has asked for, in bytes. Those that
// have more may lose it: what is not permitted is cut to what is.
const defaultMost = 1 << 20

// yieldAfter is after how many packets the reader lets others run: a quarter of what
// quic-go holds for a connection.
const yieldAfter = 64

// joinedGain is the gain of the average of how many datagrams are joined.
const joinedGain = 1.0 / 64

// longestLag bounds how long a datagram counts as having waited to be read.
const longestLag = time.Second

// batcher reads several datagrams at once.
type batcher interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
}

// Socket is what QUIC uses of a *net.UDPConn.
type Socket interface {
	quic.OOBCapablePacketConn
	SetWriteBuffer(bytes int) error
}

// Conn is a UDP socket that is read as the package says. Next and the methods that
// read must be called by one goroutine at a time.
type Conn struct {
	Socket
	batch    batcher
	dropped  atomic.Uint32
	overflow overflow
	joined   float64 // how many are joined, moving average

	in      []ipv4.Message
	count   int    // messages of in that were read
	next    int    // of them, the one to take apart
	left    []byte // of the one before next: what has not been handed on
	segment int    // size of the datagrams in left; 0 = it is one
	packet  Packet // the one that Next returned
	handed  int    // packets since others were let run

	backlogs backlogs
	backlog  *backlog // of the sender of packet; nil = not known
	due      *backlog // to be looked at; nil = none
	patience patience
	standing standing
	clock    clock
	marks    bool // a queue stands in the socket
}

var _ quic.OOBCapablePacketConn = (*Conn)(nil)

// Wrap returns a reader of a socket, which it does not close: a *net.UDPConn, or what
// has its methods and reads in batches as golang.org/x/net/ipv4.PacketConn does. It
// returns nil for others. The socket must not be read by anybody else.
func Wrap(inner net.PacketConn) *Conn {
	u, ok := inner.(Socket)
	batch, batches := inner.(batcher)
	if c, is := inner.(*net.UDPConn); is {
		batch, batches = ipv4.NewPacketConn(c), true
	}
	if !ok || !batches {
		return nil
	}
	c := &Conn{Socket: u, batch: batch, joined: 1}
	c.overflow.start()
	count, size := singleBatch, singleBuffer
	if ask(u) {
		count, size = joinedBatch, joinedBuffer
	}
	c.in = make([]ipv4.Message, count)
	for i := range c.in {
		c.in[i].Buffers = [][]byte{make([]byte, size)}
		c.in[i].OOB = make([]byte, controlSize)
	}
	return c
}

// ask has the kernel make room, join datagrams, tell with each when it came, and how
// many the socket had no room for. It reports whether they are joined. Without a time
// the one of reading counts, and without the number what is dropped is lost on the way.
func ask(u Socket) (joined bool) {
	raw, err := u.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		makeRoom(int(fd))
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1)
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
		joined = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil
	})
	return joined
}

// makeRoom has the socket hold receiveBuffer, or as much as this process may have.
func makeRoom(fd int) {
	has, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil || has >= 2*receiveBuffer {
		return // somebody has asked for more
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil && has < defaultMost {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
}

// Dropped returns about how many datagrams the socket has dropped for want of room,
// modulo 2^32, as the last packets told. The kernel counts joined ones as one; each of
// these counts as many as are joined of late. It may be called by any goroutine.
func (c *Conn) Dropped() uint32 { return c.dropped.Load() }

// Ready reports whether Next returns without reading from the socket.
func (c *Conn) Ready() bool { return len(c.left) > 0 || c.next < c.count }

// Next returns the next packet, and waits for one if none has come. It is valid until
// the next call. Errors are those of the socket.
func (c *Conn) Next() (*Packet, error) {
	for !c.Ready() {
		c.next, c.count = 0, 0
		count, err := c.batch.ReadBatch(c.in, 0)
		if err != nil {
			return nil, err
		}
		c.count = count
	}
	if len(c.left) == 0 {
		c.begin(&c.in[c.next])
		c.next++
	}
	n := len(c.left)
	if c.segment > 0 {
		n = min(n, c.segment)
	}
	c.packet.Data, c.left = c.left[:n:n], c.left[n:]
	return &c.packet, nil
}

// HandOn notes that QUIC gets a message for the last packet that Next returned: itself,
// or what it brought. Where a queue stands in the socket it marks the message. known
// says that it is for a connection, as far as can be told; others are not waited for.
func (c *Conn) HandOn(m *ipv4.Message, known bool) {
	c.handed++
	// Every other one: a path that marks all is taken for broken (RFC 9000 section
	// 13.4.2).
	if c.marks && c.handed%2 == 0 {
		MarkCE(m.OOB[:m.NN])
	}
	if known && c.backlog != nil && c.backlog.add(m.N) {
		c.due = c.backlog // one is enough: another is looked at with its next packets
	}
}

// StepBack lets others run when it is time for that, and waits while connections have
// too much. Call it before messages are filled: what is in them waits as well.
func (c *Conn) StepBack() {
	if c.handed >= yieldAfter {
		c.handed = 0
		runtime.Gosched()
	}
	if c.due != nil {
		c.due.look(&c.patience, time.Now, time.Sleep)
		c.due = nil
	}
}

// begin begins to take a message apart: the control messages of the socket stand ahead
// of those for QUIC.
func (c *Conn) begin(m *ipv4.Message) {
	c.left, c.segment = m.Buffers[0][:m.N], 0
	c.packet, c.backlog = Packet{From: m.Addr, Read: time.Now()}, c.backlogs.of(m.Addr)
	dropped, oob := c.overflow.told, m.OOB[:m.NN]
	for len(oob) > 0 {
		h, body, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil || h.Level != unix.SOL_SOCKET && h.Level != unix.IPPROTO_UDP {
			break
		}
		oob = rest
		switch {
		case h.Level == unix.IPPROTO_UDP:
			if h.Type == unix.UDP_GRO && len(body) >= 4 {
				c.segment = int(binary.NativeEndian.Uint32(body))
			}
		case h.Type == unix.SO_RXQ_OVFL && len(body) >= 4:
			dropped = binary.NativeEndian.Uint32(body)
		case h.Type == unix.SO_TIMESTAMPNS && len(body) >= 16:
			at := time.Unix(int64(binary.NativeEndian.Uint64(body)), int64(binary.NativeEndian.Uint64(body[8:])))
			c.packet.Lag = min(max(c.packet.Read.Sub(at), 0), longestLag)
		}
	}
	if c.clock.set(c.packet.Read) {
		c.packet.Lag = 0
	}
	c.packet.Control = oob
	if n := c.overflow.add(c.packet.Read, dropped, c.joined); n > 0 {
		c.dropped.Add(n)
	}
	joined := 1
	if c.segment > 0 {
		joined = max((m.N+c.segment-1)/c.segment, 1)
	}
	c.joined += (float64(joined) - c.joined) * joinedGain
	c.standing.add(c.packet.Read, c.packet.Lag)
	c.marks = c.standing.marks(c.packet.Read)
}

// ReadBatch is what quic-go reads with. It fills as many messages as are there, at
// least one; what is longer than a buffer is left out.
func (c *Conn) ReadBatch(ms []ipv4.Message, _ int) (int, error) {
	c.StepBack()
	n := 0
	for n < len(ms) && (n == 0 || c.Ready()) {
		p, err := c.Next()
		if err != nil {
			return 0, err
		}
		m := &ms[n]
		if len(p.Data) > len(m.Buffers[0]) {
			continue
		}
		m.N, m.NN = copy(m.Buffers[0], p.Data), CopyControl(m.OOB, p.Control)
		m.Addr, m.Flags = p.From, 0
		n++
		c.HandOn(m, true)
	}
	return n, nil
}

// ReadFrom implements net.PacketConn; quic-go does not use it.
func (c *Conn) ReadFrom(b []byte) (int, net.Addr, error) {
	p, err := c.Next()
	if err != nil {
		return 0, nil, err
	}
	return copy(b, p.Data), p.From, nil
}

// ReadMsgUDP implements quic.OOBCapablePacketConn; quic-go does not use it.
func (c *Conn) ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error) {
	p, err := c.Next()
	if err != nil {
		return 0, 0, 0, nil, err
	}
	addr, _ = p.From.(*net.UDPAddr)
	return copy(b, p.Data), CopyControl(oob, p.Control), 0, addr, nil
}
