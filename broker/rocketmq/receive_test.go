package rocketmq

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// push is the receive of a push consumer.
func push(group, topic string, wait time.Duration) *pb.ReceiveMessageRequest {
	return &pb.ReceiveMessageRequest{
		Group: res(group), MessageQueue: &pb.MessageQueue{Topic: res(topic), Id: -1}, BatchSize: 32, AutoRenew: true,
		LongPollingTimeout: durationpb.New(wait), AttemptId: str("attempt"),
	}
}

// TestDeliveryPreservesEverythingToTheByte sends every field and compares what
// comes out.
func TestDeliveryPreservesEverythingToTheByte(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	body := make([]byte, 256)
	for i := range body {
		body[i] = byte(i)
	}
	born := time.Unix(1700000000, 123456789)
	sent := &pb.Message{
		Topic: res("t"), Body: body, UserProperties: map[string]string{"a": "1", "empty": "", "标": "签"},
		SystemProperties: &pb.SystemProperties{
			Tag: str("tag"), Keys: []string{"k1", "k2"}, MessageId: "01ABCDEF", BodyEncoding: pb.Encoding_GZIP,
			MessageType: pb.MessageType_NORMAL, BornTimestamp: timestamppb.New(born), BornHost: "host@7",
			TraceContext: str("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), QueueId: 77,
			DeliveryAttempt: proto.Int32(-5), ReceiptHandle: str("rubbish"), StoreHost: "rubbish",
		},
	}
	mustSend(t, c, sent)
	got := pull(t, c, simple("g", "t", 10))
	want(t, got.status, pb.Code_OK)
	if got.order != "smd" {
		t.Errorf("order %q, want status, message, delivery time", got.order)
	}
	m := got.msgs[0]
	in, out := sent.GetSystemProperties(), m.GetSystemProperties()
	if string(m.GetBody()) != string(body) || !proto.Equal(m.GetTopic(), sent.GetTopic()) || len(m.GetUserProperties()) != 3 ||
		m.GetUserProperties()["标"] != "签" || m.GetUserProperties()["a"] != "1" {
		t.Errorf("body, topic or properties changed: %v", m)
	}
	if out.GetTag() != in.GetTag() || len(out.GetKeys()) != 2 || out.GetKeys()[1] != "k2" || out.GetMessageId() != in.GetMessageId() ||
		out.GetBodyEncoding() != in.GetBodyEncoding() || out.GetTraceContext() != in.GetTraceContext() || out.GetBornHost() != in.GetBornHost() ||
		out.GetMessageType() != in.GetMessageType() || out.GetBornTimestamp().AsTime().UnixMilli() != born.UnixMilli() {
		t.Errorf("system properties changed: %v", out)
	}
	if out.GetDeliveryAttempt() != 1 || out.GetReceiptHandle() == "" || out.GetReceiptHandle() == "rubbish" || out.StoreTimestamp == nil ||
		out.QueueOffset == nil || out.GetBodyDigest().GetType() != pb.DigestType_MD5 || out.GetInvisibleDuration().AsDuration() != 30*time.Second {
		t.Errorf("delivery properties: %v", out)
	}
	if out.MessageGroup != nil || out.DeadLetterQueue != nil || out.DeliveryTimestamp != nil {
		t.Errorf("properties that nobody sent: %v", out)
	}
}

func TestUnspecifiedEncodingIsDeliveredAsIdentity(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	mustSend(t, c, msg("t", "M", func(m *pb.Message) { m.SystemProperties.BodyEncoding = 0 }))
	if e := pull(t, c, simple("g", "t", 1)).msgs[0].GetSystemProperties().GetBodyEncoding(); e != pb.Encoding_IDENTITY {
		t.Errorf("encoding %v", e)
	}
}

func TestEmptyPollEndsWithMessageNotFoundBeforeTheDeadline(t *testing.T) {
	b := start(t, nil)
	b.store.empty = true // how long it is asked to wait is what counts
	c := b.dial(t, nil)
	const left = 20 * time.Second // of which the server leaves some for its answer
	ctx, cancel := context.WithTimeout(as(t, "c"), left)
	defer cancel()
	req := simple("g", "t", 1)
	req.LongPollingTimeout = durationpb.New(time.Hour)
	got, err := tryPull(ctx, c, req)
	if err != nil {
		t.Fatal(err)
	}
	want(t, got.status, pb.Code_MESSAGE_NOT_FOUND)
	if w := b.store.last.Wait; w <= 0 || w > left-pollMargin {
		t.Errorf("it waits for %s of %s", w, left)
	}
	if got.order != "sd" {
		t.Errorf("order %q", got.order)
	}
}

func TestPollEndsWhenAMessageArrives(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	got := make(chan received, 1)
	ctx := as(t, "c")
	go func() {
		r, _ := tryPull(ctx, c, push("g", "t", 10*time.Second))
		got <- r
	}()
	mustSend(t, c, msg("t", "M", nil))
	if r := <-got; len(r.msgs) != 1 {
		t.Errorf("got %v", r)
	}
}

func TestReceiveRefusals(t *testing.T) {
	change := func(f func(*pb.ReceiveMessageRequest)) *pb.ReceiveMessageRequest {
		r := simple("g", "t", 1)
		f(r)
		return r
	}
	invisible := func(d time.Duration) *pb.ReceiveMessageRequest {
		return change(func(r *pb.ReceiveMessageRequest) { r.InvisibleDuration = durationpb.New(d) })
	}
	filter := func(kind pb.FilterType, expr string) *pb.ReceiveMessageRequest {
		return change(func(r *pb.ReceiveMessageRequest) {
			r.FilterExpression = &pb.FilterExpression{Type: kind, Expression: expr}
		})
	}
	tests := []struct {
		name string
		req  *pb.ReceiveMessageRequest
		code pb.Code
	}{
		{"nothing", &pb.ReceiveMessageRequest{}, pb.Code_ILLEGAL_TOPIC},
		{"group empty", simple("", "t", 1), pb.Code_ILLEGAL_CONSUMER_GROUP},
		{"group 121", simple(strings.Repeat("g", 121), "t", 1), pb.Code_ILLEGAL_CONSUMER_GROUP},
		{"group 120", simple(strings.Repeat("g", 120), "t", 1), pb.Code_CONSUMER_GROUP_NOT_FOUND},
		{"group not of the topic", simple("g", "member", 1), pb.Code_FORBIDDEN},
		{"group of another topic", simple("steps", "small", 1), pb.Code_CONSUMER_GROUP_NOT_FOUND},
		{"topic unknown", simple("g", "none", 1), pb.Code_TOPIC_NOT_FOUND},
		{"topic lands in the CZone only", simple("watch", "member", 1), pb.Code_FORBIDDEN},
		{"FIFO topic", simple("fifos", "ordered", 1), pb.Code_MESSAGE_NOT_FOUND},
		{"FIFO topic as another group", simple("g", "ordered", 1), pb.Code_CONSUMER_GROUP_NOT_FOUND},
		{"another topic as a FIFO group", simple("fifos", "t", 1), pb.Code_CONSUMER_GROUP_NOT_FOUND},
		{"invisible below 10 s", invisible(9999 * time.Millisecond), pb.Code_ILLEGAL_INVISIBLE_TIME},
		{"invisible 10 s", invisible(10 * time.Second), pb.Code_MESSAGE_NOT_FOUND},
		{"invisible 12 h", invisible(12 * time.Hour), pb.Code_MESSAGE_NOT_FOUND},
		{"invisible above 12 h", invisible(12*time.Hour + 1), pb.Code_ILLEGAL_INVISIBLE_TIME},
		{"invisible missing", change(func(r *pb.ReceiveMessageRequest) { r.InvisibleDuration = nil }), pb.Code_ILLEGAL_INVISIBLE_TIME},
		{"invisible out of range", change(func(r *pb.ReceiveMessageRequest) { r.InvisibleDuration = &durationpb.Duration{Seconds: 1 << 62} }), pb.Code_ILLEGAL_INVISIBLE_TIME},
		{"poll negative", change(func(r *pb.ReceiveMessageRequest) { r.LongPollingTimeout = durationpb.New(-1) }), pb.Code_ILLEGAL_POLLING_TIME},
		{"SQL filter that is none", filter(pb.FilterType_SQL, "a=="), pb.Code_ILLEGAL_FILTER_EXPRESSION},
		{"SQL filter for all", filter(pb.FilterType_SQL, "*"), pb.Code_ILLEGAL_FILTER_EXPRESSION},
		{"empty SQL filter", filter(pb.FilterType_SQL, ""), pb.Code_ILLEGAL_FILTER_EXPRESSION},
		{"SQL filter over a system property", filter(pb.FilterType_SQL, "KEYS = 'x'"), pb.Code_ILLEGAL_FILTER_EXPRESSION},
		{"SQL filter too long", filter(pb.FilterType_SQL, "a = '"+strings.Repeat("a", maxFilter)+"'"), pb.Code_ILLEGAL_FILTER_EXPRESSION},
		{"unknown filter", filter(9, "*"), pb.Code_ILLEGAL_FILTER_EXPRESSION},
		{"filter of bars", filter(pb.FilterType_TAG, "||"), pb.Code_ILLEGAL_FILTER_EXPRESSION},
		{"filter with one bar", filter(pb.FilterType_TAG, "a|b"), pb.Code_ILLEGAL_FILTER_EXPRESSION},
		{"filter too long", filter(pb.FilterType_TAG, strings.Repeat("a", maxFilter+1)), pb.Code_ILLEGAL_FILTER_EXPRESSION},
		{"dead letters of an unknown group", simple("g", "%DLQ%nobody", 1), pb.Code_TOPIC_NOT_FOUND},
		{"dead letters", simple("g", "%DLQ%steps", 1), pb.Code_MESSAGE_NOT_FOUND},
	}
	c := start(t, nil).dial(t, nil)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := pull(t, c, tt.req)
			want(t, got.status, tt.code)
			if got.order != "sd" {
				t.Errorf("order %q: the status comes first, the delivery time last", got.order)
			}
		})
	}
}

