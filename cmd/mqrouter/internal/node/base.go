package node

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/otlp"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/internal/gossip"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/source"
)

// meterName is the scope of a node's own instruments.
const meterName = "github.com/mqrouter/mqrouter"

// Options are what a node gets from its process besides its configuration.
type Options struct {
	Version string       // shown in the status
	Logger  *slog.Logger // required
	FS      disk.FS      // nil: the operating system's
	// Wall reads the wall clock for a broker's store; nil: the operating system's.
	Wall    func() time.Time
	Ready   func()        // called once, when the node serves; nil: nobody asks
	Limits  broker.Limits // of a broker; zero values are its defaults
	Network Network       // nil: the operating system's
	// Topology are the seams of the topology's source; its logger is Logger.
	Topology source.Options
	// Cache is what a cache reader keeps fresh; nil: what its configuration says.
	Cache broadcast.Applier
}

// base is what every node has.
type base struct {
	*stack
	cfg     config.Node
	version string
	log     *slog.Logger
	started time.Time
	ready   func()
	net     Network

	source  *source.File
	text    fileText
	self    *zone.NodeInfo // in the first topology; name, role and place never change
	certs   *peer.CertStore
	meters  *admin.Meters
	traces  *otlp.Traces // nil = off
	keyFile string
	key     []byte   // of gossip, in use; after the start only followKeys
	oldKeys [][]byte // still accepted; likewise
	city    *gossip.Pool
	watched watched

	serving  atomic.Bool
	refused  atomic.Pointer[string] // why the newest topology is not in force here
	letters  admin.DeadLetters      // nil unless a broker; set before serveAdmin
	flowDesk admin.Flows            // likewise
	groups   admin.Groups           // likewise
	waiting  admin.Waiting          // likewise
	orders   admin.BrokerGroups     // nil unless a member of a group with several nodes; likewise
	tailed   admin.Tails            // likewise

	keyFault atomic.Pointer[string] // why the file of gossip keys is not in force here
}

// open reads what every node needs and starts following it.
func open(ctx context.Context, cfg config.Node, role zone.Role, o Options) (*base, error) {
	b := &base{cfg: cfg, version: o.Version, started: time.Now(), ready: o.Ready, net: o.Network}
	if b.net == nil {
		b.net = sockets{}
	}
	b.log = o.Logger.With("node", cfg.Name)
	b.stack = newStack()
	var err error
	b.text.path, b.text.from = cfg.Topology, o.Topology.Read
	o.Topology.Log, o.Topology.Read = b.log, b.text.read
	if b.source, err = source.Open(cfg.Topology, o.Topology); err != nil {
		return nil, err
	}
	t := b.source.Current()
	b.text.of(t)
	if b.self = t.FindNode(zone.Node(cfg.Name)); b.self == nil {
		return nil, fmt.Errorf("node %q is not in %s: add it there, or give the name of one that is", cfg.Name, cfg.Topology)
	}
	if b.self.Role != role {
		return nil, fmt.Errorf("node %q is a %s in %s, not a %s: start it with mqrouter %s", cfg.Name, b.self.Role, cfg.Topology, role, b.self.Role)
	}
	if b.certs, err = peer.OpenCertStore(peer.StoreOptions{Files: peer.FilesIn(cfg.PKI, cfg.Name), Logger: b.log}); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w; mqrouter pki issue --name %s makes a node's files", err, cfg.Name)
		}
		return nil, err
	}
	if have, want := b.certs.Identity(), peer.IdentityFor(t.Deployment, b.self); have != want {
		return nil, fmt.Errorf("the certificate in %s is for %s, the topology says %s: issue a new one", cfg.PKI, have, want)
	}
	if b.keyFile = cfg.KeyFile; b.keyFile == "" {
		b.keyFile = filepath.Join(cfg.PKI, gossip.KeyFile)
	}
	if b.key, b.oldKeys, err = gossip.LoadKeys(b.keyFile); err != nil {
		return nil, err
	}
	if b.meters, err = admin.NewMeters(b.about()...); err != nil {
		return nil, err
	}
	b.onStop("metrics", func() error { return b.meters.Close(context.WithoutCancel(ctx)) })
	b.traces, err = otlp.Open(ctx, otlp.Options{Settings: *cfg.Trace.Settings(), Getenv: os.Getenv, Resource: b.about(), Meter: b.meter(), Logger: b.log})
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	b.onStop("traces", b.traces.Close)
	b.run(ctx, "certificates", b.certs.Run)
	b.run(ctx, "topology file", b.source.Run)
	return b, nil
}

func (b *base) meter() metric.Meter { return b.meters.Meter(meterName) }

// tracer returns nil when tracing is off.
func (b *base) tracer() trace.Tracer { return b.traces.Tracer(meterName) }

