package router

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"

	"github.com/mqrouter/mqrouter/replication/egress"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// simCities are the cities of the simulated deployments; one of n takes the
// first n.
var simCities = []zone.City{"amber", "basil", "cedar", "dune", "elm"}

// simStart is when a bubble's clock starts.
var simStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// simTopology has a zone with a group and a node, and routers, in each city.
func simTopology(t testing.TB, cities, routers int) *zone.Topology {
	t.Helper()
	return parsed(t, simTopologyText(cities, routers))
}

func parsed(t testing.TB, text string) *zone.Topology {
	t.Helper()
	top, err := zone.Parse([]byte(text), "sim.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return top
}

func simTopologyText(cities, routers int) string {
	var b strings.Builder
	b.WriteString("deployment: sim\nepoch: {term: 1, number: 1}\ncities:\n")
	for i, c := range simCities[:cities] {
		fmt.Fprintf(&b, "  - name: %s\n    routers:\n", c)
		for k := range routers {
			fmt.Fprintf(&b, "      - {name: rt-%s-%d, quic: '10.0.%d.%d:4433', peer: '10.1.%d.%d:1', gossip: '10.1.%d.%d:2', wan: '10.1.%d.%d:3'}\n",
				c, k+1, i+1, k+1, i+1, k+1, i+1, k+1, i+1, k+1)
		}
		fmt.Fprintf(&b, "    zones:\n      - name: cz-%s\n        kind: CZone\n        groups:\n          - name: %s\n            nodes:\n"+
			"              - {name: %s-1, client: '10.2.%d.1:1', peer: '10.2.%d.1:2', gossip: '10.2.%d.1:3'}\n", c, groupOf(c), groupOf(c), i+1, i+1, i+1)
	}
	return b.String()
}

func groupOf(c zone.City) zone.Group { return zone.Group("g-" + string(c)) }

// pki returns the certificates of a deployment's routers, made outside of any
// bubble: they are files.
func pki(t testing.TB, top *zone.Topology) map[zone.Node]*peer.TLS {
	t.Helper()
	const century = 100 * 365 * 24 * time.Hour
	now := func() time.Time { return simStart.Add(time.Hour) }
	ca, err := peer.NewAuthority(top.Deployment, century, now())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := ca.Save(dir); err != nil {
		t.Fatal(err)
	}
	out := make(map[zone.Node]*peer.TLS)
	for _, c := range top.Cities {
		for _, n := range c.Routers {
			pair, err := ca.Issue(peer.Request{Identity: peer.IdentityFor(top.Deployment, n), Validity: century, Now: now()})
			if err == nil {
				err = pair.Save(dir, string(n.Name))
			}
			if err != nil {
				t.Fatal(err)
			}
			store, err := peer.OpenCertStore(peer.StoreOptions{Files: peer.FilesIn(dir, string(n.Name)), Now: now})
			if err != nil {
				t.Fatal(err)
			}
			out[n.Name] = &peer.TLS{Store: store, Now: now, Authorize: peer.AuthorizeBy(func() *zone.Topology { return top }, zone.RoleRouter)}
		}
	}
	return out
}

// simWorld is routers of several cities on a simulated network, with fake
// brokers and fake gossip, inside a synctest bubble.
type simWorld struct {
	t     *testing.T
	top   *zone.Topology
	tls   map[zone.Node]*peer.TLS
	net   *simNet
	limit Limits
	wg    sync.WaitGroup // brokers' sessions and routers
	ends  []func()

	mu      sync.Mutex
	routers map[zone.Node]*simRouter // living; guarded by mu
	members map[zone.Node]Member     // what gossip says; guarded by mu
	brokers map[zone.Group]*simBroker
	starts  uint64

	several *simMembers // of a group with several nodes; nil = there is none
}

// simNet drops and delays packets between cities.
type simNet struct {
	simnet.PerfectRouter
	mu    sync.Mutex
	city  map[string]zone.City // by address; guarded by mu
	cut   map[[2]zone.City]bool
	delay map[[2]zone.City]time.Duration // one way; guarded by mu
	loss  map[[2]zone.City]int           // every n-th packet is lost; 0 = none; guarded by mu
	count map[[2]zone.City]int           // guarded by mu
	base  time.Duration                  // where delay has none
	dead  map[string]bool                // addresses that say and hear nothing; guarded by mu
}

func (n *simNet) between(p simnet.Packet) [2]zone.City {
	return [2]zone.City{n.city[p.From.String()], n.city[p.To.String()]}
}

// SendPacket implements simnet.Router.
func (n *simNet) SendPacket(p simnet.Packet) error {
	n.mu.Lock()
	way := n.between(p)
	drop := n.cut[way] || n.dead[p.From.String()] || n.dead[p.To.String()]
	if every := n.loss[way]; every > 0 {
		n.count[way]++
		drop = drop || n.count[way]%every == 0
	}
	n.mu.Unlock()
	if drop {
		return nil
	}
	return n.PerfectRouter.SendPacket(p)
}

func (n *simNet) latency(p simnet.Packet) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d, ok := n.delay[n.between(p)]; ok {
		return d
	}
	return n.base
}

