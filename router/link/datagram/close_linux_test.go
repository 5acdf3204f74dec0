package datagram

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
)

// TestATransportClosesWhileItsReaderWaits: for the network, or for a connection that
// takes nothing while more comes for it than the reader takes.
func TestATransportClosesWhileItsReaderWaits(t *testing.T) {
	for name, flood := range map[string]bool{"for a datagram": false, "for a connection": true} {
		t.Run(name, func(t *testing.T) {
			from, to := listen(t), listen(t)
			c := Wrap(to)
			var asked atomic.Int64
			defer c.Watch(from.LocalAddr(), func() uint64 { asked.Add(1); return 0 })()
			tr := &quic.Transport{Conn: c}
			if _, err := tr.WriteTo([]byte{1}, from.LocalAddr()); err != nil { // it reads from now on
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			over := make(chan struct{})
			defer wg.Wait()
			defer close(over)
			if flood {
				wg.Go(func() { shower(from, to.LocalAddr(), over) })
				eventually(t, "the reader waits", func() bool { return asked.Load() > 100 })
			}
			closed := make(chan error, 1)
			go func() { closed <- tr.Close() }()
			select {
			case err := <-closed:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Fatal("the transport is not closed after a minute")
			}
			if _, err := to.WriteTo([]byte{1}, from.LocalAddr()); err != nil {
				t.Errorf("the socket is not left as it was: %v", err)
			}
		})
	}
}

// shower sends what looks like packets of a connection until it is over.
func shower(from net.PacketConn, to net.Addr, over <-chan struct{}) {
	for packet := append([]byte{0x40}, counting(100)...); ; {
		select {
		case <-over:
			return
		default:
			_, _ = from.WriteTo(packet, to)
		}
	}
}

// eventually waits for what another goroutine does.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}
