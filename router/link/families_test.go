package link

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"testing"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/router/link/fec"
	"github.com/mqrouter/mqrouter/zone"
)

// ofBothFamilies runs a manager with a real socket of both families, at all addresses, whose peers
// reach it at the given one.
func ofBothFamilies(t *testing.T, ca *authority, name zone.Node, ip string) *node {
	t.Helper()
	sock, err := net.ListenUDP("udp", &net.UDPAddr{})
	if err != nil {
		t.Fatal(err)
	}
	at := sock.LocalAddr().(*net.UDPAddr)
	if at.IP.To4() != nil {
		_ = sock.Close()
		t.Skip("skipped: this machine has no IPv6")
	}
	at.IP = net.ParseIP(ip)
	city := zone.City("city-" + name)
	conf := ca.issue(t, peer.Identity{Deployment: testDeployment, City: city, Role: zone.RoleRouter, Name: name})
	m, err := New(Options{
		Deployment: testDeployment, City: city, Node: name, Incarnation: 1, PacketConn: sock,
		TLS: func(*Peer) *tls.Config { return conf }, Identify: identify, Handle: echo, Correction: &fec.Options{},
		Classes: []zone.Class{zone.ClassUrgent}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	x := &node{Manager: m, done: make(chan error, 1), peer: Peer{Node: name, City: city, Addr: at.String()}}
	go func() { x.done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-x.done; err != nil {
			t.Errorf("%s: Run: %v", name, err)
		}
		_ = sock.Close()
	})
	return x
}

// TestLinksOverBothFamilies: routers with sockets of both families, one of whose links
// goes over IPv4 and the other over IPv6, whichever end dials; packets are corrected on
// both.
func TestLinksOverBothFamilies(t *testing.T) {
	ca := newAuthority(t)
	for _, ip := range []string{"127.0.0.1", "::1"} {
		for name, dials := range map[string][2]bool{"both dial": {true, true}, "one dials": {true, false}} {
			t.Run(ip+" "+name, func(t *testing.T) {
				a, b := ofBothFamilies(t, ca, "a", ip), ofBothFamilies(t, ca, "b", ip)
				if dials[0] {
					a.SetPeers([]Peer{b.peer})
				}
				if dials[1] {
					b.SetPeers([]Peer{a.peer})
				}
				eventually(t, "up", func() bool { return up(a, b)() && up(b, a)() })
				for i, n := range []*node{a, b} {
					s, err := n.Open([]zone.Node{"b", "a"}[i], zone.ClassUrgent, 7)
					if err != nil {
						t.Fatal(err)
					}
					for range 100 {
						if err := s.Send(t.Context(), frame(7, "there")); err != nil {
							t.Fatal(err)
						}
						if f, err := s.Recv(t.Context()); err != nil || string(f.Payload) != "there" {
							t.Fatal(f, err)
						}
					}
					_ = s.Close(0)
				}
				for _, st := range []Status{statusOf(a, "b"), statusOf(b, "a")} {
					if c := st.Correction; !c.On || c.Sent < 100 {
						t.Errorf("to %s: %+v, want at least 100 packets in frames", st.Node, c)
					}
				}
				for _, n := range []*node{a, b} {
					if n.layer.Unknown() != 0 {
						t.Errorf("%s: %d frames of nobody", n.peer.Node, n.layer.Unknown())
					}
				}
			})
		}
	}
}
