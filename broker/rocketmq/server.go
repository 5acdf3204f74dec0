package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/mqrouter/mqrouter/internal/loglimit"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/internal/tracing"
	"github.com/mqrouter/mqrouter/zone"
)

// errRan is returned by a second Run.
var errRan = errors.New("rocketmq: the server has run already")

// Settings are sent again after resendAfter, and then resends-1 times more, each
// after twice the time, a minute in all: a Node client that is still fetching a
// route misses what comes meanwhile, and would wait for ever. Routes take long when
// its machine, or this one, is busy.
const (
	resendAfter = time.Second
	resends     = 6
)

// Server is the front end. Its exported methods are safe for concurrent use.
type Server struct {
	opts     Options
	store    Store
	clients  *registry
	guard    *guard // nil = off
	filters  *filters
	metrics  *instruments
	tracer   *tracing.Tracer // nil = off
	grpc     *grpc.Server
	memory   *memory
	answers  *answers
	polls    *polls
	sniff    atomic.Pointer[sniffer] // nil before Run
	resend   time.Duration
	sendTime time.Duration  // how long a client may take to read a message or a command
	silence  time.Duration  // how long a Telemetry stream may be without Settings
	denied   loglimit.Limit // lines about consumers that are refused
	opened   loglimit.Limit // lines about clients without TLS that another member passed on

	stopping context.Context // ends when the server begins to stop: polls and streams end
	stop     context.CancelFunc
	readers  sync.WaitGroup // of Telemetry streams
	once     sync.Once      // guards Run
}

// New makes a server; Run starts it.
func New(o Options) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	s := &Server{opts: o, store: o.Store, clients: newRegistry(o.MaxClients), polls: &polls{max: o.MaxPolls},
		memory: newMemory(int64(o.MaxRequests)), answers: newAnswers(o.unread), resend: resendAfter, sendTime: sendTime, silence: settingsTime, denied: loglimit.Limit{Lines: deniedLines, Window: time.Minute},
		opened: loglimit.Limit{Lines: deniedLines, Window: time.Minute}}
	s.clients.came = o.ProducerCame
	var err error
	if s.filters, err = newFilters(); err != nil {
		return nil, err
	}
	if s.metrics, err = newInstruments(o.Meter, s.clients.size); err != nil {
		return nil, err
	}
	if s.tracer, err = tracing.New(o.Tracer, o.Meter); err != nil {
		return nil, err
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	if s.guard, err = newGuard(&o, s.stopping.Done()); err != nil {
		return nil, err
	}
	s.memory.anybody = s.guard == nil
	options := append(bounded(s.memory, o.MaxStreams), grpc.ForceServerCodecV2(pb.NewCodec(s.memory.admit)))
	unary, streams := []grpc.UnaryServerInterceptor{s.memory.arrived, s.answers.counted}, []grpc.StreamServerInterceptor{s.memory.arriving, s.answers.entering}
	if s.sealed() {
		unary, streams = append(unary, s.sealedUnary), append(streams, s.sealedStream)
	}
	if s.guard != nil {
		unary, streams = append(unary, s.guard.unary), append(streams, s.stream)
	}
	options = append(options, grpc.ChainUnaryInterceptor(unary...), grpc.ChainStreamInterceptor(streams...))
	s.grpc = grpc.NewServer(options...)
	s.grpc.RegisterService(withSend(pb.MessagingService_ServiceDesc, s), s)
	return s, nil
}

// Run serves the listener, which it takes over, until ctx ends or the listener
// fails. Then long polls and Telemetry streams end at once, other calls have
// Options.Grace to end, and everything is joined. It returns nil after ctx ended,
// also when calls had to be cut off.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	err := errRan
	s.once.Do(func() { err = s.run(ctx, l) })
	return err
}

func (s *Server) run(ctx context.Context, l net.Listener) error {
	sniff := newSniffer(l, &s.opts, s.metrics.refuse, s.answers)
	s.sniff.Store(sniff)
	loops := []func(){s.expireLoop, s.goneLoop, s.sweepLoop}
	if s.guard != nil {
		loops = append(loops, func() { s.guard.follow(s.stopping) })
	}
	serving := serving{grpc: s.grpc, stop: s.stop, grace: s.opts.Grace, logger: s.opts.Logger}
	err := serving.run(ctx, sniff, loops...)
	s.readers.Wait()
	s.metrics.close()
	if err != nil {
		return fmt.Errorf("rocketmq: serve: %w", err)
	}
	return nil
}

// expireLoop sweeps the clients until the server stops.
func (s *Server) expireLoop() {
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stopping.Done():
			return
		case <-tick.C:
			s.clients.expire()
		}
	}
}

// topology returns the topology in force and this node's zone in it; z is nil when
// the topology has lost the zone.
func (s *Server) topology() (t *zone.Topology, z *zone.ZoneInfo) {
	t = s.store.Topology()
	return t, t.FindZone(s.opts.Zone)
}

// clientID returns the caller's id, or the status that refuses the call.
func clientID(ctx context.Context) (string, *pb.Status) {
	v := metadata.ValueFromIncomingContext(ctx, "x-mq-client-id")
	switch {
	case len(v) == 0 || v[0] == "":
		return "", refuse(pb.Code_CLIENT_ID_REQUIRED, "the header x-mq-client-id is missing")
	case len(v[0]) > maxClientID:
		return "", refuse(pb.Code_BAD_REQUEST, fmt.Sprintf("the client id has %d bytes, the limit is %d", len(v[0]), maxClientID))
	}
	return v[0], nil
}

// caller is clientID for calls that do not tell what the caller is: a client that is
// known was heard of with it, one that is not stays unknown.
func (s *Server) caller(ctx context.Context) (string, *pb.Status) {
	id, st := clientID(ctx)
	if st == nil {
		s.clients.heard(id)
	}
	return id, st
}

// fullName puts the namespace before a resource's name, as RocketMQ does: the
// resource's own, else the one of the header.
func fullName(ctx context.Context, r *pb.Resource) string {
	ns := r.GetResourceNamespace()
	if ns == "" {
		if v := metadata.ValueFromIncomingContext(ctx, "x-mq-namespace"); len(v) > 0 {
			ns = v[0]
		}
	}
	if ns == "" {
		return r.GetName()
	}
	return ns + "%" + r.GetName()
}

// topicName returns the full name of a topic, or why it is not one.
func topicName(ctx context.Context, r *pb.Resource) (zone.Topic, *pb.Status) {
	name := fullName(ctx, r)
	if text := checkName("the topic's name", name, maxTopicName); text != "" {
		return "", refuse(pb.Code_ILLEGAL_TOPIC, text)
	}
	return zone.Topic(name), nil
}

// groupName returns the full name of a consumer group, or why it is not one.
func groupName(ctx context.Context, r *pb.Resource) (zone.ConsumerGroup, *pb.Status) {
	name := fullName(ctx, r)
	if text := checkName("the consumer group's name", name, maxGroupName); text != "" {
		return "", refuse(pb.Code_ILLEGAL_CONSUMER_GROUP, text)
	}
	return zone.ConsumerGroup(name), nil
}
