package datagram

import (
	"net"
	"net/netip"
	"time"
)

// Packet is a datagram as it came from the network.
type Packet struct {
	Data []byte // valid until the next call of Next
	// Control holds the control messages that came with it, without those that Conn
	// itself has asked for; valid until the next call of Next, and not to be changed:
	// packets that were joined have the same.
	Control []byte
	From    net.Addr
	// Read is when the datagrams that it was joined with were taken apart, and Lag how
	// long they had waited for that, a second at most; 0 = not known.
	Read time.Time
	Lag  time.Duration
}

// AddrPort returns the address of a UDP socket as a key: IPv4 addresses are the same
// however a socket tells them.
func AddrPort(a net.Addr) (netip.AddrPort, bool) {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}, false
	}
	ap := u.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), ap.IsValid()
}
