package broker

import (
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqrouter/mqrouter/internal/tracing"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
)

// landed is what a landing has of records that ask for a span.
type landed struct {
	began time.Time // when the first was looked at
	first []landedRecord
	count int // of all
}

type landedRecord struct {
	number    uint64
	parent    trace.SpanContext // what the record carries
	topic, id string
	reason    record.Reason // ReasonNone: it lands
}

// add looks at a record that can be read and returns t, which is made, from nil,
// for the first that asks.
func (t *landed) add(number uint64, v record.View, reason record.Reason) *landed {
	parent, ok := tracing.Sampled(v.TraceContext())
	if !ok {
		return t
	}
	if t == nil {
		t = &landed{began: time.Now()}
	}
	if t.count++; t.count <= tracing.MaxPerBatch {
		t.first = append(t.first, landedRecord{number, parent, string(v.Topic()), string(v.MessageID()), reason})
	}
	return t
}

// trace makes the spans once the landing is committed; a landing that was refused
// comes again and has none.
func (t *landed) trace(b *Broker, l *flow.Landing) {
	b.tracer.Skipped(tracing.Landing, t.count-len(t.first))
	path := make([]string, 0, len(l.Path))
	for _, c := range l.Path {
		path = append(path, string(c))
	}
	for i := range t.first {
		r := &t.first[i]
		outcome := record.OutcomeLanded
		if r.reason != record.ReasonNone {
			outcome = record.OutcomeParked
		}
		span := b.tracer.Start(tracing.Landing, trace.SpanKindServer, r.topic, r.parent, t.began,
			semconv.MessagingDestinationName(r.topic), semconv.MessagingMessageID(r.id),
			tracing.KeyFlow.String(l.Flow.Target), tracing.KeyOrigin.String(string(l.Flow.Origin)), tracing.KeyNumber.Int64(int64(r.number)),
			tracing.KeyGroup.String(string(b.self)), tracing.KeyHops.Int(int(l.Hops)), tracing.KeyPath.StringSlice(path),
			tracing.KeyOutcome.String(outcome.String()))
		if r.reason != record.ReasonNone {
			span.SetAttributes(tracing.KeyReason.Int(int(r.reason)))
			tracing.Fail(span, outcome.String(), "the record can never land here")
		}
		span.End()
	}
}
