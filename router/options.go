package router

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqrouter/mqrouter/replication/egress"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/router/link"
	"github.com/mqrouter/mqrouter/router/link/fec"
	"github.com/mqrouter/mqrouter/zone"
)

// Member is a living node as gossip knows it. Everything in it is a hint.
type Member struct {
	Node     zone.Node
	Role     zone.Role
	City     zone.City
	Peer     string // host:port of in-city TCP
	QUIC     string // host:port between cities; routers only
	Epoch    zone.Epoch
	Draining bool
	Group    zone.Group // of a broker
	Term     uint64     // of its group's coordinator; 0 = none
	Leads    bool       // it is master of its group in Term
}

// Peers is the router's view of gossip. Its methods are safe for concurrent use
// and do not block.
type Peers interface {
	// City returns the living nodes of the router's own city.
	City() []Member
	// Routers returns the living routers of all cities.
	Routers() []Member
	// Changes is signalled when either may have changed.
	Changes() <-chan struct{}
}

// Limits bounds what a router holds. The zero value of a field takes the
// default.
type Limits struct {
	Sessions  int           // relayed at a time; default 4096; more are refused with too-many
	Buffers   int64         // bytes of frames on their way at a time; default 256 MiB, at least four of the largest frames
	FirstOpen time.Duration // a session that does not say what it wants for so long is ended; default 5 s
	Link      link.Limits
	Timing    link.Timing
	Path      PathTiming
}

func (l Limits) withDefaults() Limits {
	if l.Sessions <= 0 {
		l.Sessions = 4096
	}
	if l.Buffers <= 0 {
		l.Buffers = 256 << 20
	}
	l.Buffers = max(l.Buffers, 4*wire.MaxPayload)
	if l.FirstOpen <= 0 {
		l.FirstOpen = 5 * time.Second
	}
	return l
}

// Options tells a router what to be.
type Options struct {
	Node        zone.Node
	Incarnation record.Incarnation // of this start; random and not zero

	// Topology returns the topology in force. The router must be in it when New
	// is called.
	Topology func() *zone.Topology
	Peers    Peers

	// TLS and Identify are those of the links; see LinkTLS.
	TLS      func(*link.Peer) *tls.Config
	Identify func(*x509.Certificate) (peer.Identity, error)

	// PacketConn is the UDP socket of the links. Run does not close it.
	PacketConn net.PacketConn
	// Open opens a session to a broker of the city; see egress.OverPeer.
	Open egress.OpenFunc
	// Announce tells gossip that the router drains; nil tells nobody. It must not
	// block.
	Announce func(draining bool)

	// CPU and Correction are those of link.Options.
	CPU        func() float64
	Correction *fec.Options

	Limits Limits
	Rand   *rand.Rand // for jitter; nil takes a random seed
	Logger *slog.Logger
	Meter  metric.Meter
	Tracer trace.Tracer // nil: no spans; link spans of traced frames
}

// Validate reports every fault of the options, joined.
func (o *Options) Validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("router: %s is missing", what))
		}
	}
	need(o.Node != "", "node")
	need(o.Incarnation != 0, "incarnation")
	need(o.Topology != nil, "topology")
	need(o.Peers != nil, "view of gossip")
	need(o.TLS != nil, "TLS configuration")
	need(o.PacketConn != nil, "packet connection")
	need(o.Open != nil, "opener of sessions to brokers")
	if o.Topology != nil && o.Node != "" {
		n := o.Topology().FindNode(o.Node)
		if n == nil || n.Role != zone.RoleRouter {
			errs = append(errs, fmt.Errorf("router: the topology has no router %q", o.Node))
		}
	}
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	o.Limits = o.Limits.withDefaults()
	if o.Identify == nil {
		o.Identify = peer.IdentityOf
	}
	if o.Announce == nil {
		o.Announce = func(bool) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Meter == nil {
		o.Meter = noop.Meter{}
	}
	return o
}

// LinkTLS returns the TLS configurations of links from what the node uses for
// its in-city connections: a dialled router must be exactly the one meant.
func LinkTLS(t *peer.TLS) func(*link.Peer) *tls.Config {
	return func(p *link.Peer) *tls.Config {
		if p == nil {
			return t.Server()
		}
		own := t.Store.Identity()
		return t.Client("to "+string(p.Node), &peer.Identity{
			Deployment: own.Deployment, City: p.City, Role: zone.RoleRouter, Name: p.Node,
		})
	}
}