// about is what the node's metrics and spans are about.
func (b *base) about() []attribute.KeyValue {
	about := []attribute.KeyValue{
		attribute.String("service.name", "mqrouter"), attribute.String("service.version", b.version),
		attribute.String("service.instance.id", string(b.self.Name)),
		attribute.String("mqrouter.role", b.self.Role.String()), attribute.String("mqrouter.city", string(b.self.City.Name)),
	}
	if b.self.Zone != nil {
		about = append(about, attribute.String("mqrouter.zone", string(b.self.Zone.Name)))
	}
	return about
}

// tls returns the mutual TLS of this node, for peers of the roles.
func (b *base) tls(topology func() *zone.Topology, roles ...zone.Role) *peer.TLS {
	return &peer.TLS{Store: b.certs, Authorize: peer.AuthorizeBy(topology, roles...)}
}

// inCity is tls for peers of this city only.
func (b *base) inCity(topology func() *zone.Topology, roles ...zone.Role) *peer.TLS {
	authorize := peer.AuthorizeBy(topology, roles...)
	return &peer.TLS{Store: b.certs, Authorize: func(id peer.Identity) error {
		if id.City != b.self.City.Name {
			return fmt.Errorf("%w: it is of city %s, this is %s: cities meet at their routers", peer.ErrUnknown, id.City, b.self.City.Name)
		}
		return authorize(id)
	}}
}

// joinCity starts the gossip of the city's pool.
func (b *base) joinCity(topology func() *zone.Topology) error {
	name := b.self.City.Name
	transport, err := b.net.Gossip(b.cfg.Listen(b.self.Gossip))
	if err != nil {
		return err
	}
	pool, err := gossip.Open(gossip.Config{
		Pool: gossip.CityPool(topology().Deployment, name), Name: b.self.Name,
		Bind: b.cfg.Listen(b.self.Gossip), Advertise: b.self.Gossip, Transport: transport,
		Key: b.key, OldKeys: b.oldKeys, Meta: b.meta(topology()), Preset: gossip.LAN, Logger: b.log,
		Seeds: func() []string { return citySeeds(topology(), name) },
	})
	if err != nil {
		return err
	}
	b.city = pool
	b.watched.pools = append(b.watched.pools, watchedPool{"city", pool})
	b.onStop("gossip", pool.Close)
	return nil
}

func (b *base) meta(t *zone.Topology) gossip.Meta {
	m := gossip.Meta{Role: b.self.Role, Epoch: t.Epoch, City: b.self.City.Name, Peer: b.self.Peer, QUIC: b.self.QUIC}
	if b.self.Zone != nil {
		m.Zone = b.self.Zone.Name
	}
	if b.self.Group != nil {
		m.Group = b.self.Group.Name
	}
	return m
}

func citySeeds(t *zone.Topology, name zone.City) []string {
	c := t.FindCity(name)
	if c == nil {
		return nil
	}
	var seeds []string
	for _, r := range c.Routers {
		seeds = append(seeds, r.Gossip)
	}
	for _, n := range c.CoordinatorNodes() {
		seeds = append(seeds, n.Gossip)
	}
	for _, z := range c.Zones {
		for _, g := range z.Groups {
			for _, n := range g.Nodes {
				seeds = append(seeds, n.Gossip)
			}
		}
	}
	return seeds
}

// serveAdmin exports the node's metrics and starts the admin server, if the
// node has an address for it.
func (b *base) serveAdmin(ctx context.Context, n admin.Node, topology func() *zone.Topology) error {
	if err := b.observe(n, topology); err != nil {
		return err
	}
	addr := b.cfg.Admin
	if addr == "" {
		addr = b.self.Admin
	}
	if addr == "" {
		return nil
	}
	o := admin.Options{Addr: addr, Node: n, Metrics: b.meters.Handler(), Logger: b.log, DeadLetters: b.letters, Flows: b.flowDesk, Groups: b.groups, Waiting: b.waiting, BrokerGroups: b.orders, Tails: b.tailed, Operator: operatorOnly, Listen: b.net.Listen}
	if b.cfg.AdminTLS {
		o.Addr = b.cfg.Listen(addr)
		o.TLS = b.tls(topology, zone.RoleAdmin, zone.RoleBroker, zone.RoleRouter, zone.RoleCacheSync, zone.RoleCoordinator).Server()
	}
	s, err := admin.Listen(ctx, o)
	if err != nil {
		return err
	}
	b.run(ctx, "admin", s.Run)
	return nil
}

// peerListener makes the listener for sessions of this city's nodes; servePeers
// starts it.
func (b *base) peerListener(o peer.Options, handle func(context.Context, *peer.Session)) (*peer.Listener, error) {
	l, err := peer.NewListener(o, handle)
	if err != nil {
		return nil, err
	}
	b.watched.peers = append(b.watched.peers, watchedPeers{"in", l.Stats})
	b.watched.queues.add(single(l.Usage))
	b.onStop("peer listener", l.Close)
	return l, nil
}

