package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// shots are first bytes that no client sends.
func shots(seed uint64) map[string][]byte {
	noise := make([]byte, 64<<10)
	src := newSource(seed)
	src.Read(noise)
	var hello bytes.Buffer
	rec := recorder{w: &hello}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	tls.Client(&rec, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).HandshakeContext(ctx)
	cancel()
	h2 := http2.ClientPreface
	return map[string][]byte{
		"nothing":           nil,
		"noise":             noise,
		"HTTP/1":            []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"half a hello":      hello.Bytes()[:hello.Len()/2],
		"hello, then noise": append(bytes.Clone(hello.Bytes()), noise...),
		"TLS of 65535":      {0x16, 3, 1, 0xff, 0xff, 1, 2, 3},
		"preface only":      []byte(h2),
		"preface, noise":    append([]byte(h2), noise...),
		"huge frame":        append([]byte(h2), 0xff, 0xff, 0xff, 0x4, 0, 0, 0, 0, 0),
		"settings flood":    append([]byte(h2), bytes.Repeat([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}, 20000)...),
		"ping flood":        append([]byte(h2), bytes.Repeat([]byte{0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}, 20000)...),
		"headers for ever":  append(append([]byte(h2), 0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82), bytes.Repeat([]byte{0, 0, 1, 9, 0, 0, 0, 0, 1, 0x82}, 20000)...),
	}
}

type recorder struct {
	net.Conn
	w io.Writer
}

func (r *recorder) Write(b []byte) (int, error)    { return r.w.Write(b) }
func (*recorder) Read([]byte) (int, error)         { return 0, io.EOF }
func (*recorder) Close() error                     { return nil }
func (*recorder) SetDeadline(time.Time) error      { return nil }
func (*recorder) SetReadDeadline(time.Time) error  { return nil }
func (*recorder) SetWriteDeadline(time.Time) error { return nil }

// TestGarbageOnTheClientPort: every kind of first bytes, many connections of
// each; the broker keeps serving and gives everything back.
func TestGarbageOnTheClientPort(t *testing.T) {
	c := newCluster(t)
	const b = "rz-a-1"
	c.only(b)
	c.serves(b)
	before := c.toll(b)
	for name, shot := range shots(*attackSeed) {
		throw(c.nodes[b].client, 60, shot, time.Second)
		t.Logf("%s: %+v", name, c.toll(b))
	}
	c.serves(b)
	c.recovered(b, before)
}

// dialFront opens a gRPC connection that sends a client id.
func dialFront(t *testing.T, addr string) (pb.MessagingServiceClient, *grpc.ClientConn) {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return pb.NewMessagingServiceClient(conn), conn
}

func as(ctx context.Context, client string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", client)
}

