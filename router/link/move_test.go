package link

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"

	"github.com/mqrouter/mqrouter/replication/peer"
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
	ca, gone := newAuthority(t), new(atomic.Bool)
	var nodes [2]*node
	for i, name := range []zone.Node{"a", "b"} {
		sock, err := net.ListenPacket("udp4", []string{"127.0.0.1:0", "0.0.0.0:0"}[i])
		if err != nil {
			t.Fatal(err)
		}
		city := zone.City("city-" + name)
		conf := ca.issue(t, peer.Identity{Deployment: testDeployment, City: city, Role: zone.RoleRouter, Name: name})
		use := sock
		if i == 0 {
			use = addressGone{sock, "127.0.0.2:", gone}
		}
		m, err := New(Options{
			Deployment: testDeployment, City: city, Node: name, Incarnation: 1, PacketConn: use,
			TLS: func(*Peer) *tls.Config { return conf }, Identify: identify, Handle: echo,
			Classes: []zone.Class{zone.ClassBulk}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		n := &node{Manager: m, done: make(chan error, 1), peer: Peer{Node: name, City: city, Addr: sock.LocalAddr().String()}}
		go func() { n.done <- m.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-n.done; err != nil {
				t.Errorf("%s: Run: %v", name, err)
			}
			_ = sock.Close()
		}()
		nodes[i] = n
	}
	a, b := nodes[0], nodes[1]
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
