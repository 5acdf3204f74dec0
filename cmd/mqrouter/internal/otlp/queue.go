package otlp

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/mqrouter/mqrouter/internal/loglimit"
)

// queue is the SDK's batch processor with a bound that can be seen: a span that
// finds capacity others waiting or on their way is dropped and counted. The
// SDK's own queue is as large and therefore never full.
type queue struct {
	sdk.SpanProcessor
	out      *sender
	capacity int64
}

// sender passes batches to the collector's client and counts what became of them.
type sender struct {
	to      sdk.SpanExporter
	log     *slog.Logger
	life    context.Context // ends when the collector may take no more time
	cut     context.CancelFunc
	refused loglimit.Limit // lines about a collector that takes nothing

	waiting  atomic.Int64 // spans that wait or are on their way
	taken    atomic.Int64 // into the queue
	dropped  atomic.Int64 // found the queue full
	exported atomic.Int64
	failed   atomic.Int64 // the collector did not take them
}

// Lines about a collector that takes nothing.
const (
	refusedLines  = 1
	refusedWindow = time.Minute
)

func newQueue(to sdk.SpanExporter, capacity int, protocol string, o Options) (*queue, error) {
	s := &sender{to: to, log: o.Logger, refused: loglimit.Limit{Lines: refusedLines, Window: refusedWindow}}
	s.life, s.cut = context.WithCancel(context.Background())
	q := &queue{out: s, capacity: int64(capacity), SpanProcessor: sdk.NewBatchSpanProcessor(s, sdk.WithMaxQueueSize(capacity))}
	return q, q.observe(o.Meter, protocol)
}

// OnEnd implements sdk.SpanProcessor. It does not block.
func (q *queue) OnEnd(span sdk.ReadOnlySpan) {
	if q.out.waiting.Add(1) > q.capacity {
		q.out.waiting.Add(-1)
		q.out.dropped.Add(1)
		return
	}
	q.out.taken.Add(1)
	q.SpanProcessor.OnEnd(span)
}

// cut ends what is on its way; what follows fails at once.
func (q *queue) cut() { q.out.cut() }

// ExportSpans implements sdk.SpanExporter. Failures are counted here and end
// here: there is nobody to tell.
func (s *sender) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	err := s.to.ExportSpans(ctx, spans)
	n := int64(len(spans))
	s.waiting.Add(-n)
	if err == nil {
		s.exported.Add(n)
		return nil
	}
	s.failed.Add(n)
	if missed, ok := s.refused.Allow(time.Now()); ok {
		s.log.Warn("spans are dropped: the collector does not take them", "err", err, "missed", missed)
	}
	return nil
}

// Shutdown implements sdk.SpanExporter.
func (s *sender) Shutdown(ctx context.Context) error {
	defer s.cut()
	if err := s.to.Shutdown(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// observe exports the queue's numbers under the names of the conventions for SDKs.
func (q *queue) observe(m metric.Meter, protocol string) error {
	kind := semconv.OTelComponentTypeOtlpHTTPSpanExporter
	if protocol == protocolGRPC {
		kind = semconv.OTelComponentTypeOtlpGRPCSpanExporter
	}
	exporter := metric.WithAttributes(kind)
	processor := metric.WithAttributes(semconv.OTelComponentTypeBatchingSpanProcessor)
	size, err1 := m.Int64ObservableUpDownCounter("otel.sdk.processor.span.queue.size", metric.WithUnit("{span}"),
		metric.WithDescription("Spans that wait for the collector or are on their way."))
	capacity, err2 := m.Int64ObservableUpDownCounter("otel.sdk.processor.span.queue.capacity", metric.WithUnit("{span}"),
		metric.WithDescription("Most spans that may wait."))
	processed, err3 := m.Int64ObservableCounter("otel.sdk.processor.span.processed", metric.WithUnit("{span}"),
		metric.WithDescription("Spans taken into the queue, and with error.type queue_full those that found it full."))
	exported, err4 := m.Int64ObservableCounter("otel.sdk.exporter.span.exported", metric.WithUnit("{span}"),
		metric.WithDescription("Spans that the collector took, and with error.type failed those that it did not take."))
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	full := metric.WithAttributes(semconv.OTelComponentTypeBatchingSpanProcessor, errorType("queue_full"))
	failed := metric.WithAttributes(kind, errorType("failed"))
	_, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := q.out
		o.ObserveInt64(size, s.waiting.Load(), processor)
		o.ObserveInt64(capacity, q.capacity, processor)
		o.ObserveInt64(processed, s.taken.Load(), processor)
		o.ObserveInt64(processed, s.dropped.Load(), full)
		o.ObserveInt64(exported, s.exported.Load(), exporter)
		o.ObserveInt64(exported, s.failed.Load(), failed)
		return nil
	}, size, capacity, processed, exported)
	return err
}

func errorType(text string) attribute.KeyValue { return semconv.ErrorTypeKey.String(text) }
