package flow

import (
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqrouter/mqrouter/internal/tracing"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// maxSpans bounds the outbound spans that a lane keeps open: those of the
// records that are sent and not settled.
const maxSpans = 256

// traced is what a batch has of records that ask for a span. The zero value is
// the one of nearly every batch.
type traced struct {
	first []tracedRecord // the first tracing.MaxPerBatch
	count int            // of all
}

// tracedRecord is a record that is traced.
type tracedRecord struct {
	number    uint64
	parent    trace.SpanContext // what the record carries
	topic, id string
}

// add looks at a record of the batch.
func (t *traced) add(number uint64, v *record.View) {
	parent, ok := tracing.Sampled(v.TraceContext())
	if !ok {
		return
	}
	if t.count++; t.count <= tracing.MaxPerBatch {
		t.first = append(t.first, tracedRecord{number, parent, string(v.Topic()), string(v.MessageID())})
	}
}

// spans are the open spans of a lane, ascending by number. They belong to the
// lane's goroutine.
type spans struct {
	open []outSpan
}

type outSpan struct {
	number uint64
	span   trace.Span
}

// begin starts the spans of a batch and appends the context of the first to the
// batch's payload: links continue there.
func (s *spans) begin(l *lane, t *traced, payload []byte) []byte {
	now := time.Now()
	list := t.first[:min(len(t.first), maxSpans-len(s.open))]
	l.o.tracer.Skipped(tracing.Outbound, t.count-len(list))
	first := t.first[0].parent
	for i := range list {
		r := &list[i]
		span := l.o.tracer.Start(tracing.Outbound, trace.SpanKindClient, r.topic, r.parent, now,
			semconv.MessagingDestinationName(r.topic), semconv.MessagingMessageID(r.id),
			tracing.KeyFlow.String(l.leg.Flow.Target), tracing.KeyNumber.Int64(int64(r.number)),
			tracing.KeyCity.String(string(l.leg.City)), tracing.KeyGroup.String(string(l.leg.Group)),
			tracing.KeyClass.String(l.leg.Flow.Class.String()))
		if i == 0 {
			first = span.SpanContext()
		}
		s.open = append(s.open, outSpan{r.number, span})
	}
	return wire.AppendTrace(payload, &wire.TraceContext{TraceID: first.TraceID(), SpanID: first.SpanID(), Flags: byte(first.TraceFlags())})
}

// settled ends the spans of the numbers that the source has recorded as settled.
func (s *spans) settled(p *Settlement) {
	n := 0
	for n < len(s.open) && s.open[n].number <= p.Through {
		o := &s.open[n]
		outcome, reason := outcomeOf(p.Outcomes, o.number)
		o.span.SetAttributes(tracing.KeyOutcome.String(outcome.String()))
		if outcome != record.OutcomeLanded {
			o.span.SetAttributes(tracing.KeyReason.Int(int(reason)))
		}
		if outcome != record.OutcomeLanded && outcome != record.OutcomeSkipped {
			tracing.Fail(o.span, outcome.String(), "the destination did not land the record")
		}
		o.span.End()
		n++
	}
	s.drop(n)
}

// abandon ends all spans: the session is over, the next one sends again what is
// not settled.
func (s *spans) abandon(code wire.Code) {
	for i := range s.open {
		o := &s.open[i]
		o.span.SetAttributes(tracing.KeyOutcome.String("unsettled"))
		tracing.Fail(o.span, code.String(), "the session ended before the record was settled; it is sent again")
		o.span.End()
	}
	s.drop(len(s.open))
}

// drop forgets the first n spans.
func (s *spans) drop(n int) {
	if n == 0 {
		return
	}
	left := copy(s.open, s.open[n:])
	clear(s.open[left:])
	s.open = s.open[:left]
}

// outcomeOf returns how a number was settled.
func outcomeOf(list []Outcome, number uint64) (record.Outcome, record.Reason) {
	for i := range list {
		if o := &list[i]; o.First <= number && number <= o.Through {
			return o.Outcome, o.Reason
		}
	}
	return record.OutcomeLanded, record.ReasonNone
}
