package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// ALPN is the application protocol of in-city connections.
const ALPN = "mqrouter-peer/1"

// The protocol versions above TLS that this package speaks.
const (
	versionMin = 1
	versionMax = 1
)

// Limits bounds what peers can make a node hold. A zero field takes the
// default.
type Limits struct {
	Connections  int   // accepted connections at a time; default 512
	Handshakes   int   // accepted connections that have not greeted, at a time; one more ends the oldest; default 64
	Sessions     int   // sessions of one connection; default 1024
	Frames       int   // frames that wait in a session for Recv; default 4096
	SessionBytes int64 // payload bytes that wait in a session; default 24 MiB: a flow's largest window and one batch
	ConnBytes    int64 // payload bytes that wait in all sessions of a connection; default 96 MiB
	TotalBytes   int64 // payload bytes that wait in all sessions of the node's Listener or Dialer; default 256 MiB
	WriteBuffer  int   // bytes that wait to be written on a connection before Send blocks; default 1 MiB
	MaxPayload   int   // bytes of the largest payload taken; default and most wire.MaxPayload
}

func orDefault[T int | int64 | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

func (l Limits) withDefaults() Limits {
	orDefault(&l.Connections, 512)
	orDefault(&l.Handshakes, 64)
	orDefault(&l.Sessions, 1024)
	orDefault(&l.Frames, 4096)
	orDefault(&l.SessionBytes, 24<<20)
	orDefault(&l.ConnBytes, 96<<20)
	orDefault(&l.TotalBytes, 256<<20)
	orDefault(&l.WriteBuffer, 1<<20)
	orDefault(&l.MaxPayload, wire.MaxPayload)
	l.MaxPayload = min(l.MaxPayload, wire.MaxPayload)
	return l
}

// Timing holds the timeouts. A zero field takes the default.
type Timing struct {
	Handshake time.Duration // connect, TLS and greeting together; default 3 s
	Write     time.Duration // how long a hop may take no bytes before a session that has some is reset; default 1 s
	Probe     time.Duration // how often a connection is probed; default 2 s
	Dead      time.Duration // how long a connection may bring nothing, and one frame may take; default 10 s
	Idle      time.Duration // how long a connection without sessions is kept by the dialling side; default 30 s
}

func (t Timing) withDefaults() Timing {
	orDefault(&t.Handshake, 3*time.Second)
	orDefault(&t.Write, time.Second)
	orDefault(&t.Probe, 2*time.Second)
	orDefault(&t.Dead, 10*time.Second)
	orDefault(&t.Idle, 30*time.Second)
	return t
}

// Options tells a Dialer or a Listener what to be.
type Options struct {
	// Self is this node; its certificate must say the same. Required.
	Self Identity
	// Group is this node's broker group; empty for nodes that have none.
	Group zone.Group
	// Incarnation is that of this node's store, or of its start when it has no
	// store. Required.
	Incarnation record.Incarnation
	// TLS verifies the other side; nil is legal only for a network that is
	// itself a test. NextProtos is set to ALPN.
	TLS *TLS
	// Topology returns what is told of the topology in force; nil tells none.
	Topology func() (zone.Epoch, zone.Digest)
	// Admit is asked by a Listener about each greeting that is otherwise
	// acceptable; any answer but wire.CodeOK refuses the connection, and the
	// text is told to the peer. Nil admits all. It must not block.
	Admit func(wire.Hello) (code wire.Code, text string)
	// Fellow is asked by a Listener, for each session that would follow, or fetch of, the log of
	// this node's broker group, whether the topology in force names the node, with
	// this identity, as a member of that group. Nil = nobody. It must not block.
	Fellow func(Identity) bool
	// Others takes, in a Listener, the connections of other application protocols by
	// their ALPN names, after TLS and before a greeting, with all that is theirs: the
	// Listener neither counts nor closes them. It must not block. Only with TLS.
	Others map[string]func(net.Conn)
	// DialContext replaces TCP; nil means TCP.
	DialContext func(ctx context.Context, addr string) (net.Conn, error)

	Limits Limits
	Timing Timing
	Logger *slog.Logger // nil discards
}

// Validate reports every fault of the options, joined.
func (o *Options) Validate() error {
	var errs []error
	if err := o.Self.Validate(); err != nil {
		errs = append(errs, err)
	}
	if o.Incarnation == 0 {
		errs = append(errs, errors.New("peer: incarnation is missing"))
	}
	if o.TLS != nil && o.TLS.Store.Identity() != o.Self {
		errs = append(errs, fmt.Errorf("peer: certificate says %s, this node is %s", o.TLS.Store.Identity(), o.Self))
	}
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	o.Limits = o.Limits.withDefaults()
	o.Timing = o.Timing.withDefaults()
	if o.Topology == nil {
		o.Topology = func() (zone.Epoch, zone.Digest) { return zone.Epoch{}, zone.Digest{} }
	}
	if o.Admit == nil {
		o.Admit = func(wire.Hello) (wire.Code, string) { return wire.CodeOK, "" }
	}
	if o.Fellow == nil {
		o.Fellow = func(Identity) bool { return false }
	}
	if o.DialContext == nil {
		o.DialContext = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	if o.TLS != nil {
		t := *o.TLS
		t.NextProtos = append([]string{ALPN}, slices.Sorted(maps.Keys(o.Others))...)
		o.TLS = &t
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// hello is what this node says of itself.
func (o *Options) hello(destination zone.City, class zone.Class) wire.Hello {
	epoch, digest := o.Topology()
	var features uint64
	if o.Self.Role == zone.RoleBroker {
		features |= wire.FeatureCalls
	}
	return wire.Hello{
		VersionMin: versionMin, VersionMax: versionMax, Features: features,
		Deployment: o.Self.Deployment, Role: o.Self.Role, City: o.Self.City, Zone: o.Self.Zone,
		Group: o.Group, Node: o.Self.Name, Incarnation: o.Incarnation,
		MaxFrame: uint32(o.Limits.MaxPayload), MaxSessions: uint32(o.Limits.Sessions),
		Epoch: epoch, Digest: digest, DestinationCity: destination, Class: class,
	}
}
