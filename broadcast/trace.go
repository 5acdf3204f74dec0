package broadcast

import (
	"context"
	"errors"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqrouter/mqrouter/internal/tracing"
)

// tracedLanding is what is kept of a landing that asks for a span.
type tracedLanding struct {
	parent trace.SpanContext // what the record carries
}

// applySpans are the open spans of a batch.
type applySpans []trace.Span

// traceApply begins the spans of the landings that are about to be applied. It
// returns nil when nothing asks.
func (f *follower) traceApply(batch []landing) applySpans {
	if !f.tracer.On() {
		return nil
	}
	var spans applySpans
	var now time.Time
	skipped := 0
	for i := range batch {
		l := &batch[i]
		switch {
		case l.traced == nil:
			continue
		case len(spans) == tracing.MaxPerBatch:
			skipped++
			continue
		case now.IsZero():
			now = time.Now()
		}
		span := f.tracer.Start(tracing.Apply, trace.SpanKindConsumer, string(f.o.Topic), l.traced.parent, now,
			semconv.MessagingOperationTypeProcess, semconv.MessagingDestinationName(string(f.o.Topic)), semconv.MessagingMessageID(l.id),
			semconv.MessagingConsumerGroupName(string(f.o.Subscription)), semconv.MessagingBatchMessageCount(len(batch)),
			tracing.KeyOrigin.String(string(l.envelope.Flow.Origin)), tracing.KeyNumber.Int64(int64(l.envelope.Number)),
			tracing.KeyVersion.Int64(int64(l.change.Version)))
		if l.rejected != nil {
			tracing.Fail(span, "rejected", l.rejected.Error())
		}
		spans = append(spans, span)
	}
	f.tracer.Skipped(tracing.Apply, skipped)
	return spans
}

// end ends the spans with what became of the batch.
func (s applySpans) end(kind string, err error) {
	for _, span := range s {
		if kind != "" {
			tracing.Fail(span, kind, err.Error())
		}
		span.End()
	}
}

// errorKind is a short name of why a batch was not applied; empty when it was.
func errorKind(err error) string {
	var moved *MovedError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &moved):
		return "moved"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return "failed"
}
