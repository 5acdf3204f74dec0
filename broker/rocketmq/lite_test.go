package rocketmq

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// SyncLite implements Store: nobody is refused here, and nobody gets less.
func (s *memStore) SyncLite(_ context.Context, r broker.LiteRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lite = append(s.lite, r)
	return nil
}

// LeaveLite implements Store.
func (s *memStore) LeaveLite(client string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = append(s.left, client)
}

// lite makes a message one of a lite topic.
func lite(name string) func(*pb.Message) {
	return func(m *pb.Message) {
		m.SystemProperties.MessageType, m.SystemProperties.LiteTopic = pb.MessageType_LITE, str(name)
	}
}

func syncLite(t *testing.T, c pb.MessagingServiceClient, client, group string, action pb.LiteSubscriptionAction, names ...string) *pb.Status {
	t.Helper()
	return syncOf(t, c, client, &pb.SyncLiteSubscriptionRequest{Topic: res("chat"), Group: res(group), Action: action, LiteTopicSet: names})
}

func syncOf(t *testing.T, c pb.MessagingServiceClient, client string, r *pb.SyncLiteSubscriptionRequest) *pb.Status {
	t.Helper()
	resp, err := c.SyncLiteSubscription(as(t, client), r)
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetStatus()
}

// TestLiteForEveryClient holds what a lite consumer does to what the official ones
// make of the answers.
func TestLiteForEveryClient(t *testing.T) {
	b := startReal(t)
	c := b.dial(t, nil)
	s := consumerSettings(pb.ClientType_LITE_PUSH_CONSUMER, pb.Language_JAVA, "chatters")
	s.GetSubscription().Subscriptions[0].Topic = res("chat")
	answer := reply(t, stream(t, c, "one", s)).GetSubscription()
	if answer.GetLiteSubscriptionQuota() != 3 || answer.GetMaxLiteTopicSize() != zone.MaxLiteName || answer.GetFifo() {
		t.Errorf("settings: %v", answer)
	}
	for _, name := range []string{"a", "b", "a"} {
		want(t, send(t, c, msg("chat", "of "+name, lite(name))).GetStatus(), pb.Code_OK)
	}
	polls := 0
	receive := func(client string) map[string]int {
		t.Helper()
		r := push("chatters", "chat", 100*time.Millisecond)
		r.BatchSize, r.AttemptId = 32, str(fmt.Sprint("poll ", polls))
		polls++
		got, err := tryPull(as(t, client), c, r)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		for _, m := range got.msgs {
			sp := m.GetSystemProperties()
			seen[sp.GetLiteTopic()]++
			if sp.GetMessageType() != pb.MessageType_LITE || sp.MessageGroup != nil {
				t.Errorf("received %v", sp)
			}
		}
		return seen
	}
	if got := receive("one"); len(got) != 0 {
		t.Errorf("without a subscription: %v", got)
	}
	want(t, syncLite(t, c, "one", "chatters", pb.LiteSubscriptionAction_PARTIAL_ADD, "a", "b", "b"), pb.Code_OK)
	if got := receive("one"); got["a"] != 1 || got["b"] != 1 {
		t.Errorf("of a and b: %v, want the first message of each", got)
	}
	if got := receive("one"); len(got) != 0 {
		t.Errorf("while both are in hands: %v", got)
	}
	want(t, syncLite(t, c, "one", "chatters", pb.LiteSubscriptionAction_PARTIAL_ADD, "c", "d"), pb.Code_LITE_SUBSCRIPTION_QUOTA_EXCEEDED)
	want(t, syncLite(t, c, "one", "chatters", pb.LiteSubscriptionAction_COMPLETE_ADD, "a", "b", "c", "d"), pb.Code_LITE_SUBSCRIPTION_QUOTA_EXCEEDED)
	want(t, syncLite(t, c, "one", "chatters", pb.LiteSubscriptionAction_COMPLETE_ADD, "a"), pb.Code_OK)
	want(t, syncLite(t, c, "one", "chatters", pb.LiteSubscriptionAction_COMPLETE_REMOVE), pb.Code_OK)
	want(t, send(t, c, msg("chat", "M", lite("c"))).GetStatus(), pb.Code_OK)
	st := send(t, c, msg("chat", "M", lite("d"))).GetStatus() // a fourth one
	want(t, st, pb.Code_LITE_TOPIC_QUOTA_EXCEEDED)
}

