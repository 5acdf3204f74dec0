package rocketmq

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// deliver sends a message and receives it as group g.
func deliver(t *testing.T, c pb.MessagingServiceClient, id string) *pb.SystemProperties {
	t.Helper()
	mustSend(t, c, msg("t", id, nil))
	got := pull(t, c, simple("g", "t", 1))
	if len(got.msgs) != 1 {
		t.Fatalf("received %v", got)
	}
	return got.msgs[0].GetSystemProperties()
}

func ack(t *testing.T, c pb.MessagingServiceClient, handles ...string) *pb.AckMessageResponse {
	t.Helper()
	req := &pb.AckMessageRequest{Group: res("g"), Topic: res("t")}
	for _, h := range handles {
		req.Entries = append(req.Entries, &pb.AckMessageEntry{MessageId: "id of " + h, ReceiptHandle: h})
	}
	resp, err := c.AckMessage(as(t, "consumer"), req)
	if err != nil {
		t.Fatalf("ack: gRPC error %v", err)
	}
	return resp
}

func nack(t *testing.T, c pb.MessagingServiceClient, client, handle string, d *durationpb.Duration) *pb.ChangeInvisibleDurationResponse {
	t.Helper()
	resp, err := c.ChangeInvisibleDuration(as(t, client), &pb.ChangeInvisibleDurationRequest{
		Group: res("g"), Topic: res("t"), ReceiptHandle: handle, InvisibleDuration: d, MessageId: "M",
	})
	if err != nil {
		t.Fatalf("nack: gRPC error %v", err)
	}
	return resp
}

func dead(t *testing.T, c pb.MessagingServiceClient, handle string) *pb.Status {
	t.Helper()
	resp, err := c.ForwardMessageToDeadLetterQueue(as(t, "consumer"), &pb.ForwardMessageToDeadLetterQueueRequest{
		Group: res("g"), Topic: res("t"), ReceiptHandle: handle, MessageId: "M", DeliveryAttempt: 5, MaxDeliveryAttempts: 5,
	})
	if err != nil {
		t.Fatalf("forward: gRPC error %v", err)
	}
	return resp.GetStatus()
}

// A client has switched to a server that has never heard of it.
func TestQ5_SettlementsAsTheVeryFirstCall(t *testing.T) {
	b := start(t, nil)
	handle := deliver(t, b.dial(t, nil), "M").GetReceiptHandle()
	renewed := nack(t, b.dial(t, nil), "stranger", handle, durationpb.New(time.Minute))
	want(t, renewed.GetStatus(), pb.Code_OK)
	fresh := b.dial(t, nil)
	want(t, ack(t, fresh, renewed.GetReceiptHandle()).GetStatus(), pb.Code_OK)
	want(t, ack(t, fresh, renewed.GetReceiptHandle()).GetStatus(), pb.Code_OK) // idempotent
	if again := pull(t, fresh, simple("g", "t", 1)); len(again.msgs) != 0 {
		t.Error("an acknowledged message came again")
	}
}

func TestAckReportsEachEntry(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	a, b := deliver(t, c, "A").GetReceiptHandle(), deliver(t, c, "B").GetReceiptHandle()
	resp := ack(t, c, a, "forged", b, "")
	want(t, resp.GetStatus(), pb.Code_MULTIPLE_RESULTS)
	for i, code := range []pb.Code{pb.Code_OK, pb.Code_INVALID_RECEIPT_HANDLE, pb.Code_OK, pb.Code_INVALID_RECEIPT_HANDLE} {
		want(t, resp.GetEntries()[i].GetStatus(), code)
	}
	if e := resp.GetEntries()[1]; e.GetReceiptHandle() != "forged" || e.GetMessageId() != "id of forged" {
		t.Errorf("the entry does not say which it is: %v", e)
	}
	want(t, ack(t, c, "x", "y").GetStatus(), pb.Code_INVALID_RECEIPT_HANDLE)
	want(t, ack(t, c, strings.Repeat("h", maxHandle+1)).GetStatus(), pb.Code_INVALID_RECEIPT_HANDLE)
	want(t, ack(t, c).GetStatus(), pb.Code_BAD_REQUEST)
	want(t, ack(t, c, make([]string, maxAckEntries+1)...).GetStatus(), pb.Code_BAD_REQUEST)
}

