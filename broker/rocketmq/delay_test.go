package rocketmq

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/disk"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// late is a DELAY message.
func late(id string, at time.Time) *pb.Message {
	return msg("later", id, func(m *pb.Message) {
		m.SystemProperties.MessageType, m.SystemProperties.DeliveryTimestamp = pb.MessageType_DELAY, timestamppb.New(at)
	})
}

// onBroker runs a server on a broker of its own.
func onBroker(t *testing.T) *bench {
	t.Helper()
	return start(t, func(o *Options) {
		topo := o.Store.Topology()
		b, err := broker.Open(t.Context(), broker.Options{FS: disk.NewMem(), Dir: "store", Node: topo.FindNode("b1"), Topology: topo})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
		o.Store = b
	})
}

func TestDelayedMessagesThroughTheProtocol(t *testing.T) {
	c := onBroker(t).dial(t, nil)
	route, err := c.QueryRoute(as(t, "producer"), &pb.QueryRouteRequest{Topic: res("later")})
	if err != nil || len(route.GetMessageQueues()) == 0 || route.GetMessageQueues()[0].GetAcceptMessageTypes()[0] != pb.MessageType_DELAY {
		t.Fatalf("route %v, %v", route, err)
	}
	poll := simple("lates", "later", 32)
	poll.LongPollingTimeout = durationpb.New(5 * time.Second)
	var e *pb.SendResultEntry
	var at time.Time
	// On a crowded machine a send may take longer than the message is delayed.
	for delay := 300 * time.Millisecond; e.GetRecallHandle() == ""; delay *= 2 {
		if e != nil {
			pull(t, c, poll)
		}
		at = time.Now().Add(delay).Truncate(time.Millisecond)
		resp := send(t, c, late("M", at))
		want(t, resp.GetStatus(), pb.Code_OK)
		e = resp.GetEntries()[0]
	}
	if e.GetMessageId() != "M" || !strings.HasPrefix(e.GetStatus().GetMessage(), "level=waiting") {
		t.Fatalf("entry %v", e)
	}
	recalled := send(t, c, late("R", at.Add(30*time.Minute))).GetEntries()[0]
	st, id := recall(t, c, "later", recalled.GetRecallHandle())
	want(t, st, pb.Code_OK)
	if id != "R" {
		t.Errorf("recalled %q, want R", id)
	}
	want(t, send(t, c, late("past", at.Add(-time.Hour))).GetStatus(), pb.Code_OK)
	left := map[string]time.Time{"past": at.Add(-time.Hour), "M": at}
	for len(left) > 0 {
		got := pull(t, c, poll)
		if len(got.msgs) == 0 {
			t.Fatalf("no message, want %v: %v", left, got.status)
		}
		for _, m := range got.msgs {
			sp := m.GetSystemProperties()
			if sp.GetMessageType() != pb.MessageType_DELAY || !sp.GetDeliveryTimestamp().AsTime().Equal(left[sp.GetMessageId()]) {
				t.Errorf("received %v, want one of %v", sp, left)
			}
			delete(left, sp.GetMessageId())
		}
	}
	if time.Now().Before(at) {
		t.Errorf("M was delivered early")
	}
	st, _ = recall(t, c, "later", e.GetRecallHandle())
	want(t, st, pb.Code_NOT_FOUND)
	st, _ = recall(t, c, "later", "nonsense")
	want(t, st, pb.Code_BAD_REQUEST)
	st, _ = recall(t, c, "later", "")
	want(t, st, pb.Code_BAD_REQUEST)
	st, _ = recall(t, c, "nowhere", e.GetRecallHandle())
	want(t, st, pb.Code_TOPIC_NOT_FOUND)
	st, _ = recall(t, c, "t", e.GetRecallHandle())
	want(t, st, pb.Code_BAD_REQUEST)

	far := send(t, c, late("far", time.Now().Add(2*time.Hour))).GetStatus()
	want(t, far, pb.Code_ILLEGAL_DELIVERY_TIME)
	if !strings.Contains(far.GetMessage(), "1h") {
		t.Errorf("the text %q does not say the limit", far.GetMessage())
	}
	want(t, send(t, c, msg("later", "N", nil)).GetStatus(), pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE)
	want(t, send(t, c, msg("later", "N", func(m *pb.Message) { m.SystemProperties.MessageType = pb.MessageType_DELAY })).GetStatus(), pb.Code_ILLEGAL_DELIVERY_TIME)
	want(t, send(t, c, msg("later", "N", func(m *pb.Message) {
		m.SystemProperties.MessageType, m.SystemProperties.DeliveryTimestamp = pb.MessageType_DELAY, &timestamppb.Timestamp{Seconds: 1 << 60}
	})).GetStatus(), pb.Code_ILLEGAL_DELIVERY_TIME)
}

func recall(t *testing.T, c pb.MessagingServiceClient, topic, handle string) (*pb.Status, string) {
	t.Helper()
	resp, err := c.RecallMessage(as(t, "producer"), &pb.RecallMessageRequest{Topic: res(topic), RecallHandle: handle})
	if err != nil {
		t.Fatalf("recall: gRPC error %v", err)
	}
	return resp.GetStatus(), resp.GetMessageId()
}
