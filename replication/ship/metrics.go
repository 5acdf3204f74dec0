package ship

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/mqrouter/mqrouter/replication/wire"
)

// meters makes instruments and remembers the first failures.
type meters struct {
	metric.Meter
	err error
}

func newMeters(m metric.Meter) *meters {
	if m == nil {
		m = noop.Meter{}
	}
	return &meters{Meter: m}
}

func (m *meters) counter(name, unit, about string) metric.Int64Counter {
	c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(about))
	m.err = errors.Join(m.err, err)
	return c
}

func (m *meters) gauge(name, unit, about string) metric.Int64ObservableGauge {
	g, err := m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(about))
	m.err = errors.Join(m.err, err)
	return g
}

func attributed(key, value string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String(key, value)))
}

// leaderMetrics is what a master measures. The series grow with the members of the
// group, of which there are few.
type leaderMetrics struct {
	bytes, seeds, broken, refusals, changes, faults, requests metric.Int64Counter
	registration                                              metric.Registration
}

func newLeaderMetrics(meter metric.Meter, l *Leader) (*leaderMetrics, error) {
	ms := newMeters(meter)
	m := &leaderMetrics{
		bytes:    ms.counter("mqrouter.ship.sent", "By", "Bytes of the log sent to replicas."),
		seeds:    ms.counter("mqrouter.ship.seeds", "{snapshot}", "Snapshots sent to replicas that could not go on from their own log."),
		broken:   ms.counter("mqrouter.ship.seeds.broken", "{snapshot}", "Snapshots that replicas did not get whole, or could not be opened for them."),
		refusals: ms.counter("mqrouter.ship.refused", "{session}", "Replicas' sessions refused, by code. Diverged must stay 0."),
		changes:  ms.counter("mqrouter.ship.phases", "{change}", "Replicas' steps to a phase, by phase."),
		faults:   ms.counter("mqrouter.ship.faults", "{change}", "Replicas' steps back, by what was wrong."),
		requests: ms.counter("mqrouter.ship.set.requests", "{request}", "Requests to the coordinator for another in-sync set, by result."),
	}
	ctx := context.Background()
	for _, f := range faults() { // the first fault is an increase, not a new series
		m.faults.Add(ctx, 0, attributed("fault", f.String()))
	}
	m.broken.Add(ctx, 0)
	m.refusals.Add(ctx, 0, attributed("code", wire.CodeDiverged.String()))
	inSync := ms.gauge("mqrouter.ship.in_sync", "{node}", "Copies that an acknowledgement has, the master's included.")
	behind := ms.gauge("mqrouter.ship.behind", "By", "Bytes of the master's log that are not durable at a replica.")
	phase := ms.gauge("mqrouter.ship.phase", "", "Phase of a replica: 0 absent, 1 async, 2 semi-sync, 3 sync.")
	waiting := ms.gauge("mqrouter.ship.uncommitted", "By", "Bytes that are durable at the master and not committed.")
	var err error
	m.registration, err = ms.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		st := l.Status()
		o.ObserveInt64(inSync, int64(l.InSync()))
		o.ObserveInt64(waiting, int64(st.Synced-min(st.Synced, st.Committed)))
		for _, r := range st.Replicas {
			node := attributed("replica", string(r.Node))
			o.ObserveInt64(behind, int64(r.Behind), node)
			o.ObserveInt64(phase, int64(r.Phase), node)
		}
		return nil
	}, inSync, behind, phase, waiting)
	return m, errors.Join(ms.err, err)
}

func (m *leaderMetrics) shipped(n int) { m.bytes.Add(context.Background(), int64(n)) }

func (m *leaderMetrics) seeded() { m.seeds.Add(context.Background(), 1) }

func (m *leaderMetrics) seedBroke() { m.broken.Add(context.Background(), 1) }

func (m *leaderMetrics) refused(code wire.Code) {
	m.refusals.Add(context.Background(), 1, attributed("code", code.String()))
}

func (m *leaderMetrics) changed(c Change) {
	ctx := context.Background()
	m.changes.Add(ctx, 1, attributed("phase", c.To.String()))
	if c.Fault != FaultNone {
		m.faults.Add(ctx, 1, attributed("fault", c.Fault.String()))
	}
}

func (m *leaderMetrics) asked(err error) {
	result := "done"
	if err != nil {
		result = "failed"
	}
	m.requests.Add(context.Background(), 1, attributed("result", result))
}

func (m *leaderMetrics) close() {
	if m.registration != nil {
		// It cannot fail for a registration of this meter.
		_ = m.registration.Unregister()
	}
}

// followerMetrics is what a replica measures.
type followerMetrics struct {
	bytes, ends, cuts metric.Int64Counter
	registration      metric.Registration
}

func newFollowerMetrics(meter metric.Meter, f *Follower) (*followerMetrics, error) {
	ms := newMeters(meter)
	m := &followerMetrics{
		bytes: ms.counter("mqrouter.ship.received", "By", "Bytes of the log received from a master."),
		ends:  ms.counter("mqrouter.ship.session.ends", "{session}", "Sessions with a master that ended, or could not be had."),
		cuts:  ms.counter("mqrouter.ship.truncated", "By", "Bytes dropped from this log since the master does not have them."),
	}
	following := ms.gauge("mqrouter.ship.following", "", "1 while this replica follows its master.")
	var err error
	m.registration, err = ms.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		n := int64(0)
		if f.Status().Following {
			n = 1
		}
		o.ObserveInt64(following, n)
		return nil
	}, following)
	return m, errors.Join(ms.err, err)
}

func (m *followerMetrics) received(n int) { m.bytes.Add(context.Background(), int64(n)) }

func (m *followerMetrics) ended() { m.ends.Add(context.Background(), 1) }

func (m *followerMetrics) truncated(n uint64) { m.cuts.Add(context.Background(), int64(n)) }

func (m *followerMetrics) close() {
	if m.registration != nil {
		// It cannot fail for a registration of this meter.
		_ = m.registration.Unregister()
	}
}