// TestPermanentFailuresOfSettlementsAreInvalidHandles: any other code would make
// push consumers repeat the call for ever.
func TestPermanentFailuresOfSettlementsAreInvalidHandles(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	for _, names := range [][2]string{{"", "t"}, {"g", ""}, {"g!", "t"}, {"g", "none"}, {"nobody", "t"}} {
		resp, err := c.AckMessage(as(t, "c"), &pb.AckMessageRequest{Group: res(names[0]), Topic: res(names[1]), Entries: []*pb.AckMessageEntry{{ReceiptHandle: "h"}}})
		if err != nil {
			t.Fatal(err)
		}
		want(t, resp.GetStatus(), pb.Code_INVALID_RECEIPT_HANDLE)
	}
}

// An acknowledgement that failed inside leaves the handle as good as it was.
func TestQ4_FailedAckCanBeRepeated(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	handle := deliver(t, c, "M").GetReceiptHandle()
	b.store.mu.Lock()
	b.store.settle = func(string, string) error { return &broker.Error{Op: "ack", Kind: broker.KindBusy} }
	b.store.mu.Unlock()
	want(t, ack(t, c, handle).GetStatus(), pb.Code_TOO_MANY_REQUESTS)
	changed := nack(t, c, "consumer", handle, nil)
	want(t, changed.GetStatus(), pb.Code_TOO_MANY_REQUESTS)
	if changed.GetReceiptHandle() != handle {
		t.Errorf("a failed change returned the handle %q, not the old one", changed.GetReceiptHandle())
	}
	want(t, dead(t, c, handle), pb.Code_TOO_MANY_REQUESTS)
	b.store.mu.Lock()
	b.store.settle = nil
	b.store.mu.Unlock()
	want(t, ack(t, c, handle).GetStatus(), pb.Code_OK)
}

func TestChangeInvisibleReplacesTheHandle(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	old := deliver(t, c, "M").GetReceiptHandle()
	resp := nack(t, c, "consumer", old, nil) // at once
	want(t, resp.GetStatus(), pb.Code_OK)
	if resp.GetReceiptHandle() == old {
		t.Error("the handle was not replaced")
	}
	want(t, ack(t, c, old).GetStatus(), pb.Code_INVALID_RECEIPT_HANDLE)
	again := pull(t, c, simple("g", "t", 1))
	if len(again.msgs) != 1 || again.msgs[0].GetSystemProperties().GetDeliveryAttempt() != 2 {
		t.Fatalf("after a change to 0: %v", again)
	}
	for _, d := range []*durationpb.Duration{durationpb.New(-1), durationpb.New(12*time.Hour + 1), {Seconds: 1 << 60}} {
		resp := nack(t, c, "consumer", "h", d)
		want(t, resp.GetStatus(), pb.Code_ILLEGAL_INVISIBLE_TIME)
		if resp.GetReceiptHandle() != "h" {
			t.Error("a refusal must repeat the old handle")
		}
	}
	want(t, nack(t, c, "consumer", "forged", nil).GetStatus(), pb.Code_INVALID_RECEIPT_HANDLE)
}

// TestPushConsumersBackOffIsNotBelowThePolicy: Node reads the policy's seconds as
// milliseconds.
func TestPushConsumersBackOffIsNotBelowThePolicy(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	mustSend(t, c, msg("t", "M", nil))
	got, err := tryPull(as(t, "node"), c, push("g", "t", time.Second))
	if err != nil || len(got.msgs) != 1 {
		t.Fatal(got, err)
	}
	resp := nack(t, c, "node", got.msgs[0].GetSystemProperties().GetReceiptHandle(), durationpb.New(2*time.Millisecond))
	want(t, resp.GetStatus(), pb.Code_OK)
	want(t, nack(t, c, "node", resp.GetReceiptHandle(), durationpb.New(time.Minute)).GetStatus(), pb.Code_OK)
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	if w := b.store.waits; len(w) != 2 || w[0] != 2*time.Second || w[1] != time.Minute {
		t.Errorf("waits %v, want the group's first step of 2s, then what was asked", w)
	}
}

func TestForwardToDeadLetters(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	sp := deliver(t, c, "M")
	handle := sp.GetReceiptHandle()
	want(t, dead(t, c, handle), pb.Code_OK)
	want(t, dead(t, c, handle), pb.Code_OK)   // repeated
	want(t, dead(t, c, "forged"), pb.Code_OK) // else it would be repeated for ever
	want(t, dead(t, c, ""), pb.Code_OK)
	got := pull(t, c, simple("g", "%DLQ%g", 32))
	if len(got.msgs) != 1 {
		t.Fatalf("dead letters: %v, want exactly one", got.msgs)
	}
	d := got.msgs[0].GetSystemProperties().GetDeadLetterQueue()
	if d.GetTopic() != "t" || d.GetMessageId() != "M" || got.msgs[0].GetTopic().GetName() != "%DLQ%g" {
		t.Errorf("dead letter %v", got.msgs[0])
	}
}
