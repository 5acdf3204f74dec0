package fec

import (
	"net"
	"time"
)

// plainBuffer is the size of the buffer to read into, in bytes: a frame is smaller, and
// a longer datagram no frame.
const plainBuffer = 2 << 10

// plain wraps a socket that has no control messages: a datagram at a time, without
// ECN.
type plain struct {
	net.PacketConn
	l *Layer

	// Only the reader uses these: quic-go reads in one goroutine.
	buf  []byte
	out  []delivery // not delivered yet
	from net.Addr
	peer *peer
}

// write implements socket.
func (c *plain) write(b, _ []byte, segment int, to net.Addr) error {
	if segment <= 0 {
		segment = len(b)
	}
	for len(b) > 0 {
		n := min(segment, len(b))
		if _, err := c.PacketConn.WriteTo(b[:n], to); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// WriteTo implements net.PacketConn.
func (c *plain) WriteTo(b []byte, to net.Addr) (int, error) {
	if p := c.l.sending(b, to); p != nil {
		if done, err := p.write(b, nil, 0, 0, to); done {
			return len(b), err
		}
	}
	return c.PacketConn.WriteTo(b, to)
}

// ReadFrom implements net.PacketConn.
func (c *plain) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		for len(c.out) > 0 {
			d := c.out[0]
			c.out = c.out[1:]
			if len(d.packet) > len(b) || c.peer.withhold(&d, false) {
				continue
			}
			return copy(b, d.packet), c.from, nil
		}
		n, from, err := c.PacketConn.ReadFrom(c.buf)
		if err != nil {
			return 0, from, err
		}
		out, p, ok := c.l.input(time.Now(), c.buf[:n], from, 0)
		if !ok {
			return copy(b, c.buf[:n]), from, nil
		}
		c.out, c.from, c.peer = out, from, p
	}
}