// cut drops everything in one direction, or nothing any more.
func (w *simWorld) cut(from, to zone.City, is bool) {
	w.net.mu.Lock()
	defer w.net.mu.Unlock()
	w.net.cut[[2]zone.City{from, to}] = is
}

func (w *simWorld) cutBoth(a, b zone.City, is bool) {
	w.cut(a, b, is)
	w.cut(b, a, is)
}

// slow sets the one-way delay between two cities.
func (w *simWorld) slow(a, b zone.City, oneWay time.Duration) {
	w.net.mu.Lock()
	defer w.net.mu.Unlock()
	w.net.delay[[2]zone.City{a, b}], w.net.delay[[2]zone.City{b, a}] = oneWay, oneWay
}

// lose drops every n-th packet between two cities; 0 drops none.
func (w *simWorld) lose(a, b zone.City, every int) {
	w.net.mu.Lock()
	defer w.net.mu.Unlock()
	w.net.loss[[2]zone.City{a, b}], w.net.loss[[2]zone.City{b, a}] = every, every
}

func (w *simWorld) socket(city zone.City, addr *net.UDPAddr) (*simnet.SimConn, func()) {
	l := &simnet.SimulatedLink{LatencyFunc: w.net.latency, UploadPacket: w.net}
	c := simnet.NewBlockingSimConn(addr, l)
	w.net.mu.Lock()
	w.net.city[addr.String()] = city
	delete(w.net.dead, addr.String())
	w.net.mu.Unlock()
	l.Start() // before anybody can send to it
	w.net.AddNode(addr, l)
	return c, func() {
		w.net.RemoveNode(addr)
		_ = c.Close()
		_ = l.Close()
	}
}

// simRouter is a running router of the world.
type simRouter struct {
	*Router
	name   zone.Node
	addr   string
	cancel context.CancelFunc
	ended  chan struct{}
	gone   bool // only the test's goroutine
}

func newSimWorld(t *testing.T, top *zone.Topology, tls map[zone.Node]*peer.TLS, oneWay time.Duration, limit Limits) *simWorld {
	w := &simWorld{
		t: t, top: top, tls: tls, limit: limit, routers: make(map[zone.Node]*simRouter), members: make(map[zone.Node]Member),
		brokers: make(map[zone.Group]*simBroker),
		net: &simNet{city: make(map[string]zone.City), cut: make(map[[2]zone.City]bool), delay: make(map[[2]zone.City]time.Duration),
			loss: make(map[[2]zone.City]int), count: make(map[[2]zone.City]int), dead: make(map[string]bool), base: oneWay},
	}
	for _, c := range top.Cities {
		w.brokers[groupOf(c.Name)] = newSimBroker(w, c.Name)
		for _, n := range c.Routers {
			w.start(n.Name, "")
		}
	}
	return w
}

// close ends everything and gives timers that nobody joins the time to end.
func (w *simWorld) close() {
	w.mu.Lock()
	all := w.routers
	w.routers = map[zone.Node]*simRouter{}
	w.mu.Unlock()
	for _, r := range all {
		w.stop(r)
	}
	for _, b := range w.brokers {
		b.kill()
	}
	w.wg.Wait()
	for _, f := range w.ends {
		f()
	}
	time.Sleep(time.Minute) // simulated
	synctest.Wait()
}

func (w *simWorld) stop(r *simRouter) {
	if !r.gone {
		r.gone = true
		r.cancel()
		<-r.ended
	}
}

