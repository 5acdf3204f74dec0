package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9/logging"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/broadcast/cache"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/replication/masters"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// cacheNode keeps a cache of its city fresh. It is no member of the city's
// gossip: the topology says who has the landings.
type cacheNode struct {
	*base
	applier broadcast.Applier
	kind    string
	dialer  *peer.Dialer
	masters *masters.Directory

	mu    sync.Mutex
	syncs []*broadcast.Sync // guarded by mu; of the topology in force
}

// CacheSync runs a cache reader until ctx ends.
func CacheSync(ctx context.Context, cfg config.Node, o Options) error {
	b, err := open(ctx, cfg, zone.RoleCacheSync, o)
	if err != nil {
		return err
	}
	n := &cacheNode{base: b, applier: o.Cache, masters: masters.New(nil)}
	if err := n.start(ctx); err != nil {
		return errors.Join(err, n.close())
	}
	return n.serve(ctx)
}

func (n *cacheNode) start(ctx context.Context) error {
	if _, err := n.plan(n.source.Current()); err != nil {
		return err
	}
	if err := n.openCache(); err != nil {
		return err
	}
	incarnation, err := newIncarnation()
	if err != nil {
		return err
	}
	n.dialer, err = peer.NewDialer(peer.Options{
		Self: n.certs.Identity(), Incarnation: incarnation, TLS: n.inCity(n.source.Current, zone.RoleBroker), Logger: n.log,
		DialContext: n.net.Dial,
		Topology:    func() (zone.Epoch, zone.Digest) { t := n.source.Current(); return t.Epoch, t.Digest },
	})
	if err != nil {
		return err
	}
	n.onStop("peer dialler", n.dialer.Close)
	n.run(ctx, "cache sync", n.follow)
	return n.serveAdmin(ctx, n, n.source.Current)
}

// quietRedis silences go-redis, which would write to the standard error by
// itself: what it has to say comes back as errors, too.
var quietRedis = sync.OnceFunc(logging.Disable)

// openCache takes the cache that the process gave, opens the Redis of the
// configuration, or makes a cache in this process.
func (n *cacheNode) openCache() error {
	if n.applier != nil {
		n.kind = "given"
		return nil
	}
	if n.cfg.Redis == "" {
		n.applier, n.kind = cache.NewMemory(cache.MemoryOptions{}), "memory"
		return nil
	}
	quietRedis()
	var addrs []string
	for a := range strings.SplitSeq(n.cfg.Redis, ",") {
		addrs = append(addrs, strings.TrimSpace(a))
	}
	r, err := cache.NewRedis(cache.RedisOptions{Addrs: addrs, Password: n.cfg.RedisPassword, Prefix: n.cfg.RedisPrefix})
	if err != nil {
		return err
	}
	n.applier, n.kind = r, "redis"
	n.onStop("redis", r.Close)
	return nil
}

// feed is a topic and where its landings are read.
type feed struct {
	topic     zone.Topic
	exclusive bool
	group     zone.Group
	target    peer.Target
}

// plan says what is read from where. It fails when the topology gives this
// reader nothing to read.
func (n *cacheNode) plan(t *zone.Topology) ([]feed, error) {
	g := t.FindConsumerGroup(zone.ConsumerGroup(n.cfg.Group))
	city := t.FindCity(n.self.City.Name)
	switch {
	case g == nil:
		return nil, fmt.Errorf("consumer group %q is not in the topology", n.cfg.Group)
	case !g.Cache:
		return nil, fmt.Errorf("consumer group %q is not declared with cache: true", n.cfg.Group)
	case city == nil || city.CZone == nil:
		return nil, fmt.Errorf("city %q has no CZone in the topology", n.self.City.Name)
	}
	var feeds []feed
	for _, topic := range g.Topics {
		if topic.Channel == nil || !t.LandsIn(topic, city.CZone) {
			continue
		}
		owner := city.CZone.SlotOwner(topic.Channel.Slot)
		if owner == nil || len(owner.Nodes) == 0 {
			continue
		}
		broker := owner.Nodes[0]
		feeds = append(feeds, feed{topic: topic.Name, exclusive: len(topic.Channel.Topics) == 1, group: owner.Name, target: peer.Target{
			Identity: peer.IdentityFor(t.Deployment, broker), Addr: broker.Peer, Destination: city.Name, Class: topic.Channel.Class}})
	}
	if len(feeds) == 0 {
		return nil, fmt.Errorf("no topic of consumer group %q lands in the CZone of %s", g.Name, city.Name)
	}
	return feeds, nil
}

// following is a reader that runs.
type following struct {
	*broadcast.Sync
	cancel context.CancelFunc
	done   chan error // its one value is why it ended
}

// stop ends the reader and waits for it.
func (f *following) stop() error {
	f.cancel()
	return <-f.done
}

