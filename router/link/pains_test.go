package link

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// narrow is a user-space relay between two UDP sockets that drops datagrams above
// a size.
type narrow struct {
	conn    *net.UDPConn
	to      *net.UDPAddr // who is dialled through it
	limit   atomic.Int64
	dropped atomic.Int64
}

func (n *narrow) run() {
	buf := make([]byte, 2048)
	var from *net.UDPAddr
	for {
		k, who, err := n.conn.ReadFromUDP(buf)
		if err != nil {
			return
		}
		next := n.to
		if who.Port == n.to.Port {
			next = from
		} else {
			from = who
		}
		if int64(k) > n.limit.Load() {
			n.dropped.Add(1)
			continue
		}
		if next != nil {
			_, _ = n.conn.WriteToUDP(buf[:k], next)
		}
	}
}

func realSocket(t *testing.T) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// overSockets runs a manager on a real socket, which finds out how large a packet
// may be; the simulated network has none of that.
func overSockets(t *testing.T, ca *authority, name zone.Node, city zone.City, sock *net.UDPConn) *Manager {
	t.Helper()
	conf := ca.issue(t, peer.Identity{Deployment: testDeployment, City: city, Role: zone.RoleRouter, Name: name})
	m, err := New(Options{
		Deployment: testDeployment, City: city, Node: name, Incarnation: record.Incarnation(len(name)) + 1, PacketConn: sock,
		TLS: func(*Peer) *tls.Config { return conf }, Identify: identify, Handle: echo, Classes: []zone.Class{zone.ClassUrgent},
		Timing: Timing{Probe: 50 * time.Millisecond, RedAfter: 500 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return m
}

// TestW5_PathThatLosesLargePacketsIsRedialled shrinks what the path lets through
// after the connection has found out how much that is: the connection stays
// alive, small frames pass, streams open, and no data flows. The link notices,
// dials again, and data flows in smaller packets.
func TestW5_PathThatLosesLargePacketsIsRedialled(t *testing.T) {
	ca := newAuthority(t)
	sa, sb := realSocket(t), realSocket(t)
	n := &narrow{conn: realSocket(t), to: sb.LocalAddr().(*net.UDPAddr)}
	n.limit.Store(1500)
	var relay sync.WaitGroup
	relay.Go(n.run)
	t.Cleanup(func() {
		_ = n.conn.Close()
		relay.Wait()
	})
	a := overSockets(t, ca, "a", "amsterdam", sa)
	overSockets(t, ca, "bb", "berlin", sb)
	a.SetPeers([]Peer{{Node: "bb", City: "berlin", Addr: n.conn.LocalAddr().String()}})

	number := uint64(0)
	pass := func() bool {
		number++
		s, err := a.Open("bb", zone.ClassUrgent, number)
		if err != nil {
			return false
		}
		defer s.Close(0)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := s.Send(ctx, frame(number, string(bytes.Repeat([]byte("x"), 100_000)))); err != nil {
			return false
		}
		_, err = s.Recv(ctx)
		return err == nil
	}
	eventually := func(what string, cond func() bool) {
		t.Helper()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for limit := time.Now().Add(time.Minute); !cond(); <-tick.C {
			if time.Now().After(limit) {
				t.Fatalf("%s: it did not come about; %+v, %d packets dropped", what, a.Status(), n.dropped.Load())
			}
		}
	}
	// Large packets are in use when a size that only they have is dropped.
	eventually("large packets", func() bool {
		n.limit.Store(1500)
		if !pass() {
			return false
		}
		n.limit.Store(1300)
		before := n.dropped.Load()
		return !pass() || n.dropped.Load() > before
	})
	eventually("data again", pass)
	if s := a.Status()[0]; s.Reconnects == 0 {
		t.Errorf("data flows over the old connection, %d packets dropped: nothing was tested", n.dropped.Load())
	}
}
