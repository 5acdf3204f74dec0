package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/pki"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
)

// newTrio makes a city with a broker group of three nodes, which vote as well. A machine
// that stands still for some seconds costs no master its lease: what a lapse does is tried
// where it is made to happen.
func newTrio(t *testing.T) *coordinated {
	t.Helper()
	ports := freePorts(t, 9)
	dir := t.TempDir()
	c := &coordinated{dir: dir, file: filepath.Join(dir, "topology.yaml")}
	text := fmt.Sprintf(`deployment: test
epoch: {term: 1, number: 1}
unknown_groups: newest
cities:
  - name: c
    coordinator: {driver: raft, voters: [g-1, g-2, g-3], lease: 10s}
    zones:
      - name: cz
        kind: CZone
        groups:
          - name: g
            nodes:
              - {name: g-1, client: "127.0.0.1:%d", peer: "127.0.0.1:%d", gossip: "127.0.0.1:%d"}
              - {name: g-2, client: "127.0.0.1:%d", peer: "127.0.0.1:%d", gossip: "127.0.0.1:%d"}
              - {name: g-3, client: "127.0.0.1:%d", peer: "127.0.0.1:%d", gossip: "127.0.0.1:%d"}
topics: [{name: orders, route: local}, {name: safe, route: local, min_in_sync: 3}]
consumer_groups: [{name: billing, topics: [orders]}]
`, ports...)
	if err := os.WriteFile(c.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.top = parse(t, []byte(text))
	if err := pki.Init("test", dir, 0, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := pki.Issue(dir, dir, c.top, pki.Nodes(c.top), peer.Request{Now: time.Now()}); err != nil {
		t.Fatal(err)
	}
	return c
}

// broker runs a broker until the test ends or stop is called.
func (c *coordinated) broker(t *testing.T, name zone.Node) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		done <- Broker(ctx, config.Node{Name: string(name), Topology: c.file, PKI: c.dir, DataDir: filepath.Join(c.dir, "data", string(name)), Plaintext: true, Grace: 2 * time.Second},
			Options{Version: "test", Logger: slog.New(slog.DiscardHandler), Ready: func() { close(ready) }})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("%s: %v", name, err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// TestEveryNodeOfAGroupTakesPublishesWhoeverIsMaster publishes through each of three
// nodes, stops one after the other when all are in sync, and starts it again: whoever
// was master, publishes go on through the two that are left, and the third is in sync
// again soon.
func TestEveryNodeOfAGroupTakesPublishesWhoeverIsMaster(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	names := []zone.Node{"g-1", "g-2", "g-3"}
	stops := map[zone.Node]func(){}
	for _, n := range names {
		stops[n] = c.broker(t, n)
	}
	stub := func(n zone.Node) pb.MessagingServiceClient {
		conn, err := grpc.NewClient(c.top.FindNode(n).Client, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return pb.NewMessagingServiceClient(conn)
	}
	sent := 0
	// publish sends through a node until it is acknowledged: a client's retries.
	publish := func(n zone.Node, topic string) {
		t.Helper()
		client := stub(n)
		sent++
		for {
			ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-mq-client-id", "c"), 5*time.Second)
			resp, err := client.SendMessage(ctx, &pb.SendMessageRequest{Messages: []*pb.Message{{Topic: &pb.Resource{Name: topic}, Body: []byte("x"),
				SystemProperties: &pb.SystemProperties{MessageId: fmt.Sprintf("01%030d", sent), MessageType: pb.MessageType_NORMAL, BodyEncoding: pb.Encoding_IDENTITY, BornTimestamp: timestamppb.Now(), BornHost: "h"}}}})
			cancel()
			if err == nil && resp.GetStatus().GetCode() == pb.Code_OK {
				return
			}
			if t.Context().Err() != nil {
				t.Fatalf("through %s: %v, %v", n, resp, err)
			}
		}
	}
	for _, n := range names {
		publish(n, "orders")
	}
	for i, down := range names {
		publish(down, "safe") // taken once all three are in sync: one may go then
		stops[down]()
		publish(names[(i+1)%3], "orders")
		publish(names[(i+2)%3], "orders")
		stops[down] = c.broker(t, down)
		publish(down, "orders")
	}
}
