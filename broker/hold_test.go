package broker

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// TestGroupThatNeverConsumesHoldsItsBound: a declared group that reads nothing
// holds everything back, or as much as the topology says; what goes is told, and
// what is left is delivered.
func TestGroupThatNeverConsumesHoldsItsBound(t *testing.T) {
	for _, hold := range []string{"", "    hold: 512KiB\n"} {
		synctest.Test(t, func(t *testing.T) {
			limits := testLimits()
			limits.SegmentBytes, limits.SnapshotBytes, limits.TrimEvery = 64<<10, 32<<10, time.Minute
			s := open(t, disk.NewMem(), "rz02-a-1", sample(t, "  - name: orders\n", "  - name: orders\n    retention: 1h\n", "  - name: orders-billing\n", "  - name: orders-billing\n"+hold), limits)
			const n = 200
			for i := range n {
				m := s.message("orders", fmt.Sprint(i))
				m.Body, m.Queue = make([]byte, 10<<10), 0
				s.publish(m)
				time.Sleep(3 * time.Minute)
			}
			i := slices.IndexFunc(s.Status().Groups, func(g GroupStatus) bool { return g.Group == "orders-billing" })
			held := s.Status().Groups[i].Held
			got := s.received("orders-billing", "orders")
			switch {
			case hold == "" && (s.log.Begin() != 0 || len(got) != n || held < 10<<10*(n-1)):
				t.Fatalf("without a bound: log begins at %d, %d of %d delivered, held %d", s.log.Begin(), len(got), n, held)
			case hold != "" && (s.log.Begin() == 0 || len(got) == n || len(got) < 40 || !slices.Equal(got, numbered(n-len(got), n))):
				t.Fatalf("with a bound: log begins at %d, %d of %d delivered", s.log.Begin(), len(got), n)
			}
			time.Sleep(time.Hour)
			if held := s.Status().Groups[i].Held; held != 0 {
				t.Fatalf("held %d although everything is settled", held)
			}
		})
	}
}
