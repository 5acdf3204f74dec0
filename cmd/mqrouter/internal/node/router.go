package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/internal/gossip"
	"github.com/mqrouter/mqrouter/replication/egress"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/router"
	"github.com/mqrouter/mqrouter/router/link"
	"github.com/mqrouter/mqrouter/zone"
)

// routerNode is a router with its two gossip pools.
type routerNode struct {
	*base
	router *router.Router
	wan    *gossip.Pool
	moved  chan struct{} // capacity 1: either pool changed
}

// Router runs a router until ctx ends, then drains it within the grace period.
func Router(ctx context.Context, cfg config.Node, o Options) error {
	b, err := open(ctx, cfg, zone.RoleRouter, o)
	if err != nil {
		return err
	}
	n := &routerNode{base: b, moved: make(chan struct{}, 1)}
	if err := n.start(ctx); err != nil {
		return errors.Join(err, n.close())
	}
	return n.serve(ctx)
}

func (n *routerNode) start(ctx context.Context) error {
	incarnation, err := newIncarnation()
	if err != nil {
		return err
	}
	if err := n.joinCity(n.source.Current); err != nil {
		return err
	}
	if err := n.joinWAN(); err != nil {
		return err
	}
	n.run(ctx, "gossip changes", n.followGossip)
	n.run(ctx, "topology", n.followTopology)
	if err := n.startRouter(ctx, incarnation); err != nil {
		return err
	}
	l, err := n.peerListener(n.peerOptions(incarnation, n.inCity(n.source.Current, zone.RoleBroker)),
		func(ctx context.Context, s *peer.Session) { n.router.ServePeer(ctx, s.Identity().Name, s) })
	if err != nil {
		return err
	}
	// The admin address comes first, so that it tells of the drain to the end.
	if err := n.serveAdmin(ctx, n, n.source.Current); err != nil {
		return err
	}
	return n.startPeers(ctx, l)
}

// joinWAN starts the gossip of the routers of all cities.
func (n *routerNode) joinWAN() error {
	t := n.source.Current()
	transport, err := n.net.Gossip(n.cfg.Listen(n.self.WAN))
	if err != nil {
		return err
	}
	pool, err := gossip.Open(gossip.Config{
		Pool: gossip.WANPool(t.Deployment), Name: n.self.Name,
		Bind: n.cfg.Listen(n.self.WAN), Advertise: n.self.WAN, Transport: transport,
		Key: n.key, OldKeys: n.oldKeys, Meta: n.meta(t), Preset: gossip.WAN, Logger: n.log,
		Seeds: func() []string {
			var seeds []string
			for _, c := range n.source.Current().Cities {
				for _, r := range c.Routers {
					seeds = append(seeds, r.WAN)
				}
			}
			return seeds
		},
	})
	if err != nil {
		return err
	}
	n.wan = pool
	n.watched.pools = append(n.watched.pools, watchedPool{"wan", pool})
	n.onStop("wan gossip", pool.Close)
	return nil
}

// startRouter binds the UDP socket and runs the links.
func (n *routerNode) startRouter(ctx context.Context, incarnation record.Incarnation) error {
	links := n.tls(n.source.Current, zone.RoleRouter)
	d, err := peer.NewDialer(n.peerOptions(incarnation, n.inCity(n.source.Current, zone.RoleBroker)))
	if err != nil {
		return err
	}
	n.watched.peers = append(n.watched.peers, watchedPeers{"out", d.Stats})
	n.onStop("peer dialler", d.Close)
	conn, err := n.net.ListenPacket(ctx, n.cfg.Listen(n.self.QUIC))
	if err != nil {
		return fmt.Errorf("quic address: %w", err)
	}
	n.onStop("quic socket", conn.Close)
	rate, err := n.cfg.Link.RateBytes()
	if err != nil {
		return err
	}
	windows, err := n.cfg.Link.WindowBytes()
	if err != nil {
		return err
	}
	n.router, err = router.New(router.Options{
		Node: n.self.Name, Incarnation: incarnation, Topology: n.source.Current, Peers: n,
		TLS: router.LinkTLS(links), Identify: peer.IdentityOf, PacketConn: conn,
		Open:     egress.OverPeer(d, n.source.Current().Deployment, n.self.City.Name),
		Announce: n.announce, Logger: n.log, Meter: n.meter(), Tracer: n.tracer(),
		Limits: router.Limits{Link: link.Limits{Parallel: n.cfg.Link.Connections, Rate: rate, WindowMemory: windows}}, CPU: n.cpu(),
		Correction: n.cfg.Link.Correct(),
	})
	if err != nil {
		return err
	}
	n.watched.queues.add(n.router.Usage)
	n.run(ctx, "router", n.router.Run)
	return nil
}