// servePeers binds the peer address and serves it.
func (b *base) servePeers(ctx context.Context, l *peer.Listener) error {
	ln, err := b.listen(ctx, "peer", b.self.Peer)
	if err != nil {
		return err
	}
	b.run(ctx, "peer listener", func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() { l.Close() }) //nolint:errcheck // the stack's Close returns the same error
		defer stop()
		return l.Serve(ln)
	})
	return nil
}

// listen binds a TCP address of the node.
func (b *base) listen(ctx context.Context, what, advertised string) (net.Listener, error) {
	ln, err := b.net.Listen(ctx, b.cfg.Listen(advertised))
	if err != nil {
		return nil, fmt.Errorf("%s address: %w", what, err)
	}
	return ln, nil
}

// serve marks the node ready and waits for its end.
func (b *base) serve(ctx context.Context) error {
	b.run(ctx, "gossip keys", b.followKeys)
	b.serving.Store(true)
	b.log.Info("node serves", "role", b.self.Role.String(), "city", string(b.self.City.Name), "epoch", b.source.Current().Epoch.String())
	if b.ready != nil {
		b.ready()
	}
	err := b.wait(ctx)
	b.log.Info("node stopped")
	return err
}

// status fills what every node's status has.
func (b *base) status(t *zone.Topology) admin.Status {
	serving, stopping := b.serving.Load(), b.stopping.Load()
	s := admin.Status{
		Node: string(b.self.Name), Role: b.self.Role.String(), City: string(b.self.City.Name),
		Version: b.version, PID: os.Getpid(), Started: b.started, Ready: serving && !stopping,
		Topology: admin.Topology{Epoch: t.Epoch.String(), Digest: fmt.Sprintf("%x", t.Digest[:8])},
	}
	if b.self.Zone != nil {
		s.Zone = string(b.self.Zone.Name)
	}
	if b.self.Group != nil {
		s.Group = string(b.self.Group.Name)
	}
	if b.city != nil {
		s.Members = len(b.city.Members())
	}
	s.Topology.Problem = b.problem()
	c := b.certs.Status()
	if c.Err != nil {
		s.Reasons = append(s.Reasons, "certificate: "+c.Err.Error())
	}
	if end := c.NotAfter; !time.Now().Before(end) {
		s.Reasons = append(s.Reasons, fmt.Sprintf("certificate: ended at %s; no new connection comes about", end.Format(time.RFC3339)))
	}
	if p := b.keyFault.Load(); p != nil {
		s.Reasons = append(s.Reasons, "gossip keys: "+*p)
	}
	switch {
	case stopping:
		s.Reasons = append(s.Reasons, "stopping")
	case !serving:
		s.Reasons = append(s.Reasons, "starting")
	}
	return s
}

// problem says what is wrong between this node and the newest topology; empty
// when nothing is.
func (b *base) problem() string {
	if r := b.source.Refusal(); r != nil {
		if r.Kind == source.MuchSmaller {
			return r.Error() + ": start this node again to take it"
		}
		return r.Error()
	}
	if p := b.refused.Load(); p != nil {
		return *p
	}
	return drift(b.self, b.source.Current())
}

// drift says how the topology has this node otherwise than when it started:
// what a node is and where it listens do not change while it runs.
func drift(self *zone.NodeInfo, t *zone.Topology) string {
	now := t.FindNode(self.Name)
	if now == nil {
		return fmt.Sprintf("epoch %s does not have this node any more; stop it, or add it again", t.Epoch)
	}
	if was, is := peer.IdentityFor(t.Deployment, self), peer.IdentityFor(t.Deployment, now); was != is {
		return fmt.Sprintf("epoch %s has this node as %s; it runs as %s: issue a certificate and start it again", t.Epoch, is, was)
	}
	for _, a := range []struct{ what, was, is string }{
		{"client", self.Client, now.Client}, {"peer", self.Peer, now.Peer}, {"quic", self.QUIC, now.QUIC},
		{"gossip", self.Gossip, now.Gossip}, {"wan", self.WAN, now.WAN}, {"admin", self.Admin, now.Admin},
	} {
		if a.was != a.is {
			return fmt.Sprintf("epoch %s has the %s address %q; this node runs with %q: start it again", t.Epoch, a.what, a.is, a.was)
		}
	}
	return ""
}

// newIncarnation returns the random, non-zero id of a start.
func newIncarnation() (record.Incarnation, error) {
	var b [8]byte
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, err
		}
		if n := binary.LittleEndian.Uint64(b[:]); n != 0 {
			return record.Incarnation(n), nil
		}
	}
}
