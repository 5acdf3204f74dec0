package broker

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// TestDroppedTopicLeavesOldSnapshotsUsable: a snapshot from before a topic was
// dropped still names its indexes; a crash must find them, since a trimmed log
// cannot make the fold without a snapshot.
func TestDroppedTopicLeavesOldSnapshotsUsable(t *testing.T) {
	mem := disk.NewMem()
	limits := testLimits()
	limits.SnapshotEvery, limits.TrimEvery = time.Hour, time.Hour
	s := open(t, mem, "rz02-a-1", sample(t), limits)
	s.publishN("orders", "old", 3)
	snap := func() {
		t.Helper()
		s.publish(s.message("transfer", "m", "userId", "20"))
		if err := s.snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	snap()
	snap()
	e2 := epoch(2)
	without := sample(t, e2[0], e2[1],
		"  - name: orders\n    route: local\n", "",
		"  - name: orders-billing\n    topics: [orders]\n", "  - name: orders-billing\n    topics: [transfer]\n")
	names := func() int {
		t.Helper()
		list, err := s.indexes.List()
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := names()
	if err := s.ApplyTopology(t.Context(), without); err != nil {
		t.Fatal(err)
	}
	s.topo = without
	for i := range 3 {
		if err := s.indexes.Sync(t.Context()); err != nil { // what was removed stays so
			t.Fatal(err)
		}
		kept := mem.Crash(rand.New(rand.NewPCG(uint64(i), 1)))
		c := &station{t: t, fs: kept, node: s.node, topo: without, limits: limits}
		b := &Broker{fs: kept, dir: "store"}
		list, err := b.snapshotNames()
		if err != nil {
			t.Fatal(err)
		}
		c.start()
		if c.snapAt == 0 {
			t.Errorf("after %d snapshots: none of %d was usable", i, len(list))
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		snap()
	}
	if got := names(); got >= before {
		t.Errorf("%d indexes, %d before: those of the dropped topic are kept for ever", got, before)
	}
}
