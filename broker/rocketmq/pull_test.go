package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// The store in memory serves no consumers that pull; their tests use the real one.

func (s *memStore) Pull(context.Context, broker.PullRequest) (broker.Pulled, error) {
	return broker.Pulled{}, &broker.Error{Op: "pull", Kind: broker.KindUnsupported}
}

func (s *memStore) Offset(context.Context, zone.ConsumerGroup, broker.QueueName) (uint64, error) {
	return 0, &broker.Error{Op: "offset", Kind: broker.KindNoOffset}
}

func (s *memStore) SetOffset(context.Context, zone.ConsumerGroup, broker.QueueName, uint64) error {
	return &broker.Error{Op: "offset", Kind: broker.KindUnsupported}
}

func (s *memStore) FindOffset(context.Context, broker.QueueName, broker.Where, time.Time) (uint64, error) {
	return 0, &broker.Error{Op: "offset", Kind: broker.KindUnsupported}
}

// at names a queue of topic t at the real broker.
func at(id int32) *pb.MessageQueue {
	return &pb.MessageQueue{Topic: res("t"), Id: id, Broker: &pb.Broker{Name: "gc1"}}
}

// fetched is the outcome of one PullMessage.
type fetched struct {
	status *pb.Status
	msgs   []*pb.Message
	next   int64
	order  string // s, m and n for status, message and next offset
}

func fetch(t *testing.T, c pb.MessagingServiceClient, req *pb.PullMessageRequest) fetched {
	t.Helper()
	return fetchAll(t, fetchBegin(t, c, req))
}

func fetchBegin(t *testing.T, c pb.MessagingServiceClient, req *pb.PullMessageRequest) grpc.ServerStreamingClient[pb.PullMessageResponse] {
	t.Helper()
	stream, err := c.PullMessage(as(t, "puller"), req)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func fetchAll(t *testing.T, stream grpc.ServerStreamingClient[pb.PullMessageResponse]) fetched {
	t.Helper()
	var out fetched
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("pull: gRPC error %v", err)
		}
		switch x := resp.GetContent().(type) {
		case *pb.PullMessageResponse_Status:
			out.status, out.order = x.Status, out.order+"s"
		case *pb.PullMessageResponse_Message:
			out.msgs, out.order = append(out.msgs, x.Message), out.order+"m"
		case *pb.PullMessageResponse_NextOffset:
			out.next, out.order = x.NextOffset, out.order+"n"
		}
	}
}

func fetching(mq *pb.MessageQueue, offset int64) *pb.PullMessageRequest {
	return &pb.PullMessageRequest{Group: res("g"), MessageQueue: mq, Offset: offset, BatchSize: 32, LongPollingTimeout: durationpb.New(0)}
}

// toQueue sends messages with the queue as the client's hint.
func toQueue(t *testing.T, c pb.MessagingServiceClient, queue int32, ids ...string) {
	t.Helper()
	for _, id := range ids {
		mustSend(t, c, msg("t", id, func(m *pb.Message) { m.SystemProperties.QueueId, m.SystemProperties.Tag = queue, str("tag-"+id) }))
	}
}