// TestAbsurdRequests sends requests that no client builds: each gets an answer
// with a status, none stops the broker.
func TestAbsurdRequests(t *testing.T) {
	c := newCluster(t)
	const b = "rz-a-1"
	c.only(b)
	front, _ := dialFront(t, c.nodes[b].client)
	ctx, cancel := context.WithTimeout(as(t.Context(), "attacker"), 60*time.Second)
	defer cancel()
	topic := &pb.Resource{Name: "transfer"}
	group := &pb.Resource{Name: "credit"}
	far := &timestamppb.Timestamp{Seconds: math.MaxInt64, Nanos: math.MaxInt32}
	long := &durationpb.Duration{Seconds: math.MaxInt64, Nanos: math.MaxInt32}
	back := &durationpb.Duration{Seconds: math.MinInt64, Nanos: math.MinInt32}
	mq := &pb.MessageQueue{Topic: topic, Id: math.MaxInt32}
	ok := func() *pb.Message {
		return &pb.Message{Topic: topic, UserProperties: map[string]string{"userId": "1003"}, Body: []byte("x"),
			SystemProperties: &pb.SystemProperties{MessageId: "01ABCDEF", MessageType: pb.MessageType_NORMAL, BornTimestamp: timestamppb.Now()}}
	}
	with := func(f func(*pb.Message)) *pb.SendMessageRequest {
		m := ok()
		f(m)
		return &pb.SendMessageRequest{Messages: []*pb.Message{m}}
	}
	many := &pb.SendMessageRequest{}
	for range 100_000 {
		many.Messages = append(many.Messages, &pb.Message{})
	}
	props := map[string]string{"userId": "1003"}
	for i := range 50_000 {
		props[fmt.Sprint("k", i)] = "v"
	}
	keys := make([]string, 100_000)
	for name, req := range map[string]*pb.SendMessageRequest{
		"empty": {}, "nil message": {Messages: []*pb.Message{nil}}, "many": many,
		"no properties": with(func(m *pb.Message) { m.SystemProperties = nil }),
		"no topic":      with(func(m *pb.Message) { m.Topic = nil }),
		"body of 5 MB":  with(func(m *pb.Message) { m.Body = make([]byte, 5<<20) }),
		"properties":    with(func(m *pb.Message) { m.UserProperties = props }),
		"keys":          with(func(m *pb.Message) { m.SystemProperties.Keys = keys }),
		"long id":       with(func(m *pb.Message) { m.SystemProperties.MessageId = strings.Repeat("x", 1<<20) }),
		"odd id":        with(func(m *pb.Message) { m.SystemProperties.MessageId = "../../etc/passwd\x00" }),
		"long tag":      with(func(m *pb.Message) { m.SystemProperties.Tag = proto.String(strings.Repeat("x", 1<<20)) }),
		"born far":      with(func(m *pb.Message) { m.SystemProperties.BornTimestamp = far }),
		"deliver far":   with(func(m *pb.Message) { m.SystemProperties.DeliveryTimestamp = far }),
		"type -1":       with(func(m *pb.Message) { m.SystemProperties.MessageType = -1 }),
		"encoding 2^31": with(func(m *pb.Message) { m.SystemProperties.BodyEncoding = math.MaxInt32 }),
		"queue id":      with(func(m *pb.Message) { m.SystemProperties.QueueId = math.MinInt32 }),
		"digest": with(func(m *pb.Message) {
			m.SystemProperties.BodyDigest = &pb.Digest{Type: 99, Checksum: strings.Repeat("z", 1<<16)}
		}),
		"born host":      with(func(m *pb.Message) { m.SystemProperties.BornHost = strings.Repeat("h", 1<<20) }),
		"trace":          with(func(m *pb.Message) { m.SystemProperties.TraceContext = proto.String(strings.Repeat("t", 1<<20)) }),
		"reserved":       with(func(m *pb.Message) { m.UserProperties["__mqr.flow"] = "1" }),
		"user huge":      with(func(m *pb.Message) { m.UserProperties["userId"] = strings.Repeat("9", 1<<20) }),
		"user negative":  with(func(m *pb.Message) { m.UserProperties["userId"] = "-1" }),
		"user not digit": with(func(m *pb.Message) { m.UserProperties["userId"] = "１０３" }),
	} {
		resp, err := front.SendMessage(ctx, req)
		if err != nil {
			t.Errorf("send %s: %v", name, err)
			continue
		}
		t.Logf("send %s: %v %.100s", name, resp.GetStatus().GetCode(), resp.GetStatus().GetMessage())
	}
	for name, req := range map[string]*pb.ReceiveMessageRequest{
		"empty":    {},
		"negative": {Group: group, MessageQueue: mq, BatchSize: math.MinInt32, InvisibleDuration: back, LongPollingTimeout: back},
		"huge":     {Group: group, MessageQueue: mq, BatchSize: math.MaxInt32, InvisibleDuration: long, LongPollingTimeout: long},
		"poll far": {Group: group, MessageQueue: mq, BatchSize: math.MaxInt32, InvisibleDuration: durationpb.New(time.Minute), LongPollingTimeout: long},
		"filter":   {Group: group, MessageQueue: mq, BatchSize: 1, InvisibleDuration: durationpb.New(time.Minute), FilterExpression: &pb.FilterExpression{Expression: strings.Repeat("a||", 1<<18)}, LongPollingTimeout: durationpb.New(0)},
		"attempt":  {Group: group, MessageQueue: mq, BatchSize: 1, InvisibleDuration: durationpb.New(time.Minute), AttemptId: proto.String(strings.Repeat("a", 1<<20)), LongPollingTimeout: durationpb.New(0)},
		"no group": {Group: &pb.Resource{Name: "%RETRY%x\x00"}, MessageQueue: mq, BatchSize: 1, InvisibleDuration: durationpb.New(time.Minute)},
	} {
		rctx, rcancel := context.WithTimeout(ctx, 3*time.Second)
		stream, err := front.ReceiveMessage(rctx, req)
		var st *pb.Status
		for err == nil {
			var r *pb.ReceiveMessageResponse
			if r, err = stream.Recv(); err == nil && r.GetStatus() != nil {
				st = r.GetStatus()
			}
		}
		rcancel()
		t.Logf("receive %s: %v %.100s %v", name, st.GetCode(), st.GetMessage(), err)
	}
	for name, handle := range map[string]string{"empty": "", "noise": "AAAA", "long": strings.Repeat("A", 1<<20), "not base64": "\x00\x01é"} {
		a, err := front.AckMessage(ctx, &pb.AckMessageRequest{Group: group, Topic: topic, Entries: []*pb.AckMessageEntry{{ReceiptHandle: handle, MessageId: "x"}}})
		t.Logf("ack %s: %v %v %v", name, a.GetStatus(), a.GetEntries(), err)
		ch, err := front.ChangeInvisibleDuration(ctx, &pb.ChangeInvisibleDurationRequest{Group: group, Topic: topic, ReceiptHandle: handle, InvisibleDuration: long})
		t.Logf("change %s: %v %v", name, ch.GetStatus(), err)
		d, err := front.ForwardMessageToDeadLetterQueue(ctx, &pb.ForwardMessageToDeadLetterQueueRequest{Group: group, Topic: topic, ReceiptHandle: handle, DeliveryAttempt: math.MinInt32, MaxDeliveryAttempts: math.MinInt32})
		t.Logf("forward %s: %v %v", name, d.GetStatus(), err)
	}
	big := &pb.AckMessageRequest{Group: group, Topic: topic}
	for range 200_000 {
		big.Entries = append(big.Entries, &pb.AckMessageEntry{ReceiptHandle: "x"})
	}
	a, err := front.AckMessage(ctx, big)
	t.Logf("ack many: %.200v %v", a.GetStatus(), err)
	r, err := front.QueryRoute(ctx, &pb.QueryRouteRequest{Topic: &pb.Resource{Name: strings.Repeat("x", 1<<20)}, Endpoints: &pb.Endpoints{}})
	t.Logf("route: %.200v %v", r.GetStatus(), err)
	h, err := front.Heartbeat(ctx, &pb.HeartbeatRequest{ClientType: math.MaxInt32})
	t.Logf("heartbeat: %.200v %v", h.GetStatus(), err)
	c.serves(b)
	if out := c.nodes[b].running.output(); strings.Contains(out, "panic") {
		t.Error("the broker panicked")
	}
}

