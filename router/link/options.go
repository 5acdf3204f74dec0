package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/router/link/fec"
	"github.com/mqrouter/mqrouter/zone"
)

// ALPN is the application protocol that links negotiate.
const ALPN = "mqrouter/1"

// protocolVersion is the only version of the protocol above QUIC.
const protocolVersion = 1

// Peer is a router of another city.
type Peer struct {
	Node zone.Node
	City zone.City
	Addr string // host:port of its QUIC socket
	// Alt is another address that it may have; empty = none. Attempts take turns,
	// Addr first: whichever of the two is wrong costs one attempt, since only the
	// node itself has the certificate to answer with.
	Alt string
}

// Limits bounds what peers can make a node hold. The zero value of a field
// takes the default.
type Limits struct {
	Sessions     int // streams at a time that a peer may open on one connection; default 128
	StreamWindow int // bytes that a peer may send on a stream ahead of its reader; default 2 MiB
	// WindowMemory is how many bytes more, from all peers together, sessions of bulk
	// links may have on their way when a window of StreamWindow is too small for a
	// path: side streams with such windows; below 0 = none; default
	// DefaultWindowMemory. Half of it is used at a time, see note 25.
	WindowMemory int64
	Connections  int // greeted connections altogether; default 1024
	Handshakes   int // incoming connections at a time that have not greeted, a quarter from hosts of peers only; default 64
	MaxPayload   int // bytes of the largest frame payload; default and most wire.MaxPayload
	// Parallel is how many connections the sessions of a bulk link may have at a
	// time; default DefaultParallel, most MaxParallel. With 1 they share the link's
	// own. An urgent link always has one: what it carries is small, and a queue of
	// its own is what it is for.
	Parallel int
	// Rate is how many bytes a second may be sent to one node, over all links and
	// connections with it, headers and what correction adds included; 0 = any. It
	// holds over about a second. Urgent frames do not wait for bulk ones, and take
	// at most seven eighths of it.
	Rate int64
}

// DefaultWindowMemory is the default of Limits.WindowMemory: 128 windows of 2 MiB in
// use at a time.
const DefaultWindowMemory = 512 << 20

// The default and the bound of Limits.Parallel. A TCP flow keeps more of a full queue
// than the four of a link beside it: deploy/notes, "a bulk link grows while growing
// pays".
const (
	DefaultParallel = 4
	MaxParallel     = 16
)

// parallel returns Parallel for a class.
func (l Limits) parallel(class zone.Class) int {
	if class != zone.ClassBulk {
		return 1
	}
	return l.Parallel
}

const controlWindow = 64 << 10 // bytes; a control stream carries small frames only

func (l Limits) withDefaults() Limits {
	set := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	set(&l.Sessions, 128)
	set(&l.StreamWindow, 2<<20)
	if l.WindowMemory == 0 {
		l.WindowMemory = DefaultWindowMemory
	}
	set(&l.Connections, 1024)
	set(&l.Handshakes, 64)
	set(&l.MaxPayload, wire.MaxPayload)
	set(&l.Parallel, DefaultParallel)
	l.Parallel = min(l.Parallel, MaxParallel)
	l.MaxPayload = min(l.MaxPayload, wire.MaxPayload)
	return l
}

// Options tells a Manager what to be.
type Options struct {
	Deployment  string
	City        zone.City
	Node        zone.Node
	Incarnation record.Incarnation // of this start; random and not zero

	// PacketConn is the UDP socket. The manager does not close it. A
	// *net.UDPConn gets batched system calls and segmentation offload.
	PacketConn net.PacketConn

	// TLS returns the configuration to accept with (peer nil) and to dial with.
	// It demands and verifies the other side's certificate. The manager sets
	// version and protocol.
	TLS func(peer *Peer) *tls.Config
	// Identify reads the identity from a verified certificate; nil means
	// peer.IdentityOf.
	Identify func(*x509.Certificate) (peer.Identity, error)
	// Authorize says whether an identity may have a link with this node, by the
	// topology; the error's text goes to the log, not to the peer. Nil accepts
	// every router of the deployment that is in another city.
	Authorize func(peer.Identity) error
	// Epoch returns the topology in force, told in the greeting. Nil tells none.
	Epoch func() (zone.Epoch, zone.Digest)
	// Reach returns the cities that this node reaches over direct links of the
	// class, nearest first; peers are told with every probe. It must not block.
	// Nil tells none.
	Reach func(zone.Class) []wire.Reached
	// Handle serves a session that a peer opened; the session is closed with
	// wire.CodeOK when it returns. Its context ends with the manager.
	Handle func(ctx context.Context, s *Session)

	// CPU returns the part of the processors that this process used of late, 0 to
	// 1; it must not block. A link does not grow when there is none left. Nil: not
	// known, taken for enough.
	CPU func() float64

	// Classes are the classes that are dialled; default urgent and bulk.
	Classes []zone.Class

	// Correction repairs losses under QUIC, towards peers that do so as well. Nil
	// leaves the packets as they are.
	Correction *fec.Options

	Limits Limits
	Timing Timing
	Rand   *rand.Rand   // for jitter; nil takes a random seed
	Logger *slog.Logger // nil discards
}

// Validate reports every fault of the options, joined.
func (o *Options) Validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("link: %s is missing", what))
		}
	}
	need(o.Deployment != "", "deployment")
	need(o.City != "", "city")
	need(o.Node != "", "node")
	need(o.Incarnation != 0, "incarnation")
	need(o.PacketConn != nil, "packet connection")
	need(o.TLS != nil, "TLS configuration")
	need(o.Handle != nil, "session handler")
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	o.Limits = o.Limits.withDefaults()
	o.Timing = o.Timing.withDefaults()
	if len(o.Classes) == 0 {
		o.Classes = []zone.Class{zone.ClassUrgent, zone.ClassBulk}
	}
	if o.CPU == nil {
		o.CPU = func() float64 { return 0 }
	}
	if o.Identify == nil {
		o.Identify = peer.IdentityOf
	}
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Epoch == nil {
		o.Epoch = func() (zone.Epoch, zone.Digest) { return zone.Epoch{}, zone.Digest{} }
	}
	if o.Authorize == nil {
		deployment, city := o.Deployment, o.City
		o.Authorize = func(id peer.Identity) error {
			if id.Deployment != deployment || id.Role != zone.RoleRouter || id.City == city {
				return fmt.Errorf("link: %s %s of %s is no router of another city of %s", id.City, id.Name, id.Deployment, deployment)
			}
			return nil
		}
	}
	return o
}