func TestLiteRequestsThatAreRefused(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	for _, tt := range []struct {
		name string
		r    *pb.SyncLiteSubscriptionRequest
		code pb.Code
	}{
		{"no lite topic", &pb.SyncLiteSubscriptionRequest{Topic: res("t"), Group: res("g"), LiteTopicSet: []string{"a"}}, pb.Code_UNSUPPORTED},
		{"unknown topic", &pb.SyncLiteSubscriptionRequest{Topic: res("nix"), Group: res("chatters")}, pb.Code_TOPIC_NOT_FOUND},
		{"unknown group", &pb.SyncLiteSubscriptionRequest{Topic: res("chat"), Group: res("nix")}, pb.Code_CONSUMER_GROUP_NOT_FOUND},
		{"foreign group", &pb.SyncLiteSubscriptionRequest{Topic: res("chat"), Group: res("g")}, pb.Code_CONSUMER_GROUP_NOT_FOUND},
		{"unknown action", &pb.SyncLiteSubscriptionRequest{Topic: res("chat"), Group: res("chatters"), Action: 9}, pb.Code_BAD_REQUEST},
		{"unknown policy", &pb.SyncLiteSubscriptionRequest{Topic: res("chat"), Group: res("chatters"),
			OffsetOption: &pb.OffsetOption{OffsetType: &pb.OffsetOption_Policy_{Policy: 9}}}, pb.Code_ILLEGAL_OFFSET},
		{"negative offset", &pb.SyncLiteSubscriptionRequest{Topic: res("chat"), Group: res("chatters"),
			OffsetOption: &pb.OffsetOption{OffsetType: &pb.OffsetOption_TailN{TailN: -1}}}, pb.Code_ILLEGAL_OFFSET},
		{"too many", &pb.SyncLiteSubscriptionRequest{Topic: res("chat"), Group: res("chatters"), LiteTopicSet: make([]string, maxLiteNames+1)}, pb.Code_LITE_SUBSCRIPTION_QUOTA_EXCEEDED},
	} {
		if st := syncOf(t, c, "one", tt.r); st.GetCode() != tt.code {
			t.Errorf("%s: %v, want %v", tt.name, st, tt.code)
		}
	}
	for name, change := range map[string]func(*pb.Message){
		"blank": lite(" "), "long": lite(strings.Repeat("x", 65)), "blanks": lite("a b"),
		"none": func(m *pb.Message) { m.SystemProperties.MessageType = pb.MessageType_LITE },
	} {
		if st := send(t, c, msg("chat", "M", change)).GetStatus(); st.GetCode() != pb.Code_ILLEGAL_LITE_TOPIC {
			t.Errorf("a lite topic that is %s: %v", name, st)
		}
	}
	want(t, send(t, c, msg("chat", "M", nil)).GetStatus(), pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE)
	for _, s := range []*pb.Settings{
		consumerSettings(pb.ClientType_LITE_PUSH_CONSUMER, pb.Language_JAVA, "g"),
		consumerSettings(pb.ClientType_PUSH_CONSUMER, pb.Language_JAVA, "chatters"),
	} {
		if s.GetClientType() == pb.ClientType_PUSH_CONSUMER {
			s.GetSubscription().Subscriptions[0].Topic = res("chat")
		}
		if err := refusal(t, stream(t, c, "c", s)); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "UNSUPPORTED") {
			t.Errorf("settings of a %v: %v", s.GetClientType(), err)
		}
	}
}