// TestFloodsOfClients: many publishers, Telemetry streams, ids and waiting
// receives at once. What is refused is refused with a status, and all is given
// back.
func TestFloodsOfClients(t *testing.T) {
	c := newCluster(t)
	const b = "rz-a-1"
	c.only(b)
	c.serves(b)
	before := c.toll(b)
	var mu sync.Mutex
	tally := map[string]int{}
	count := func(what string) {
		mu.Lock()
		tally[what]++
		mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	var conns []*grpc.ClientConn
	for i := range 100 {
		front, conn := dialFront(t, c.nodes[b].client)
		for j := range 10 { // a publisher
			wg.Go(func() {
				for k := range 10 {
					cctx := as(ctx, fmt.Sprintf("p-%d-%d", i, j))
					resp, err := front.SendMessage(cctx, &pb.SendMessageRequest{Messages: []*pb.Message{{Topic: &pb.Resource{Name: "transfer"}, UserProperties: map[string]string{"userId": "1003"}, Body: make([]byte, 1024),
						SystemProperties: &pb.SystemProperties{MessageId: fmt.Sprintf("F%d-%d-%d", i, j, k), MessageType: pb.MessageType_NORMAL, BornTimestamp: timestamppb.Now()}}}})
					if err != nil {
						count("send " + grpcCode(err))
					} else {
						count("send " + resp.GetStatus().GetCode().String())
					}
				}
			})
		}
		for j := range 50 { // streams under ids of their own
			wg.Go(func() {
				cctx := as(ctx, fmt.Sprintf("flood-%d-%d-%s", i, j, strings.Repeat("i", 200)))
				s, err := front.Telemetry(cctx)
				if err == nil {
					err = s.Send(&pb.TelemetryCommand{Command: &pb.TelemetryCommand_Settings{Settings: &pb.Settings{ClientType: pb.ClientType_PRODUCER.Enum(), PubSub: &pb.Settings_Publishing{Publishing: &pb.Publishing{}}}}})
				}
				for err == nil {
					_, err = s.Recv()
				}
				count("telemetry " + grpcCode(err))
			})
		}
		for j := range 20 { // waiting receives
			wg.Go(func() {
				s, err := front.ReceiveMessage(as(ctx, fmt.Sprintf("r-%d-%d", i, j)), &pb.ReceiveMessageRequest{Group: &pb.Resource{Name: "credit"}, MessageQueue: &pb.MessageQueue{Topic: &pb.Resource{Name: "transfer"}},
					BatchSize: 1, FilterExpression: &pb.FilterExpression{Expression: "none"}, InvisibleDuration: durationpb.New(time.Minute), LongPollingTimeout: durationpb.New(5 * time.Second)})
				var st *pb.Status
				for err == nil {
					var r *pb.ReceiveMessageResponse
					if r, err = s.Recv(); err == nil && r.GetStatus() != nil {
						st = r.GetStatus()
					}
				}
				count("receive " + st.GetCode().String() + " " + grpcCode(err))
			})
		}
		conns = append(conns, conn)
	}
	peak := before
	for ctx.Err() == nil {
		if now := c.toll(b); now.rss > peak.rss {
			peak = now
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
	wg.Wait()
	t.Logf("peak %+v, %v", peak, tally)
	c.serves(b)
	for _, conn := range conns {
		conn.Close()
	}
	t.Logf("after %+v", c.toll(b))
	c.recovered(b, before)
}

// TestSlowReaders asks for much and reads nothing: neither memory nor other
// clients suffer, and what was not read comes again.
func TestSlowReaders(t *testing.T) {
	c := newCluster(t)
	const b = "rz-a-1"
	c.only(b)
	l := c.load(b, 8, "3", 256<<10, 0)
	l.published(t, 400)
	before := c.toll(b)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	front, conn := dialFront(t, c.nodes[b].client)
	for i := range 200 {
		s, err := front.ReceiveMessage(as(ctx, fmt.Sprint("slow-", i)), &pb.ReceiveMessageRequest{Group: &pb.Resource{Name: "credit"}, MessageQueue: &pb.MessageQueue{Topic: &pb.Resource{Name: "transfer"}},
			BatchSize: 32, InvisibleDuration: durationpb.New(10 * time.Second), LongPollingTimeout: durationpb.New(time.Second)})
		if err != nil {
			t.Fatal(err)
		}
		_ = s // never read
	}
	hold(3 * time.Second)
	t.Logf("before %+v, with slow readers %+v", before, c.toll(b))
	c.serves(b)
	cancel()
	conn.Close()
	places{}.drainOnly(t, c.nodes[b].client, l.acked)
	c.recovered(b, before)
}

func grpcCode(err error) string {
	if err == nil || err == io.EOF {
		return "ok"
	}
	s := err.Error()
	return s[:min(len(s), 90)]
}

// TestOddQuestionsToTheAdminPort: whatever the path, the answer is a short one,
// and the node lives on.
func TestOddQuestionsToTheAdminPort(t *testing.T) {
	c := newCluster(t)
	const b = "rz-a-1"
	c.only(b)
	before := c.toll(b)
	addr := c.nodes[b].admin
	for _, path := range []string{
		"/", "/v1", "/v1/", "/v1/messages/", "/v1/messages/" + strings.Repeat("A", 8000), "/v1/messages/%00%ff", "/v1/messages/..%2f..%2fetc%2fpasswd",
		"/v1/messages/../../etc/passwd", "/../../../../etc/passwd", "//v1/status", "/v1/cache/x", "/v1/cache/" + strings.Repeat("%2f", 1000),
		"/v1/topology/../../topology", "/debug/pprof/", "/v1/messages/01?limit=999999999", "/metrics?name[]=x", "/v1/status?x=" + strings.Repeat("y", 9000),
	} {
		for _, method := range []string{"GET", "POST", "DELETE", "BREW"} {
			raw := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc", method, path)
			answer := ask(addr, raw)
			first, _, _ := strings.Cut(answer, "\r\n")
			if first == "" || strings.Contains(answer, "root:") || (method != "GET" && strings.Contains(first, " 200")) {
				t.Errorf("%s %.60s: %s", method, path, answer[:min(len(answer), 300)])
			}
		}
	}
	throw(addr, 200, []byte("GET /v1/status HTTP/1.1\r\nX: "), 2*time.Second)
	throw(addr, 200, []byte("GET /v1/messages/ABC HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), 10*time.Second)
	throw(addr, 100, []byte("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), 10*time.Second)
	c.recovered(b, before)
}
