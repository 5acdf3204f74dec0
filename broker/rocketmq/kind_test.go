package rocketmq

import (
	"fmt"
	"testing"
	"time"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// TestFIFOForEveryClient holds route, assignment, settings and receives of a FIFO
// topic to what the official clients make of them.
func TestFIFOForEveryClient(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	route, err := c.QueryRoute(as(t, "c"), &pb.QueryRouteRequest{Topic: res("ordered")})
	if err != nil {
		t.Fatal(err)
	}
	want(t, route.GetStatus(), pb.Code_OK)
	zero := map[string]bool{}
	for _, q := range route.GetMessageQueues() {
		if types := q.GetAcceptMessageTypes(); len(types) != 1 || types[0] != pb.MessageType_FIFO {
			t.Errorf("queue %d of %s takes %v", q.GetId(), q.GetBroker().GetName(), types)
		}
		zero[q.GetBroker().GetName()] = zero[q.GetBroker().GetName()] || q.GetId() == 0
	}
	if len(zero) != 2 || !zero["g1"] || !zero["g2"] {
		t.Errorf("queue 0 is at %v: Node uses no other", zero)
	}
	assignment, err := c.QueryAssignment(as(t, "c"), &pb.QueryAssignmentRequest{Group: res("fifos"), Topic: res("ordered")})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int32]int{}
	for _, a := range assignment.GetAssignments() {
		seen[a.GetMessageQueue().GetId()]++
	}
	if len(seen) != 4 || seen[0] != 2 || seen[3] != 2 {
		t.Errorf("assignment by queue: %v, want each of 4 queues at 2 brokers", seen)
	}
	for _, id := range []string{"M1", "M2", "M3"} {
		want(t, send(t, c, msg("ordered", id, fifo(id))).GetStatus(), pb.Code_OK)
	}
	// A push consumer works a batch off one after the other: it gets one message.
	batch := push("fifos", "ordered", time.Second)
	batch.BatchSize = 32
	got, err := tryPull(as(t, "c"), c, batch)
	if err != nil || len(got.msgs) != 1 {
		t.Fatalf("push receive of 32: %d messages, %v", len(got.msgs), err)
	}
	if sp := got.msgs[0].GetSystemProperties(); sp.GetMessageType() != pb.MessageType_FIFO || sp.GetMessageGroup() != "M1" {
		t.Errorf("received %v of message group %q", sp.GetMessageType(), sp.GetMessageGroup())
	}
	if got := pull(t, c, simple("fifos", "ordered", 32)); len(got.msgs) != 2 {
		t.Errorf("simple receive of 32: %d messages, want the others", len(got.msgs))
	}
	if b.store.last.AttemptID != "" || batch.GetAttemptId() == "" {
		t.Errorf("attempt ids: %q asked for by push, %q passed on for simple", batch.GetAttemptId(), b.store.last.AttemptID)
	}
}

// TestPriorityIsTold holds the route of a priority topic to both types that Node
// sends, and deliveries to the priority as sent.
func TestPriorityIsTold(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	route, err := c.QueryRoute(as(t, "c"), &pb.QueryRouteRequest{Topic: res("urgent")})
	if err != nil {
		t.Fatal(err)
	}
	if types := fmt.Sprint(route.GetMessageQueues()[0].GetAcceptMessageTypes()); types != "[PRIORITY NORMAL]" {
		t.Errorf("the route takes %s", types)
	}
	want(t, send(t, c, msg("urgent", "M1", priority(7))).GetStatus(), pb.Code_OK)
	want(t, send(t, c, msg("urgent", "M2", nil)).GetStatus(), pb.Code_OK)
	for i, m := range pull(t, c, simple("g", "urgent", 2)).msgs {
		sp := m.GetSystemProperties()
		if sp.GetMessageType() != pb.MessageType_PRIORITY || sp.Priority == nil || sp.GetPriority() != []int32{7, 0}[i] {
			t.Errorf("message %s is %v with priority %v", sp.GetMessageId(), sp.GetMessageType(), sp.Priority)
		}
	}
}

// TestSuspendCountsNoAttempt has a consumer put a message off.
func TestSuspendCountsNoAttempt(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	want(t, send(t, c, msg("t", "M", nil)).GetStatus(), pb.Code_OK)
	for _, suspend := range []bool{true, true, false} {
		m := pull(t, c, simple("g", "t", 1)).msgs[0].GetSystemProperties()
		if m.GetDeliveryAttempt() != 1 {
			t.Fatalf("attempt %d, want 1", m.GetDeliveryAttempt())
		}
		resp, err := c.ChangeInvisibleDuration(as(t, "c"), &pb.ChangeInvisibleDurationRequest{
			Group: res("g"), Topic: res("t"), ReceiptHandle: m.GetReceiptHandle(), Suspend: &suspend,
		})
		if err != nil {
			t.Fatal(err)
		}
		want(t, resp.GetStatus(), pb.Code_OK)
	}
	if m := pull(t, c, simple("g", "t", 1)).msgs[0].GetSystemProperties(); m.GetDeliveryAttempt() != 2 {
		t.Errorf("attempt %d after a negative acknowledgement, want 2", m.GetDeliveryAttempt())
	}
}