// TestLiteRequestsAreTranslated compares what the store is asked for.
func TestLiteRequestsAreTranslated(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	for _, o := range []*pb.OffsetOption{
		nil, {OffsetType: &pb.OffsetOption_Policy_{Policy: pb.OffsetOption_LAST}},
		{OffsetType: &pb.OffsetOption_Policy_{Policy: pb.OffsetOption_MIN}}, {OffsetType: &pb.OffsetOption_Policy_{Policy: pb.OffsetOption_MAX}},
		{OffsetType: &pb.OffsetOption_Offset{Offset: 4}}, {OffsetType: &pb.OffsetOption_TailN{TailN: 5}}, {OffsetType: &pb.OffsetOption_Timestamp{Timestamp: 6}},
	} {
		want(t, syncOf(t, c, "one", &pb.SyncLiteSubscriptionRequest{Topic: res("chat"), Group: res("chatters"), LiteTopicSet: []string{"b", "a", "b"}, OffsetOption: o}), pb.Code_OK)
	}
	// The client for Python adds a lite topic as its letters.
	python := metadata.AppendToOutgoingContext(as(t, "one"), "x-mq-language", "PYTHON")
	resp, err := c.SyncLiteSubscription(python, &pb.SyncLiteSubscriptionRequest{Topic: res("chat"), Group: res("chatters"), LiteTopicSet: []string{"r", "o", "o", "m"}})
	if err != nil {
		t.Fatal(err)
	}
	want(t, resp.GetStatus(), pb.Code_OK)
	if r := b.store.lite[len(b.store.lite)-1]; len(r.Names) != 1 || r.Names[0] != "room" {
		t.Errorf("the letters of room became %q", r.Names)
	}
	for i, want := range []broker.LiteRequest{
		{}, {}, {From: broker.LiteFromMin}, {From: broker.LiteFromMax}, {From: broker.LiteFromOffset, N: 4}, {From: broker.LiteFromTail, N: 5}, {From: broker.LiteFromTime, N: 6},
	} {
		r := b.store.lite[i]
		if r.From != want.From || r.N != want.N || strings.Join(r.Names, " ") != "a b" || r.ClientID != "one" || r.Action != broker.LiteAdd {
			t.Errorf("request %d is %+v", i, r)
		}
	}
	ended, err := c.NotifyClientTermination(as(t, "one"), &pb.NotifyClientTerminationRequest{Group: res("chatters")})
	if err != nil {
		t.Fatal(err)
	}
	want(t, ended.GetStatus(), pb.Code_OK)
	if len(b.store.left) != 1 || b.store.left[0] != "one" {
		t.Errorf("after its word that it ends: %v", b.store.left)
	}
}

// TestLostLiteTopicIsTold has the stream of the client that loses a lite topic say it.
func TestLostLiteTopicIsTold(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	s := consumerSettings(pb.ClientType_LITE_PUSH_CONSUMER, pb.Language_JAVA, "chatters")
	s.GetSubscription().Subscriptions[0].Topic = res("chat")
	one := stream(t, c, "one", s)
	reply(t, one)
	b.LiteLost("nobody", "chat", "a")
	b.LiteLost("one", "chat", "a")
	for {
		cmd, err := one.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if l := cmd.GetNotifyUnsubscribeLiteCommand(); l != nil {
			if l.GetLiteTopic() != "a" || cmd.GetStatus().GetCode() != pb.Code_OK {
				t.Errorf("told %v", cmd)
			}
			return
		}
	}
}

// A client of which there is no room for anything cannot subscribe.
func TestLiteSubscriptionNeedsARegisteredClient(t *testing.T) {
	b := start(t, func(o *Options) { o.MaxClients = 1 })
	c := b.dial(t, nil)
	want(t, syncLite(t, c, "one", "chatters", pb.LiteSubscriptionAction_PARTIAL_ADD, "a"), pb.Code_OK)
	want(t, syncLite(t, c, "two", "chatters", pb.LiteSubscriptionAction_PARTIAL_ADD, "a"), pb.Code_TOO_MANY_REQUESTS)
	if n := len(b.store.lite); n != 1 {
		t.Errorf("%d subscriptions came to the store, want one", n)
	}
}
