package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/internal/gossip"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
)

// watched is what a node's meters read besides its status. It is filled while
// the node starts, before observe.
type watched struct {
	pools  []watchedPool
	peers  []watchedPeers
	queues queues
}

type watchedPool struct {
	name string // city or wan
	pool *gossip.Pool
}

type watchedPeers struct {
	direction string // in or out
	stats     func() peer.Stats
}

// meterSet makes observable instruments and remembers the first failure. All
// are read in one callback, so that a scrape asks the node once.
type meterSet struct {
	meter metric.Meter
	all   []metric.Observable
	err   error
}

func (m *meterSet) gauge(name, unit, about string) metric.Int64ObservableGauge {
	g, err := m.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(about))
	m.err, m.all = errors.Join(m.err, err), append(m.all, g)
	return g
}

func (m *meterSet) float(name, unit, about string) metric.Float64ObservableGauge {
	g, err := m.meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(about))
	m.err, m.all = errors.Join(m.err, err), append(m.all, g)
	return g
}

func (m *meterSet) counter(name, unit, about string) metric.Int64ObservableCounter {
	c, err := m.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(about))
	m.err, m.all = errors.Join(m.err, err), append(m.all, c)
	return c
}

// look is one reading of a node.
type look struct {
	metric.Observer
	now      time.Time
	status   admin.Status
	topology *zone.Topology
}

// observe exports what the node's status says, and what its certificate,
// gossip and in-city connections count.
func (b *base) observe(n admin.Node, topology func() *zone.Topology) error {
	m := &meterSet{meter: b.meter()}
	parts := []func(*look){b.nodeMeters(m), b.certMeters(m), b.gossipMeters(m), b.peerMeters(m), b.queueMeters(m)}
	switch b.self.Role {
	case zone.RoleBroker:
		parts = append(parts, logMeters(m), flowMeters(m), tailMeters(m), storeMeters(m))
	case zone.RoleRouter:
		parts = append(parts, b.cityMeters(m))
	case zone.RoleCacheSync:
		parts = append(parts, cacheMeters(m))
	}
	if m.err != nil {
		return fmt.Errorf("metrics: %w", m.err)
	}
	_, err := m.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		l := &look{Observer: o, now: time.Now(), status: n.Status(), topology: topology()}
		for _, part := range parts {
			part(l)
		}
		return nil
	}, m.all...)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