func TestTooNearADeadlineIsAnIllegalPollingTime(t *testing.T) {
	s, err := New(Options{Store: newMemStore(nil), Zone: "z"})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	ctx, cancel := context.WithDeadline(t.Context(), now.Add(12*time.Millisecond))
	defer cancel()
	if _, st := s.pollTime(ctx, &pb.ReceiveMessageRequest{}, clientInfo{}, now); st.GetCode() != pb.Code_ILLEGAL_POLLING_TIME {
		t.Errorf("got %v", st)
	}
	for _, tt := range []struct {
		asked, settings, left, want time.Duration
	}{
		{30 * time.Second, 0, 33 * time.Second, 20 * time.Second}, // the server's limit
		{5 * time.Second, 0, 8 * time.Second, 5 * time.Second},
		{5 * time.Second, 0, 5 * time.Second, 4 * time.Second}, // ends before the deadline
		{-1, 7 * time.Second, 20 * time.Second, 7 * time.Second},
		{-1, 0, 9 * time.Second, 8 * time.Second},
		{0, 0, time.Millisecond, 0}, // no waiting asked
	} {
		req := &pb.ReceiveMessageRequest{}
		if tt.asked >= 0 {
			req.LongPollingTimeout = durationpb.New(tt.asked)
		}
		ctx, cancel := context.WithDeadline(t.Context(), now.Add(tt.left))
		got, st := s.pollTime(ctx, req, clientInfo{poll: tt.settings}, now)
		cancel()
		if st != nil || got != tt.want {
			t.Errorf("%+v: got %v %v", tt, got, st)
		}
	}
}

