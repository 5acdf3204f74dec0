package rocketmq

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/internal/tracing"
)

const clientContext = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// traced starts a server whose spans can be read.
func traced(t *testing.T, s tracing.Sampler) (*bench, *tracetest.InMemoryExporter) {
	spans := tracetest.NewInMemoryExporter()
	b := start(t, func(o *Options) {
		o.Tracer, o.Sampler = sdk.NewTracerProvider(sdk.WithSyncer(spans)).Tracer("test"), s
	})
	return b, spans
}

func withContext(topic, id, context string) *pb.Message {
	return msg(topic, id, func(m *pb.Message) {
		if context != "" {
			m.SystemProperties.TraceContext = str(context)
		}
	})
}

// named returns the spans of a name.
func named(spans *tracetest.InMemoryExporter, name string) []tracetest.SpanStub {
	return slices.DeleteFunc(spans.GetSpans(), func(s tracetest.SpanStub) bool { return s.Name != name })
}

func value(s *tracetest.SpanStub, key attribute.Key) attribute.Value {
	set := attribute.NewSet(s.Attributes...)
	v, _ := set.Value(key)
	return v
}

// TestTraceFromClientToClient: the publish span continues the producer's trace,
// the record carries it, the receive span continues that, and the consumer gets
// the receive span to go on from.
func TestTraceFromClientToClient(t *testing.T) {
	b, spans := traced(t, tracing.Sampler{})
	c := b.dial(t, nil)
	mustSend(t, c, withContext("t", "m1", clientContext))
	got := pull(t, c, simple("g", "t", 1))
	if len(got.msgs) != 1 {
		t.Fatalf("received %d messages", len(got.msgs))
	}
	publish, receive := named(spans, "publish t"), named(spans, "receive t")
	if len(publish) != 1 || len(receive) != 1 {
		t.Fatalf("%d publish and %d receive spans, want one each", len(publish), len(receive))
	}
	client, _ := tracing.Parse(clientContext)
	p, r := &publish[0], &receive[0]
	if !p.Parent.Equal(client) || p.SpanKind != trace.SpanKindProducer {
		t.Errorf("publish is a %v of %v, want a child of the client's span", p.SpanKind, p.Parent)
	}
	if r.Parent.SpanID() != p.SpanContext.SpanID() || r.SpanContext.TraceID() != client.TraceID() {
		t.Errorf("receive is of %v, want of the publish span", r.Parent)
	}
	if text := got.msgs[0].GetSystemProperties().GetTraceContext(); text != tracing.Format(r.SpanContext) {
		t.Errorf("the consumer got %q, want the receive span", text)
	}
	for key, want := range map[attribute.Key]string{"messaging.system": "rocketmq", "messaging.destination.name": "t", "messaging.message.id": "m1", "messaging.client.id": "producer", "messaging.operation.type": "send", "messaging.operation.name": "publish"} {
		if v := value(p, key).AsString(); v != want {
			t.Errorf("publish has %s=%q, want %q", key, v, want)
		}
	}
	for key, want := range map[attribute.Key]string{"messaging.consumer.group.name": "g", "messaging.client.id": "consumer", "messaging.operation.type": "receive", "messaging.message.id": "m1"} {
		if v := value(r, key).AsString(); v != want {
			t.Errorf("receive has %s=%q, want %q", key, v, want)
		}
	}
}

// TestWhoIsNotTraced: what a client has decided against, or writes in a form of
// its own, reaches the consumer to the byte and makes no span.
func TestWhoIsNotTraced(t *testing.T) {
	b, spans := traced(t, tracing.ParentBased(1))
	c := b.dial(t, nil)
	quiet := strings.TrimSuffix(clientContext, "01") + "00"
	for i, context := range []string{quiet, "b3-of-somebody-else", clientContext + "-but-longer"} {
		mustSend(t, c, withContext("t", fmt.Sprint("m", i), context))
		if got := pull(t, c, simple("g", "t", 1)).msgs[0].GetSystemProperties().GetTraceContext(); got != context {
			t.Errorf("the consumer got %q, want %q", got, context)
		}
	}
	if got := spans.GetSpans(); len(got) != 0 {
		t.Errorf("%d spans, the first is %s", len(got), got[0].Name)
	}
}

// TestWhatTheSamplerRefusesNobodyTraces: a sampler that does not ask the client
// decides for every later station too. The trace stays the client's.
func TestWhatTheSamplerRefusesNobodyTraces(t *testing.T) {
	never, err := tracing.ParseSampler("traceidratio", "0")
	if err != nil {
		t.Fatal(err)
	}
	b, spans := traced(t, never)
	c := b.dial(t, nil)
	mustSend(t, c, withContext("t", "m", clientContext))
	text := pull(t, c, simple("g", "t", 1)).msgs[0].GetSystemProperties().GetTraceContext()
	got, ok := tracing.Parse(text)
	client, _ := tracing.Parse(clientContext)
	if !ok || got.IsSampled() || got.TraceID() != client.TraceID() || got.SpanID() == client.SpanID() {
		t.Errorf("the consumer got %q, want the client's trace, not sampled, under another parent", text)
	}
	if made := spans.GetSpans(); len(made) != 0 {
		t.Errorf("%d spans, the first is %s", len(made), made[0].Name)
	}
}

