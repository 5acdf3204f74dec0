package router

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/internal/loglimit"
	"github.com/mqrouter/mqrouter/internal/tracing"
	"github.com/mqrouter/mqrouter/replication/egress"
	"github.com/mqrouter/mqrouter/replication/masters"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/router/link"
	"github.com/mqrouter/mqrouter/zone"
)

// followEvery is how often the topology is looked at; gossip signals changes.
const followEvery = time.Second

// Router is an MQ-router. Its methods are safe for concurrent use.
type Router struct {
	o       Options
	city    zone.City
	log     *slog.Logger
	links   *link.Manager
	brokers *egress.Pool
	masters *masters.Directory
	buffers *buffers
	paths   *paths
	tracer  *tracing.Tracer // nil = off

	draining atomic.Bool
	opened   atomic.Uint64
	refused  atomic.Uint64

	broughtLog loglimit.Limit // lines about sessions that third cities bring
	astrayLog  loglimit.Limit // lines about records that may not be here

	mu       sync.Mutex
	sessions map[*session]struct{} // guarded by mu
	places   int                   // guarded by mu; sessions and those about to be one
	full     uint64                // guarded by mu; sessions refused since there were too many
	empty    chan struct{}         // guarded by mu; closed when places falls to 0; nil = nobody waits
	traffic  map[zone.City]*traffic
	brought  map[way]uint64  // guarded by mu; sessions that third cities brought
	life     context.Context // guarded by mu; nil unless Run runs
}

// New checks the options. Nothing is sent before Run.
func New(o Options) (*Router, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	top := o.Topology()
	r := &Router{
		o: o, city: top.FindNode(o.Node).City.Name, log: o.Logger,
		buffers: newBuffers(o.Limits.Buffers), paths: newPaths(o.Limits.Path),
		sessions: make(map[*session]struct{}), traffic: make(map[zone.City]*traffic),
		brought: make(map[way]uint64), broughtLog: newBroughtLimit(), astrayLog: newBroughtLimit(),
		brokers: egress.NewPool(egress.PoolOptions{Open: o.Open, Sessions: o.Limits.Sessions}),
		masters: masters.New(func() []masters.Hint { return leaders(o.Peers.City()) }),
	}
	tracer, err := tracing.New(o.Tracer, o.Meter)
	if err != nil {
		return nil, err
	}
	r.tracer = tracer
	links, err := link.New(link.Options{
		Deployment: top.Deployment, City: r.city, Node: o.Node, Incarnation: o.Incarnation,
		PacketConn: o.PacketConn, TLS: o.TLS, Identify: o.Identify, Authorize: r.authorize,
		Epoch: func() (zone.Epoch, zone.Digest) {
			t := o.Topology()
			return t.Epoch, t.Digest
		},
		Reach: r.reach, Handle: r.serveLink, Limits: o.Limits.Link, Timing: o.Limits.Timing,
		CPU: o.CPU, Correction: o.Correction, Rand: o.Rand, Logger: o.Logger,
	})
	if err != nil {
		return nil, err
	}
	r.links = links
	return r, r.measure(o.Meter)
}

// authorize accepts the routers of other cities that the topology has.
func (r *Router) authorize(id peer.Identity) error {
	t := r.o.Topology()
	n := t.FindNode(id.Name)
	if n == nil || n.Role != zone.RoleRouter || n.City.Name != id.City || id.Role != zone.RoleRouter ||
		id.City == r.city || id.Deployment != t.Deployment {
		return fmt.Errorf("router: %s is no router of another city in topology %s", id, t.Epoch)
	}
	return nil
}

// Run serves until ctx ends or the socket fails, and joins everything before it
// returns. Drain first for a stop that nobody notices.
func (r *Router) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	r.life = ctx
	r.mu.Unlock()
	r.follow()
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(followEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			case <-r.o.Peers.Changes():
			}
			r.follow()
		}
	})
	wg.Go(func() { r.watchPaths(ctx) })
	wg.Go(func() { r.moveSessions(ctx) })
	err := r.links.Run(ctx)
	cancel()
	wg.Wait()
	r.mu.Lock()
	r.life = nil
	r.mu.Unlock()
	_ = r.wait(context.Background()) // sessions end with ctx
	r.brokers.Close()
	return err
}

// follow tells the links which routers there are: those of the topology. Where
// they are gossip usually knows better, for a router that has moved tells it
// before anybody writes it down; but what it says may as well be wrong, so that
// both addresses are tried in turn. Gossip alone adds and removes nobody.
func (r *Router) follow() {
	known := make(map[zone.Node]string)
	for _, m := range r.o.Peers.Routers() {
		known[m.Node] = m.QUIC
	}
	var peers []link.Peer
	for _, c := range r.o.Topology().Cities {
		if c.Name == r.city {
			continue
		}
		for _, n := range c.Routers {
			p := link.Peer{Node: n.Name, City: c.Name, Addr: n.QUIC}
			if a := known[n.Name]; a != "" && a != n.QUIC {
				p.Addr, p.Alt = a, n.QUIC
			}
			peers = append(peers, p)
		}
	}
	r.links.SetPeers(peers)
}

// enter takes a place for a session, or says why there is none.
func (r *Router) enter() *refusal {
	if r.draining.Load() {
		return refuse(wire.CodeDraining, "router %s is about to stop", r.o.Node)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.life == nil:
		return refuse(wire.CodeShutdown, "router %s is not running", r.o.Node)
	case r.places >= r.o.Limits.Sessions:
		r.full++
		return refuse(wire.CodeTooMany, "router %s has %d sessions", r.o.Node, r.places)
	}
	r.places++
	return nil
}

func (r *Router) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.places--
	if r.places == 0 && r.empty != nil {
		close(r.empty)
		r.empty = nil
	}
}

// wait returns when there are no sessions, or with the context's error.
func (r *Router) wait(ctx context.Context) error {
	r.mu.Lock()
	if r.places == 0 {
		r.mu.Unlock()
		return nil
	}
	if r.empty == nil {
		r.empty = make(chan struct{})
	}
	empty := r.empty
	r.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Drain asks everybody to go elsewhere, takes no new sessions, and waits until
// there are none or ctx ends, whose error it returns then. The router still
// runs after it; end Run's context to close. The context's deadline is what the
// others are told.
func (r *Router) Drain(ctx context.Context) error {
	deadline := 30 * time.Second
	if at, ok := ctx.Deadline(); ok {
		deadline = time.Until(at)
	}
	if !r.draining.Swap(true) {
		r.log.Info("draining")
		r.o.Announce(true)
		r.links.Drain(deadline)
		r.askToLeave(deadline)
	}
	return r.wait(ctx)
}

// askToLeave sends Drain towards the origin of every session. Sessions that take
// none at once are left to end by themselves.
func (r *Router) askToLeave(deadline time.Duration) {
	d := wire.Drain{Deadline: deadline}
	payload := d.Append(nil)
	r.mu.Lock()
	all := make([]*session, 0, len(r.sessions))
	for s := range r.sessions {
		all = append(all, s)
	}
	r.mu.Unlock()
	var wg sync.WaitGroup
	for _, s := range all {
		wg.Go(func() { s.drain(payload) })
	}
	wg.Wait() // each send is bounded by its stream
}
