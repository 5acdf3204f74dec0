package link

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
)

// cuttable is a socket whose cable can be pulled.
type cuttable struct {
	net.PacketConn
	cut *atomic.Bool
}

func (c cuttable) WriteTo(p []byte, to net.Addr) (int, error) {
	if c.cut.Load() {
		return len(p), nil
	}
	return c.PacketConn.WriteTo(p, to)
}

// pairOverSockets runs two nodes, a and b, on sockets of their own that wrap may change, until
// the test ends.
func pairOverSockets(t *testing.T, at [2]string, wrap func(zone.Node, net.PacketConn) net.PacketConn) (a, b *node) {
	t.Helper()
	ca := newAuthority(t)
	var nodes [2]*node
	for i, name := range []zone.Node{"a", "b"} {
		sock, err := net.ListenPacket("udp4", at[i])
		if err != nil {
			t.Fatal(err)
		}
		city := zone.City("city-" + name)
		conf := ca.issue(t, peer.Identity{Deployment: testDeployment, City: city, Role: zone.RoleRouter, Name: name})
		m, err := New(Options{
			Deployment: testDeployment, City: city, Node: name, Incarnation: 1, PacketConn: wrap(name, sock),
			TLS: func(*Peer) *tls.Config { return conf }, Identify: identify, Handle: echo,
			Classes: []zone.Class{zone.ClassBulk}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		n := &node{Manager: m, done: make(chan error, 1), peer: Peer{Node: name, City: city, Addr: sock.LocalAddr().String()}}
		go func() { n.done <- m.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-n.done; err != nil {
				t.Errorf("%s: Run: %v", name, err)
			}
			_ = sock.Close()
		})
		nodes[i] = n
	}
	return nodes[0], nodes[1]
}

// TestRealSocketsHealAfterACut cuts a link over loopback until both ends have
// given it up, and heals it: traffic is back, which the log says how soon.
func TestRealSocketsHealAfterACut(t *testing.T) {
	cut := new(atomic.Bool)
	a, b := pairOverSockets(t, [2]string{"127.0.0.1:0", "127.0.0.1:0"}, func(_ zone.Node, sock net.PacketConn) net.PacketConn { return cuttable{sock, cut} })
	a.SetPeers([]Peer{b.peer})
	b.SetPeers([]Peer{a.peer})
	eventually(t, "link", func() bool { return bulkUp(a, "b") && bulkUp(b, "a") && answers(t, a) })
	cut.Store(true)
	eventually(t, "red", func() bool {
		return statusOf(a, "b").State == StateRed && statusOf(b, "a").State == StateRed
	})
	cut.Store(false)
	start := time.Now()
	eventually(t, "traffic", func() bool { return answers(t, a) })
	t.Logf("traffic %v after the path was back", time.Since(start))
}

// answers reports whether the far end echoes.
func answers(t *testing.T, a *node) bool {
	s, err := a.Open("b", zone.ClassBulk, 9)
	if err != nil {
		return false
	}
	defer s.Close(0)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.Send(ctx, frame(9, "hello")); err != nil {
		return false
	}
	f, err := s.Recv(ctx)
	return err == nil && string(f.Payload) == "hello"
}

// eventually waits for what other goroutines bring about, up to the test's limit.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(3 * time.Minute)
	defer limit.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("%s: it did not come about", what)
		}
	}
}

// TestManyDeadPeersCostABoundedNumberOfAttempts: peers that are away are dialled
// twice a second each for as long as it takes, with a bounded number of attempts
// that hang at a time; the first of them that returns is back within a second.
func TestManyDeadPeersCostABoundedNumberOfAttempts(t *testing.T) {
	const dead = 8
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 15*time.Millisecond)
		defer w.close()
		hub := w.start("hub", "harbour", 1, nil, nil)
		var peers []Peer
		var all []*node
		for i := range dead {
			n := w.start(zone.Node(fmt.Sprintf("n%02d", i)), zone.City(fmt.Sprintf("c%02d", i)), 2, nil, nil)
			n.SetPeers([]Peer{hub.peer})
			peers, all = append(peers, n.peer), append(all, n)
		}
		hub.SetPeers(peers)
		w.until(10*time.Second, "all links", func() bool {
			for _, n := range all {
				if !up(hub, n)() {
					return false
				}
			}
			return true
		})
		time.Sleep(2 * time.Second)
		var packets atomic.Int64
		w.setDrop(func(p simnet.Packet) bool {
			if p.From.String() == hub.peer.Addr {
				packets.Add(1)
			}
			return true
		})
		time.Sleep(10 * time.Second)
		before := packets.Load()
		const watch = 30 * time.Second
		most := 0
		for range int(watch / time.Second) {
			time.Sleep(time.Second)
			sum := 0
			for _, s := range hub.Status() {
				sum += s.Attempts
			}
			most = max(most, sum)
		}
		each := float64(packets.Load()-before) / dead / watch.Seconds()
		t.Logf("at most %d attempts hang, %.1f packets a second for each dead peer", most, each)
		if most > maxAttempts*dead {
			t.Errorf("%d attempts hang for %d dead peers, want at most %d each", most, dead, maxAttempts)
		}
		if each < 2 || each > 50 {
			t.Errorf("%.1f packets a second for each dead peer, want at least two probes and not many more", each)
		}
		back := all[5]
		w.setDrop(func(p simnet.Packet) bool {
			return p.From.String() != back.peer.Addr && p.To.String() != back.peer.Addr
		})
		w.until(time.Second, "the one that returned", func() bool { return up(hub, back)() && up(back, hub)() })
	})
}
