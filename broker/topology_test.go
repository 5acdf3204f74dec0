package broker

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

func TestTopologyEpochsAreObeyed(t *testing.T) {
	e2, e3 := epoch(2), epoch(3)
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t, e2[0], e2[1]), testLimits())
	for name, c := range map[string]struct {
		topo *zone.Topology
		kind Kind
	}{
		"older":       {sample(t), KindInvalid},
		"same, other": {sample(t, e2[0], e2[1], "queues: 8", "queues: 9"), KindInvalid},
		"same":        {sample(t, e2[0], e2[1]), 0},
		"shards move": {sample(t, e3[0], e3[1], "rz02: 20-39", "rz02: 20-38", "rz03: 40-59", "rz03: 39-59"), KindUnsupported},
		"slots move":  {sample(t, e3[0], e3[1], "slots: 0-511", "slots: 0-510", "slots: 512-1023", "slots: 511-1023"), KindUnsupported},
	} {
		if err := s.ApplyTopology(t.Context(), c.topo); KindOf(err) != c.kind {
			t.Errorf("%s: %v, want %s", name, err, c.kind)
		}
	}
	if got := s.Topology().Epoch; got.Number != 2 {
		t.Fatalf("epoch %s is in force", got)
	}
	if err := s.ApplyTopology(t.Context(), sample(t, e3[0], e3[1], "queues: 8", "queues: 12")); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(s.Status().Topics, func(x TopicStatus) bool { return x.Topic == "transfer" })
	if i < 0 || len(s.Status().Topics[i].Queues) != 12 {
		t.Fatalf("status %+v", s.Status().Topics)
	}
	s.Close()
	if _, err := Open(t.Context(), s.options()); KindOf(err) != KindInvalid || !strings.Contains(err.Error(), "older") {
		t.Fatalf("open under an older topology: %v", err)
	}
}

func TestDeclaredGroupStartsAtItsDeclaration(t *testing.T) {
	e2 := epoch(2)
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	s.publishN("orders", "before", 10)
	late := sample(t, e2[0], e2[1], "consumer_groups:\n", "consumer_groups:\n  - name: late\n    topics: [orders]\n")
	if err := s.ApplyTopology(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	s.topo = late
	ids := s.publishN("orders", "after", 10)
	s.restart()
	wantOnce(t, s.drain("late", "orders"), ids)
}

func TestNewQueuesReachOldGroups(t *testing.T) {
	e2 := epoch(2)
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	if got := s.drain("transfer-credit", "transfer"); len(got) != 0 {
		t.Fatal(got)
	}
	if err := s.ApplyTopology(t.Context(), sample(t, e2[0], e2[1], "queues: 8", "queues: 16")); err != nil {
		t.Fatal(err)
	}
	m := s.message("transfer", "m", "userId", "20")
	m.Queue = 15
	if r := s.publish(m); r[0].Queue != 15 {
		t.Fatalf("queue %d", r[0].Queue)
	}
	wantOnce(t, s.drain("transfer-credit", "transfer"), []string{"m"})
}

// TestHeldUntilTheTopologyIsKnown: a record whose route is of a newer topology
// than the destination has waits, and is not parked.
func TestHeldUntilTheTopologyIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e2 := epoch(2)
		topic := []string{e2[0], e2[1], "  - name: orders\n    route: local\n",
			"  - name: orders\n    route: local\n  - name: fresh\n    route: {explicit: {property: destination}}\n",
			"    topics: [directed]", "    topics: [directed, fresh]"}
		w := newWorld(t, sample(t), testLimits(), "rz02-a-1", "rz03-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz03-a"]
		next := sample(t, topic...)
		if err := from.ApplyTopology(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		from.topo = next
		from.publish(from.message("fresh", "m", "destination", "rz03"))
		time.Sleep(time.Minute)
		if len(from.Legs()) != 1 {
			t.Fatalf("settled before the destination knew the topic")
		}
		if err := to.ApplyTopology(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		to.topo = next
		w.settled()
		wantOnce(t, to.drain("directed-worker", "fresh"), []string{"m"})
	})
}

// TestMoveAcrossARestartIsRefused: the store remembers who owned what.
func TestMoveAcrossARestartIsRefused(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	e2 := epoch(2)
	good := s.topo
	for _, edits := range [][]string{
		{"rz02: 20-39", "rz02: 20-38", "rz03: 40-59", "rz03: 39-59"},
		{"slots: 0-511", "slots: 0-510", "slots: 512-1023", "slots: 511-1023"},
		{"active: true #", "active: false #", "active: false\n", "active: true\n"},
	} {
		s.topo = sample(t, append([]string{e2[0], e2[1]}, edits...)...)
		if _, err := Open(t.Context(), s.options()); KindOf(err) != KindUnsupported {
			t.Errorf("%v: %v, want unsupported", edits, err)
		}
	}
	s.topo = good
	s.start()
}
