package broadcast_test

import (
	"testing"
	"testing/synctest"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/broadcast/cache"
	"github.com/mqrouter/mqrouter/internal/tracing"
)

// TestTracedChangesHaveASpan: one for each traced change, whether it is a change
// or not, and none for the others.
func TestTracedChangesHaveASpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spans := tracetest.NewInMemoryExporter()
		tracer := sdk.NewTracerProvider(sdk.WithSyncer(spans)).Tracer("test")
		l, o := newLandings(1), newOrigin("rz01-a")
		m := cache.NewMemory(cache.MemoryOptions{})
		l.set(t, o, "untraced", 1, "v")
		l.trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
		l.set(t, o, "not sampled", 1, "v")
		l.trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		l.set(t, o, "traced", 1, "v")
		l.land(t, o, []string{"broken"}, nil, []byte("v"))
		r := startSync(t, l, m, func(o *broadcast.Options) { o.Tracer = tracer })
		settle()
		r.stop()
		want(t, m, "traced", "v", 1)
		parent, _ := tracing.Parse(l.trace)
		got := spans.GetSpans()
		if len(got) != 2 {
			t.Fatalf("%d spans, want two", len(got))
		}
		for i, status := range []codes.Code{codes.Unset, codes.Error} {
			s := got[i]
			if s.Name != "apply member" || s.SpanKind != trace.SpanKindConsumer || !s.Parent.Equal(parent) || s.Status.Code != status {
				t.Errorf("span %d is %s %v of %v, %v", i, s.Name, s.SpanKind, s.Parent, s.Status)
			}
		}
	})
}
