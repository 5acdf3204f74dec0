package router

import (
	"cmp"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqrouter/mqrouter/internal/tracing"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// tracedSend passes on a frame that says which trace it belongs to, in a span of
// that trace.
func (r *Router) tracedSend(s *session, from, to *end, f *wire.Frame) error {
	c, ok := f.Trace()
	parent := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: c.TraceID, SpanID: c.SpanID, TraceFlags: trace.TraceFlags(c.Flags), Remote: true,
	})
	if !ok || !parent.IsValid() || !parent.IsSampled() {
		return to.send(*f)
	}
	dest := cmp.Or(to.city, r.city)
	attrs := []attribute.KeyValue{
		tracing.KeyFrom.String(string(cmp.Or(from.city, r.city))), tracing.KeyTo.String(string(dest)), tracing.KeyPeer.String(string(cmp.Or(to.node, from.node))),
		tracing.KeyClass.String(s.class.String()), tracing.KeyHops.Int(int(f.Hops)), tracing.KeyBytes.Int(len(f.Payload)),
	}
	if s.via != "" {
		attrs = append(attrs, tracing.KeyVia.String(string(s.via)))
	}
	span := r.tracer.Start(tracing.Link, trace.SpanKindInternal, string(dest), parent, time.Now(), attrs...)
	err := to.send(*f)
	if err != nil {
		tracing.Fail(span, codeOf(err).String(), err.Error())
	}
	span.End()
	return err
}
