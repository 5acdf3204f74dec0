package rocketmq

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// acceptAll is a store that stores nothing.
type acceptAll struct{ *memStore }

func (acceptAll) Publish(_ context.Context, msgs []broker.Message, out []broker.PublishResult) error {
	for i := range msgs {
		out[i].Level = broker.LevelStored
	}
	return nil
}

// quick makes the server of zone c1, the only broker of which is at the port, over
// a store that costs nothing.
func quick(tb testing.TB, port int) *Server {
	tb.Helper()
	text := strings.NewReplacer(`127.0.0.1:%[1]d`, `127.0.0.1:1`, `client: "127.0.0.1:2"`, fmt.Sprintf(`client: "127.0.0.1:%d"`, port)).Replace(topologyText)
	topo, err := zone.Parse([]byte(text), "test.yaml")
	if err != nil {
		tb.Fatal(err)
	}
	s, err := New(Options{Store: acceptAll{newMemStore(topo)}, Zone: "c1"})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// request has n messages of 1 KiB, with tag, key and two properties.
func request(n int) *pb.SendMessageRequest {
	req := &pb.SendMessageRequest{}
	for range n {
		req.Messages = append(req.Messages, msg("t", "0102FC0000000133990B1DF1BF00000000", func(m *pb.Message) {
			m.Body = make([]byte, 1024)
			m.UserProperties = map[string]string{"userId": "1", "b": "2"}
			m.SystemProperties.Tag, m.SystemProperties.Keys = proto.String("tag"), []string{"key"}
		}))
	}
	return req
}

// TestSendAllocatesLittle bounds what the front end itself allocates: for each
// request the answer, its lists and what all messages reached, for each message
// nothing.
func TestSendAllocatesLittle(t *testing.T) {
	s := quick(t, 9)
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-mq-client-id", "p"))
	for n, limit := range map[int]float64{1: 8, 32: 8} {
		req := request(n)
		got := mean(func() {
			if resp, err := s.SendMessage(ctx, req); err != nil || resp.GetStatus().GetCode() != pb.Code_OK {
				t.Fatal(resp, err)
			}
		})
		if got > limit {
			t.Errorf("%d messages: %v allocations, the limit is %v", n, got, limit)
		}
	}
}

func BenchmarkSendHandler(b *testing.B) {
	s := quick(b, 9)
	ctx := metadata.NewIncomingContext(b.Context(), metadata.Pairs("x-mq-client-id", "p"))
	for _, n := range []int{1, 32} {
		b.Run(fmt.Sprint("messages=", n), func(b *testing.B) {
			req := request(n)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.SendMessage(ctx, req); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

// BenchmarkSendOverLoopback is the front end with client and gRPC, both on this
// machine, and a store that costs nothing.
func BenchmarkSendOverLoopback(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := quick(b, l.Addr().(*net.TCPAddr).Port)
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, l) }()
	b.Cleanup(func() { cancel(); <-done })
	for _, n := range []int{1, 32} {
		for _, publishers := range []int{1, 16, 256} {
			b.Run(fmt.Sprintf("publishers=%d/messages=%d", publishers, n), func(b *testing.B) {
				benchPublishers(b, l.Addr().String(), publishers, n)
			})
		}
	}
}

func benchPublishers(b *testing.B, addr string, publishers, n int) {
	p, err := rocketmqclient.NewProducer(b.Context(), rocketmqclient.Config{Endpoint: addr, Connections: min(publishers, 4)}, "t")
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	batch := make([]*rocketmqclient.Message, n)
	for i := range batch {
		batch[i] = &rocketmqclient.Message{Topic: "t", Body: make([]byte, 1024)}
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	ended := make(chan error, publishers)
	b.ReportAllocs()
	b.ResetTimer()
	for range publishers {
		go func() {
			for left.Add(-1) >= 0 {
				if _, err := p.SendBatch(b.Context(), batch); err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
	}
	for range publishers {
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}
	b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "msg/s")
}
