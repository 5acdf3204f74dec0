package broadcast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"

	"github.com/mqrouter/mqrouter/internal/tracing"
)

// metrics are the instruments of a Sync. Attributes: topic; result, kind and
// origin where they apply.
type metrics struct {
	meter                      metric.Meter
	topic                      attribute.KeyValue
	done, gaps, back, failures metric.Int64Counter
	delay                      metric.Float64Histogram
	process                    messagingconv.ProcessDuration // the conventions' name for what an application does with messages
	consumed                   messagingconv.ClientConsumedMessages
	about                      []attribute.KeyValue // of the two
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
	m.process, err = messagingconv.NewProcessDuration(meter)
	errs = append(errs, err)
	m.consumed, err = messagingconv.NewClientConsumedMessages(meter)
	errs = append(errs, err)
	m.about = []attribute.KeyValue{semconv.MessagingDestinationName(string(s.o.Topic)), semconv.MessagingConsumerGroupName(string(s.o.Subscription))}
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

// processed counts the messages of a batch and the time that the cache took; kind
// is the error's, empty when there is none.
func (m *metrics) processed(ctx context.Context, n int, took time.Duration, kind string) {
	about := m.about
	if kind != "" {
		about = append(slices.Clip(about), semconv.ErrorTypeKey.String(kind))
	}
	m.process.Record(ctx, took.Seconds(), string(tracing.Apply), messagingconv.SystemRocketMQ, about...)
	m.consumed.Add(ctx, int64(n), string(tracing.Apply), messagingconv.SystemRocketMQ, about...)
}
