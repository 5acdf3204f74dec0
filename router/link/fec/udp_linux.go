package fec

import (
	"encoding/binary"
	"net"
	"syscall"

	"github.com/quic-go/quic-go"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/mqrouter/mqrouter/router/link/datagram"
)

// udp wraps a UDP socket with its control messages: batches, segmentation offload,
// ECN.
type udp struct {
	*datagram.Conn
	l *Layer

	// Only the reader uses these: quic-go reads in one goroutine.
	in    *datagram.Packet // the last one
	out   []delivery       // of it, not delivered yet
	whole [1]delivery      // a datagram that is no frame
	peer  *peer
	known bool // out is for connections, as far as can be told
}

var (
	_ quic.OOBCapablePacketConn = (*udp)(nil)
	_ socket                    = (*udp)(nil)
)

// wrap returns the socket to write to and the one that QUIC gets.
func (l *Layer) wrap(inner net.PacketConn) (socket, net.PacketConn) {
	conn, ok := inner.(*datagram.Conn)
	if !ok {
		conn = datagram.Wrap(inner)
	}
	if conn == nil {
		c := &plain{PacketConn: inner, l: l, buf: make([]byte, plainBuffer)}
		return c, c
	}
	c := &udp{Conn: conn, l: l}
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
	_, _, err := c.Conn.WriteMsgUDP(b, oob, u)
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
	return c.Conn.WriteMsgUDP(b, oob, to)
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
func (c *udp) ReadBatch(ms []ipv4.Message, _ int) (int, error) {
	c.StepBack()
	n := 0
	for n < len(ms) {
		switch {
		case len(c.out) > 0:
			d := &c.out[0]
			c.out = c.out[1:]
			if c.deliver(&ms[n], d) {
				c.HandOn(&ms[n], c.known)
				n++
			}
		case n > 0 && !c.Ready():
			return n, nil
		default:
			p, err := c.Next()
			if err != nil {
				return 0, err
			}
			c.take(p)
		}
	}
	return n, nil
}

// take takes a datagram of the socket's: what is no frame is for QUIC as it is. From a
// peer that sends frames it may be anybody's, who does not know the tag of those.
func (c *udp) take(p *datagram.Packet) {
	c.in = p
	c.l.dropped.Store(c.Dropped())
	out, from, ok := c.l.input(p.Read, p.Data, p.From, p.Lag)
	if !ok {
		c.whole[0] = delivery{packet: p.Data}
		out = c.whole[:]
	}
	c.out, c.peer, c.known = out, from, ok || !c.l.enabled(p.From)
}

// deliver copies a packet into a message of the reader's. It reports false for one
// that the reader does not get.
func (c *udp) deliver(to *ipv4.Message, d *delivery) bool {
	if len(d.packet) > len(to.Buffers[0]) {
		return false
	}
	to.N = copy(to.Buffers[0], d.packet)
	to.NN = datagram.CopyControl(to.OOB, c.in.Control)
	to.Addr, to.Flags = c.in.From, 0
	if !d.repaired {
		if d.congested {
			datagram.MarkCE(to.OOB[:to.NN])
		}
		return true
	}
	ecn := d.ecn
	markable := d.ecn != 0
	if d.congested && markable {
		ecn = datagram.CE
	}
	return !c.peer.withhold(d, datagram.SetECN(to.OOB[:to.NN], ecn) && markable)
}

// ReadFrom implements net.PacketConn; quic-go does not use it.
func (c *udp) ReadFrom(b []byte) (int, net.Addr, error) {
	m := []ipv4.Message{{Buffers: [][]byte{b}}}
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
	for rest := oob; len(rest) > 0; {
		h, body, after, err := unix.ParseOneSocketControlMessage(rest)
		if err != nil {
			break
		}
		if h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_SEGMENT && len(body) >= 2 {
			segment = int(binary.NativeEndian.Uint16(body))
		}
		rest = after
	}
	return segment, datagram.ECN(oob)
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
