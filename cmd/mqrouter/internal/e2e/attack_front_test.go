package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
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
	"google.golang.org/grpc/status"
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
	for name, shot := range shots(attackSeed()) {
		throw(c.nodes[b].client, 60, shot, time.Second)
		t.Logf("%s: %+v", name, c.toll(b))
	}
	c.serves(b)
	c.recovered(b, before)
}

// TestSilentConnectionsKeepNobodyOut holds thousands of connections that say
// nothing at the ports of a broker and a router, while clients and a broker
// that starts need them.
func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	c := newCluster(t)
	c.upAll()
	const a, b = "rz-a-1", "rz-b-1"
	var wg sync.WaitGroup
	for _, addr := range []string{c.nodes[a].client, c.doors(t, "rt-a1")["peer"], c.doors(t, "rt-a2")["peer"], c.doors(t, "rt-a1")["gossip"]} {
		wg.Go(func() { throw(addr, 1500, nil, time.Duration(rounds(6, 30))*time.Second) })
	}
	hold(500 * time.Millisecond)
	c.serves(a)
	l := c.load(a, 4, "7", 300, 5*time.Millisecond)
	l.published(t, 100)
	places{}.drainOnly(t, c.nodes[b].client, l.acked)
	wg.Wait()
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

// Values that no client sends.
var (
	farTime   = &timestamppb.Timestamp{Seconds: math.MaxInt64, Nanos: math.MaxInt32}
	farSpan   = &durationpb.Duration{Seconds: math.MaxInt64, Nanos: math.MaxInt32}
	backSpan  = &durationpb.Duration{Seconds: math.MinInt64, Nanos: math.MinInt32}
	transfer  = &pb.Resource{Name: "transfer"}
	credit    = &pb.Resource{Name: "credit"}
	oddQueue  = &pb.MessageQueue{Topic: transfer, Id: math.MaxInt32}
	noHandles = map[string]string{"empty": "", "noise": "AAAA", "long": strings.Repeat("A", 1<<20), "not base64": "\x00\x01é"}
)