// TestHeadSampling: a message without a context begins a trace when the share
// says so, and else stays without one.
func TestHeadSampling(t *testing.T) {
	b, spans := traced(t, tracing.ParentBased(1))
	mustSend(t, b.dial(t, nil), withContext("t", "root", ""))
	if p := named(spans, "publish t"); len(p) != 1 || p[0].Parent.IsValid() || !p[0].SpanContext.IsSampled() {
		t.Errorf("publish spans %v, want one root", p)
	}
	b, spans = traced(t, tracing.ParentBased(0))
	c := b.dial(t, nil)
	mustSend(t, c, withContext("t", "none", ""))
	if sp := pull(t, c, simple("g", "t", 1)).msgs[0].GetSystemProperties(); sp.TraceContext != nil || len(spans.GetSpans()) != 0 {
		t.Errorf("%d spans and the context %q, want neither", len(spans.GetSpans()), sp.GetTraceContext())
	}
}

// TestRefusedMessagesHaveFailedSpans: each message's span has its own outcome.
func TestRefusedMessagesHaveFailedSpans(t *testing.T) {
	b, spans := traced(t, tracing.Sampler{})
	c := b.dial(t, nil)
	if st := send(t, c, withContext("byuser", "lost", clientContext)).GetStatus(); st.GetCode() == pb.Code_OK {
		t.Fatal("a message without a route was stored")
	}
	p := named(spans, "publish byuser")
	if len(p) != 1 || p[0].Status.Code != codes.Error || value(&p[0], "error.type").AsString() == "" {
		t.Errorf("spans %+v, want one that failed", p)
	}
}

// TestSpansOfABatch: a few spans, linked to each other, and every message gets
// through with a context that leads to the trace.
func TestSpansOfABatch(t *testing.T) {
	b, spans := traced(t, tracing.Sampler{})
	c := b.dial(t, nil)
	var batch []*pb.Message
	const n = 2 * tracing.MaxPerBatch
	for i := range n {
		batch = append(batch, withContext("t", fmt.Sprint("m", i), clientContext))
	}
	mustSend(t, c, batch...)
	if p := named(spans, "publish t"); len(p) != tracing.MaxPerBatch || value(&p[0], "messaging.batch.message_count").AsInt64() != n {
		t.Errorf("%d publish spans, want %d", len(p), tracing.MaxPerBatch)
	}
	got := pull(t, c, simple("g", "t", n)).msgs
	receive := named(spans, "receive t")
	if len(got) != n || len(receive) != tracing.MaxPerBatch {
		t.Fatalf("%d messages and %d receive spans, want %d and %d", len(got), len(receive), n, tracing.MaxPerBatch)
	}
	for _, r := range receive {
		if len(r.Links) != tracing.MaxPerBatch-1 {
			t.Errorf("a receive span has %d links, want one for each of the others", len(r.Links))
		}
	}
	for _, m := range got {
		sc, ok := tracing.Sampled(m.GetSystemProperties().GetTraceContext())
		if client, _ := tracing.Parse(clientContext); !ok || sc.TraceID() != client.TraceID() {
			t.Errorf("%s came with %q", m.GetSystemProperties().GetMessageId(), m.GetSystemProperties().GetTraceContext())
		}
	}
}

// TestWhatIsNotTracedCostsNoMemory: a tracer that has nothing to do with a
// request allocates nothing for it.
func TestWhatIsNotTracedCostsNoMemory(t *testing.T) {
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-mq-client-id", "p"))
	quiet := strings.TrimSuffix(clientContext, "01") + "00"
	measure := func(tracer trace.Tracer, context *string) float64 {
		s := quick(t, 9)
		var err error
		if s.tracer, err = tracing.New(tracer, nil); err != nil {
			t.Fatal(err)
		}
		req := request(32)
		for _, m := range req.Messages {
			m.SystemProperties.TraceContext = context
		}
		return mean(func() {
			if resp, err := s.SendMessage(ctx, req); err != nil || resp.GetStatus().GetCode() != pb.Code_OK {
				t.Fatal(resp, err)
			}
		})
	}
	off := measure(nil, nil)
	tracer := sdk.NewTracerProvider().Tracer("test")
	for name, context := range map[string]*string{"without a context": nil, "not sampled": &quiet} {
		if on := measure(tracer, context); on > off+0.5 {
			t.Errorf("%s: %v allocations, without a tracer %v", name, on, off)
		}
	}
}

// mean is how many allocations a call of f makes, fractions included: a pool
// forgets what it holds at any time, and with the race detector a quarter of it,
// so that two means of the same code differ by some hundredths.
func mean(f func()) float64 {
	const calls = 2000
	return testing.AllocsPerRun(1, func() {
		for range calls {
			f()
		}
	}) / calls
}
