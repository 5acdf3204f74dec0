package router

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/mqrouter/mqrouter/replication/egress"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// inCity is a node's in-city half: what it dials with and what it listens on.
type inCity struct {
	dialer   *peer.Dialer
	listener *peer.Listener
	addr     string
}

// join gives a node its in-city connections; handle serves what others open.
func (c *cluster) join(name zone.Node, handle func(context.Context, *peer.Session)) *inCity {
	c.t.Helper()
	n := c.top.FindNode(name)
	t := c.tls(name)
	t.Authorize = peer.AuthorizeBy(func() *zone.Topology { return c.top }, zone.RoleRouter, zone.RoleBroker)
	o := peer.Options{Self: peer.IdentityFor(c.top.Deployment, n), Incarnation: 1, TLS: t}
	if n.Group != nil {
		o.Group = n.Group.Name
	}
	d, err := peer.NewDialer(o)
	if err != nil {
		c.t.Fatal(err)
	}
	l, err := peer.NewListener(o, handle)
	if err != nil {
		c.t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.Serve(ln) })
	c.t.Cleanup(func() {
		_ = d.Close()
		_ = l.Close()
		wg.Wait()
	})
	return &inCity{dialer: d, listener: l, addr: ln.Addr().String()}
}

// TestFromBrokerToBroker is the whole way with nothing faked but gossip: TCP
// and TLS in both cities, QUIC between them.
func TestFromBrokerToBroker(t *testing.T) {
	c := newCluster(t)
	addrs := make(map[zone.Node]string)
	at := func(name zone.Node) string {
		c.mu.Lock()
		defer c.mu.Unlock()
		return addrs[name]
	}
	open := func(in *inCity, city zone.City) egress.OpenFunc {
		over := egress.OverPeer(in.dialer, c.top.Deployment, city)
		return func(ctx context.Context, target egress.Target, session uint64) (wire.Stream, error) {
			target.Addr = at(target.Node) // the sample's ports are not this test's
			return over(ctx, target, session)
		}
	}
	for _, name := range []zone.Node{"rt-sh-1", "rt-hz-1"} {
		var r *running
		ready := make(chan struct{})
		in := c.join(name, func(ctx context.Context, s *peer.Session) {
			<-ready
			r.ServePeer(ctx, s.Identity().Name, s)
		})
		addrs[name] = in.addr
		r = c.start(name, func(o *Options) { o.Open = open(in, c.top.FindNode(name).City.Name) })
		close(ready)
	}
	dest := c.join("rz03-a-1", func(_ context.Context, s *peer.Session) { echo(s) })
	addrs["rz03-a-1"] = dest.addr
	c.linked()

	origin := c.join("rz01-a-1", func(context.Context, *peer.Session) {})
	e := egress.New(egress.Options{
		City: "shanghai", Topology: func() *zone.Topology { return c.top },
		Routers: func() []egress.RouterInfo { return []egress.RouterInfo{{Node: "rt-sh-1", Addr: at("rt-sh-1")}} },
		Pool:    egress.PoolOptions{Open: open(origin, "shanghai")},
	})
	defer e.Close()
	leg := flow.Leg{
		Flow: record.FlowID{Origin: "rz01-a", Incarnation: 1, Target: "rz03-a", Class: zone.ClassBulk},
		City: "hangzhou", Group: "rz03-a",
	}
	s, err := e.Open(t.Context(), leg, 4711)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(wire.CodeOK)
	o := wire.Open{Flow: leg.Flow, City: leg.City, Group: leg.Group, OriginCity: "shanghai", RouteEpoch: c.top.Epoch}
	if err := s.Send(t.Context(), wire.Frame{Type: wire.TypeOpen, Session: 4711, Class: zone.ClassBulk, Payload: o.Append(nil)}); err != nil {
		t.Fatal(err)
	}
	if f := recv(t, s); f.Type != wire.TypeOpen || f.Hops != 1 {
		t.Fatalf("the echo of Open is %s after %d hops", f.Type, f.Hops)
	}
	const frames = 100
	go func() {
		for i := range uint64(frames) {
			if s.Send(context.Background(), batch(4711, i, 20_000)) != nil {
				return
			}
		}
	}()
	for i := range uint64(frames) {
		if f := recv(t, s); number(f) != i {
			t.Fatalf("frame %d is number %d", i, number(f))
		}
	}
	// The destination's end is told to the origin, whatever lies between.
	_ = dest.listener.Close()
	if code := closed(t, s); !code.Retryable() {
		t.Errorf("the origin was told %s, want something to try again", code)
	}
}