func absurdSends() map[string]*pb.SendMessageRequest {
	with := func(f func(*pb.Message)) *pb.SendMessageRequest {
		m := &pb.Message{Topic: transfer, UserProperties: map[string]string{"userId": "1003"}, Body: []byte("x"),
			SystemProperties: &pb.SystemProperties{MessageId: "01ABCDEF", MessageType: pb.MessageType_NORMAL, BornTimestamp: timestamppb.Now()}}
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
	return map[string]*pb.SendMessageRequest{
		"empty": {}, "nil message": {Messages: []*pb.Message{nil}}, "many": many,
		"no properties": with(func(m *pb.Message) { m.SystemProperties = nil }),
		"no topic":      with(func(m *pb.Message) { m.Topic = nil }),
		"body of 5 MB":  with(func(m *pb.Message) { m.Body = make([]byte, 5<<20) }),
		"properties":    with(func(m *pb.Message) { m.UserProperties = props }),
		"keys":          with(func(m *pb.Message) { m.SystemProperties.Keys = keys }),
		"long id":       with(func(m *pb.Message) { m.SystemProperties.MessageId = strings.Repeat("x", 1<<20) }),
		"odd id":        with(func(m *pb.Message) { m.SystemProperties.MessageId = "../../etc/passwd\x00" }),
		"long tag":      with(func(m *pb.Message) { m.SystemProperties.Tag = proto.String(strings.Repeat("x", 1<<20)) }),
		"born far":      with(func(m *pb.Message) { m.SystemProperties.BornTimestamp = farTime }),
		"deliver far":   with(func(m *pb.Message) { m.SystemProperties.DeliveryTimestamp = farTime }),
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
	}
}

func absurdReceives() map[string]*pb.ReceiveMessageRequest {
	return map[string]*pb.ReceiveMessageRequest{
		"empty":    {},
		"negative": {Group: credit, MessageQueue: oddQueue, BatchSize: math.MinInt32, InvisibleDuration: backSpan, LongPollingTimeout: backSpan},
		"huge":     {Group: credit, MessageQueue: oddQueue, BatchSize: math.MaxInt32, InvisibleDuration: farSpan, LongPollingTimeout: farSpan},
		"poll far": {Group: credit, MessageQueue: oddQueue, BatchSize: math.MaxInt32, InvisibleDuration: durationpb.New(time.Minute), LongPollingTimeout: farSpan},
		"filter":   {Group: credit, MessageQueue: oddQueue, BatchSize: 1, InvisibleDuration: durationpb.New(time.Minute), FilterExpression: &pb.FilterExpression{Expression: strings.Repeat("a||", 1<<18)}, LongPollingTimeout: durationpb.New(0)},
		"attempt":  {Group: credit, MessageQueue: oddQueue, BatchSize: 1, InvisibleDuration: durationpb.New(time.Minute), AttemptId: proto.String(strings.Repeat("a", 1<<20)), LongPollingTimeout: durationpb.New(0)},
		"no group": {Group: &pb.Resource{Name: "%RETRY%x\x00"}, MessageQueue: oddQueue, BatchSize: 1, InvisibleDuration: durationpb.New(time.Minute)},
	}
}

// TestAbsurdRequests sends requests that no client builds: each gets an answer
// with a status, none stops the broker.
func TestAbsurdRequests(t *testing.T) {
	c := newCluster(t)
	const b = "rz-a-1"
	c.only(b)
	front, _ := dialFront(t, c.nodes[b].client)
	ctx, cancel := context.WithTimeout(as(t.Context(), "attacker"), time.Minute)
	defer cancel()
	answered := func(what string, st *pb.Status, err error) {
		t.Helper()
		if err != nil || st.GetCode() == pb.Code_CODE_UNSPECIFIED || len(st.GetMessage()) > 1000 {
			t.Errorf("%s: %.300v, %v", what, st, err)
		}
	}
	for name, req := range absurdSends() {
		resp, err := front.SendMessage(ctx, req)
		answered("send "+name, resp.GetStatus(), err)
	}
	for name, req := range absurdReceives() {
		st, err := receiveStatus(front.ReceiveMessage(ctx, req))
		answered("receive "+name, st, err)
	}
	for name, handle := range noHandles {
		a, err := front.AckMessage(ctx, &pb.AckMessageRequest{Group: credit, Topic: transfer, Entries: []*pb.AckMessageEntry{{ReceiptHandle: handle, MessageId: "x"}}})
		answered("ack "+name, a.GetStatus(), err)
		ch, err := front.ChangeInvisibleDuration(ctx, &pb.ChangeInvisibleDurationRequest{Group: credit, Topic: transfer, ReceiptHandle: handle, InvisibleDuration: farSpan})
		answered("change "+name, ch.GetStatus(), err)
		d, err := front.ForwardMessageToDeadLetterQueue(ctx, &pb.ForwardMessageToDeadLetterQueueRequest{Group: credit, Topic: transfer, ReceiptHandle: handle, DeliveryAttempt: math.MinInt32, MaxDeliveryAttempts: math.MinInt32})
		answered("forward "+name, d.GetStatus(), err)
	}
	big := &pb.AckMessageRequest{Group: credit, Topic: transfer}
	for range 200_000 {
		big.Entries = append(big.Entries, &pb.AckMessageEntry{ReceiptHandle: "x"})
	}
	a, err := front.AckMessage(ctx, big)
	answered("ack many", a.GetStatus(), err)
	r, err := front.QueryRoute(ctx, &pb.QueryRouteRequest{Topic: &pb.Resource{Name: strings.Repeat("x", 1<<20)}, Endpoints: &pb.Endpoints{}})
	answered("route", r.GetStatus(), err)
	h, err := front.Heartbeat(ctx, &pb.HeartbeatRequest{ClientType: math.MaxInt32})
	answered("heartbeat", h.GetStatus(), err)
	c.serves(b)
}

// receiveStatus reads a receive to its end and returns the status in it.
func receiveStatus(s grpc.ServerStreamingClient[pb.ReceiveMessageResponse], err error) (*pb.Status, error) {
	var st *pb.Status
	for err == nil {
		var r *pb.ReceiveMessageResponse
		if r, err = s.Recv(); r.GetStatus() != nil {
			st = r.GetStatus()
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return st, err
}

// flood is many clients of one broker.
type flood struct {
	wg    sync.WaitGroup
	mu    sync.Mutex
	tally map[string]int // guarded by mu: outcomes
}

func (f *flood) count(what string, code string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		code = status.Code(err).String()
	}
	f.tally[what+" "+code]++
}

// publisher sends ten messages.
func (f *flood) publisher(ctx context.Context, front pb.MessagingServiceClient, id string) {
	for k := range 10 {
		m := &pb.Message{Topic: transfer, UserProperties: map[string]string{"userId": "1003"}, Body: make([]byte, 1024),
			SystemProperties: &pb.SystemProperties{MessageId: fmt.Sprintf("F-%s-%d", id, k), MessageType: pb.MessageType_NORMAL, BornTimestamp: timestamppb.Now()}}
		resp, err := front.SendMessage(as(ctx, id), &pb.SendMessageRequest{Messages: []*pb.Message{m}})
		f.count("send", resp.GetStatus().GetCode().String(), err)
	}
}

// stream holds a Telemetry stream under an id of its own.
func (f *flood) stream(ctx context.Context, front pb.MessagingServiceClient, id string) {
	s, err := front.Telemetry(as(ctx, id+strings.Repeat("i", 200)))
	if err == nil {
		err = s.Send(&pb.TelemetryCommand{Command: &pb.TelemetryCommand_Settings{Settings: &pb.Settings{
			ClientType: pb.ClientType_PRODUCER.Enum(), PubSub: &pb.Settings_Publishing{Publishing: &pb.Publishing{}}}}})
	}
	for err == nil {
		_, err = s.Recv()
	}
	f.count("telemetry", "", err)
}

// wait holds a long poll that finds nothing.
func (f *flood) wait(ctx context.Context, front pb.MessagingServiceClient, id string) {
	st, err := receiveStatus(front.ReceiveMessage(as(ctx, id), &pb.ReceiveMessageRequest{Group: credit, MessageQueue: &pb.MessageQueue{Topic: transfer},
		BatchSize: 1, FilterExpression: &pb.FilterExpression{Expression: "none"}, InvisibleDuration: durationpb.New(time.Minute), LongPollingTimeout: durationpb.New(5 * time.Second)}))
	f.count("receive", st.GetCode().String(), err)
}

// TestFloodsOfClients: a thousand publishers, thousands of Telemetry streams
// under as many ids, and waiting receives at once. All sends are answered, the
// broker serves on, and everything is given back.
func TestFloodsOfClients(t *testing.T) {
	c := newCluster(t)
	const b = "rz-a-1"
	c.only(b)
	c.serves(b)
	before := c.toll(b)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	f := &flood{tally: map[string]int{}}
	var conns []*grpc.ClientConn
	for i := range 100 {
		front, conn := dialFront(t, c.nodes[b].client)
		conns = append(conns, conn)
		for j := range 50 {
			f.wg.Go(func() { f.stream(ctx, front, fmt.Sprintf("t-%d-%d", i, j)) })
		}
		for j := range 20 {
			f.wg.Go(func() { f.wait(ctx, front, fmt.Sprintf("r-%d-%d", i, j)) })
		}
		for j := range 10 {
			f.wg.Go(func() { f.publisher(t.Context(), front, fmt.Sprintf("p-%d-%d", i, j)) })
		}
	}
	hold(4 * time.Second)
	peak := c.toll(b)
	c.serves(b)
	f.wg.Wait()
	t.Logf("at the peak %+v, %v", peak, f.tally)
	if f.tally["send OK"] != 10_000 {
		t.Errorf("%d of 10000 sends are stored: %v", f.tally["send OK"], f.tally)
	}
	for _, conn := range conns {
		conn.Close()
	}
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
