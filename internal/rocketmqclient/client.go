package rocketmqclient

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// core is what Producer and SimpleConsumer share: endpoints, routes, sessions and
// the loop that keeps them fresh.
type core struct {
	cfg      Config
	signer   *signer // of every request
	settings *pb.Settings
	group    *pb.Resource // nil for producers

	ctx    context.Context // ends at Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // loop and sessions

	routes  atomic.Pointer[map[string]*route] // copy on write under loading
	loading chan struct{}                     // capacity 1: holder may change routes and endpoints
	stale   chan struct{}                     // capacity 1: an endpoint of a route does not answer

	mu        sync.Mutex
	endpoints map[string]*endpoint // guarded by mu; by host:port
	closed    bool                 // guarded by mu
}

// route is the queues of one topic as the access point answered. Immutable but
// for the rotation.
type route struct {
	topic    *pb.Resource
	writable []queue
	readable []queue // one for each broker
	queues   []queue // all that can be read
	next     atomic.Uint32
}

// queue is one usable queue and the endpoint of its broker.
type queue struct {
	mq *pb.MessageQueue
	ep *endpoint
}

// newCore checks the configuration and starts the loop. The caller closes it.
func newCore(cfg Config, settings *pb.Settings, group *pb.Resource) (*core, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &core{
		cfg: cfg, settings: settings, group: group, ctx: ctx, cancel: cancel,
		signer: &signer{key: cfg.AccessKey, secret: cfg.SecretKey, now: time.Now, fixed: []string{
			"x-mq-client-id", cfg.ClientID,
			"x-mq-language", "GO",
			"x-mq-client-version", "mqrouter",
			"x-mq-protocol", "v2",
		}},
		loading:   make(chan struct{}, 1),
		stale:     make(chan struct{}, 1),
		endpoints: map[string]*endpoint{},
	}
	c.routes.Store(&map[string]*route{})
	c.wg.Go(c.loop)
	return c, nil
}

// outgoing adds the client's metadata and the request timeout.
func (c *core) outgoing(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(metadata.NewOutgoingContext(ctx, c.signer.md()), timeout)
}

// route returns the topic's route, asking for it the first time. It blocks until
// the answer, ctx or the request timeout.
func (c *core) route(ctx context.Context, topic string) (*route, error) {
	if r := (*c.routes.Load())[topic]; r != nil {
		return r, nil
	}
	select {
	case c.loading <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.ctx.Done():
		return nil, ErrClosed
	}
	defer func() { <-c.loading }()
	known := *c.routes.Load()
	if r := known[topic]; r != nil {
		return r, nil
	}
	if len(known) >= maxTopics {
		return nil, fmt.Errorf("%w: %d topics", ErrBound, maxTopics)
	}
	return c.load(ctx, topic)
}

// load asks for a route and stores it; the caller holds loading.
func (c *core) load(ctx context.Context, topic string) (*route, error) {
	access, err := c.endpoint(c.cfg.Endpoint)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.outgoing(ctx, c.cfg.RequestTimeout)
	defer cancel()
	resource := &pb.Resource{Name: topic}
	resp, err := access.stub().QueryRoute(ctx, &pb.QueryRouteRequest{Topic: resource, Endpoints: access.pb})
	if err != nil {
		return nil, &OpError{Op: "QueryRoute", Endpoint: access.addr, Err: err}
	}
	if err := check("QueryRoute", access.addr, resp.GetStatus()); err != nil {
		return nil, err
	}
	r, err := c.parseRoute(resource, resp.GetMessageQueues())
	if err != nil {
		return nil, err
	}
	routes := maps.Clone(*c.routes.Load())
	routes[topic] = r
	c.routes.Store(&routes)
	return r, nil
}

// parseRoute keeps the queues of broker id 0 and connects their endpoints.
func (c *core) parseRoute(topic *pb.Resource, queues []*pb.MessageQueue) (*route, error) {
	r := &route{topic: topic}
	brokers := map[string]bool{}
	for i, mq := range queues {
		if i == maxQueues {
			return nil, fmt.Errorf("%w: %d queues in a route", ErrBound, maxQueues)
		}
		addrs := mq.GetBroker().GetEndpoints().GetAddresses()
		if mq.GetBroker().GetId() != 0 || len(addrs) == 0 {
			continue
		}
		ep, err := c.endpoint(joinAddress(addrs[0]))
		if err != nil {
			return nil, err
		}
		q := queue{mq: mq, ep: ep}
		if p := mq.GetPermission(); p == pb.Permission_WRITE || p == pb.Permission_READ_WRITE {
			r.writable = append(r.writable, q)
		}
		if p := mq.GetPermission(); p == pb.Permission_READ || p == pb.Permission_READ_WRITE {
			r.queues = append(r.queues, q)
			// A receive is served from all queues of the broker that it names.
			if name := mq.GetBroker().GetName(); !brokers[name] {
				brokers[name] = true
				r.readable = append(r.readable, q)
			}
		}
	}
	return r, nil
}

