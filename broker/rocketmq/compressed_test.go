package rocketmq

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// TestCompressedRequestsAreNotUnpacked: requests of a kilobyte that would be megabytes
// are refused, also by a replica, and what is not compressed is served.
func TestCompressedRequestsAreNotUnpacked(t *testing.T) {
	b := start(t, func(o *Options) { o.MaxRequests = 1 })
	r := startReplica(t, newThrone(b.addr), nil)
	for _, addr := range []string{b.addr, r.addr} {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		c := pb.NewMessagingServiceClient(conn)
		bomb := large("bomb", 1<<20)
		if _, err := c.SendMessage(as(t, "c"), &pb.SendMessageRequest{Messages: []*pb.Message{bomb}}); status.Code(err) != codes.Internal {
			t.Errorf("send: %v, want INTERNAL", err)
		}
		if _, err := c.RecallMessage(as(t, "c"), &pb.RecallMessageRequest{RecallHandle: string(bomb.GetBody())}); status.Code(err) != codes.Internal {
			t.Errorf("recall: %v, want INTERNAL", err)
		}
		mustSend(t, stubAt(t, addr), msg("t", "A", nil))
	}
	emptied(t, b)
}
