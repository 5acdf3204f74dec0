package rocketmq

import (
	"context"
	"fmt"
	"net"
	"testing"

	"google.golang.org/grpc/metadata"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

func route(t *testing.T, c pb.MessagingServiceClient, topic *pb.Resource) *pb.QueryRouteResponse {
	t.Helper()
	resp, err := c.QueryRoute(as(t, "c"), &pb.QueryRouteRequest{Topic: topic, Endpoints: &pb.Endpoints{
		Scheme: pb.AddressScheme_IPv4, Addresses: []*pb.Address{{Host: "9.9.9.9", Port: 1}},
	}})
	if err != nil {
		t.Fatalf("route: gRPC error %v", err)
	}
	return resp
}

// TestRouteListsTheZonesBrokersOnly also holds what single clients need: queue ids
// from 0 at every broker, broker id 0, one address, nothing unspecified.
func TestRouteListsTheZonesBrokersOnly(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	resp := route(t, c, res("t"))
	want(t, resp.GetStatus(), pb.Code_OK)
	_, port, err := net.SplitHostPort(b.addr)
	if err != nil {
		t.Fatal(err)
	}
	wantQueues := []string{
		"g1 0 IPv4 127.0.0.1:" + port, "g2 0 DOMAIN_NAME broker.example:8082",
		"g1 1 IPv4 127.0.0.1:" + port, "g2 1 DOMAIN_NAME broker.example:8082",
	}
	if len(resp.GetMessageQueues()) != len(wantQueues) {
		t.Fatalf("queues %v", resp.GetMessageQueues())
	}
	for i, q := range resp.GetMessageQueues() {
		e := q.GetBroker().GetEndpoints()
		if len(e.GetAddresses()) != 1 {
			t.Fatalf("%d addresses", len(e.GetAddresses()))
		}
		a := e.GetAddresses()[0]
		if got := fmt.Sprintf("%s %d %v %s:%d", q.GetBroker().GetName(), q.GetId(), e.GetScheme(), a.GetHost(), a.GetPort()); got != wantQueues[i] {
			t.Errorf("queue %d: %s, want %s", i, got, wantQueues[i])
		}
		if q.GetBroker().GetId() != 0 || q.GetPermission() != pb.Permission_READ_WRITE || q.GetTopic().GetName() != "t" ||
			len(q.GetAcceptMessageTypes()) != 1 || q.GetAcceptMessageTypes()[0] != pb.MessageType_NORMAL {
			t.Errorf("queue %v", q)
		}
	}
}

func TestRoutePermissions(t *testing.T) {
	atZ1 := start(t, nil).dial(t, nil)
	atCZone := start(t, func(o *Options) { o.Zone = "c1" }).dial(t, nil)
	tests := []struct {
		where string
		c     pb.MessagingServiceClient
		topic string
		code  pb.Code
		perm  pb.Permission
	}{
		{"RZone", atZ1, "member", pb.Code_OK, pb.Permission_WRITE}, // written anywhere, read in the CZone
		{"CZone", atCZone, "member", pb.Code_OK, pb.Permission_READ_WRITE},
		{"RZone", atZ1, "byuser", pb.Code_OK, pb.Permission_READ_WRITE},
		{"CZone", atCZone, "byuser", pb.Code_OK, pb.Permission_WRITE},
		{"RZone", atZ1, "far", pb.Code_FORBIDDEN, 0}, // residency
		{"RZone", atZ1, "%DLQ%g", pb.Code_OK, pb.Permission_READ},
		{"RZone", atZ1, "%DLQ%", pb.Code_OK, pb.Permission_READ}, // parked records
		{"RZone", atZ1, "%DLQ%nobody", pb.Code_TOPIC_NOT_FOUND, 0},
		{"RZone", atZ1, "none", pb.Code_TOPIC_NOT_FOUND, 0},
		{"RZone", atZ1, "bad topic", pb.Code_ILLEGAL_TOPIC, 0},
		{"RZone", atZ1, "", pb.Code_ILLEGAL_TOPIC, 0},
	}
	for _, tt := range tests {
		t.Run(tt.where+" "+tt.topic, func(t *testing.T) {
			resp := route(t, tt.c, res(tt.topic))
			want(t, resp.GetStatus(), tt.code)
			for _, q := range resp.GetMessageQueues() {
				if q.GetPermission() != tt.perm {
					t.Errorf("permission %v, want %v", q.GetPermission(), tt.perm)
				}
			}
			if (len(resp.GetMessageQueues()) > 0) != (tt.code == pb.Code_OK) {
				t.Errorf("%d queues", len(resp.GetMessageQueues()))
			}
		})
	}
}

func TestNamespaceIsPartOfTheName(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	want(t, route(t, c, &pb.Resource{ResourceNamespace: "ns", Name: "t"}).GetStatus(), pb.Code_TOPIC_NOT_FOUND)
	resp, err := c.QueryRoute(metadata.AppendToOutgoingContext(as(t, "c"), "x-mq-namespace", "ns"), &pb.QueryRouteRequest{Topic: res("t")})
	if err != nil {
		t.Fatal(err)
	}
	want(t, resp.GetStatus(), pb.Code_TOPIC_NOT_FOUND)
}

func TestZoneOutsideTheTopology(t *testing.T) {
	c := start(t, func(o *Options) { o.Zone = "gone" }).dial(t, nil)
	want(t, route(t, c, res("t")).GetStatus(), pb.Code_INTERNAL_SERVER_ERROR)
	want(t, pull(t, c, simple("g", "t", 1)).status, pb.Code_INTERNAL_SERVER_ERROR)
}

func TestAssignmentIsAllQueuesOfEachBroker(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	assign := func(group, topic string) *pb.QueryAssignmentResponse {
		resp, err := c.QueryAssignment(as(t, "c"), &pb.QueryAssignmentRequest{Group: res(group), Topic: res(topic)})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	resp := assign("g", "t")
	want(t, resp.GetStatus(), pb.Code_OK)
	var names []string
	for _, a := range resp.GetAssignments() {
		q := a.GetMessageQueue()
		names = append(names, q.GetBroker().GetName())
		if q.GetId() != -1 || q.GetPermission() != pb.Permission_READ_WRITE || len(q.GetAcceptMessageTypes()) != 1 {
			t.Errorf("assignment %v", q)
		}
	}
	if fmt.Sprint(names) != "[g1 g2]" {
		t.Errorf("brokers %v", names)
	}
	for _, tt := range []struct {
		group, topic string
		code         pb.Code
	}{
		{"watch", "member", pb.Code_FORBIDDEN}, // read at the CZone's
		{"nobody", "t", pb.Code_CONSUMER_GROUP_NOT_FOUND},
		{"steps", "small", pb.Code_CONSUMER_GROUP_NOT_FOUND}, // no subscription
		{"g", "none", pb.Code_TOPIC_NOT_FOUND},
		{"", "t", pb.Code_ILLEGAL_CONSUMER_GROUP},
		{"g", "", pb.Code_ILLEGAL_TOPIC},
		{"fifos", "ordered", pb.Code_OK},
		{"g", "%DLQ%steps", pb.Code_OK},
	} {
		want(t, assign(tt.group, tt.topic).GetStatus(), tt.code)
	}
	atCZone := start(t, func(o *Options) { o.Zone = "c1" }).dial(t, nil)
	for group, code := range map[string]pb.Code{"watch": pb.Code_OK, "cache": pb.Code_FORBIDDEN} {
		resp, err := atCZone.QueryAssignment(as(t, "c"), &pb.QueryAssignmentRequest{Group: res(group), Topic: res("member")})
		if err != nil {
			t.Fatal(err)
		}
		want(t, resp.GetStatus(), code)
	}
}

// unary are all unary calls, with nothing in the request.
func unary(c pb.MessagingServiceClient) map[string]func(context.Context) (interface{ GetStatus() *pb.Status }, error) {
	return map[string]func(context.Context) (interface{ GetStatus() *pb.Status }, error){
		"QueryRoute": func(x context.Context) (interface{ GetStatus() *pb.Status }, error) {
			return c.QueryRoute(x, &pb.QueryRouteRequest{})
		},
		"Heartbeat": func(x context.Context) (interface{ GetStatus() *pb.Status }, error) {
			return c.Heartbeat(x, &pb.HeartbeatRequest{})
		},
		"SendMessage": func(x context.Context) (interface{ GetStatus() *pb.Status }, error) {
			return c.SendMessage(x, &pb.SendMessageRequest{})
		},
		"QueryAssignment": func(x context.Context) (interface{ GetStatus() *pb.Status }, error) {
			return c.QueryAssignment(x, &pb.QueryAssignmentRequest{})
		},
		"AckMessage": func(x context.Context) (interface{ GetStatus() *pb.Status }, error) {
			return c.AckMessage(x, &pb.AckMessageRequest{})
		},
		"ForwardMessageToDeadLetterQueue": func(x context.Context) (interface{ GetStatus() *pb.Status }, error) {
			return c.ForwardMessageToDeadLetterQueue(x, &pb.ForwardMessageToDeadLetterQueueRequest{})
		},
		"ChangeInvisibleDuration": func(x context.Context) (interface{ GetStatus() *pb.Status }, error) {
			return c.ChangeInvisibleDuration(x, &pb.ChangeInvisibleDurationRequest{})
		},
		"NotifyClientTermination": func(x context.Context) (interface{ GetStatus() *pb.Status }, error) {
			return c.NotifyClientTermination(x, &pb.NotifyClientTerminationRequest{})
		},
		"EndTransaction": func(x context.Context) (interface{ GetStatus() *pb.Status }, error) {
			return c.EndTransaction(x, &pb.EndTransactionRequest{})
		},
		"RecallMessage": func(x context.Context) (interface{ GetStatus() *pb.Status }, error) {
			return c.RecallMessage(x, &pb.RecallMessageRequest{})
		},
		"SyncLiteSubscription": func(x context.Context) (interface{ GetStatus() *pb.Status }, error) {
			return c.SyncLiteSubscription(x, &pb.SyncLiteSubscriptionRequest{})
		},
		"UpdateOffset": func(x context.Context) (interface{ GetStatus() *pb.Status }, error) {
			return c.UpdateOffset(x, &pb.UpdateOffsetRequest{})
		},
		"GetOffset": func(x context.Context) (interface{ GetStatus() *pb.Status }, error) {
			return c.GetOffset(x, &pb.GetOffsetRequest{})
		},
		"QueryOffset": func(x context.Context) (interface{ GetStatus() *pb.Status }, error) {
			return c.QueryOffset(x, &pb.QueryOffsetRequest{})
		},
	}
}

// TestEmptyRequestsAreAnsweredByAStatus: business errors are never gRPC errors.
func TestEmptyRequestsAreAnsweredByAStatus(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	codes := map[string]pb.Code{
		"QueryRoute": pb.Code_ILLEGAL_TOPIC, "Heartbeat": pb.Code_UNRECOGNIZED_CLIENT_TYPE, "SendMessage": pb.Code_MESSAGE_CORRUPTED,
		"QueryAssignment": pb.Code_ILLEGAL_TOPIC, "AckMessage": pb.Code_INVALID_RECEIPT_HANDLE, "ForwardMessageToDeadLetterQueue": pb.Code_OK,
		"ChangeInvisibleDuration": pb.Code_INVALID_RECEIPT_HANDLE, "NotifyClientTermination": pb.Code_OK,
		"EndTransaction": pb.Code_ILLEGAL_TOPIC, "RecallMessage": pb.Code_ILLEGAL_TOPIC, "SyncLiteSubscription": pb.Code_ILLEGAL_TOPIC,
		"UpdateOffset": pb.Code_ILLEGAL_TOPIC, "GetOffset": pb.Code_ILLEGAL_TOPIC, "QueryOffset": pb.Code_ILLEGAL_TOPIC,
	}
	for name, call := range unary(c) {
		resp, err := call(as(t, "c"))
		if err != nil {
			t.Errorf("%s: gRPC error %v", name, err)
			continue
		}
		if resp.GetStatus().GetCode() != codes[name] {
			t.Errorf("%s: %v, want %v", name, resp.GetStatus(), codes[name])
		}
	}
	stream, err := c.PullMessage(as(t, "c"), &pb.PullMessageRequest{})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	want(t, resp.GetStatus(), pb.Code_ILLEGAL_TOPIC)
}

func TestCallsWithoutAClientIdAreRefused(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	long := make([]byte, maxClientID+1)
	for i := range long {
		long[i] = 'x'
	}
	for _, name := range []string{"QueryRoute", "Heartbeat", "SendMessage", "QueryAssignment", "AckMessage", "ForwardMessageToDeadLetterQueue", "ChangeInvisibleDuration", "NotifyClientTermination", "UpdateOffset", "GetOffset", "QueryOffset"} {
		resp, err := unary(c)[name](t.Context())
		if err != nil || resp.GetStatus().GetCode() != pb.Code_CLIENT_ID_REQUIRED {
			t.Errorf("%s: %v %v", name, resp, err)
		}
		resp, err = unary(c)[name](as(t, string(long)))
		if err != nil || resp.GetStatus().GetCode() != pb.Code_BAD_REQUEST {
			t.Errorf("%s with a long id: %v %v", name, resp, err)
		}
	}
	got, err := tryPull(t.Context(), c, simple("g", "t", 1))
	if err != nil {
		t.Fatal(err)
	}
	want(t, got.status, pb.Code_CLIENT_ID_REQUIRED)
}
