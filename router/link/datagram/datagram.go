package datagram

import (
	"net"
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
	Read    time.Time     // when it was read
	Lag     time.Duration // how long it had waited for that; 0 = not known
}