// follow runs a reader for each feed of the topology in force. Those of feeds
// that a new topology leaves as they are go on undisturbed.
func (n *cacheNode) follow(ctx context.Context) error {
	running := map[feed]*following{}
	defer func() {
		for _, r := range running {
			_ = r.stop() // readers end without an error once they are stopped
		}
	}()
	for {
		t, changed := n.source.Watch()
		feeds, err := n.plan(t)
		if err != nil {
			text := err.Error()
			n.refused.Store(&text)
			n.log.Error("topology leaves nothing to read; reading goes on as before", "err", err)
		} else {
			n.refused.Store(nil)
			if err := n.adjust(ctx, running, feeds); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// adjust stops readers without a feed, then starts those that are missing: the
// place of a topic has one reader at a time.
func (n *cacheNode) adjust(ctx context.Context, running map[feed]*following, feeds []feed) error {
	for f, r := range running {
		if !slices.Contains(feeds, f) {
			delete(running, f)
			if err := r.stop(); err != nil {
				return err
			}
		}
	}
	var syncs []*broadcast.Sync
	for _, f := range feeds {
		r := running[f]
		if r == nil {
			var err error
			if r, err = n.read(ctx, f); err != nil {
				return err
			}
			running[f] = r
		}
		syncs = append(syncs, r.Sync)
	}
	n.mu.Lock()
	n.syncs = syncs
	n.mu.Unlock()
	return nil
}

// read starts the reader of a feed.
func (n *cacheNode) read(ctx context.Context, f feed) (*following, error) {
	s, err := broadcast.NewSync(broadcast.Options{
		City: n.self.City.Name, Topic: f.topic, Subscription: zone.ConsumerGroup(n.cfg.Group), Exclusive: f.exclusive,
		Applier: n.applier, Kind: n.kind, Dial: n.dial(f), Logger: n.log, Meter: n.meter(), Tracer: n.tracer(),
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &following{Sync: s, cancel: cancel, done: make(chan error, 1)}
	go func() {
		err := s.Run(ctx)
		if ctx.Err() == nil {
			n.failed("cache sync", err)
		}
		r.done <- err
	}()
	return r, nil
}

// dial returns what opens a session with the owner of a feed: with its master as far as
// refusals have told, else with the first node that answers.
func (n *cacheNode) dial(f feed) func(context.Context) (wire.Stream, error) {
	return func(ctx context.Context) (wire.Stream, error) {
		t := n.source.Current()
		g := t.FindGroup(f.group)
		if g == nil || len(g.Nodes) < 2 {
			return n.open(ctx, f.target)
		}
		var errs []error
		for _, m := range n.masters.Order(g) {
			to := f.target
			to.Identity, to.Addr = peer.IdentityFor(t.Deployment, m), m.Peer
			s, err := n.open(ctx, to)
			if err == nil {
				return n.masters.Listen(s, g, m.Name), nil
			}
			errs = append(errs, fmt.Errorf("broker %s: %w", m.Name, err))
		}
		return nil, errors.Join(errs...)
	}
}

// open opens a session with a broker.
func (n *cacheNode) open(ctx context.Context, t peer.Target) (wire.Stream, error) {
	s, err := n.dialer.Open(ctx, t, rand.Uint64()|1)
	if err != nil {
		return nil, err // not s: a nil *Session is no nil Stream
	}
	return s, nil
}

// Status implements admin.Node.
func (n *cacheNode) Status() admin.Status {
	s := n.status(n.source.Current())
	n.mu.Lock()
	syncs := n.syncs
	n.mu.Unlock()
	c := &admin.Cache{Kind: n.kind, Group: n.cfg.Group, State: string(broadcast.StateConnecting), Watermarks: []admin.Watermark{}}
	for i, one := range syncs {
		st := one.Status()
		addCache(c, &st, i == 0)
		if st.State != broadcast.StateFollowing {
			s.Ready = false
			s.Reasons = append(s.Reasons, strings.TrimSuffix(fmt.Sprintf("topic %s: %s: %s", st.Topic, st.State, st.Problem), ": "))
		}
	}
	s.Cache = c
	return s
}

// addCache adds the status of a topic: counts are sums, the state is that of the
// first topic that does not follow.
func addCache(c *admin.Cache, st *broadcast.Status, first bool) {
	if first {
		c.State, c.Offset, c.Problem = string(st.State), st.Place.Offset, st.Problem
	} else if c.State == string(broadcast.StateFollowing) {
		c.State = string(st.State)
	}
	if c.Problem == "" {
		c.Problem = st.Problem
	}
	c.Lag += st.Lag
	c.Applied += st.Applied
	c.Superseded += st.Superseded
	c.Rejected += st.Rejected
	c.Gaps += st.Gaps
	c.Fills += st.Fills
	for _, m := range st.Watermarks {
		c.Watermarks = append(c.Watermarks, admin.Watermark{Origin: string(m.Flow.Origin), Incarnation: fmt.Sprintf("%016x", uint64(m.Flow.Incarnation)),
			Channel: m.Flow.Target, Number: m.Number})
	}
}

// Topology implements admin.Node.
func (n *cacheNode) Topology() []byte { return n.text.of(n.source.Current()) }

// Find implements admin.Node: a cache has no log.
func (n *cacheNode) Find(context.Context, string) ([]admin.Sighting, error) {
	return nil, admin.ErrNotServed
}

// CacheGet implements admin.Node.
func (n *cacheNode) CacheGet(ctx context.Context, key string) (admin.CacheEntry, error) {
	e, err := n.applier.Get(ctx, key)
	if err != nil {
		return admin.CacheEntry{}, err
	}
	return admin.CacheEntry{Key: key, Found: e.Found, Deleted: e.Deleted, Version: e.Version, Value: string(e.Value)}, nil
}

var _ admin.Node = (*cacheNode)(nil)
