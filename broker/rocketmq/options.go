package rocketmq

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqrouter/mqrouter/internal/tracing"
	"github.com/mqrouter/mqrouter/zone"
)

// Options configure a Server. Zero values of all but Store and Zone are useful.
type Options struct {
	Store Store
	// Zone is the zone of this node: routes name its brokers and no others.
	Zone zone.Zone
	// Group is this node's broker group: pulls from the queues of another one are
	// refused. Empty refuses none.
	Group zone.Group
	// Fronts returns the nodes of a broker group that serve clients now, the master
	// first: routes name these. It does not block. nil: all that the topology has. It
	// is not asked about a group of one node.
	Fronts func(*zone.GroupInfo) []*zone.NodeInfo

	// ProducerCame is told that a producer of a topic of kind transaction can be asked
	// (Server.CheckBack) from now on. nil: nobody wants to know.
	ProducerCame func(zone.Topic)

	// TLS serves TLS connections; nil serves plaintext only. Set GetCertificate in
	// it to follow certificates that change. Its NextProtos are set to h2.
	TLS *tls.Config
	// Fellow serves the connections of other members of the broker group, which pass
	// their clients on (see Forwarder) and are believed what they say of them. It must
	// ask for a certificate and refuse the handshake of whoever is no such member. nil:
	// there are none. Its NextProtos are set.
	Fellow *tls.Config
	// PlaintextOff refuses connections without TLS, and calls of clients that have none
	// to the member that passes them on.
	PlaintextOff bool

	// Access judges every call; nil lets everybody do everything.
	Access AccessSource

	Grace          time.Duration // how long Run lets calls end after its context did; 0 means 10 s
	MinInvisible   time.Duration // shortest invisible time of a simple consumer's receive; 0 means 10 s, the protocol's
	MaxPoll        time.Duration // longest wait of one receive; 0 means 20 s
	MaxClients     int           // clients whose state is kept; 0 means 65,536
	MaxConnections int           // 0 means 16,384
	MaxPolls       int           // receives that wait at one time; 0 means 65,536
	MaxStreams     int           // calls at one time on one connection; 0 means 4,096
	MaxRequests    int           // bytes of requests that are arriving or not answered, over all connections; 0 means 256 MiB, at least 64 MiB

	Logger *slog.Logger // nil discards
	Meter  metric.Meter // nil measures nothing

	Tracer  trace.Tracer    // nil traces nothing
	Sampler tracing.Sampler // which messages begin a trace; the zero value follows the client

	unread int64 // bytes of answers that nobody has read yet; 0 means MaxRequests. Tests set less
}

// Errors of Options.Validate.
var (
	errNoStore     = errors.New("rocketmq: options need a Store")
	errNoZone      = errors.New("rocketmq: options need the Zone of the node")
	errNoTransport = errors.New("rocketmq: plaintext is off and there is no TLS")
	errNegative    = errors.New("rocketmq: a limit is negative")
)

// Validate reports every fault of the options.
func (o *Options) Validate() error {
	var errs []error
	if o.Store == nil {
		errs = append(errs, errNoStore)
	}
	if o.Zone == "" {
		errs = append(errs, errNoZone)
	}
	if o.PlaintextOff && o.TLS == nil {
		errs = append(errs, errNoTransport)
	}
	if min(o.MaxClients, o.MaxConnections, o.MaxPolls, o.MaxStreams, o.MaxRequests) < 0 || min(o.Grace, o.MinInvisible, o.MaxPoll) < 0 {
		errs = append(errs, errNegative)
	}
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	orInt := func(p *int, d int) {
		if *p == 0 {
			*p = d
		}
	}
	orTime := func(p *time.Duration, d time.Duration) {
		if *p == 0 {
			*p = d
		}
	}
	orTime(&o.Grace, 10*time.Second)
	orTime(&o.MinInvisible, minInvisible)
	orTime(&o.MaxPoll, 20*time.Second)
	orInt(&o.MaxClients, 65536)
	orInt(&o.MaxConnections, 16384)
	orInt(&o.MaxPolls, 65536)
	orInt(&o.MaxStreams, 4096)
	orInt(&o.MaxRequests, 256<<20)
	o.MaxRequests = max(o.MaxRequests, leastRequests)
	if o.unread == 0 {
		o.unread = int64(o.MaxRequests)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Meter == nil {
		o.Meter = noop.Meter{}
	}
	return o
}
