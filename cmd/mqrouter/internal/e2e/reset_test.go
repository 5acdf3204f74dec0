package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestGroupIsReset has a group consume, go back to the beginning, to a time and to the
// end, with a restart between, and measures a latency with a backlog in the way.
func TestGroupIsReset(t *testing.T) {
	dir, offset := filepath.Join(t.TempDir(), "dev"), offsetFor(t)
	d := startDev(t, dir, offset, nil)
	const n = 6
	publish := func(from, to int) {
		for i := from; i < to; i++ {
			must(t, d.env(), "publish", "--zone", "rz02", "--topic", "orders", "--property", "n=1", fmt.Sprintf("order %d", i))
		}
	}
	reset := func(args ...string) string {
		return must(t, d.env(), append([]string{"group", "reset", "orders-billing", "--topic", "orders", "--zone", "rz02"}, args...)...)
	}
	// Acknowledgements are logged a moment later; a reset counts what is logged.
	consume := func(want int) string {
		got := must(t, d.env(), "consume", "--zone", "rz02", "--topic", "orders", "--group", "orders-billing", "--count", fmt.Sprint(want))
		eventually(t, "the acknowledgements are logged", time.Minute, func() error {
			if out := reset("--to", "latest", "--preview"); !strings.Contains(out, ", 0 skipped; 4 queues are there already; nothing was done") {
				return fmt.Errorf("the preview says\n%s", out)
			}
			return nil
		})
		return got
	}
	publish(0, n)
	consume(n)
	if out := reset("--to", "earliest", "--preview"); !strings.Contains(out, "6 messages would come again, 0 skipped") || !strings.Contains(out, "nothing was done") {
		t.Errorf("the preview says\n%s", out)
	}
	middle := time.Now()
	publish(n, 2*n)
	consume(n)
	if out := reset("--to", "earliest"); !strings.Contains(out, "rz02-a-1") || !strings.Contains(out, "messages come again, 0 skipped") {
		t.Errorf("the reset says\n%s", out)
	}
	d.stop(t, time.Minute)
	d = startDev(t, dir, offset, nil)
	out := consume(2 * n)
	for i := range 2 * n {
		if c := strings.Count(out, fmt.Sprintf("order %d\n", i)); c != 1 {
			t.Errorf("order %d came %d times after the reset:\n%s", i, c, out)
		}
	}
	reset("--to", "time", middle.Format(time.RFC3339Nano))
	out = consume(n)
	for i := range 2 * n {
		if c := strings.Count(out, fmt.Sprintf("order %d\n", i)); c != i/n {
			t.Errorf("order %d came %d times after the reset to a time:\n%s", i, c, out)
		}
	}
	publish(2*n, 2*n+3)
	if out, err := mqrouter(t, d.env(), "group", "reset", "orders-billing", "--topic", "orders", "--zone", "rz02", "--to", "latest"); err == nil || !strings.Contains(err.Error(), "skips 3 messages") {
		t.Errorf("a reset that skips, without --yes: %v\n%s", err, out)
	}
	if out := reset("--to", "latest", "--yes"); !strings.Contains(out, "3 skipped") {
		t.Errorf("the reset to the end says\n%s", out)
	}
	if out := must(t, d.env(), "status"); !strings.Contains(out, "have consumed everything") {
		t.Errorf("afterwards status says\n%s", out)
	}
	publish(0, 2)
	out = must(t, d.env(), "bench", "latency", "--zone", "rz02", "--to", "rz02", "--topic", "orders", "--group", "orders-billing", "--property", "n=1", "--rate", "50", "--duration", "1s")
	if !strings.Contains(out, "2 messages of a backlog of orders-billing came first") || strings.Contains(out, "did not arrive") {
		t.Errorf("bench latency with a backlog says\n%s", out)
	}
	d.stop(t, time.Minute)
}
