package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestBenchPrintsEveryFigure runs the script behind `make bench`, briefly: the
// figures are not judged, only that each is there.
func TestBenchPrintsEveryFigure(t *testing.T) {
	p := startIn(t, repoRoot(t), "deploy/test/bench.sh", []string{
		"MQROUTER_BENCH_SECONDS=1", "MQROUTER_BENCH_RETAINED=20000", "MQROUTER_BENCH_DELAYED=5000", "MQROUTER_BENCH_TOPICS=100", "MQROUTER_BENCH_REST=1",
		fmt.Sprintf("MQROUTER_BENCH_OFFSET=%d", offsetFor(t)),
	}, "bash", "deploy/test/bench.sh")
	select {
	case <-p.done:
	case <-time.After(8 * time.Minute):
		t.Fatal("the script does not end")
	}
	if p.err != nil {
		t.Fatalf("%v\n%s", p.err, p.output())
	}
	out := p.output()
	wants := []string{"raw loop, 256 records", "durable publish, 256 publishers, 32 a request", "at 1,000 messages/s", "to receive in another",
		"cross-city flow, json bodies", "broadcast to three cities", "resolve, 10,000 zones", "1 publishers, 3 copies", "64 publishers, 1 copies", "catch-up of an empty replica", "open a broker with",
		"memory of a broker that has nothing to do", "memory of a broker with 5000 delayed messages", "memory of a broker with 100 topics that nobody", "memory of a broker with 100 topics and a message"}
	for _, kind := range []string{"normal", "fifo", "delay", "transaction"} {
		wants = append(wants, kind+" messages in a zone, 1,000 messages/s", kind+" messages in a zone, 16 publishers")
	}
	for _, want := range wants {
		if !strings.Contains(out, want) {
			t.Errorf("no row for %q in:\n%s", want, out)
		}
	}
}