// pick rotates over the queues and passes over those whose endpoint is known not to
// answer while another is not.
func (r *route) pick(queues []queue) (queue, error) {
	if len(queues) == 0 {
		return queue{}, ErrNoQueue
	}
	start := int(r.next.Add(1) % uint32(len(queues)))
	for i := range queues {
		if q := queues[(start+i)%len(queues)]; !q.ep.broken() {
			return q, nil
		}
	}
	return queues[start], nil
}

// loop sends heartbeats and refreshes routes until Close: from time to time, and soon
// when an endpoint does not answer, since the route then names others.
func (c *core) loop() {
	heartbeat := time.NewTicker(heartbeatEvery)
	defer heartbeat.Stop()
	refresh := time.NewTicker(routeEvery)
	defer refresh.Stop()
	stale, again := c.stale, (<-chan time.Time)(nil)
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-heartbeat.C:
			c.heartbeat()
		case <-refresh.C:
			c.refresh()
		case <-stale:
			c.refresh()
			stale, again = nil, time.After(staleEvery)
		case <-again:
			stale, again = c.stale, nil
		}
	}
}

// heartbeat tells every endpoint that the client lives, all at one time so that a
// dead endpoint delays no other.
func (c *core) heartbeat() {
	ctx, cancel := c.outgoing(c.ctx, c.cfg.RequestTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, ep := range c.snapshot() {
		wg.Go(func() {
			resp, err := ep.stub().Heartbeat(ctx, &pb.HeartbeatRequest{Group: c.group, ClientType: c.settings.GetClientType()})
			ep.heard(err)
			if err == nil {
				err = check("Heartbeat", ep.addr, resp.GetStatus())
			}
			if err != nil && c.ctx.Err() == nil {
				c.cfg.Logger.Warn("rocketmq heartbeat failed", "peer", ep.addr, "err", err)
			}
		})
	}
	wg.Wait()
}

// refresh asks for every known route again and retires endpoints that no route
// has named for two rounds.
func (c *core) refresh() {
	select {
	case c.loading <- struct{}{}:
	case <-c.ctx.Done():
		return
	}
	defer func() { <-c.loading }()
	for topic := range *c.routes.Load() {
		if _, err := c.load(c.ctx, topic); err != nil && c.ctx.Err() == nil {
			c.cfg.Logger.Warn("rocketmq route refresh failed", "topic", topic, "err", err)
		}
	}
	used := map[*endpoint]bool{}
	for _, r := range *c.routes.Load() {
		for _, q := range r.writable {
			used[q.ep] = true
		}
		for _, q := range r.readable {
			used[q.ep] = true
		}
	}
	for _, ep := range c.snapshot() {
		if used[ep] || ep.addr == c.cfg.Endpoint {
			ep.unused = 0
			continue
		}
		if ep.unused++; ep.unused >= 2 {
			c.retire(ep)
		}
	}
}

// close ends the client; the second call does nothing.
func (c *core) close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	c.mu.Unlock()

	ctx, cancel := c.outgoing(context.Background(), time.Second)
	var wg sync.WaitGroup
	for _, ep := range c.snapshot() {
		wg.Go(func() {
			// A courtesy: a server that does not hear it expires the state by itself.
			_, err := ep.stub().NotifyClientTermination(ctx, &pb.NotifyClientTerminationRequest{Group: c.group})
			if err != nil {
				c.cfg.Logger.Debug("rocketmq termination not delivered", "peer", ep.addr, "err", err)
			}
		})
	}
	wg.Wait()
	cancel()
	c.cancel()
	for _, ep := range c.snapshot() {
		c.retire(ep)
	}
	c.wg.Wait()
}

// callOptions are those of every receive and unary call.
func callOptions() grpc.DialOption {
	return grpc.WithDefaultCallOptions(grpc.ForceCodecV2(pb.Codec), grpc.MaxCallRecvMsgSize(maxAnswer), grpc.MaxCallSendMsgSize(sendBatchLimit+maxAnswer))
}
