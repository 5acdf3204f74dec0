package fec

import (
	"encoding/binary"
	"net"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// Sizes of reading.
const (
	readBatch  = 8       // datagrams of one system call, as quic-go reads
	readBuffer = 2 << 10 // bytes; a frame is smaller, and a longer datagram no frame
	readOOB    = 192     // bytes of control messages: those for QUIC (128), and the socket's
	ecnCE      = byte(3) // RFC 3168: congestion experienced
)

// datagrams is what QUIC uses of a *net.UDPConn.
type datagrams interface {
	quic.OOBCapablePacketConn
	SetWriteBuffer(bytes int) error
}

// batcher reads several datagrams at once.
type batcher interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
}

// udp wraps a UDP socket with its control messages: batches, segmentation offload,
// ECN.
type udp struct {
	datagrams
	l     *Layer
	batch batcher

	// Only the reader uses these: quic-go reads in one goroutine.
	in    []ipv4.Message
	count int         // datagrams of in that were read
	next  int         // of them, the one to take apart
	out   []delivery  // of the one before next, not delivered yet
	whole [1]delivery // a datagram that is no frame
	peer  *peer
}

var (
	_ quic.OOBCapablePacketConn = (*udp)(nil)
	_ socket                    = (*udp)(nil)
)

// wrap returns the socket to write to and the one that QUIC gets.
func (l *Layer) wrap(inner net.PacketConn) (socket, net.PacketConn) {
	u, ok := inner.(datagrams)
	batch, batches := inner.(batcher)
	if c, is := inner.(*net.UDPConn); is {
		batch, batches = ipv4.NewPacketConn(c), true
	}
	if !ok || !batches {
		c := &plain{PacketConn: inner, l: l, buf: make([]byte, readBuffer)}
		return c, c
	}
	askSocket(u)
	c := &udp{datagrams: u, l: l, batch: batch, in: make([]ipv4.Message, readBatch)}
	for i := range c.in {
		c.in[i].Buffers = [][]byte{make([]byte, readBuffer)}
		c.in[i].OOB = make([]byte, readOOB)
	}
	return c, c
}

// write implements socket. The segment size of oob is changed in place.
func (c *udp) write(b, oob []byte, segment int, to net.Addr) error {
	u, ok := to.(*net.UDPAddr)
	if !ok {
		return syscall.EAFNOSUPPORT
	}
	if segment > 0 {
		setSegment(oob, uint16(segment))
	}
	_, _, err := c.datagrams.WriteMsgUDP(b, oob, u)
	return err
}

// WriteMsgUDP implements quic.OOBCapablePacketConn.
func (c *udp) WriteMsgUDP(b, oob []byte, to *net.UDPAddr) (int, int, error) {
	if p := c.l.sending(b, to); p != nil {
		segment, ecn := controls(oob)
		if done, err := p.write(b, oob, segment, ecn, to); done {
			return len(b), len(oob), err
		}
	}
	return c.datagrams.WriteMsgUDP(b, oob, to)
}

// WriteTo implements net.PacketConn.
func (c *udp) WriteTo(b []byte, to net.Addr) (int, error) {
	u, ok := to.(*net.UDPAddr)
	if !ok {
		return 0, syscall.EAFNOSUPPORT
	}
	n, _, err := c.WriteMsgUDP(b, nil, u)
	return n, err
}

// ReadBatch is what quic-go reads with. It fills as many messages as are there,
// at least one.
func (c *udp) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	n := 0
	for n < len(ms) {
		switch {
		case len(c.out) > 0:
			d := c.out[0]
			c.out = c.out[1:]
			if c.deliver(&ms[n], &c.in[c.next-1], &d) {
				n++
			}
		case c.next < c.count:
			m := &c.in[c.next]
			c.next++
			out, p, ok := c.l.input(m.Buffers[0][:m.N], m.Addr, c.socketSays(m))
			if !ok {
				c.whole[0] = delivery{packet: m.Buffers[0][:m.N]}
				out = c.whole[:]
			}
			c.out, c.peer = out, p
		case n > 0:
			return n, nil
		default:
			c.next, c.count = 0, 0
			count, err := c.batch.ReadBatch(c.in, flags)
			if err != nil {
				return 0, err
			}
			c.count = count
		}
	}
	return n, nil
}

// askSocket lets the kernel tell with each datagram when it came, and how many it
// had no room for. Where it does not, the former is when it was read, and the latter
// count as lost on the way.
func askSocket(u datagrams) {
	raw, err := u.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1)
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	})
}

// longestLag bounds how long a datagram is believed to have waited to be read: the
// clock may have been set meanwhile.
const longestLag = time.Second