func one(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

func (b *base) nodeMeters(m *meterSet) func(*look) {
	ready := m.gauge("mqrouter.node.ready", "{node}", "1 when the node serves.")
	uptime := m.float("mqrouter.node.uptime", "s", "Time since the node started.")
	reasons := m.gauge("mqrouter.node.reasons", "{reason}", "Reasons why the node is not ready or works in a degraded way; status tells them.")
	epoch := m.gauge("mqrouter.topology.epoch", "{epoch}", "Number of the epoch in force; term and digest are attributes.")
	refused := m.gauge("mqrouter.topology.refused", "{topology}", "1 when the newest topology file is not in force here; status tells why.")
	return func(l *look) {
		l.ObserveInt64(ready, one(l.status.Ready))
		l.ObserveFloat64(uptime, l.now.Sub(l.status.Started).Seconds())
		l.ObserveInt64(reasons, int64(len(l.status.Reasons)))
		l.ObserveInt64(epoch, int64(l.topology.Epoch.Number), metric.WithAttributes(
			attribute.Int64("term", int64(l.topology.Epoch.Term)), attribute.String("digest", l.status.Topology.Digest)))
		l.ObserveInt64(refused, one(l.status.Topology.Problem != ""))
	}
}

func (b *base) certMeters(m *meterSet) func(*look) {
	left := m.float("mqrouter.certificate.expiry", "d", "Days until the certificate in use ends.")
	ca := m.float("mqrouter.certificate.authority.expiry", "d", "Days until the first of the authorities in use ends.")
	stale := m.gauge("mqrouter.certificate.refused", "{certificate}", "1 when the files on the disk are not in use; status tells why.")
	return func(l *look) {
		st := b.certs.Status()
		l.ObserveFloat64(left, b.certs.DaysLeft())
		l.ObserveFloat64(ca, st.CANotAfter.Sub(l.now).Hours()/24)
		l.ObserveInt64(stale, one(st.Err != nil))
	}
}

func (b *base) gossipMeters(m *meterSet) func(*look) {
	members := m.gauge("mqrouter.gossip.members", "{node}", "Living members of a pool, this node included.")
	refused := m.counter("mqrouter.gossip.refused", "{packet}", "Packets and streams that a pool refused, by reason.")
	conflicts := m.counter("mqrouter.gossip.conflicts", "{conflict}", "Other living nodes seen under this node's name.")
	failures := m.counter("mqrouter.gossip.join.failures", "{attempt}", "Attempts to reach a seed that failed.")
	return func(l *look) {
		for _, p := range b.watched.pools {
			pool, s := attribute.String("pool", p.name), p.pool.Stats()
			at := metric.WithAttributes(pool)
			l.ObserveInt64(members, int64(len(p.pool.Members())), at)
			l.ObserveInt64(conflicts, int64(s.NameConflicts), at)
			l.ObserveInt64(failures, int64(s.JoinFailures), at)
			for reason, n := range map[string]uint64{"foreign label": s.ForeignLabel, "foreign key": s.ForeignKey,
				"malformed": s.Malformed, "too many streams": s.StreamsRefused, "too fast": s.PacketsDropped} {
				l.ObserveInt64(refused, int64(n), metric.WithAttributes(pool, attribute.String("reason", reason)))
			}
		}
	}
}

func (b *base) peerMeters(m *meterSet) func(*look) {
	failed := m.counter("mqrouter.peer.handshake.failures", "{connection}", "In-city connections that did not get through TLS and greeting, or were too many.")
	sessions := m.counter("mqrouter.peer.sessions.refused", "{session}", "Sessions refused on in-city connections.")
	slow := m.counter("mqrouter.peer.resets", "{session}", "Sessions and connections reset since no bytes were taken or a queue was full.")
	bytes := m.counter("mqrouter.peer.transferred", "By", "Bytes on in-city connections, inside TLS.")
	return func(l *look) {
		var read, wrote uint64
		for _, p := range b.watched.peers {
			s, at := p.stats(), metric.WithAttributes(attribute.String("direction", p.direction))
			l.ObserveInt64(failed, int64(s.Failed+s.Refused), at)
			l.ObserveInt64(sessions, int64(s.RefusedSessions), at)
			l.ObserveInt64(slow, int64(s.Overflows+s.SlowPeers), at)
			read, wrote = read+s.BytesIn, wrote+s.BytesOut
		}
		l.ObserveInt64(bytes, int64(read), metric.WithAttributes(attribute.String("direction", "in")))
		l.ObserveInt64(bytes, int64(wrote), metric.WithAttributes(attribute.String("direction", "out")))
	}
}

func logMeters(m *meterSet) func(*look) {
	writable := m.gauge("mqrouter.log.writable", "{log}", "1 when the commit log takes records; status tells why not.")
	size := m.gauge("mqrouter.log.size", "By", "Bytes of the commit log that are held.")
	behind := m.gauge("mqrouter.log.snapshot.behind", "By", "Bytes of the log that a start folds again: committed since the newest snapshot.")
	return func(l *look) {
		s := l.status.Log
		if s == nil {
			return
		}
		l.ObserveInt64(writable, one(s.Problem == ""))
		l.ObserveInt64(size, int64(s.Committed-s.Begin))
		l.ObserveInt64(behind, int64(s.Committed-min(s.Snapshot, s.Committed)))
	}
}

// flowKey is what flow gauges are told apart by: lanes would be too many.
type flowKey struct {
	target, city, class string
	channel             bool
}

// flowSum is what the lanes of a flow are together.
type flowSum struct {
	age, stalled time.Duration // of the worst lane
	used         float64       // of the topic that is nearest to its budget
	lost         uint64        // records declared lost
	compacted    uint64
	removed      bool
	lanes        map[string]int64
}

func flowMeters(m *meterSet) func(*look) {
	age := m.float("mqrouter.flow.oldest.age", "s", "Age of the oldest record that a destination has not settled; 0 = none.")
	stalled := m.float("mqrouter.flow.stalled", "s", "How long a flow with a backlog has settled nothing; 0 = no backlog.")
	used := m.float("mqrouter.flow.budget.used", "1", "Backlog over budget of the topic that is nearest to it.")
	given := m.counter("mqrouter.flow.given_up", "{record}", "Records that the origin does not send to a destination, since the flow began: lost or compacted.")
	removed := m.gauge("mqrouter.flow.removed", "{flow}", "1 when a destination holds records back that the topology does not have any more.")
	lanes := m.gauge("mqrouter.flow.lanes", "{lane}", "Lanes of a flow by state.")
	return func(l *look) {
		for key, s := range sumFlows(l.status.Flows, l.now) {
			attrs := []attribute.KeyValue{attribute.String("flow", key.target), attribute.String("city", key.city), attribute.String("class", key.class)}
			at := metric.WithAttributes(attrs...)
			l.ObserveFloat64(age, s.age.Seconds(), at)
			l.ObserveFloat64(stalled, s.stalled.Seconds(), at)
			l.ObserveFloat64(used, s.used, at)
			l.ObserveInt64(given, int64(s.lost), at, metric.WithAttributes(attribute.String("kind", "lost")))
			l.ObserveInt64(given, int64(s.compacted), at, metric.WithAttributes(attribute.String("kind", "compacted")))
			l.ObserveInt64(removed, one(s.removed), at)
			for state, n := range s.lanes {
				l.ObserveInt64(lanes, n, at, metric.WithAttributes(attribute.String("state", state)))
			}
		}
	}
}

func sumFlows(flows []admin.Flow, now time.Time) map[flowKey]*flowSum {
	sums := map[flowKey]*flowSum{}
	for i := range flows {
		f := &flows[i]
		key := flowKey{target: f.Target, city: f.City, class: f.Class, channel: f.Channel}
		s := sums[key]
		if s == nil {
			s = &flowSum{lanes: map[string]int64{}}
			sums[key] = s
		}
		s.age, s.stalled = max(s.age, f.OldestAge), max(s.stalled, stalledFor(f, now))
		for _, b := range f.Budgets {
			if b.Limit > 0 {
				s.used = max(s.used, float64(b.Held)/float64(b.Limit))
			}
		}
		s.lost, s.compacted, s.removed = s.lost+f.Lost, s.compacted+f.Compacted, s.removed || f.Removed && f.Backlog > 0
		s.lanes[f.State]++
	}
	return sums
}

// stalledFor is how long a flow with a backlog has settled nothing. A record
// that came after a quiet hour has waited since it came, not for the hour.
func stalledFor(f *admin.Flow, now time.Time) time.Duration {
	switch {
	case f.Backlog == 0:
		return 0
	case f.Progress.IsZero():
		return f.OldestAge
	}
	return max(min(now.Sub(f.Progress), f.OldestAge), 0)
}

// cityMeters says for every other city with routers how many links to it are
// up: no link at all shows as 0, not as a missing series.
func (b *base) cityMeters(m *meterSet) func(*look) {
	links := m.gauge("mqrouter.city.links", "{link}", "Links to a city that take sessions.")
	return func(l *look) {
		up := map[string]int64{}
		for _, link := range l.status.Links {
			up[link.City] += one(link.State == "up")
		}
		for _, c := range l.topology.Cities {
			if c.Name != b.self.City.Name && len(c.Routers) > 0 {
				l.ObserveInt64(links, up[string(c.Name)], metric.WithAttributes(attribute.String("city", string(c.Name))))
			}
		}
	}
}

// cacheMeters adds what package broadcast does not count itself.
func cacheMeters(m *meterSet) func(*look) {
	healthy := m.gauge("mqrouter.cache.healthy", "{cache}", "1 when the cache follows its city's landings; status tells why not.")
	return func(l *look) {
		if c := l.status.Cache; c != nil {
			l.ObserveInt64(healthy, one(c.Problem == ""))
		}
	}
}
