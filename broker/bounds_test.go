package broker

import (
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
)

// TestFlowsThatLandAreBounded: each new incarnation of an origin is a new flow,
// and what an origin claims to be must not grow the fold without end.
func TestFlowsThatLandAreBounded(t *testing.T) {
	limits := testLimits()
	limits.MaxFlows = 2
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), limits)
	of := func(incarnation record.Incarnation, first uint64) flow.Landing {
		l := landing(t, first, incoming("m"))
		l.Flow.Incarnation = incarnation
		return l
	}
	// A landing that does not count leaves nothing behind.
	if err := land(t, s, of(1, 5)); err == nil {
		t.Fatal("a flow began at 5")
	}
	for i := range record.Incarnation(2) {
		if err := land(t, s, of(2+i, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := land(t, s, of(9, 1)); KindOf(err) != 0 || err == nil {
		t.Fatalf("a third flow: %v, want it held", err)
	}
	if _, err := s.Sink().Seal(t.Context(), of(9, 1).Flow); KindOf(err) != KindBusy {
		t.Fatalf("seal of a third flow: %v", err)
	}
	if err := land(t, s, of(3, 2)); err != nil {
		t.Fatalf("the next number of a known flow: %v", err)
	}
}

// TestProgressRecordsAreBounded: however much is in hands, every record of it
// fits the log.
func TestProgressRecordsAreBounded(t *testing.T) {
	retries := make([]consumer.Retry, 100_000)
	for i := range retries {
		retries[i] = consumer.Retry{Offset: uint64(i) * 1000, Attempts: 1000}
	}
	c := collected{g: consumer.GroupDelta{Group: "g", Topic: "t", Queues: []consumer.QueueDelta{{Retries: retries}}}}
	body := (&consumer.Delta{Groups: []consumer.GroupDelta{c.g}}).Append(nil)
	if c.size() < len(body) || c.size() > maxProgress {
		t.Fatalf("said to have %d bytes, has %d; one record has up to %d", c.size(), len(body), maxProgress)
	}
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	s.publishN("orders", "m", 3)
	for _, d := range s.receive("orders-billing", "orders", 3, 0) {
		s.ack("orders-billing", d)
	}
	parts := make([]collected, 40) // 1.5 MB each: too much for one record
	for i := range parts {
		parts[i] = c
		parts[i].topic = s.state.topics["orders"]
		parts[i].undo = func(consumer.GroupDelta) {}
	}
	ops := s.progressOps(parts)
	if len(ops) < 10 {
		t.Fatalf("%d records", len(ops))
	}
	for _, o := range ops {
		if n := len(o.batch.Entries[0].Record); n > 2*maxProgress {
			t.Fatalf("a record of %d bytes", n)
		}
	}
}

// TestWaitEndsAlthoughTheFilterSkipsOn: a backlog that the filter excludes does
// not keep a receive beyond its time; the next one goes on behind it.
func TestWaitEndsAlthoughTheFilterSkipsOn(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	const n = 40_000 // more than one look covers
	msgs := make([]Message, 1000)
	for range n / len(msgs) {
		for i := range msgs {
			msgs[i] = s.message("orders", "m")
			msgs[i].Tag = "other"
		}
		s.publish(msgs...)
	}
	r := ReceiveRequest{Group: "orders-billing", Topic: "orders", Filter: Filter{Tags: []string{"mine"}}, Max: 1, Invisible: time.Minute, Wait: 1}
	if list, err := s.Receive(t.Context(), r); err != nil || len(list) != 0 {
		t.Fatal(len(list), err)
	}
	h := s.handsOf(subKey{"orders-billing", "orders"})
	first := h.disp.Stats().Fresh
	if first == 0 || first >= n {
		t.Fatalf("%d of %d messages are left after a wait of a nanosecond", first, n)
	}
	r.Wait = 0 // looks at everything that is there
	if _, err := s.Receive(t.Context(), r); err != nil || h.disp.Stats().Fresh != 0 {
		t.Fatalf("%d are left, %v", h.disp.Stats().Fresh, err)
	}
}
