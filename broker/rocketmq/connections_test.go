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
	receive := func(c pb.MessagingServiceClient, id string) string {
		mustSend(t, other, msg("t", id, nil))
		if got, err := tryPull(as(t, "pusher"), c, push("g", "t", time.Second)); err != nil || len(got.msgs) != 1 {
			t.Fatal(got, err)
		}
		b.store.mu.Lock()
		defer b.store.mu.Unlock()
		return b.store.last.Holder
	}
	broken, standing := receive(pb.NewMessagingServiceClient(conn), "M1"), receive(other, "M2")
	if !b.Alive(broken) || !b.Alive(standing) {
		t.Fatalf("%q and %q: alive %v and %v", broken, standing, b.Alive(broken), b.Alive(standing))
	}
	conn.Close()
	for end := time.Now().Add(20 * time.Second); b.Alive(broken); {
		if _, err := other.Heartbeat(as(t, "pusher"), &pb.HeartbeatRequest{ClientType: pb.ClientType_PUSH_CONSUMER}); err != nil || time.Now().After(end) {
			t.Fatalf("what the broken connection brought is renewed further: %v", err)
		}
	}
	if !b.Alive(standing) {
		t.Error("what the other connection brought is not renewed")
	}
	if !b.Alive("pusher") || b.Alive("1 stranger") || b.Alive("99 pusher") {
		t.Error("the wrong holders are alive")
	}
}
