package router

import (
	"bytes"
	"context"
	"errors"
	"net"
	"runtime/pprof"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mqrouter/mqrouter/replication/egress"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/router/link"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is routers of the sample deployment on loopback sockets, with fake
// brokers and fake gossip.
type cluster struct {
	t   testing.TB
	top *zone.Topology
	dir string
	ca  *peer.Authority
	wg  sync.WaitGroup // brokers' sessions

	mu      sync.Mutex
	members []Member                        // guarded by mu
	brokers map[zone.Node]func(wire.Stream) // guarded by mu
	ends    map[zone.Node][]*pipe           // guarded by mu
	routers map[zone.Node]*running          // guarded by mu
	targets []egress.Target                 // guarded by mu; every dial
	stores  map[zone.Node]*peer.CertStore   // only the test's goroutine
}

type running struct {
	*Router
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	sock   *net.UDPConn
}

// view is the gossip of a city.
type view struct {
	c       *cluster
	changes chan struct{}
}

func (v view) City() []Member           { return nil }
func (v view) Changes() <-chan struct{} { return v.changes }
func (v view) Routers() []Member {
	v.c.mu.Lock()
	defer v.c.mu.Unlock()
	return slices.Clone(v.c.members)
}

func newCluster(t testing.TB, names ...zone.Node) *cluster {
	t.Helper()
	top, err := zone.Parse(sample.YAML, "sample.yaml")
	if err != nil {
		t.Fatal(err)
	}
	ca, err := peer.NewAuthority(top.Deployment, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{
		t: t, top: top, ca: ca, dir: t.TempDir(), brokers: make(map[zone.Node]func(wire.Stream)),
		ends: make(map[zone.Node][]*pipe), routers: make(map[zone.Node]*running),
		stores: make(map[zone.Node]*peer.CertStore),
	}
	if err := ca.Save(c.dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		c.start(name, nil)
	}
	t.Cleanup(c.close)
	return c
}

func (c *cluster) close() {
	for _, r := range c.routers {
		r.stop()
	}
	for _, n := range c.top.Zones() {
		for _, g := range n.Groups {
			c.kill(g.Nodes[0].Name)
		}
	}
	c.wg.Wait()
}

func (r *running) stop() {
	r.cancel()
	<-r.done
	_ = r.sock.Close()
}

func (c *cluster) tls(name zone.Node) *peer.TLS {
	c.t.Helper()
	n := c.top.FindNode(name)
	pair, err := c.ca.Issue(peer.Request{Identity: peer.IdentityFor(c.top.Deployment, n), Now: time.Now()})
	if err == nil {
		err = pair.Save(c.dir, string(name))
	}
	if err != nil {
		c.t.Fatal(err)
	}
	store, err := peer.OpenCertStore(peer.StoreOptions{Files: peer.FilesIn(c.dir, string(name))})
	if err != nil {
		c.t.Fatal(err)
	}
	c.stores[name] = store
	top := func() *zone.Topology { return c.top }
	return &peer.TLS{Store: store, Authorize: peer.AuthorizeBy(top, zone.RoleRouter)}
}

// start runs a router.
func (c *cluster) start(name zone.Node, change func(*Options)) *running {
	c.t.Helper()
	sock, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		c.t.Fatal(err)
	}
	n := c.top.FindNode(name)
	c.mu.Lock()
	c.members = slices.DeleteFunc(c.members, func(m Member) bool { return m.Node == name })
	c.members = append(c.members, Member{Node: name, Role: zone.RoleRouter, City: n.City.Name, QUIC: sock.LocalAddr().String()})
	c.mu.Unlock()
	o := Options{
		Node: name, Incarnation: record.Incarnation(time.Now().UnixNano()),
		Topology: func() *zone.Topology { return c.top }, Peers: view{c, make(chan struct{}, 1)},
		TLS: LinkTLS(c.tls(name)), PacketConn: sock, Open: c.session,
	}
	// A busy machine must not decide: no deadline of a link matters here.
	o.Limits.Timing = link.Timing{
		RedAfter: time.Minute, Write: time.Minute, Stall: time.Minute, Handshake: time.Minute, Idle: time.Minute,
	}
	o.Limits.FirstOpen = time.Minute
	o.Limits.Link.Parallel = 1 // nor may it decide that sessions move to other connections
	if change != nil {
		change(&o)
	}
	r, err := New(o)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	run := &running{Router: r, cancel: cancel, done: make(chan struct{}), sock: sock}
	go func() {
		defer close(run.done)
		run.err = r.Run(ctx)
	}()
	c.routers[name] = run
	return run
}

// session is egress.OpenFunc for fake brokers.
func (c *cluster) session(_ context.Context, t egress.Target, _ uint64) (wire.Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.targets = append(c.targets, t)
	serve := c.brokers[t.Node]
	if serve == nil {
		return nil, errors.New("no such broker runs")
	}
	a, b := newPipe()
	c.ends[t.Node] = append(c.ends[t.Node], b)
	c.wg.Go(func() { serve(b) })
	return a, nil
}

// kill ends a fake broker.
func (c *cluster) kill(n zone.Node) {
	c.mu.Lock()
	ends := c.ends[n]
	c.ends[n] = nil
	c.mu.Unlock()
	for _, p := range ends {
		_ = p.Close(wire.CodeShutdown)
	}
}

// broker runs the first broker of the group.
func (c *cluster) broker(g zone.Group, serve func(wire.Stream)) {
	c.mu.Lock()
	c.brokers[c.top.FindGroup(g).Nodes[0].Name] = serve
	c.mu.Unlock()
}

// until waits for what other goroutines bring about; a broken promise ends in
// the test's own time limit, never in a pass.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(3 * time.Minute)
	defer limit.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-limit.C:
			var stacks bytes.Buffer
			_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
			t.Fatalf("%s: it did not come about\n%s", what, stacks.String())
		}
	}
}

// linked waits until every router sees every router of the other cities.
func (c *cluster) linked() {
	c.t.Helper()
	until(c.t, "links", func() bool {
		for name, r := range c.routers {
			for other, o := range c.routers {
				if o.city == r.city || name == other {
					continue
				}
				for _, class := range []zone.Class{zone.ClassUrgent, zone.ClassBulk} {
					if _, ok := r.links.Up(other, class); !ok {
						return false
					}
				}
			}
		}
		return true
	})
}

// open hands a session to the router, as a broker of its city would.
func (c *cluster) open(r *running, number uint64, change func(*wire.Frame, *wire.Open)) *pipe {
	a, b := newPipe()
	o := wire.Open{
		Flow: record.FlowID{Origin: "rz01-a", Incarnation: 1, Target: "rz03-a", Class: zone.ClassBulk},
		City: "hangzhou", Group: "rz03-a", OriginCity: "shanghai", RouteEpoch: c.top.Epoch, MaxRecord: 1 << 20,
	}
	f := wire.Frame{Type: wire.TypeOpen, Session: number, Class: zone.ClassBulk}
	if change != nil {
		change(&f, &o)
	}
	if f.Payload == nil {
		f.Payload = o.Append(nil)
	}
	c.wg.Go(func() { r.ServePeer(context.Background(), "rz01-a-1", b) })
	if err := a.Send(context.Background(), f); err != nil {
		c.t.Fatal(err)
	}
	return a
}

func echo(s wire.Stream) {
	for {
		f, err := s.Recv(context.Background())
		if err != nil {
			return
		}
		f.Hops = 0
		if err := s.Send(context.Background(), f); err != nil {
			return
		}
	}
}
