package rocketmq

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

func producerSettings(topics ...string) *pb.Settings {
	p := &pb.Publishing{}
	for _, t := range topics {
		p.Topics = append(p.Topics, &pb.Resource{ResourceNamespace: "", Name: t})
	}
	return &pb.Settings{ClientType: pb.ClientType_PRODUCER.Enum(), PubSub: &pb.Settings_Publishing{Publishing: p}}
}

func consumerSettings(kind pb.ClientType, language pb.Language, group string) *pb.Settings {
	return &pb.Settings{
		ClientType: kind.Enum(), UserAgent: &pb.UA{Language: language},
		PubSub: &pb.Settings_Subscription{Subscription: &pb.Subscription{Group: res(group), Subscriptions: []*pb.SubscriptionEntry{{Topic: res("t")}}}},
	}
}

func command(s *pb.Settings) *pb.TelemetryCommand {
	return &pb.TelemetryCommand{Command: &pb.TelemetryCommand_Settings{Settings: s}}
}

// stream opens a Telemetry stream and sends settings.
func stream(t *testing.T, c pb.MessagingServiceClient, id string, s *pb.Settings) pb.MessagingService_TelemetryClient {
	t.Helper()
	st, err := c.Telemetry(as(t, id))
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Send(command(s)); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return st
}

// refusal returns the error of a refused stream, and fails unless a command with
// nothing but the same status came before it.
func refusal(t *testing.T, st pb.MessagingService_TelemetryClient) error {
	t.Helper()
	cmd, err := st.Recv()
	if err != nil {
		t.Errorf("the stream ended with %v before a command told the status", err)
		return err
	}
	_, err = st.Recv()
	told := cmd.GetStatus()
	if cmd.GetCommand() != nil || !strings.HasPrefix(status.Convert(err).Message(), told.GetCode().String()+": "+told.GetMessage()) {
		t.Errorf("command %v came before %v", cmd, err)
	}
	return err
}

func reply(t *testing.T, st pb.MessagingService_TelemetryClient) *pb.Settings {
	t.Helper()
	cmd, err := st.Recv()
	if err != nil {
		t.Fatalf("no settings: %v", err)
	}
	want(t, cmd.GetStatus(), pb.Code_OK)
	if cmd.GetSettings() == nil {
		t.Fatalf("command %v has no settings", cmd)
	}
	return cmd.GetSettings()
}

func TestSettingsOfAProducer(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	in := producerSettings("t", "small")
	in.ClientProperties = map[string]string{"a": "b"}
	in.AccessPoint = &pb.Endpoints{Scheme: pb.AddressScheme_IPv4, Addresses: []*pb.Address{{Host: "h", Port: 1}}}
	got := reply(t, stream(t, c, "p", in))
	e := got.GetBackoffPolicy().GetExponentialBackoff()
	if got.GetPublishing().GetMaxBodySize() != 4<<20 || !got.GetPublishing().GetValidateMessageType() || got.GetBackoffPolicy().GetMaxAttempts() != 3 ||
		e.GetInitial().AsDuration() != 10*time.Millisecond || e.GetMax().AsDuration() != time.Second || e.GetMultiplier() != 2 {
		t.Errorf("settings %v", got)
	}
	if len(got.GetPublishing().GetTopics()) != 2 || got.GetClientType() != pb.ClientType_PRODUCER || got.GetMetric().GetOn() ||
		!proto.Equal(got.GetAccessPoint(), in.GetAccessPoint()) || got.GetClientProperties()["a"] != "b" {
		t.Errorf("the client's own settings are not echoed: %v", got)
	}
	if n := reply(t, stream(t, c, "p2", producerSettings("small"))).GetPublishing().GetMaxBodySize(); n != 1024 {
		t.Errorf("largest body %d, want the topic's 1024", n)
	}
}

func TestSettingsOfConsumers(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	in := consumerSettings(pb.ClientType_PUSH_CONSUMER, pb.Language_JAVA, "g")
	in.GetSubscription().LongPollingTimeout = durationpb.New(30 * time.Second)
	got := reply(t, stream(t, c, "c", in))
	sub := got.GetSubscription()
	if sub.Fifo == nil || sub.GetFifo() || sub.GetReceiveBatchSize() != 32 || sub.GetLongPollingTimeout().AsDuration() != 20*time.Second || len(sub.GetSubscriptions()) != 1 {
		t.Errorf("subscription %v", sub)
	}
	in = consumerSettings(pb.ClientType_SIMPLE_CONSUMER, pb.Language_JAVA, "g")
	in.GetSubscription().LongPollingTimeout = durationpb.New(5 * time.Second)
	if d := reply(t, stream(t, c, "c2", in)).GetSubscription().GetLongPollingTimeout().AsDuration(); d != 5*time.Second {
		t.Errorf("poll time %v, want the client's own 5s", d)
	}
}

