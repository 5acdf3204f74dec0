package broadcast_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// broker is as much of a RocketMQ broker as a producer needs.
type broker struct {
	pb.UnimplementedMessagingServiceServer
	addr *pb.Address

	mu    sync.Mutex
	sent  []*pb.Message
	fails []error   // of the next sends; nil is a success
	codes []pb.Code // likewise, business codes; 0 is a success
}

func (b *broker) serve(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.addr = &pb.Address{Host: "127.0.0.1", Port: int32(ln.Addr().(*net.TCPAddr).Port)}
	s := grpc.NewServer()
	pb.RegisterMessagingServiceServer(s, b)
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(ln) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return ln.Addr().String()
}

func okay() *pb.Status { return &pb.Status{Code: pb.Code_OK} }

func (b *broker) QueryRoute(_ context.Context, r *pb.QueryRouteRequest) (*pb.QueryRouteResponse, error) {
	if r.GetTopic().GetName() != "member" {
		return &pb.QueryRouteResponse{Status: &pb.Status{Code: pb.Code_TOPIC_NOT_FOUND}}, nil
	}
	return &pb.QueryRouteResponse{Status: okay(), MessageQueues: []*pb.MessageQueue{{Topic: r.GetTopic(), Permission: pb.Permission_READ_WRITE,
		AcceptMessageTypes: []pb.MessageType{pb.MessageType_NORMAL},
		Broker:             &pb.Broker{Name: "b", Endpoints: &pb.Endpoints{Scheme: pb.AddressScheme_IPv4, Addresses: []*pb.Address{b.addr}}}}}}, nil
}

func (b *broker) Telemetry(s grpc.BidiStreamingServer[pb.TelemetryCommand, pb.TelemetryCommand]) error {
	for {
		cmd, err := s.Recv()
		if err != nil {
			return err
		}
		if err := s.Send(&pb.TelemetryCommand{Status: okay(), Command: cmd.Command}); err != nil {
			return err
		}
	}
}

func (b *broker) SendMessage(_ context.Context, r *pb.SendMessageRequest) (*pb.SendMessageResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := r.GetMessages()[0]
	b.sent = append(b.sent, m)
	if len(b.fails) > 0 {
		err := b.fails[0]
		if b.fails = b.fails[1:]; err != nil {
			return nil, err
		}
	}
	st := &pb.Status{Code: pb.Code_OK, Message: "level=origin"}
	if len(b.codes) > 0 {
		st = &pb.Status{Code: b.codes[0], Message: "why"}
		b.codes = b.codes[1:]
	}
	return &pb.SendMessageResponse{Status: st, Entries: []*pb.SendResultEntry{{Status: st, MessageId: m.GetSystemProperties().GetMessageId()}}}, nil
}

func (b *broker) NotifyClientTermination(context.Context, *pb.NotifyClientTerminationRequest) (*pb.NotifyClientTerminationResponse, error) {
	return &pb.NotifyClientTerminationResponse{Status: okay()}, nil
}

func (b *broker) take() []*pb.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	sent := b.sent
	b.sent = nil
	return sent
}

func newPublisher(t *testing.T, b *broker) *broadcast.Publisher {
	t.Helper()
	p, err := broadcast.NewPublisher(t.Context(), broadcast.PublisherOptions{Endpoint: b.serve(t), Topic: "member", Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return p
}

func TestPublisherSendsChangesAsOrdinaryMessages(t *testing.T) {
	b := &broker{}
	p, ctx := newPublisher(t, b), t.Context()
	want := []broadcast.Change{
		{Op: broadcast.OpSet, Key: "member:1", Version: 7, Value: []byte("gold")},
		{Op: broadcast.OpDelete, Key: "member:1", Version: 8},
		{Op: broadcast.OpFlushPrefix, Key: "member:", Version: 1<<64 - 1},
	}
	var ids []string
	note := func(r broadcast.Receipt, err error) {
		t.Helper()
		if err != nil || r.Reached != "level=origin" || r.MessageID == "" {
			t.Errorf("%+v, %v", r, err)
		}
		ids = append(ids, r.MessageID)
	}
	note(p.Set(ctx, "member:1", 7, []byte("gold")))
	note(p.Delete(ctx, "member:1", 8))
	note(p.FlushPrefix(ctx, "member:", 1<<64-1))
	for i, m := range b.take() {
		got, err := broadcast.Parse(m.GetSystemProperties().GetKeys(), m.GetUserProperties(), m.GetBody())
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want[i]) || m.GetSystemProperties().GetMessageId() != ids[i] {
			t.Errorf("sent %+v, %v; want %+v", got, err, want[i])
		}
	}
	var bad *broadcast.ChangeError
	if _, err := p.Set(ctx, "mqr:v", 1, nil); !errors.As(err, &bad) || len(b.take()) != 0 {
		t.Errorf("a reserved key: %v", err)
	}
}

func TestPublisherRepeatsUnderTheSameMessageID(t *testing.T) {
	b := &broker{fails: []error{status.Error(codes.Unavailable, "gone"), status.Error(codes.Unavailable, "gone"), nil}}
	p, ctx := newPublisher(t, b), t.Context()
	r, err := p.Set(ctx, "k", 1, []byte("v"))
	if err != nil {
		t.Fatal(err)
	}
	sent := b.take()
	if len(sent) != 3 {
		t.Fatalf("%d attempts", len(sent))
	}
	for _, m := range sent {
		if m.GetSystemProperties().GetMessageId() != r.MessageID {
			t.Errorf("message id %s, want %s", m.GetSystemProperties().GetMessageId(), r.MessageID)
		}
	}
	b.codes = []pb.Code{pb.Code_TOPIC_NOT_FOUND}
	var refused *rocketmqclient.StatusError
	if _, err := p.Set(ctx, "k", 2, []byte("v")); !errors.As(err, &refused) || len(b.take()) != 1 {
		t.Errorf("a refusal that lasts: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := p.Set(ended, "k", 3, []byte("v")); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that ended: %v", err)
	}
}

func TestPublisherNamesATopicThatIsUnknown(t *testing.T) {
	b := &broker{}
	addr := b.serve(t)
	for _, topic := range []string{"", "none"} {
		p, err := broadcast.NewPublisher(t.Context(), broadcast.PublisherOptions{Endpoint: addr, Topic: topic})
		if err == nil {
			p.Close()
			t.Errorf("topic %q was taken", topic)
		}
	}
}