func TestBatchSizeIsCutTo32(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	for _, tt := range []struct{ asked, want int }{{1000, 32}, {0, 1}, {-3, 1}, {7, 7}} {
		pull(t, c, simple("g", "t", tt.asked))
		b.store.mu.Lock()
		if b.store.last.Max != tt.want {
			t.Errorf("batch size %d became %d, want %d", tt.asked, b.store.last.Max, tt.want)
		}
		b.store.mu.Unlock()
	}
}

func TestTagFilterSkipsForTheGroupOnly(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	for _, tag := range []string{"a", "b", "c", ""} {
		mustSend(t, c, msg("t", "M"+tag, func(m *pb.Message) {
			if tag != "" {
				m.SystemProperties.Tag = str(tag)
			}
		}))
	}
	req := simple("g", "t", 32)
	req.FilterExpression = &pb.FilterExpression{Expression: " a || c||a "}
	got := pull(t, c, req)
	if len(got.msgs) != 2 || got.msgs[0].GetSystemProperties().GetMessageId() != "Ma" || got.msgs[1].GetSystemProperties().GetMessageId() != "Mc" {
		t.Errorf("got %v", got.msgs)
	}
	if all := pull(t, c, simple("steps", "t", 32)); len(all.msgs) != 4 {
		t.Errorf("the other group got %d messages, want 4", len(all.msgs))
	}
}