// TestRetryPolicyInTheKindThatTheLanguageKnows: Python reads steps only, Node a
// curve only.
func TestRetryPolicyInTheKindThatTheLanguageKnows(t *testing.T) {
	curve := &zone.ConsumerGroupInfo{MaxAttempts: 5, Backoff: zone.Backoff{Initial: 2 * time.Second, Max: 60 * time.Second, Multiplier: 3}}
	steps := &zone.ConsumerGroupInfo{MaxAttempts: 4, Backoff: zone.Backoff{Steps: []time.Duration{time.Second, 5 * time.Second}}}
	tests := []struct {
		g        *zone.ConsumerGroupInfo
		language pb.Language
		want     string
	}{
		{curve, pb.Language_JAVA, "5 curve 2s 1m0s 3"},
		{curve, pb.Language_NODE_JS, "5 curve 2s 1m0s 3"},
		{curve, pb.Language_PYTHON, "5 steps [2s 6s 18s 54s]"},
		{steps, pb.Language_JAVA, "4 steps [1s 5s 5s]"},
		{steps, pb.Language_PYTHON, "4 steps [1s 5s 5s]"},
		{steps, pb.Language_NODE_JS, "4 curve 1s 5s 2"},
		{&unknownGroup, pb.Language_GOLANG, "16 curve 1s 10m0s 2"},
	}
	for _, tt := range tests {
		p := retryPolicy(tt.g, tt.language)
		got := fmt.Sprint(p.GetMaxAttempts())
		if e := p.GetExponentialBackoff(); e != nil {
			got += fmt.Sprint(" curve ", e.GetInitial().AsDuration(), " ", e.GetMax().AsDuration(), " ", e.GetMultiplier())
		}
		if s := p.GetCustomizedBackoff(); s != nil {
			var waits []time.Duration
			for _, d := range s.GetNext() {
				waits = append(waits, d.AsDuration())
			}
			got += fmt.Sprint(" steps ", waits)
		}
		if got != tt.want {
			t.Errorf("%v for %v: %s, want %s", tt.g.Backoff, tt.language, got, tt.want)
		}
	}
}

// TestSettingsAreSentOnceMore: a Node client that was still fetching routes has
// missed the first.
// The repeated ones are the last that were answered, and they end: a client that
// missed the first ones because its routes took long gets one of them.
func TestSettingsAreRepeatedForAWhile(t *testing.T) {
	b := start(t, nil)
	b.resend = time.Millisecond
	st := stream(t, b.dial(t, nil), "p", producerSettings("t"))
	first := reply(t, st)
	for i := range resends {
		if again := reply(t, st); !proto.Equal(first, again) {
			t.Errorf("time %d: %v differs from %v", i+1, again, first)
		}
	}
	if err := st.Send(command(producerSettings("t", "small"))); err != nil {
		t.Fatal(err)
	}
	if got := reply(t, st); len(got.GetPublishing().GetTopics()) != 2 {
		t.Errorf("the second settings were not answered: %v", got)
	}
	if err := st.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v, want its end", err)
	}
}

func TestTelemetryRefusals(t *testing.T) {
	many := map[string]string{}
	for i := range maxClientProperties + 1 {
		many[fmt.Sprint("k", i)] = "v"
	}
	with := func(p map[string]string) *pb.Settings {
		s := producerSettings("t")
		s.ClientProperties = p
		return s
	}
	large := map[string]string{}
	for i := range 20 {
		large[fmt.Sprint("k", i)] = strings.Repeat("v", 256)
	}
	tests := []struct {
		name string
		s    *pb.Settings
		text string
	}{
		{"empty", &pb.Settings{}, "neither"},
		{"type of the other half", &pb.Settings{ClientType: pb.ClientType_PUSH_CONSUMER.Enum(), PubSub: &pb.Settings_Publishing{Publishing: &pb.Publishing{}}}, "PUSH_CONSUMER"},
		{"too many properties", with(many), "32"},
		{"property key", with(map[string]string{"1a": "b"}), "[a-zA-Z]"},
		{"property key of 65", with(map[string]string{strings.Repeat("k", 65): "b"}), "64"},
		{"property value of 257", with(map[string]string{"k": strings.Repeat("v", 257)}), "256"},
		{"properties above 4 KiB", with(large), "4096"},
		{"settings above 64 KiB", producerSettings(strings.Repeat("t", 65<<10)), "65536"},
	}
	c := start(t, nil).dial(t, nil)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := refusal(t, stream(t, c, "c", tt.s))
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(status.Convert(err).Message(), tt.text) {
				t.Errorf("got %v, want InvalidArgument that names %q", err, tt.text)
			}
		})
	}
	st, err := c.Telemetry(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("without a client id: %v", err)
	}
}

func TestOtherCommandsAreIgnored(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	st, err := c.Telemetry(as(t, "c"))
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []*pb.TelemetryCommand{
		{},
		{Command: &pb.TelemetryCommand_ThreadStackTrace{ThreadStackTrace: &pb.ThreadStackTrace{Nonce: "n"}}},
		{Command: &pb.TelemetryCommand_PrintThreadStackTraceCommand{}},
		command(producerSettings("t")),
	} {
		if err := st.Send(cmd); err != nil {
			t.Fatal(err)
		}
	}
	reply(t, st)
}