// startPeers serves the sessions of this city's brokers. Its stop drains: they
// are asked to go elsewhere, and have the grace period to do so.
func (n *routerNode) startPeers(ctx context.Context, l *peer.Listener) error {
	if err := n.servePeers(ctx, l); err != nil {
		return err
	}
	n.onStop("drain", func() error {
		if n.cfg.Grace <= 0 {
			return nil
		}
		l.Drain(n.cfg.Grace)
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.cfg.Grace)
		defer cancel()
		if err := n.router.Drain(drain); err != nil {
			n.log.Warn("sessions were left at the end of the grace period", "err", err)
		}
		return nil
	})
	return nil
}

func (n *routerNode) peerOptions(incarnation record.Incarnation, t *peer.TLS) peer.Options {
	return peer.Options{
		Self: n.certs.Identity(), Incarnation: incarnation, TLS: t, Logger: n.log, DialContext: n.net.Dial,
		Topology: func() (zone.Epoch, zone.Digest) { t := n.source.Current(); return t.Epoch, t.Digest },
	}
}

// announce tells both pools that the router drains.
func (n *routerNode) announce(draining bool) {
	for _, p := range []*gossip.Pool{n.city, n.wan} {
		if err := p.SetMeta(func(m *gossip.Meta) { m.Draining = draining }); err != nil {
			n.log.Debug("could not tell that the router drains", "err", err)
		}
	}
}

// followGossip merges the changes of both pools.
func (n *routerNode) followGossip(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.city.Changes():
		case <-n.wan.Changes():
		}
		n.wake()
	}
}

func (n *routerNode) wake() {
	select {
	case n.moved <- struct{}{}:
	default: // a change is signalled already
	}
}

// followTopology tells gossip the epoch and the router that peers may differ.
func (n *routerNode) followTopology(ctx context.Context) error {
	for {
		t, changed := n.source.Watch()
		n.text.of(t)
		for _, p := range []*gossip.Pool{n.city, n.wan} {
			if err := p.SetMeta(func(m *gossip.Meta) { m.Epoch = t.Epoch }); err != nil && ctx.Err() == nil {
				return fmt.Errorf("tell the epoch: %w", err)
			}
		}
		n.wake()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// City implements router.Peers.
func (n *routerNode) City() []router.Member { return members(n.city) }

// Routers implements router.Peers.
func (n *routerNode) Routers() []router.Member { return members(n.wan) }

// Changes implements router.Peers.
func (n *routerNode) Changes() <-chan struct{} { return n.moved }

func members(p *gossip.Pool) []router.Member {
	var all []router.Member
	for _, m := range p.Members() {
		all = append(all, router.Member{Node: m.Name, Role: m.Role, City: m.City, Peer: m.Peer, QUIC: m.QUIC, Epoch: m.Epoch, Draining: m.Draining,
			Group: m.Group, Term: m.Term, Leads: m.Leads})
	}
	return all
}

var (
	_ admin.Node   = (*routerNode)(nil)
	_ router.Peers = (*routerNode)(nil)
)
