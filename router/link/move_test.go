package link

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"

	"github.com/mqrouter/mqrouter/zone"
)

// TestTrafficFollowsAPeerToItsNewAddress: gossip tells of another address while the
// link is up, and the old one leads nowhere from then on, or goes on working. Flows
// go on without a number missing, sooner than silence alone would tell.
func TestTrafficFollowsAPeerToItsNewAddress(t *testing.T) {
	for name, dead := range map[string]bool{"the old one is dead": true, "both work": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 20*time.Millisecond)
				defer w.close()
				x := new(senders)
				change := func(o *Options) { // 128 frames a second
					o.Classes, o.Limits.Rate = []zone.Class{zone.ClassBulk}, 512<<10
				}
				a, b := w.start("a", "amsterdam", 11, x.handle, change), w.start("b", "berlin", 12, x.handle, change)
				a.SetPeers([]Peer{b.peer})
				b.SetPeers([]Peer{a.peer})
				x.from, x.to = a, "b"
				w.until(2*time.Second, "link", func() bool { return bulkUp(a, "b") && bulkUp(b, "a") })
				x.start(4, 4<<10)
				defer x.end()
				time.Sleep(3 * time.Second)
				old := b.peer.Addr
				moved := &net.UDPAddr{IP: net.IPv4(10, 0, 1, 1).To4(), Port: 4433}
				w.net.AddNode(moved, w.links[1])
				if dead {
					w.setDrop(func(p simnet.Packet) bool { return p.To.String() == old })
				}
				to := b.peer
				to.Addr, to.Alt = moved.String(), old
				a.SetPeers([]Peer{to})
				before := [4]uint64{x.next(1), x.next(2), x.next(3), x.next(4)}
				took := w.until(1900*time.Millisecond, "every flow goes on", func() bool {
					for i, n := range before {
						if x.next(uint64(i+1)) < n+10 {
							return false
						}
					}
					return true
				})
				t.Logf("every flow has gone on after %v", took)
				w.until(10*time.Second, "one connection is left", func() bool { return statusOf(a, "b").Connections == 1 })
				l := a.Manager.links[Key{"b", zone.ClassBulk}]
				if got := l.current.Load().qc.RemoteAddr().String(); got != moved.String() {
					t.Errorf("the link leads to %s, want %s", got, moved)
				}
				if s := statusOf(a, "b"); s.Reconnects != 0 || s.State != StateUp {
					t.Errorf("%+v, want up without a break", s)
				}
			})
		})
	}
}

// addressGone is a socket from which one address cannot be reached any more.
type addressGone struct {
	net.PacketConn
	addr string
	gone *atomic.Bool
}

func (c addressGone) WriteTo(p []byte, to net.Addr) (int, error) {
	if c.gone.Load() && strings.HasPrefix(to.String(), c.addr) {
		return len(p), nil
	}
	return c.PacketConn.WriteTo(p, to)
}

// TestRealSocketsFollowAnAddress moves a node from 127.0.0.2 to 127.0.0.3.
func TestRealSocketsFollowAnAddress(t *testing.T) {
	if c, err := net.ListenPacket("udp4", "127.0.0.3:0"); err != nil {
		t.Skipf("skipped: this system has one loopback address: %v", err)
	} else {
		_ = c.Close()
	}
	gone := new(atomic.Bool)
	a, b := pairOverSockets(t, [2]string{"127.0.0.1:0", "0.0.0.0:0"}, func(name zone.Node, sock net.PacketConn) net.PacketConn {
		if name == "a" {
			return addressGone{sock, "127.0.0.2:", gone}
		}
		return sock
	})
	_, port, _ := net.SplitHostPort(b.peer.Addr)
	to := b.peer
	to.Addr = "127.0.0.2:" + port
	a.SetPeers([]Peer{to})
	eventually(t, "link", func() bool { return bulkUp(a, "b") && answers(t, a) })
	gone.Store(true)
	to.Addr = "127.0.0.3:" + port
	a.SetPeers([]Peer{to})
	l := a.Manager.links[Key{"b", zone.ClassBulk}]
	eventually(t, "it has moved", func() bool {
		c := l.current.Load()
		return c != nil && c.qc.RemoteAddr().String() == to.Addr
	})
	eventually(t, "traffic", func() bool { return answers(t, a) })
}
