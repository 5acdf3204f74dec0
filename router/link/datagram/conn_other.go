//go:build !linux

package datagram

import "net"

// Conn is what Wrap makes of a socket on Linux; elsewhere it makes none.
type Conn struct{ net.PacketConn }

// Wrap returns nil: on this system quic-go reads sockets itself.
func Wrap(net.PacketConn) *Conn { return nil }

// Watch does nothing.
func (*Conn) Watch(net.Addr, func() uint64) (stop func()) { return func() {} }
