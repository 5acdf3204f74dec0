package tracing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// SchemaURL is the version of the semantic conventions that names and attributes
// follow.
const SchemaURL = semconv.SchemaURL

// MaxPerBatch is how many messages of one batch (a send, a frame, a landing, a
// receive) get a span. A batch is one piece of work: more spans of it say the
// same, and would cost the others of the batch.
const MaxPerBatch = 8

// Stage is a station of a message, and the first word of its spans' names.
type Stage string

// The stations.
const (
	Publish  Stage = "publish"
	Outbound Stage = "outbound"
	Link     Stage = "link"
	Landing  Stage = "landing"
	Receive  Stage = "receive"
	Apply    Stage = "apply"
)

// Attributes that the conventions do not name.
const (
	KeyFlow     = attribute.Key("mqrouter.flow")             // target of the flow: a group or a channel
	KeyOrigin   = attribute.Key("mqrouter.flow.origin")      // broker group
	KeyNumber   = attribute.Key("mqrouter.flow.number")      // of the record in its flow
	KeyCity     = attribute.Key("mqrouter.destination.city") //
	KeyGroup    = attribute.Key("mqrouter.destination.group")
	KeyOutcome  = attribute.Key("mqrouter.outcome")        // landed, parked, skipped, gap, unsettled
	KeyReason   = attribute.Key("mqrouter.outcome.reason") // the record's reason code; not when landed
	KeyHops     = attribute.Key("mqrouter.hops")           // cities left so far
	KeyPath     = attribute.Key("mqrouter.path")           // cities passed, origin first
	KeyLevel    = attribute.Key("mqrouter.level")          // what a publish reached: accepted, stored, origin
	KeyAttempt  = attribute.Key("mqrouter.delivery.attempt")
	KeyFrom     = attribute.Key("mqrouter.link.from") // node or city that a frame came from
	KeyTo       = attribute.Key("mqrouter.link.to")   // node or city that it went to
	KeyClass    = attribute.Key("mqrouter.class")
	KeyVersion  = attribute.Key("mqrouter.cache.version")
	KeyPeer     = attribute.Key("mqrouter.link.peer") // node of the other end of a link
	KeyVia      = attribute.Key("mqrouter.link.via")  // third city that a detour passes
	KeyBytes    = attribute.Key("mqrouter.frame.size")
	attrSkipped = attribute.Key("stage")
)

// Tracer makes the spans of one room. A nil *Tracer makes none and is how tracing
// is off: ask On before any work.
type Tracer struct {
	tracer  trace.Tracer
	skipped metric.Int64Counter
}

// New returns a Tracer; nil when t is nil. It fails only when the meter refuses
// an instrument. m may be nil.
func New(t trace.Tracer, m metric.Meter) (*Tracer, error) {
	if t == nil {
		return nil, nil //nolint:nilnil // a nil Tracer is off
	}
	if m == nil {
		m = noop.Meter{}
	}
	skipped, err := m.Int64Counter("mqrouter.trace.skipped", metric.WithUnit("{message}"),
		metric.WithDescription("Traced messages that got no span since their batch, or the flow, has enough of them; by stage."))
	if err != nil {
		return nil, err
	}
	return &Tracer{tracer: t, skipped: skipped}, nil
}

// On reports whether there is anybody to make spans for.
func (t *Tracer) On() bool { return t != nil }

// Skipped counts messages without the span that they asked for.
func (t *Tracer) Skipped(stage Stage, n int) {
	if n > 0 {
		t.skipped.Add(context.Background(), int64(n), metric.WithAttributes(attrSkipped.String(string(stage))))
	}
}

// Start begins a span as a child of parent, or of a new trace when parent is not
// valid. where is the name's second word; it must not be from an unbounded set.
// The caller ends the span.
func (t *Tracer) Start(stage Stage, kind trace.SpanKind, where string, parent trace.SpanContext, at time.Time, attrs ...attribute.KeyValue) trace.Span {
	ctx := context.Background()
	if parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
	}
	name := string(stage)
	if where != "" {
		name += " " + where
	}
	_, span := t.tracer.Start(ctx, name, trace.WithSpanKind(kind), trace.WithTimestamp(at),
		trace.WithAttributes(semconv.MessagingSystemRocketMQ, semconv.MessagingOperationName(string(stage))),
		trace.WithAttributes(attrs...))
	return span
}

// Fail marks a span as failed. kind is the error's short name, text for people.
func Fail(span trace.Span, kind, text string) {
	span.SetAttributes(semconv.ErrorTypeKey.String(kind))
	span.SetStatus(codes.Error, text)
}
