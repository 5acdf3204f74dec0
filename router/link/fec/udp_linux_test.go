package fec

import (
	"net"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/mqrouter/mqrouter/router/link/datagram"
)

// TestStraysAreNotWaitedFor: who does not know a peer's tag can send in its name, but
// not what the socket's reader waits for.
func TestStraysAreNotWaitedFor(t *testing.T) {
	sock := listenUDP(t)
	defer sock.Close()
	_ = sock.SetReadDeadline(time.Now().Add(time.Minute))
	l := New(sock, Options{})
	defer l.Close()
	c := l.outer.(*udp)
	lease := l.Lease("peer")
	defer lease.Release()
	for _, x := range []struct {
		name            string
		corrected, asks bool
	}{
		{"packets in the name of who sends frames", true, false},
		{"packets of a peer without correction", false, true},
	} {
		from, asked := listenUDP(t), 0
		defer from.Close()
		if x.corrected {
			lease.Enable(from.LocalAddr(), 7)
		}
		stop := c.Watch(from.LocalAddr(), func() uint64 { asked++; return 0 })
		ms := []ipv4.Message{{Buffers: [][]byte{make([]byte, MaxPacket)}, OOB: make([]byte, 128)}}
		for range 100 {
			if _, err := from.WriteTo([]byte{quicBit, 1, 2, 3}, sock.LocalAddr()); err != nil {
				t.Fatal(err)
			}
			if n, err := c.ReadBatch(ms, 0); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		if stop(); asked > 1 != x.asks { // once by stop
			t.Errorf("%s: %d times asked what is taken of them", x.name, asked)
		}
	}
}

// TestFramesAreForConnections: what comes in frames is waited for, but for those with a
// tag that nobody has, which bring nothing.
func TestFramesAreForConnections(t *testing.T) {
	sock := listenUDP(t)
	defer sock.Close()
	l := New(sock, Options{})
	defer l.Close()
	c := l.outer.(*udp)
	peer := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}
	lease := l.Lease("peer")
	defer lease.Release()
	lease.Enable(peer, 7)
	packet := []byte{quicBit, 1, 2, 3}
	for tag, brings := range map[uint32]int{lease.Tag(): 1, lease.Tag() + 1: 0} {
		f := frame{kind: typeData, tag: tag, seq: 1}
		c.take(&datagram.Packet{Data: append(appendMeta(appendHeader(nil, &f), len(packet), 0), packet...), From: peer, Read: time.Now()})
		if len(c.out) != brings || !c.known {
			t.Errorf("a frame brings %d packets for connections: %v; want %d", len(c.out), c.known, brings)
		}
	}
}
