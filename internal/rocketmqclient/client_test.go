package rocketmqclient

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"net"
	"reflect"
	"regexp"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// enough bounds what is waited for, on a machine that stands still now and then.
const enough = 3 * time.Minute

func producer(t *testing.T, cfg Config, topics ...string) *Producer {
	t.Helper()
	cfg.RequestTimeout = enough
	p, err := NewProducer(t.Context(), cfg, topics...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func consumer(t *testing.T, f *fake) *SimpleConsumer {
	t.Helper()
	c, err := NewSimpleConsumer(t.Context(), Config{Endpoint: f.serve(t), RequestTimeout: enough}, "g", time.Second, Subscription{Topic: "t", Tags: "a || b"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestSendCarriesEveryField(t *testing.T) {
	f := &fake{}
	p := producer(t, Config{Endpoint: f.serve(t), ClientID: "me", Connections: 2}, "t")
	in := &Message{
		Topic: "t", Body: []byte("hello"), Tag: "a", Keys: []string{"k1"}, Properties: map[string]string{"x": "y"},
		MessageGroup: "mg", TraceContext: "00-1-2-01", ID: "01AA", Born: time.Unix(7, 5),
	}
	res, err := p.Send(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if res.MessageID != "01AA" || res.Err != nil {
		t.Errorf("result %+v", res)
	}
	m := f.sends[0].GetMessages()[0]
	sp := m.GetSystemProperties()
	if string(m.GetBody()) != "hello" || sp.GetTag() != "a" || sp.GetMessageGroup() != "mg" || sp.GetTraceContext() != "00-1-2-01" ||
		!reflect.DeepEqual(sp.GetKeys(), []string{"k1"}) || m.GetUserProperties()["x"] != "y" || !sp.GetBornTimestamp().AsTime().Equal(time.Unix(7, 5)) ||
		sp.GetMessageType() != pb.MessageType_FIFO || sp.GetBodyEncoding() != pb.Encoding_IDENTITY {
		t.Errorf("sent %v", m)
	}
	if got := f.md.Get("x-mq-client-id"); len(got) != 1 || got[0] != "me" {
		t.Errorf("client id header %v", got)
	}
}

func TestSendBatchReturnsOneResultForEachMessage(t *testing.T) {
	f := &fake{}
	f.send = func(r *pb.SendMessageRequest) (*pb.SendMessageResponse, error) {
		return &pb.SendMessageResponse{Status: &pb.Status{Code: pb.Code_MULTIPLE_RESULTS}, Entries: []*pb.SendResultEntry{
			{Status: ok(), MessageId: "A", Offset: 4},
			{Status: &pb.Status{Code: pb.Code_MESSAGE_BODY_TOO_LARGE, Message: "limit"}},
		}}, nil
	}
	p := producer(t, Config{Endpoint: f.serve(t)}, "t")
	res, err := p.SendBatch(t.Context(), []*Message{{Topic: "t", Body: []byte("1")}, {Topic: "t", Body: []byte("2"), ID: "B"}})
	if err != nil {
		t.Fatal(err)
	}
	var se *StatusError
	if res[0].Err != nil || res[0].Offset != 4 || !errors.As(res[1].Err, &se) || se.Code != pb.Code_MESSAGE_BODY_TOO_LARGE || se.Text != "limit" || res[1].MessageID != "B" {
		t.Errorf("results %+v", res)
	}
	if _, err := p.SendBatch(t.Context(), nil); !errors.Is(err, ErrBound) {
		t.Errorf("empty batch: %v", err)
	}
	if _, err := p.SendBatch(t.Context(), []*Message{{Topic: "t"}, {Topic: "u"}}); !errors.Is(err, ErrBound) {
		t.Errorf("mixed topics: %v", err)
	}
}

func TestSendErrorsKeepTheirKind(t *testing.T) {
	tests := []struct {
		name   string
		answer func(*pb.SendMessageRequest) (*pb.SendMessageResponse, error)
		code   pb.Code // 0: an OpError is expected
		temp   bool
	}{
		{"refused", func(*pb.SendMessageRequest) (*pb.SendMessageResponse, error) {
			return &pb.SendMessageResponse{Status: &pb.Status{Code: pb.Code_FORBIDDEN}}, nil
		}, pb.Code_FORBIDDEN, false},
		{"busy", func(*pb.SendMessageRequest) (*pb.SendMessageResponse, error) {
			return &pb.SendMessageResponse{Status: &pb.Status{Code: pb.Code_TOO_MANY_REQUESTS}}, nil
		}, pb.Code_TOO_MANY_REQUESTS, true},
		{"code of a newer server", func(*pb.SendMessageRequest) (*pb.SendMessageResponse, error) {
			return &pb.SendMessageResponse{Status: &pb.Status{Code: 77777}}, nil
		}, 77777, false},
		{"no status", func(*pb.SendMessageRequest) (*pb.SendMessageResponse, error) {
			return &pb.SendMessageResponse{}, nil
		}, 0, false},
		{"OK without entries", func(*pb.SendMessageRequest) (*pb.SendMessageResponse, error) {
			return &pb.SendMessageResponse{Status: ok()}, nil
		}, 0, false},
		{"entry without status", func(*pb.SendMessageRequest) (*pb.SendMessageResponse, error) {
			return &pb.SendMessageResponse{Status: ok(), Entries: []*pb.SendResultEntry{{}}}, nil
		}, 0, false},
		{"gRPC error", func(*pb.SendMessageRequest) (*pb.SendMessageResponse, error) {
			return nil, errors.New("boom")
		}, 0, false},
	}
	f := &fake{}
	p := producer(t, Config{Endpoint: f.serve(t)}, "t")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f.mu.Lock()
			f.send = tt.answer
			f.mu.Unlock()
			_, err := p.Send(t.Context(), &Message{Topic: "t", Body: []byte("x")})
			var se *StatusError
			var oe *OpError
			switch {
			case tt.code != 0 && (!errors.As(err, &se) || se.Code != tt.code || se.Temporary() != tt.temp):
				t.Errorf("got %v", err)
			case tt.code == 0 && !errors.As(err, &oe):
				t.Errorf("got %v, want an OpError", err)
			}
		})
	}
}

func TestUnknownTopicFailsAtStartAndAtSend(t *testing.T) {
	f := &fake{}
	addr := f.serve(t)
	var se *StatusError
	if _, err := NewProducer(t.Context(), Config{Endpoint: addr}, "none"); !errors.As(err, &se) || se.Code != pb.Code_TOPIC_NOT_FOUND {
		t.Errorf("start: %v", err)
	}
	p := producer(t, Config{Endpoint: addr})
	if _, err := p.Send(t.Context(), &Message{Topic: "none", Body: []byte("x")}); !errors.As(err, &se) {
		t.Errorf("send: %v", err)
	}
}

func TestStartIsBoundedByContext(t *testing.T) {
	f := &fake{mute: true}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var oe *OpError
	if _, err := NewProducer(ctx, Config{Endpoint: f.serve(t)}, "t"); !errors.As(err, &oe) {
		t.Errorf("got %v, want an OpError", err)
	}
}

// TestRefusedSettingsFailTheStartAtOnce: with the protocol's code, not at the end of
// the time that the start may take.
func TestRefusedSettingsFailTheStartAtOnce(t *testing.T) {
	for _, c := range []struct {
		err  error
		code pb.Code
		text string
	}{
		{status.Error(codes.InvalidArgument, "ILLEGAL_FILTER_EXPRESSION: topic t: character 3: a: b"), pb.Code_ILLEGAL_FILTER_EXPRESSION, "topic t: character 3: a: b"},
		{status.Error(codes.Unauthenticated, "who are you"), pb.Code_UNAUTHORIZED, "who are you"},
		{status.Error(codes.PermissionDenied, "FORBIDDEN: no"), pb.Code_FORBIDDEN, "no"},
		{status.Error(codes.InvalidArgument, "settings: none"), pb.Code_BAD_REQUEST, "settings: none"},
	} {
		f := &fake{reject: c.err}
		_, err := NewSimpleConsumer(t.Context(), Config{Endpoint: f.serve(t)}, "g", time.Second, Subscription{Topic: "t", SQL: "a = "})
		var refused *StatusError
		if !errors.As(err, &refused) || refused.Code != c.code || refused.Text != c.text {
			t.Errorf("%v: got %v", c.err, err)
		}
	}
}

func TestUnreachableEndpointIsAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	var oe *OpError
	if _, err := NewProducer(t.Context(), Config{Endpoint: addr}, "t"); !errors.As(err, &oe) || oe.Op != "QueryRoute" {
		t.Errorf("got %v", err)
	}
}

func TestTLSIsVerified(t *testing.T) {
	creds, pool := selfSigned(t)
	f := &fake{}
	addr := f.serve(t, grpc.Creds(creds))
	p := producer(t, Config{Endpoint: addr, TLS: &tls.Config{RootCAs: pool}}, "t")
	if _, err := p.Send(t.Context(), &Message{Topic: "t", Body: []byte("x")}); err != nil {
		t.Error(err)
	}
	if _, err := NewProducer(t.Context(), Config{Endpoint: addr, TLS: &tls.Config{RootCAs: nil}}, "t"); err == nil {
		t.Error("an unknown issuer was accepted")
	}
}

func TestReceiveReadsMessagesInAnyOrder(t *testing.T) {
	f := &fake{receive: []*pb.ReceiveMessageResponse{delivery("M1", "h1"), statusAnswer(pb.Code_OK), delivery("M2", "h2")}}
	c := consumer(t, f)
	ms, err := c.Receive(t.Context(), 10, 30*time.Second)
	if err != nil || len(ms) != 2 {
		t.Fatal(ms, err)
	}
	want := Received{
		Topic: "t", MessageID: "M1", Body: []byte("body M1"), Encoding: pb.Encoding_GZIP, Tag: "a", Keys: []string{"k1", "k2"},
		Properties: map[string]string{"k": "v"}, QueueID: 3, Offset: 9, Attempt: 2, Born: time.Unix(100, 0).UTC(), Stored: time.Unix(101, 0).UTC(),
		Broker: "b1", DeadTopic: "orig", DeadID: "M0", handle: "h1", ep: ms[0].ep,
	}
	if !reflect.DeepEqual(*ms[0], want) {
		t.Errorf("got %+v", *ms[0])
	}
	if err := c.ChangeInvisible(t.Context(), ms[0], 20*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := c.Ack(t.Context(), ms...); err != nil {
		t.Fatal(err)
	}
	if h := f.acks[0].GetEntries()[0].GetReceiptHandle(); h != "h1+" {
		t.Errorf("ack used handle %q, not the new one", h)
	}
	ms[1].handle = "dead"
	var se *StatusError
	if err := c.Ack(t.Context(), ms[1]); !errors.As(err, &se) || se.Code != pb.Code_INVALID_RECEIPT_HANDLE {
		t.Errorf("ack of a dead handle: %v", err)
	}
}

func TestReceiveOutcomes(t *testing.T) {
	var se *StatusError
	var oe *OpError
	f := &fake{}
	c := consumer(t, f)
	f.receive = []*pb.ReceiveMessageResponse{statusAnswer(pb.Code_MESSAGE_NOT_FOUND)}
	if ms, err := c.Receive(t.Context(), 1, time.Minute); err != nil || ms != nil {
		t.Errorf("empty poll: %v %v", ms, err)
	}
	f.receive = []*pb.ReceiveMessageResponse{statusAnswer(pb.Code_FORBIDDEN)}
	if _, err := c.Receive(t.Context(), 1, time.Minute); !errors.As(err, &se) {
		t.Errorf("refusal: %v", err)
	}
	f.receive = nil
	if _, err := c.Receive(t.Context(), 1, time.Minute); !errors.As(err, &oe) || !errors.Is(err, ErrProtocol) {
		t.Errorf("no status: %v", err)
	}
	f.receive = []*pb.ReceiveMessageResponse{statusAnswer(pb.Code_OK)}
	for range maxBatch + 1 {
		f.receive = append(f.receive, delivery("M", "h"))
	}
	if _, err := c.Receive(t.Context(), 1, time.Minute); !errors.Is(err, ErrProtocol) {
		t.Errorf("more messages than any batch: %v", err)
	}
}

func TestRouteKeepsOnlyUsableQueues(t *testing.T) {
	f := &fake{}
	addr := f.serve(t)
	second := f.queue("b2", 0, pb.Permission_WRITE)
	slave := f.queue("b1", 5, pb.Permission_READ_WRITE)
	slave.Broker.Id = 1
	bare := f.queue("b3", 0, pb.Permission_READ_WRITE)
	bare.Broker.Endpoints = nil
	f.queues = []*pb.MessageQueue{f.queue("b1", 0, pb.Permission_READ_WRITE), f.queue("b1", 1, pb.Permission_READ), second, slave, bare}
	p := producer(t, Config{Endpoint: addr}, "t")
	r := (*p.core.routes.Load())["t"]
	if len(r.writable) != 2 || len(r.readable) != 1 {
		t.Errorf("writable %d, readable %d", len(r.writable), len(r.readable))
	}
	f.mu.Lock()
	f.queues = []*pb.MessageQueue{bare}
	f.mu.Unlock()
	if _, err := p.Send(t.Context(), &Message{Topic: "other", Body: []byte("x")}); !errors.Is(err, ErrNoQueue) {
		t.Errorf("send without a queue: %v", err)
	}
}

func TestCloseNotifiesAndEndsEveryCall(t *testing.T) {
	f := &fake{}
	p := producer(t, Config{Endpoint: f.serve(t)}, "t")
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if f.ended != 1 {
		t.Errorf("%d terminations, want 1", f.ended)
	}
	if _, err := p.Send(t.Context(), &Message{Topic: "new", Body: []byte("x")}); !errors.Is(err, ErrClosed) {
		t.Errorf("send of a new topic after close: %v", err)
	}
	if _, err := p.Send(t.Context(), &Message{Topic: "t", Body: []byte("x")}); err == nil {
		t.Error("send after close succeeded")
	}
}

func TestValidateReportsEveryFault(t *testing.T) {
	err := (&Config{Endpoint: "nowhere", Connections: 65, RequestTimeout: -1}).Validate()
	if joined, ok := err.(interface{ Unwrap() []error }); !ok || len(joined.Unwrap()) != 3 {
		t.Errorf("got %v", err)
	}
}

func TestMessageIDs(t *testing.T) {
	a, err := NewIDs(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewIDs(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := regexp.MustCompile(`^01[0-9A-F]{32}$`)
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for _, g := range []*IDs{a, b} {
		for range 2 {
			wg.Go(func() {
				for range 1000 {
					id := g.Next()
					mu.Lock()
					if !form.MatchString(id) || seen[id] {
						t.Errorf("id %q malformed or repeated", id)
					}
					seen[id] = true
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
}