func TestPullConsumerReadsAQueue(t *testing.T) {
	c := startReal(t).dial(t, nil)
	toQueue(t, c, 1, "A", "B", "C")
	got := fetch(t, c, fetching(at(1), 0))
	want(t, got.status, pb.Code_OK)
	if got.order != "smmmn" || got.next != 3 || len(got.msgs) != 3 {
		t.Fatalf("order %q, next %d", got.order, got.next)
	}
	for i, m := range got.msgs {
		sp := m.GetSystemProperties()
		if sp.GetMessageId() != []string{"A", "B", "C"}[i] || sp.GetQueueOffset() != int64(i) || sp.GetQueueId() != 1 || sp.ReceiptHandle != nil || sp.BodyDigest == nil || sp.GetDeliveryAttempt() != 1 {
			t.Errorf("message %d: %v", i, sp)
		}
	}
	req := fetching(at(1), 1)
	req.BatchSize = 1
	if got := fetch(t, c, req); got.next != 2 || len(got.msgs) != 1 || got.msgs[0].GetSystemProperties().GetMessageId() != "B" {
		t.Errorf("one message from 1: %v, next %d", got.msgs, got.next)
	}
	req = fetching(at(1), 0)
	req.FilterExpression = &pb.FilterExpression{Type: pb.FilterType_TAG, Expression: "tag-C"}
	if got := fetch(t, c, req); got.next != 3 || len(got.msgs) != 1 {
		t.Errorf("with a filter: %v, next %d", got.msgs, got.next)
	}
	empty := fetch(t, c, fetching(at(1), 3))
	want(t, empty.status, pb.Code_MESSAGE_NOT_FOUND)
	if empty.order != "sn" || empty.next != 3 {
		t.Errorf("at the end: order %q, next %d", empty.order, empty.next)
	}
	behind := fetch(t, c, fetching(at(1), 9))
	want(t, behind.status, pb.Code_ILLEGAL_OFFSET)
	if behind.next != 3 || !strings.Contains(behind.status.GetMessage(), "holds 0 to 3") {
		t.Errorf("behind the end: next %d, %s", behind.next, behind.status.GetMessage())
	}
}

func TestPullConsumerRefusals(t *testing.T) {
	c := startReal(t).dial(t, nil)
	group := func(name string) *pb.PullMessageRequest {
		r := fetching(at(0), 0)
		r.Group = res(name)
		return r
	}
	other := &pb.MessageQueue{Topic: res("t"), Broker: &pb.Broker{Name: "gc2"}}
	sql := fetching(at(0), 0)
	sql.FilterExpression = &pb.FilterExpression{Type: 99}
	for name, x := range map[string]struct {
		req  *pb.PullMessageRequest
		code pb.Code
		text string
	}{
		"all queues":       {fetching(at(-1), 0), pb.Code_BAD_REQUEST, "all queues"},
		"no such queue":    {fetching(at(2), 0), pb.Code_BAD_REQUEST, "0 to 1"},
		"another broker":   {fetching(other, 0), pb.Code_BAD_REQUEST, "gc2"},
		"negative offset":  {fetching(at(0), -1), pb.Code_ILLEGAL_OFFSET, "negative"},
		"unknown topic":    {fetching(&pb.MessageQueue{Topic: res("nothing")}, 0), pb.Code_TOPIC_NOT_FOUND, "nothing"},
		"unknown group":    {group("nobody"), pb.Code_CONSUMER_GROUP_NOT_FOUND, "nobody"},
		"group of others":  {group("watch"), pb.Code_CONSUMER_GROUP_NOT_FOUND, "watch"},
		"cache":            {&pb.PullMessageRequest{Group: res("cache"), MessageQueue: &pb.MessageQueue{Topic: res("member")}}, pb.Code_FORBIDDEN, "cache"},
		"no group":         {group(""), pb.Code_ILLEGAL_CONSUMER_GROUP, "empty"},
		"unknown filter":   {sql, pb.Code_ILLEGAL_FILTER_EXPRESSION, "filter"},
		"nothing at all":   {&pb.PullMessageRequest{}, pb.Code_ILLEGAL_TOPIC, ""},
		"topic far away":   {fetching(&pb.MessageQueue{Topic: res("far")}, 0), pb.Code_FORBIDDEN, "far"},
		"negative waiting": {&pb.PullMessageRequest{Group: res("g"), MessageQueue: at(0), LongPollingTimeout: durationpb.New(-1)}, pb.Code_ILLEGAL_POLLING_TIME, "negative"},
	} {
		got := fetch(t, c, x.req)
		if want(t, got.status, x.code); !strings.Contains(got.status.GetMessage(), x.text) || got.order != "sn" {
			t.Errorf("%s: %q, order %q", name, got.status.GetMessage(), got.order)
		}
	}
}

