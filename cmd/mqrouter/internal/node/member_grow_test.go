package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/pki"
	"github.com/mqrouter/mqrouter/internal/admin"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
)

// growing is a city with a coordinator node of its own, whose broker group has one node
// or three.
type growing struct {
	*coordinated
	one, three string // the group's nodes in the topology
	text       string // with the epoch and the nodes left open
	epoch      int
}

func newGrowing(t *testing.T) *growing {
	t.Helper()
	ports := freePorts(t, 12)
	dir := t.TempDir()
	g := &growing{coordinated: &coordinated{dir: dir, file: filepath.Join(dir, "topology.yaml")}}
	const node = `{name: g-%d, client: "127.0.0.1:%d", peer: "127.0.0.1:%d", gossip: "127.0.0.1:%d"}`
	var nodes []string
	for i := range 3 {
		nodes = append(nodes, fmt.Sprintf(node, i+1, ports[3*i], ports[3*i+1], ports[3*i+2]))
	}
	g.one, g.three = nodes[0], strings.Join(nodes, ", ")
	g.text = fmt.Sprintf(`deployment: test
epoch: {term: 1, number: EPOCH}
unknown_groups: newest
cities:
  - name: c
    coordinator:
      driver: raft
      voters: [co-1]
      lease: 10s
      nodes: [{name: co-1, peer: "127.0.0.1:%d", gossip: "127.0.0.1:%d", admin: "127.0.0.1:%d"}]
    zones:
      - name: cz
        kind: CZone
        groups: [{name: g, nodes: [NODES]}]
topics: [{name: orders, route: local}, {name: most, route: local, durability: quorum}]
consumer_groups: [{name: billing, topics: [orders, most]}]
`, ports[9:]...)
	g.roll(t, g.three)
	if err := pki.Init("test", dir, 0, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := pki.Issue(dir, dir, g.top, pki.Nodes(g.top), peer.Request{Now: time.Now()}); err != nil {
		t.Fatal(err)
	}
	return g
}

// roll puts a topology with these nodes in force.
func (g *growing) roll(t *testing.T, nodes string) {
	t.Helper()
	g.epoch++
	text := strings.NewReplacer("EPOCH", fmt.Sprint(g.epoch), "NODES", nodes).Replace(g.text)
	if err := os.WriteFile(g.file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(g.file+".new", g.file); err != nil {
		t.Fatal(err)
	}
	g.top = parse(t, []byte(text))
}

// single runs g-1 as the group's only node, until the test ends or stop is called, or
// says why it does not start.
func (g *growing) single(t *testing.T, leave uint64) (stop func(), err error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done, ready := make(chan error, 1), make(chan struct{})
	go func() {
		done <- Broker(ctx, config.Node{Name: "g-1", Topology: g.file, PKI: g.dir, DataDir: filepath.Join(g.dir, "data", "g-1"), Plaintext: true, Grace: 2 * time.Second, LeaveGroup: leave},
			Options{Version: "test", Logger: slog.New(slog.DiscardHandler), Ready: func() { close(ready) }})
	}()
	select {
	case <-ready:
	case err := <-done:
		cancel()
		return nil, err
	}
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("g-1: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop, nil
}

// load publishes to both topics, through whatever node takes it, until stop is called,
// which returns the bodies that were acknowledged.
func (g *growing) load(t *testing.T) (stop func() []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var stubs []pb.MessagingServiceClient
	for _, n := range []zone.Node{"g-1", "g-2", "g-3"} {
		conn, err := grpc.NewClient(g.top.FindNode(n).Client, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		stubs = append(stubs, pb.NewMessagingServiceClient(conn))
	}
	var wg sync.WaitGroup
	acked := make([][]string, 2)
	for p, topic := range []string{"orders", "most"} {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				body := fmt.Sprintf("%s-%d", topic, i)
				for try := 0; ctx.Err() == nil; try++ {
					call, end := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", topic), 2*time.Second)
					resp, err := stubs[try%len(stubs)].SendMessage(call, &pb.SendMessageRequest{Messages: []*pb.Message{{Topic: &pb.Resource{Name: topic}, Body: []byte(body),
						SystemProperties: &pb.SystemProperties{MessageId: fmt.Sprintf("01%d%029d", p, i), MessageType: pb.MessageType_NORMAL, BodyEncoding: pb.Encoding_IDENTITY, BornTimestamp: timestamppb.Now(), BornHost: "h"}}}})
					end()
					if err == nil && resp.GetStatus().GetCode() == pb.Code_OK {
						acked[p] = append(acked[p], body)
						break
					}
				}
			}
		})
	}
	return func() []string {
		cancel()
		wg.Wait()
		return slices.Concat(acked...)
	}
}

// inSync waits until an acknowledgement of the master has n copies.
func inSync(t *testing.T, m *running, n int) {
	t.Helper()
	until(t, fmt.Sprint(n, " in sync"), func() bool {
		l := m.life.Load()
		if l == nil {
			return false
		}
		l.mu.Lock()
		leader := l.leader
		l.mu.Unlock()
		return leader != nil && leader.InSync() == n
	})
}

// TestAGroupGrowsToThreeNodesAndBackUnderLoad follows the runbook from one node to three,
// hands the group over twice while a topic of durability quorum is published to, and goes
// back to one node: whatever was acknowledged in any of these times is in the log that
// is left, and that one does not begin alone before somebody has said so.
func TestAGroupGrowsToThreeNodesAndBackUnderLoad(t *testing.T) {
	t.Parallel()
	g := newGrowing(t)
	all := g.top
	g.roll(t, g.one)
	g.start(t, "co-1")
	single, err := g.single(t, 0)
	if err != nil {
		t.Fatal(err)
	}
	g.top = all // load needs the addresses of all
	done := g.load(t)
	g.publishThrough(t, "g-1", "orders", 1)

	g.roll(t, g.three)
	single()
	a := g.member(t, "g-1")
	b, d := g.member(t, "g-2"), g.member(t, "g-3")
	master, _ := masterOf(t, a, b, d)
	if master != a {
		t.Fatalf("%s leads, and only g-1 has a log", master.self.Name)
	}
	inSync(t, a, 3)
	g.publishThrough(t, "g-2", "most", 2)

	hand := func(from, to *running) {
		t.Helper()
		until(t, "a switch", func() bool {
			_, err := orderDesk{from.memberNode}.Switch(t.Context(), "test", admin.SwitchOrder{Group: "g", To: string(to.self.Name), Why: "test"})
			return err == nil || to.life.Load() != nil && to.life.Load().reigns()
		})
		masterOf(t, to)
		g.publishThrough(t, from.self.Name, "most", 3)
		inSync(t, to, 3)
	}
	hand(a, b)
	hand(b, a)

	b.stop()
	d.stop()
	inSync(t, a, 1)
	g.publishThrough(t, "g-1", "orders", 4)
	g.roll(t, g.one)
	g.top = all
	a.stop()
	var member *commitlog.MemberError
	if _, err := g.single(t, 0); !errors.As(err, &member) || !strings.Contains(err.Error(), "leave-group") {
		t.Fatalf("it starts alone: %v", err)
	}
	if _, err := g.single(t, member.Epoch); err != nil {
		t.Fatal(err)
	}
	g.publishThrough(t, "g-1", "orders", 5)
	acked := done()
	g.received(t, acked)
}

// received reads what g-1 has for a consumer group until all of it has come.
func (g *growing) received(t *testing.T, acked []string) {
	t.Helper()
	conn, err := grpc.NewClient(g.top.FindNode("g-1").Client, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stub, got := pb.NewMessagingServiceClient(conn), map[string]bool{}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-mq-client-id", "reader")
	until(t, "every acknowledged message comes", func() bool {
		for _, topic := range []string{"orders", "most"} {
			g.receive(ctx, t, stub, topic, got)
		}
		return !slices.ContainsFunc(acked, func(body string) bool { return !got[body] })
	})
	t.Logf("%d messages were acknowledged", len(acked))
}

// receive takes a batch of a topic.
func (g *growing) receive(ctx context.Context, t *testing.T, stub pb.MessagingServiceClient, topic string, got map[string]bool) {
	t.Helper()
	stream, err := stub.ReceiveMessage(ctx, &pb.ReceiveMessageRequest{Group: &pb.Resource{Name: "billing"}, MessageQueue: &pb.MessageQueue{Topic: &pb.Resource{Name: topic}},
		BatchSize: 32, InvisibleDuration: durationpb.New(time.Hour), LongPollingTimeout: durationpb.New(time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if m := resp.GetMessage(); m != nil {
			got[string(m.GetBody())] = true
		}
	}
}