// start runs a router; addr "" is the topology's.
func (w *simWorld) start(name zone.Node, addr string) *simRouter {
	w.t.Helper()
	n := w.top.FindNode(name)
	if addr == "" {
		addr = n.QUIC
	}
	udp, err := net.ResolveUDPAddr("udp4", addr)
	if err != nil {
		w.t.Fatal(err)
	}
	udp.IP = udp.IP.To4()
	sock, closeSock := w.socket(n.City.Name, udp)
	w.starts++
	r, err := New(Options{
		Node: name, Incarnation: record.Incarnation(w.starts), Topology: func() *zone.Topology { return w.top },
		Peers: simView{w, make(chan struct{})}, TLS: LinkTLS(w.tls[name]), Identify: func(c *x509.Certificate) (peer.Identity, error) { return peer.IdentityOf(c) },
		PacketConn: sock, Open: w.open, Limits: w.limit, Rand: rand.New(rand.NewPCG(7, w.starts)),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	run := &simRouter{Router: r, name: name, addr: addr, cancel: cancel, ended: make(chan struct{})}
	w.wg.Go(func() {
		defer close(run.ended)
		defer closeSock()
		if err := r.Run(ctx); err != nil {
			w.t.Errorf("%s: %v", name, err)
		}
	})
	w.mu.Lock()
	w.routers[name] = run
	w.members[name] = Member{Node: name, Role: zone.RoleRouter, City: n.City.Name, QUIC: addr}
	w.mu.Unlock()
	return run
}

// kill ends a router as kill -9 would: nobody hears a word.
func (w *simWorld) kill(name zone.Node) {
	w.mu.Lock()
	r := w.routers[name]
	delete(w.routers, name)
	w.mu.Unlock()
	if r == nil {
		return
	}
	w.net.mu.Lock()
	w.net.dead[r.addr] = true
	w.net.mu.Unlock()
	w.stop(r)
}

// leave ends a router in good order: it drains, and then goes.
func (w *simWorld) leave(name zone.Node) {
	w.mu.Lock()
	r := w.routers[name]
	delete(w.routers, name)
	w.mu.Unlock()
	if r == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = r.Drain(ctx) // what is left at its end is cut off
	w.stop(r)
}

// router returns a living router.
func (w *simWorld) router(name zone.Node) *simRouter {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.routers[name]
}

// routersIn returns the living routers of a city in the order of the session's
// rendezvous hash, as a broker takes them.
func (w *simWorld) routersIn(city zone.City, session uint64) []*simRouter {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*simRouter
	for _, r := range w.routers {
		if r.city == city {
			out = append(out, r)
		}
	}
	egress.Rank(out, session, func(r *simRouter) zone.Node { return r.name })
	return out
}

// open is egress.OpenFunc for the brokers of all cities.
func (w *simWorld) open(_ context.Context, t egress.Target, _ uint64) (wire.Stream, error) {
	n := w.top.FindNode(t.Node)
	a, b := newPipe()
	if m := w.several; m != nil && n.Group.Name == m.group {
		return m.open(n.Name, &bounded{a}, &bounded{b})
	}
	if !w.brokers[n.Group.Name].serve(&bounded{b}) {
		return nil, net.ErrClosed
	}
	return &bounded{a}, nil
}

// bounded is a pipe that gives up as an in-city connection does.
type bounded struct{ *pipe }

// Send implements wire.Stream.
func (b *bounded) Send(ctx context.Context, f wire.Frame) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := b.pipe.Send(ctx, f)
	if errors.Is(err, context.DeadlineExceeded) {
		_ = b.pipe.Close(wire.CodeSlowPeer)
		return &wire.ClosedError{Code: wire.CodeSlowPeer, Local: true}
	}
	return err
}

// simView is gossip as a router sees it.
type simView struct {
	w       *simWorld
	changes chan struct{}
}

func (v simView) City() []Member           { return v.w.several.gossip() }
func (v simView) Changes() <-chan struct{} { return v.changes }
func (v simView) Routers() []Member {
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	var out []Member
	for _, m := range v.w.members {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(string(a.Node), string(b.Node)) })
	return out
}

// within waits in simulated time and returns how long it took.
func (w *simWorld) within(limit time.Duration, what string, cond func() bool) time.Duration {
	w.t.Helper()
	start := time.Now()
	for !cond() {
		if time.Since(start) > limit {
			w.dump()
			w.t.Fatalf("%s: not within %v", what, limit)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(start)
}

func (w *simWorld) dump() {
	w.mu.Lock()
	all := w.routers
	w.mu.Unlock()
	for name, r := range all {
		for _, p := range r.Status().Paths {
			if p.Reason != PathDirect || p.Detoured > 0 || !p.Up {
				w.t.Logf("%v %s: %+v", time.Since(simStart), name, p)
			}
		}
	}
}

// linked waits until every living router has a link with every other city's.
func (w *simWorld) linked() {
	w.t.Helper()
	w.within(30*time.Second, "links", func() bool { return w.allUp() })
}

func (w *simWorld) allUp() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.routers {
		for _, o := range w.routers {
			if o.city == r.city {
				continue
			}
			for _, class := range classes {
				if _, ok := r.links.Up(o.name, class); !ok {
					return false
				}
			}
		}
	}
	return true
}
