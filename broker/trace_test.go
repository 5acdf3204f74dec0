package broker

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/internal/tracing"
	"github.com/mqrouter/mqrouter/replication/record"
)

// recorder returns a tracer whose ended spans can be read.
func recorder() (trace.Tracer, *tracetest.InMemoryExporter) {
	spans := tracetest.NewInMemoryExporter()
	return sdk.NewTracerProvider(sdk.WithSyncer(spans), sdk.WithSampler(sdk.AlwaysSample())).Tracer("test"), spans
}

func attr(s *tracetest.SpanStub, key attribute.Key) attribute.Value {
	i := slices.IndexFunc(s.Attributes, func(kv attribute.KeyValue) bool { return kv.Key == key })
	if i < 0 {
		return attribute.Value{}
	}
	return s.Attributes[i].Value
}

const (
	sampledContext = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	quietContext   = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
)

// TestSpansOfARecordThatCrosses: outbound at the origin and landing at the
// destination are children of what the record carries, one of each.
func TestSpansOfARecordThatCrosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sample(t), testLimits(), "rz02-a-1", "rz03-a-1")
		defer w.close()
		tracer, spans := recorder()
		for _, s := range w.sites {
			s.tracer = tracer
			s.bounce()
		}
		from := w.sites["rz02-a"]
		traced := from.message("transfer", "traced", "userId", "1050")
		traced.TraceContext = sampledContext
		quiet := from.message("transfer", "quiet", "userId", "1050")
		quiet.TraceContext = quietContext
		foreign := from.message("transfer", "foreign", "userId", "1050")
		foreign.TraceContext = "b3-of-somebody-else"
		from.publish(quiet, traced, from.message("transfer", "bare", "userId", "1050"), foreign)
		w.settled()
		got := spans.GetSpans()
		parent, _ := tracing.Parse(sampledContext)
		stages := map[string]int{}
		for i := range got {
			s := &got[i]
			stages[s.Name]++
			if !s.Parent.Equal(parent) || s.SpanContext.TraceID() != parent.TraceID() {
				t.Errorf("%s has the parent %v, want what the record carries", s.Name, s.Parent)
			}
			if id := attr(s, "messaging.message.id").AsString(); id != "traced" {
				t.Errorf("%s is of message %q", s.Name, id)
			}
			if o := attr(s, tracing.KeyOutcome).AsString(); o != "landed" || s.Status.Code != codes.Unset {
				t.Errorf("%s has the outcome %q, status %v", s.Name, o, s.Status)
			}
		}
		if len(got) != 2 || stages["outbound transfer"] != 1 || stages["landing transfer"] != 1 {
			t.Errorf("spans %v, want one outbound and one landing", stages)
		}
	})
}

// TestSpansAreBoundedPerBatch: a batch of traced records has a few spans; the
// records land all the same.
func TestSpansAreBoundedPerBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sample(t), testLimits(), "rz02-a-1", "rz03-a-1")
		defer w.close()
		tracer, spans := recorder()
		for _, s := range w.sites {
			s.tracer = tracer
			s.bounce()
		}
		var msgs []Message
		var ids []string
		from := w.sites["rz02-a"]
		for i := range 100 {
			m := from.message("transfer", fmt.Sprintf("m-%d", i), "userId", "1050")
			m.MessageGroup, m.TraceContext = "", sampledContext
			msgs, ids = append(msgs, m), append(ids, m.ID)
		}
		from.publish(msgs...)
		w.settled()
		wantOnce(t, w.sites["rz03-a"].drain("transfer-credit", "transfer"), ids)
		stages := map[string]int{}
		for _, s := range spans.GetSpans() {
			stages[s.Name]++
		}
		lanes := len(from.Status().Outgoing)
		for _, stage := range []string{"outbound transfer", "landing transfer"} {
			if n := stages[stage]; n < tracing.MaxPerBatch || n > lanes*tracing.MaxPerBatch+lanes {
				t.Errorf("%d spans %q of 100 records on %d lanes, want about %d a batch", n, stage, lanes, tracing.MaxPerBatch)
			}
		}
	})
}

// TestParkedRecordsHaveFailedSpans: both ends say that the record did not land.
func TestParkedRecordsHaveFailedSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sample(t), testLimits(), "rz02-a-1", "rz03-a-1")
		defer w.close()
		tracer, spans := recorder()
		from := w.sites["rz02-a"]
		from.tracer = tracer
		from.bounce()
		to := w.sites["rz03-a"]
		to.tracer = tracer
		// The destination takes smaller bodies than the origin believes.
		e := epoch(2)
		to.topo = sample(t, e[0], e[1], "    class: bulk\n    route: {shard: {property: userId}}", "    class: bulk\n    max_body: 1KiB\n    route: {shard: {property: userId}}")
		to.bounce()
		m := from.message("transfer", "large", "userId", "1050")
		m.Body, m.TraceContext = make([]byte, 2048), sampledContext
		from.publish(m)
		w.settled()
		got := spans.GetSpans()
		if len(got) != 2 {
			t.Fatalf("%d spans, want two", len(got))
		}
		for i := range got {
			s := &got[i]
			if o := attr(s, tracing.KeyOutcome).AsString(); o != "parked" || s.Status.Code != codes.Error || attr(s, "error.type").AsString() != "parked" {
				t.Errorf("%s has the outcome %q, status %v", s.Name, o, s.Status)
			}
		}
	})
}

// TestLandingsThatAreNotTracedCostNoMemory: a tracer that has nothing to do with
// a landing allocates nothing for it.
func TestLandingsThatAreNotTracedCostNoMemory(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	own, ok := s.Sink().(*sink)
	if !ok {
		t.Fatal("the sink is another type")
	}
	measure := func(context string) float64 {
		var records []*record.Record
		for i := range 32 {
			records = append(records, incoming(fmt.Sprint("m", i), func(r *record.Record) { r.TraceContext = context }))
		}
		l := landing(t, 1, records...)
		const calls = 2000
		return testing.AllocsPerRun(1, func() {
			for range calls {
				if entries, traced, err := own.judge(&l, new(op)); err != nil || len(entries) != 32 || (traced != nil) != (context == sampledContext) {
					t.Fatal(len(entries), traced, err)
				}
			}
		}) / calls
	}
	off := measure("")
	tracer, _ := recorder()
	var err error
	if s.Broker.tracer, err = tracing.New(tracer, nil); err != nil {
		t.Fatal(err)
	}
	for name, context := range map[string]string{"without a context": "", "not sampled": quietContext} {
		if on := measure(context); on > off+0.5 { // pools forget at any time
			t.Errorf("%s: %v allocations, without a tracer %v", name, on, off)
		}
	}
	if on := measure(sampledContext); on <= off {
		t.Errorf("%v allocations of a traced landing: what is measured?", on)
	}
}
