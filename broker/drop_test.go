package broker

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
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

// TestTrimmedDeadLetterIsSettled: an undeclared group holds nothing back. What
// was trimmed while it had used up its attempts is neither copied nor tried for
// ever.
func TestTrimmedDeadLetterIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.SegmentBytes, limits.SnapshotEvery, limits.TrimEvery, limits.UnknownTries = 64<<10, time.Hour, 1000*time.Hour, 1
		s := open(t, disk.NewMem(), "rz02-a-1", sample(t, "unknown_groups: refuse", "unknown_groups: newest"), limits)
		defer s.Close()
		if list := s.receive("nobody", "orders", 1, time.Minute); len(list) != 0 {
			t.Fatal("a new group begins at the newest message")
		}
		s.publishN("orders", "m", 5)
		if list := s.receive("nobody", "orders", 5, 12*time.Hour); len(list) != 5 {
			t.Fatalf("%d messages", len(list))
		}
		for i := range 4 {
			m := s.message("orders", fmt.Sprint("fill-", i))
			m.Body = make([]byte, 50<<10)
			s.publish(m)
			s.drain("orders-billing", "orders")
			time.Sleep(time.Second)
			if err := s.snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.trim(time.Now().Add(30 * 24 * time.Hour)); err != nil || s.log.Begin() == 0 {
			t.Fatalf("log begins at %d, %v", s.log.Begin(), err)
		}
		time.Sleep(13 * time.Hour)
		for _, g := range s.Status().Groups {
			if g.Group == "nobody" && g.Topic == "orders" && g.InHands != 0 {
				t.Fatalf("%d trimmed messages are still in hands", g.InHands)
			}
		}
	})
}

// TestHalfWrittenFilesAreRemoved: each crash in the middle of a snapshot would
// leave one for ever.
func TestHalfWrittenFilesAreRemoved(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	for _, name := range []string{"store/snapshot-00000000000000000001.tmp", "store/handle.key.tmp"} {
		f, err := s.fs.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	s.restart()
	names, err := s.fs.List("store")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if strings.HasSuffix(n, tempSuffix) {
			t.Errorf("%s is still there", n)
		}
	}
}
