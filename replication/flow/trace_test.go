package flow

import (
	"fmt"
	"testing"

	"github.com/mqrouter/mqrouter/internal/tracing"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// withContext returns items whose records carry the trace context.
func withContext(t *testing.T, n int, context string) []Item {
	t.Helper()
	var items []Item
	for i := range n {
		b, err := record.AppendRecord(nil, &record.Record{Type: record.TypeMessage, Topic: "t", Kind: zone.KindNormal, Class: zone.ClassBulk, Target: "b",
			MessageID: fmt.Sprint("m", i), TraceContext: context})
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, Item{Number: uint64(i + 1), Record: b})
	}
	return items
}

// TestBatchTellsItsTracedRecords: the first few and the count of all; a batch
// that has none costs no memory.
func TestBatchTellsItsTracedRecords(t *testing.T) {
	const sampled, quiet = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
	items := append(withContext(t, 3, quiet), withContext(t, 20, sampled)...)
	for i := range items {
		items[i].Number = uint64(i + 1)
	}
	r := cut(items, 1<<20, nil, true)
	if r.traced.count != 20 || len(r.traced.first) != tracing.MaxPerBatch || r.traced.first[0].number != 4 || r.traced.first[0].topic != "t" || r.traced.first[0].id != "m0" {
		t.Errorf("traced = %+v, want the first of 20 from number 4 on", r.traced)
	}
	for name, items := range map[string][]Item{"not sampled": withContext(t, 20, quiet), "without a context": withContext(t, 20, "")} {
		if n := testing.AllocsPerRun(100, func() { cut(items, 1<<20, nil, true) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if n := testing.AllocsPerRun(100, func() { cut(items, 1<<20, nil, false) }); n != 0 {
		t.Errorf("nobody traces: %v allocations", n)
	}
}