// TestClientFloodIsBounded: streams and heartbeats of new ids are refused at the
// limit, and the clients that are known go on.
func TestClientFloodIsBounded(t *testing.T) {
	b := start(t, func(o *Options) { o.MaxClients = 3 })
	c := b.dial(t, nil)
	first := stream(t, c, "c0", producerSettings("t"))
	reply(t, first)
	refused := 0
	for i := range 20 {
		if _, err := stream(t, c, fmt.Sprint("c", i), producerSettings("t")).Recv(); status.Code(err) == codes.ResourceExhausted {
			refused++
		} else if err != nil {
			t.Errorf("stream %d: %v", i, err)
		}
	}
	if refused != 17 || b.clients.size() != 3 {
		t.Errorf("%d streams refused, %d clients kept; want 17 and 3", refused, b.clients.size())
	}
	beat := func(id string) *pb.Status {
		resp, err := c.Heartbeat(as(t, id), &pb.HeartbeatRequest{ClientType: pb.ClientType_PRODUCER})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetStatus()
	}
	want(t, beat("new"), pb.Code_TOO_MANY_REQUESTS)
	want(t, beat("c1"), pb.Code_OK)
	want(t, pull(t, c, simple("g", "t", 1)).status, pb.Code_MESSAGE_NOT_FOUND) // still served
}

func TestQ5_HeartbeatAsTheVeryFirstCall(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	for kind, code := range map[pb.ClientType]pb.Code{
		pb.ClientType_PRODUCER: pb.Code_OK, pb.ClientType_PUSH_CONSUMER: pb.Code_OK, pb.ClientType_SIMPLE_CONSUMER: pb.Code_OK,
		pb.ClientType_LITE_PUSH_CONSUMER: pb.Code_OK, pb.ClientType_PULL_CONSUMER: pb.Code_OK, 99: pb.Code_OK, // of a newer client
		pb.ClientType_CLIENT_TYPE_UNSPECIFIED: pb.Code_UNRECOGNIZED_CLIENT_TYPE,
	} {
		id := "client " + kind.String()
		resp, err := c.Heartbeat(as(t, id), &pb.HeartbeatRequest{ClientType: kind})
		if err != nil {
			t.Fatal(err)
		}
		want(t, resp.GetStatus(), code)
		if b.Alive(id, 0) != (code == pb.Code_OK) {
			t.Errorf("%s alive: %v", id, b.Alive(id, 0))
		}
	}
}

// TestNewestStreamsOfAClientWin: streams may overlap for a moment, but not pile up.
func TestNewestStreamsOfAClientWin(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	var all []pb.MessagingService_TelemetryClient
	for range maxSessions + 1 {
		st := stream(t, c, "c", producerSettings("t"))
		reply(t, st)
		all = append(all, st)
	}
	for {
		if _, err := all[0].Recv(); err != nil { // the repeated settings may come first
			if status.Code(err) != codes.Unavailable {
				t.Errorf("the oldest stream ended with %v", err)
			}
			break
		}
	}
	if err := all[1].Send(command(producerSettings("t"))); err != nil {
		t.Fatal(err)
	}
	reply(t, all[1])
}

func TestRegistryOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(10)
		s := newSession()
		r.attach("stream", s)
		r.settings("stream", s, clientInfo{kind: pb.ClientType_PUSH_CONSUMER, poll: time.Second})
		r.see(t.Context(), "quiet", pb.ClientType_PRODUCER)
		time.Sleep(aliveTTL)
		if r.alive("quiet") {
			t.Error("a client without stream and heartbeat counts as alive")
		}
		if !r.alive("stream") {
			t.Error("a client with a stream does not count as alive")
		}
		r.see(t.Context(), "busy", pb.ClientType_PRODUCER)
		time.Sleep(clientTTL - aliveTTL - time.Second)
		r.see(t.Context(), "busy", 0)
		r.expire()
		if r.size() != 3 {
			t.Errorf("%d clients before the time, want 3", r.size())
		}
		time.Sleep(time.Second)
		r.expire()
		if r.size() != 1 || !r.alive("busy") {
			t.Errorf("%d clients after the time, want 1", r.size())
		}
		select {
		case <-s.end:
		default:
			t.Error("the expired client's stream goes on")
		}
	})
}

func TestOnlyTheNewestStreamSetsWhatIsKnown(t *testing.T) {
	r := newRegistry(10)
	old, young := newSession(), newSession()
	r.attach("c", old)
	r.attach("c", young)
	r.settings("c", young, clientInfo{kind: pb.ClientType_PUSH_CONSUMER})
	r.settings("c", old, clientInfo{kind: pb.ClientType_PRODUCER})
	if k := r.kind("c"); k != pb.ClientType_PUSH_CONSUMER {
		t.Errorf("kind %v, want that of the newest stream", k)
	}
	r.detach("c", young)
	r.settings("c", old, clientInfo{kind: pb.ClientType_PRODUCER})
	if k := r.kind("c"); k != pb.ClientType_PRODUCER {
		t.Errorf("kind %v after the newest stream ended", k)
	}
}
