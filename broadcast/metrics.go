package broadcast

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// metrics are the instruments of a Sync. Attributes: topic; result, kind and
// origin where they apply.
type metrics struct {
	meter                      metric.Meter
	topic                      attribute.KeyValue
	done, gaps, back, failures metric.Int64Counter
	delay                      metric.Float64Histogram
	lag, mark, offset          metric.Int64ObservableGauge
	registration               metric.Registration // only Run's goroutine
}

func newMetrics(meter metric.Meter, s *Sync) (*metrics, error) {
	if meter == nil {
		meter = noop.Meter{}
	}
	m := &metrics{meter: meter, topic: attribute.String("topic", string(s.o.Topic))}
	var errs []error
	counter := func(name, unit, about string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(about))
		errs = append(errs, err)
		return c
	}
	gauge := func(name, unit, about string) metric.Int64ObservableGauge {
		g, err := meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(about))
		errs = append(errs, err)
		return g
	}
	m.done = counter("mqrouter.cache.changes", "{change}", "Changes by result: applied, superseded, rejected.")
	m.gaps = counter("mqrouter.cache.gaps", "{gap}", "Gaps told, by kind.")
	m.back = counter("mqrouter.cache.regressions", "{regression}", "How often the cache fell back and was refilled.")
	m.failures = counter("mqrouter.cache.failures", "{call}", "Calls that the cache failed.")
	m.lag = gauge("mqrouter.cache.lag", "{landing}", "Landings that are known and not applied.")
	m.offset = gauge("mqrouter.cache.offset", "{landing}", "Offset below which everything is applied.")
	m.mark = gauge("mqrouter.cache.watermark", "{number}", "Number up to which an origin's channel is applied.")
	var err error
	m.delay, err = meter.Float64Histogram("mqrouter.cache.delay", metric.WithUnit("s"),
		metric.WithDescription("From the store at the origin, by its clock, to the cache, by this node's."),
		metric.WithExplicitBucketBoundaries(.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600))
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("broadcast: metrics: %w", err)
	}
	m.begin()
	return m, nil
}

// begin exports the counters of faults at 0: the first fault is an increase,
// not a new series.
func (m *metrics) begin() {
	ctx, with := context.Background(), metric.WithAttributes(m.topic)
	m.back.Add(ctx, 0, with)
	m.failures.Add(ctx, 0, with)
	for _, kind := range []GapKind{GapTrimmed, GapNumbers, GapDeclared} {
		m.gaps.Add(ctx, 0, with, metric.WithAttributes(attribute.String("kind", kind.String())))
	}
}

// observe exports what is read at each scrape, until stop.
func (m *metrics) observe(s *Sync) error {
	var err error
	m.registration, err = m.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		st := s.Status()
		with := metric.WithAttributes(m.topic)
		o.ObserveInt64(m.lag, int64(st.Lag), with)
		o.ObserveInt64(m.offset, int64(st.Place.Offset), with)
		for i := range st.Watermarks {
			w := &st.Watermarks[i]
			o.ObserveInt64(m.mark, int64(w.Number), metric.WithAttributes(m.topic, attribute.String("origin", string(w.Flow.Origin))))
		}
		return nil
	}, m.lag, m.offset, m.mark)
	if err != nil {
		return fmt.Errorf("broadcast: metrics: %w", err)
	}
	return nil
}

func (m *metrics) stop() {
	_ = m.registration.Unregister() // fails only after the provider's own end
}

func (m *metrics) changes(ctx context.Context, result string, n int) {
	if n > 0 {
		m.done.Add(ctx, int64(n), metric.WithAttributes(m.topic, attribute.String("result", result)))
	}
}

func (m *metrics) applied(ctx context.Context, b *Batch, r Result) {
	m.changes(ctx, "applied", r.Applied)
	m.changes(ctx, "superseded", r.Superseded)
	with, now := metric.WithAttributes(m.topic), time.Now()
	for i := range b.Changes {
		if at := b.Changes[i].Stored; !at.IsZero() {
			m.delay.Record(ctx, now.Sub(at).Seconds(), with)
		}
	}
}

func (m *metrics) gap(ctx context.Context, g Gap) {
	m.gaps.Add(ctx, 1, metric.WithAttributes(m.topic, attribute.String("kind", g.Kind.String())))
}

func (m *metrics) regression(ctx context.Context) { m.back.Add(ctx, 1, metric.WithAttributes(m.topic)) }
func (m *metrics) failure(ctx context.Context) {
	m.failures.Add(ctx, 1, metric.WithAttributes(m.topic))
}