func TestOffsetsOfAPullConsumer(t *testing.T) {
	b := startReal(t)
	c := b.dial(t, nil)
	get := func(mq *pb.MessageQueue) *pb.GetOffsetResponse {
		t.Helper()
		resp, err := c.GetOffset(as(t, "puller"), &pb.GetOffsetRequest{Group: res("g"), MessageQueue: mq})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	update := func(offset int64) *pb.Status {
		t.Helper()
		resp, err := c.UpdateOffset(as(t, "puller"), &pb.UpdateOffsetRequest{Group: res("g"), MessageQueue: at(1), Offset: offset})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetStatus()
	}
	query := func(p pb.QueryOffsetPolicy, at1 *timestamppb.Timestamp) *pb.QueryOffsetResponse {
		t.Helper()
		resp, err := c.QueryOffset(as(t, "puller"), &pb.QueryOffsetRequest{MessageQueue: at(1), QueryOffsetPolicy: p, Timestamp: at1})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	before := timestamppb.Now()
	toQueue(t, c, 1, "A", "B", "C", "D")
	want(t, update(3), pb.Code_OK)
	if got := get(at(1)); got.GetStatus().GetCode() != pb.Code_OK || got.GetOffset() != 3 {
		t.Errorf("offset %v", got)
	}
	want(t, update(5), pb.Code_ILLEGAL_OFFSET)
	want(t, update(-5), pb.Code_ILLEGAL_OFFSET)
	want(t, get(at(7)).GetStatus(), pb.Code_BAD_REQUEST)
	// What the offset left behind is not received any more; the rest is.
	req := simple("g", "t", 10)
	got := pull(t, c, req)
	if len(got.msgs) != 1 || got.msgs[0].GetSystemProperties().GetMessageId() != "D" {
		t.Errorf("received %v", got.msgs)
	}
	for p, offset := range map[pb.QueryOffsetPolicy]int64{pb.QueryOffsetPolicy_BEGINNING: 0, pb.QueryOffsetPolicy_END: 4} {
		if got := query(p, nil); got.GetStatus().GetCode() != pb.Code_OK || got.GetOffset() != offset {
			t.Errorf("%v: %v", p, got)
		}
	}
	if got := query(pb.QueryOffsetPolicy_TIMESTAMP, before); got.GetOffset() != 0 || got.GetStatus().GetCode() != pb.Code_OK {
		t.Errorf("at the time before: %v", got)
	}
	if got := query(pb.QueryOffsetPolicy_TIMESTAMP, timestamppb.New(time.Now().Add(time.Hour))); got.GetOffset() != 4 {
		t.Errorf("in an hour: %v", got)
	}
	want(t, query(pb.QueryOffsetPolicy_TIMESTAMP, nil).GetStatus(), pb.Code_BAD_REQUEST)
	want(t, query(9, nil).GetStatus(), pb.Code_BAD_REQUEST)
}

// TestPullConsumerIsAssignedQueues: it is told the queues one by one, all others one
// entry for all.
func TestPullConsumerIsAssignedQueues(t *testing.T) {
	c := startReal(t).dial(t, nil)
	for kind, ids := range map[pb.ClientType][]int32{pb.ClientType_PULL_CONSUMER: {0, 1}, pb.ClientType_PUSH_CONSUMER: {allQueues}} {
		ctx := as(t, fmt.Sprint(kind))
		resp, err := c.Heartbeat(ctx, &pb.HeartbeatRequest{ClientType: kind})
		if err != nil {
			t.Fatal(err)
		}
		want(t, resp.GetStatus(), pb.Code_OK)
		a, err := c.QueryAssignment(ctx, &pb.QueryAssignmentRequest{Topic: res("t"), Group: res("g")})
		if err != nil {
			t.Fatal(err)
		}
		var got []int32
		for _, x := range a.GetAssignments() {
			got = append(got, x.GetMessageQueue().GetId())
		}
		if !slices.Equal(got, ids) {
			t.Errorf("%v: queues %v, want %v", kind, got, ids)
		}
	}
}

func TestPullPollEndsWhenAMessageArrives(t *testing.T) {
	c := startReal(t).dial(t, nil)
	req := fetching(at(0), 0)
	req.LongPollingTimeout = durationpb.New(15 * time.Second)
	stream := fetchBegin(t, c, req)
	toQueue(t, c, 1, "elsewhere")
	toQueue(t, c, 0, "here")
	if r := fetchAll(t, stream); len(r.msgs) != 1 || r.next != 1 || r.msgs[0].GetSystemProperties().GetMessageId() != "here" {
		t.Errorf("got %v", r)
	}
}
