package fec

import (
	"net"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/router/link/datagram"
)

// TestStraysAreNotWaitedFor: who does not know a peer's tag can send in its name, but
// not what the socket's reader waits for.
func TestStraysAreNotWaitedFor(t *testing.T) {
	sock := listenUDP(t)
	defer sock.Close()
	l := New(sock, Options{})
	defer l.Close()
	c := l.outer.(*udp)
	corrected, other := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}, &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 1}
	lease := l.Lease("peer")
	defer lease.Release()
	lease.Enable(corrected, 7)

	raw := []byte{quicBit, 1, 2, 3}
	f := frame{kind: typeData, tag: lease.Tag(), seq: 1}
	framed := append(appendMeta(appendHeader(nil, &f), len(raw), 0), raw...)
	f.tag++
	forged := append(appendMeta(appendHeader(nil, &f), len(raw), 0), raw...)
	for _, x := range []struct {
		name  string
		data  []byte
		from  net.Addr
		known bool
		out   int
	}{
		{"a frame", framed, corrected, true, 1},
		{"a packet in the name of who sends frames", raw, corrected, false, 1},
		{"a packet of a peer without correction", raw, other, true, 1},
		{"a frame with another tag", forged, corrected, true, 0},
	} {
		c.take(&datagram.Packet{Data: x.data, From: x.from, Read: time.Now()})
		if len(c.out) != x.out || x.out > 0 && c.known != x.known {
			t.Errorf("%s: %d packets, known %v", x.name, len(c.out), c.known)
		}
	}
}
