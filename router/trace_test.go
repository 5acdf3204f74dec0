package router

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqrouter/mqrouter/internal/tracing"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// TestRoutersTellOfTracedFrames: each router on the way makes a span of a frame
// that says where it belongs, of no other, and changes nothing of the frame.
func TestRoutersTellOfTracedFrames(t *testing.T) {
	c := newCluster(t)
	exporters := map[string]*tracetest.InMemoryExporter{}
	for _, name := range []string{"rt-sh-1", "rt-hz-1"} {
		spans := tracetest.NewInMemoryExporter()
		exporters[name] = spans
		c.start(zone.Node(name), func(o *Options) {
			o.Tracer = sdk.NewTracerProvider(sdk.WithSyncer(spans)).Tracer("test")
		})
	}
	c.broker("rz03-a", echo)
	c.linked()
	s := c.open(c.routers["rt-sh-1"], 42, nil)
	recv(t, s) // the echo of Open
	traced := wire.TraceContext{TraceID: [16]byte{1}, SpanID: [8]byte{2}, Flags: 1}
	quiet := traced
	quiet.Flags = 0
	for i, flags := range []uint16{wire.FlagTrace, 0, wire.FlagTrace, wire.FlagTrace} {
		f := batch(42, uint64(i), 100)
		f.Flags = flags
		switch i {
		case 0:
			f.Payload = wire.AppendTrace(f.Payload, &traced)
		case 2:
			f.Payload = wire.AppendTrace(f.Payload, &quiet)
		case 3:
			f.Payload = f.Payload[:8] // a lie: no room for a context
		}
		if err := s.Send(context.Background(), f); err != nil {
			t.Fatal(err)
		}
		back := recv(t, s)
		if back.Flags != flags || string(back.Payload) != string(f.Payload) {
			t.Errorf("frame %d came back as %+v", i, back)
		}
	}
	_ = s.Close(wire.CodeOK)
	for name, r := range c.routers {
		until(t, string(name)+" forgets the session", func() bool { return r.Status().Sessions == 0 })
	}
	for name, peer := range map[string]string{"rt-sh-1": "rt-hz-1", "rt-hz-1": "rt-sh-1"} {
		got := exporters[name].GetSpans()
		if len(got) != 2 { // there and, by the echo, back
			t.Fatalf("%s made %d spans, want one each way", name, len(got))
		}
		if got[0].Name != "link hangzhou" { // the answer may have passed before the send returned
			got[0], got[1] = got[1], got[0]
		}
		there := attribute.NewSet(got[0].Attributes...)
		value := func(k attribute.Key) string { v, _ := there.Value(k); return v.AsString() }
		if got[0].Name != "link hangzhou" || got[0].Parent.SpanID() != trace.SpanID(traced.SpanID) || got[0].Parent.TraceID() != trace.TraceID(traced.TraceID) {
			t.Errorf("%s: %s of %v, want a child of what the frame carries", name, got[0].Name, got[0].Parent)
		}
		if value(tracing.KeyFrom) != "shanghai" || value(tracing.KeyTo) != "hangzhou" || value(tracing.KeyPeer) != peer {
			t.Errorf("%s: attributes %v, want from shanghai to hangzhou by %s", name, got[0].Attributes, peer)
		}
	}
}