// TestPushDeliveriesAreRenewedWhileTheClientLives looks at what the store is asked
// and told.
func TestPushDeliveriesAreRenewedWhileTheClientLives(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	mustSend(t, c, msg("t", "M", nil))
	ctx := as(t, "pusher")
	if _, err := tryPull(ctx, c, push("g", "t", time.Second)); err != nil {
		t.Fatal(err)
	}
	b.store.mu.Lock()
	last := b.store.last
	b.store.mu.Unlock()
	if !last.Renew || last.ClientID != "pusher" || last.AttemptID != "attempt" || last.Invisible != renewInvisible {
		t.Errorf("request %+v", last)
	}
	if !b.Alive("pusher", 0) || b.Alive("stranger", 0) {
		t.Error("the wrong clients are alive")
	}
	resp, err := c.NotifyClientTermination(ctx, &pb.NotifyClientTerminationRequest{Group: res("g")})
	if err != nil {
		t.Fatal(err)
	}
	want(t, resp.GetStatus(), pb.Code_OK)
	if b.Alive("pusher", 0) {
		t.Error("the client said goodbye and is still alive")
	}
}

func TestPollsAreBounded(t *testing.T) {
	b := start(t, func(o *Options) { o.MaxPolls = 1 })
	c := b.dial(t, nil)
	ctx, cancel := context.WithCancel(as(t, "one"))
	first, err := c.ReceiveMessage(ctx, push("g", "t", 15*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for b.polls.size() == 0 {
		if _, err := c.Heartbeat(as(t, "x"), &pb.HeartbeatRequest{ClientType: pb.ClientType_PRODUCER}); err != nil {
			t.Fatal(err)
		}
	}
	want(t, pull(t, c, simple("g", "t", 1)).status, pb.Code_TOO_MANY_REQUESTS)
	cancel()
	if _, err := first.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("first poll: %v", err)
	}
	for b.polls.size() > 0 {
		if _, err := c.Heartbeat(as(t, "x"), &pb.HeartbeatRequest{ClientType: pb.ClientType_PRODUCER}); err != nil {
			t.Fatal(err)
		}
	}
	want(t, pull(t, c, simple("g", "t", 1)).status, pb.Code_MESSAGE_NOT_FOUND)
}

// failingStream fails at the n-th send.
type failingStream struct {
	pb.MessagingService_ReceiveMessageServer
	ctx context.Context
	n   int
}

func (f *failingStream) Context() context.Context { return f.ctx }

func (f *failingStream) SendMsg(any) error {
	if f.n--; f.n < 0 {
		return errors.New("connection lost")
	}
	return nil
}

// TestMessagesThatCouldNotBeSentComeBack: those that were not sent at once, as if
// nothing had been; the one that was is renewed no more.
func TestMessagesThatCouldNotBeSentComeBack(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	mustSend(t, c, msg("t", "A", nil), msg("t", "B", nil), msg("t", "C", nil))
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-mq-client-id", "lost"))
	if err := b.ReceiveMessage(push("g", "t", 0), &failingStream{ctx: ctx, n: 2}); err == nil {
		t.Error("a broken stream is no success")
	}
	got := pull(t, c, simple("g", "t", 32))
	if len(got.msgs) != 2 || got.msgs[0].GetSystemProperties().GetMessageId() != "B" || got.msgs[0].GetSystemProperties().GetDeliveryAttempt() != 1 {
		t.Errorf("got %v, want B and C for the first time", got.msgs)
	}
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	if len(b.store.ended) != 1 {
		t.Errorf("renewal ended of %v, want A", b.store.ended)
	}
}

func TestStoreFailureOfAReceiveIsAStatus(t *testing.T) {
	b := start(t, nil)
	b.store.mu.Lock()
	b.store.receive = &broker.Error{Op: "receive", Kind: broker.KindClosed}
	b.store.mu.Unlock()
	got := pull(t, b.dial(t, nil), simple("g", "t", 1))
	want(t, got.status, pb.Code_INTERNAL_SERVER_ERROR)
	if got.order != "sd" {
		t.Errorf("order %q", got.order)
	}
}
