//go:build !linux

package fec

import "net"

// wrap returns the socket to write to and the one that QUIC gets: outside Linux a
// datagram at a time.
func (l *Layer) wrap(inner net.PacketConn) (socket, net.PacketConn) {
	c := &plain{PacketConn: inner, l: l, buf: make([]byte, plainBuffer)}
	return c, c
}

func hasSegment([]byte) bool { return false }
