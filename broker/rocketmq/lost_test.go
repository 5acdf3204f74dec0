package rocketmq

import (
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// TestABrokenConnectionEndsRenewal: what it brought may never have arrived, though
// its client lives on. What another connection brought is renewed further.
func TestABrokenConnectionEndsRenewal(t *testing.T) {
	b := start(t, nil)
	conn, err := grpc.NewClient(b.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	other := b.dial(t, nil)
	receive := func(c pb.MessagingServiceClient, id string) uint64 {
		mustSend(t, other, msg("t", id, nil))
		if got, err := tryPull(as(t, "pusher"), c, push("g", "t", time.Second)); err != nil || len(got.msgs) != 1 {
			t.Fatal(got, err)
		}
		b.store.mu.Lock()
		defer b.store.mu.Unlock()
		return b.store.last.Link
	}
	broken, standing := receive(pb.NewMessagingServiceClient(conn), "M1"), receive(other, "M2")
	if broken == standing || !b.Alive("pusher", broken) || !b.Alive("pusher", standing) {
		t.Fatalf("connections %d and %d: alive %v and %v", broken, standing, b.Alive("pusher", broken), b.Alive("pusher", standing))
	}
	conn.Close()
	for end := time.Now().Add(enough); b.Alive("pusher", broken); {
		if _, err := other.Heartbeat(as(t, "pusher"), &pb.HeartbeatRequest{ClientType: pb.ClientType_PUSH_CONSUMER}); err != nil || time.Now().After(end) {
			t.Fatalf("what the broken connection brought is renewed further: %v", err)
		}
	}
	if !b.Alive("pusher", standing) {
		t.Error("what the other connection brought is not renewed")
	}
	if !b.Alive("pusher", 0) || b.Alive("stranger", standing) || b.Alive("pusher", 99) {
		t.Error("the wrong clients are alive")
	}
}
