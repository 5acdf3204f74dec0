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
		"MQROUTER_BENCH_SECONDS=1", "MQROUTER_BENCH_RETAINED=20000",
		fmt.Sprintf("MQROUTER_BENCH_OFFSET=%d", offsetFor(t)),
	}, "bash", "deploy/test/bench.sh")
	select {
	case <-p.done:
	case <-time.After(4 * time.Minute):
		t.Fatal("the script does not end")
	}
	if p.err != nil {
		t.Fatalf("%v\n%s", p.err, p.output())
	}
	out := p.output()
	for _, want := range []string{"raw loop, 256 records", "durable publish, 256 publishers, 32 a request", "at 1,000 messages/s", "to receive in another",
		"cross-city flow, json bodies", "broadcast to three cities", "resolve, 10,000 zones", "open a broker with"} {
		if !strings.Contains(out, want) {
			t.Errorf("no row for %q in:\n%s", want, out)
		}
	}
}