// socketSays takes the socket's own control messages off a datagram, ahead of those
// for QUIC, and returns how long it has waited to be read.
func (c *udp) socketSays(m *ipv4.Message) (lag time.Duration) {
	oob := m.OOB[:m.NN]
	for len(oob) > 0 {
		h, body, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil || h.Level != unix.SOL_SOCKET {
			break
		}
		switch {
		case h.Type == unix.SO_RXQ_OVFL && len(body) >= 4:
			c.l.dropped.Store(binary.NativeEndian.Uint32(body))
		case h.Type == unix.SO_TIMESTAMPNS && len(body) >= 16:
			at := time.Unix(int64(binary.NativeEndian.Uint64(body)), int64(binary.NativeEndian.Uint64(body[8:])))
			if lag = time.Since(at); lag < 0 || lag > longestLag {
				lag = 0
			}
		}
		oob = rest
	}
	m.NN = copy(m.OOB, oob)
	return lag
}

// deliver copies a packet into a message of the reader's. It reports false for one
// that the reader does not get.
func (c *udp) deliver(to, from *ipv4.Message, d *delivery) bool {
	if len(d.packet) > len(to.Buffers[0]) {
		return false
	}
	to.N = copy(to.Buffers[0], d.packet)
	to.NN = copy(to.OOB, from.OOB[:from.NN])
	to.Addr, to.Flags = from.Addr, from.Flags
	if !d.repaired {
		if d.congested {
			markCE(to.OOB[:to.NN])
		}
		return true
	}
	ecn := d.ecn
	markable := d.ecn != 0
	if d.congested && markable {
		ecn = ecnCE
	}
	return !c.peer.withhold(d, setECN(to.OOB[:to.NN], ecn) && markable)
}

// ReadFrom implements net.PacketConn; quic-go does not use it.
func (c *udp) ReadFrom(b []byte) (int, net.Addr, error) {
	m := []ipv4.Message{{Buffers: [][]byte{b}, OOB: make([]byte, readOOB)}}
	if _, err := c.ReadBatch(m, 0); err != nil {
		return 0, nil, err
	}
	return m[0].N, m[0].Addr, nil
}

// ReadMsgUDP implements quic.OOBCapablePacketConn; quic-go does not use it.
func (c *udp) ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error) {
	m := []ipv4.Message{{Buffers: [][]byte{b}, OOB: oob}}
	if _, err := c.ReadBatch(m, 0); err != nil {
		return 0, 0, 0, nil, err
	}
	addr, _ = m[0].Addr.(*net.UDPAddr)
	return m[0].N, m[0].NN, m[0].Flags, addr, nil
}

// controls reads what quic-go says with a datagram: the size of its segments (0 =
// it is one) and its ECN field.
func controls(oob []byte) (segment int, ecn byte) {
	for len(oob) > 0 {
		h, body, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return segment, ecn
		}
		switch {
		case h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_SEGMENT && len(body) >= 2:
			segment = int(binary.NativeEndian.Uint16(body))
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS && len(body) >= 1,
			h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS && len(body) >= 4:
			ecn = trafficClass(body) & 3
		}
		oob = rest
	}
	return segment, ecn
}

// trafficClass reads the byte or the native integer of an ECN message.
func trafficClass(body []byte) byte {
	if len(body) >= 4 {
		return byte(binary.NativeEndian.Uint32(body))
	}
	return body[0]
}

// hasSegment reports whether the control messages ask for segmentation.
func hasSegment(oob []byte) bool {
	segment, _ := controls(oob)
	return segment > 0
}

// setSegment changes the size of segments in place, if the messages have one.
func setSegment(oob []byte, size uint16) {
	for len(oob) > 0 {
		h, body, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return
		}
		if h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_SEGMENT && len(body) >= 2 {
			binary.NativeEndian.PutUint16(body, size)
		}
		oob = rest
	}
}

// markCE marks a datagram that can carry a mark.
func markCE(oob []byte) {
	if _, ecn := controls(oob); ecn != 0 {
		setECN(oob, ecnCE)
	}
}

// setECN changes the ECN field in place. It reports false when the messages have
// none.
func setECN(oob []byte, ecn byte) bool {
	found := false
	for len(oob) > 0 {
		h, body, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return found
		}
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS && len(body) >= 1:
			body[0] = body[0]&^3 | ecn
			found = true
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS && len(body) >= 4:
			v := binary.NativeEndian.Uint32(body)
			binary.NativeEndian.PutUint32(body, v&^3|uint32(ecn))
			found = true
		}
		oob = rest
	}
	return found
}
