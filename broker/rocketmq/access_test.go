package rocketmq

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/policy"
)

const (
	paySecret  = "secret-of-payments"
	readSecret = "secret-of-the-reader"
	accessText = `
users:
  - {access_key: payments, secret: ` + paySecret + `, publish: [t], consume: [t], groups: [g]}
  - {access_key: reader, secret: ` + readSecret + `, consume: [t], groups: [steps]}
`
)

// swap is an AccessSource that a test changes.
type swap struct {
	mu      sync.Mutex
	access  *policy.Access
	changed chan struct{}
}

func newSwap(t *testing.T, text string) *swap {
	s := &swap{changed: make(chan struct{})}
	s.set(t, text)
	return s
}

func (s *swap) set(t *testing.T, text string) {
	t.Helper()
	a, err := policy.ParseAccess([]byte(text), "acl.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.access, s.changed = a, make(chan struct{})
}

func (s *swap) Watch() (*policy.Access, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.access, s.changed
}

// signedAs is a context with credentials, written as the Go client does.
func signedAs(ctx context.Context, id, key, secret string) context.Context {
	date := time.Now().Format("20060102T150405Z") // local time behind a Z
	m := hmac.New(sha1.New, []byte(secret))
	m.Write([]byte(date))
	return metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", id, "x-mq-date-time", date,
		"authorization", "MQv2-HMAC-SHA1 Credential="+key+"//Rocketmq, SignedHeaders=x-mq-date-time, Signature="+hex.EncodeToString(m.Sum(nil)))
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), enough)
	t.Cleanup(cancel)
	return ctx
}

// TestCredentialsOfEveryClientAreRead holds what the clients send: upper and lower
// hex, with a region and a service or without, and Python's empty key.
func TestCredentialsOfEveryClientAreRead(t *testing.T) {
	const hexSum = "CDC23F9495439060D593C6315B75DB3C1090D7DE"
	for name, c := range map[string]struct {
		header string
		key    string
		ok     bool
	}{
		"Java, Node.js":   {"MQv2-HMAC-SHA1 Credential=ak, SignedHeaders=x-mq-date-time, Signature=" + hexSum, "ak", true},
		"Go":              {"MQv2-HMAC-SHA1 Credential=ak//Rocketmq, SignedHeaders=x-mq-date-time, Signature=" + strings.ToLower(hexSum), "ak", true},
		"C++":             {"MQv2-HMAC-SHA1 Credential=ak/region/RocketMQ, SignedHeaders=x-mq-date-time, Signature=" + hexSum, "ak", true},
		"without blanks":  {"MQv2-HMAC-SHA1 Credential=ak,SignedHeaders=x-mq-date-time,Signature=" + hexSum, "ak", true},
		"Python, no key":  {"MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=" + hexSum, "", true},
		"no header":       {"", "", true},
		"another scheme":  {"Bearer abc", "", false},
		"no hex":          {"MQv2-HMAC-SHA1 Credential=ak, Signature=xyz", "ak", false},
		"no signature":    {"MQv2-HMAC-SHA1 Credential=ak", "ak", true},
		"only the scheme": {"MQv2-HMAC-SHA1", "", true},
		"too long":        {"MQv2-HMAC-SHA1 Credential=" + strings.Repeat("a", maxAuthorization), "", false},
	} {
		got, ok := signed{c.header, "20261129T122859Z"}.credential()
		if ok != c.ok || ok && got.Key != c.key {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
		if ok && strings.Contains(strings.ToUpper(c.header), hexSum) && c.key != "" && hex.EncodeToString(got.Signature) != strings.ToLower(hexSum) {
			t.Errorf("%s: signature %x", name, got.Signature)
		}
	}
}

// call makes one RPC and returns its status; a gRPC error of Telemetry becomes the
// status that its text begins with.
type call struct {
	name  string
	make  func(context.Context, pb.MessagingServiceClient) (*pb.Status, error)
	reply pb.Code // to the reader, who lacks the permission
}

// calls has every RPC of the protocol, for topic t and group g.
func calls(t *testing.T) []call {
	mq := &pb.MessageQueue{Topic: res("t")}
	unary := func(name string, reply pb.Code, fn func(context.Context, pb.MessagingServiceClient) (interface{ GetStatus() *pb.Status }, error)) call {
		return call{name: name, reply: reply, make: func(ctx context.Context, c pb.MessagingServiceClient) (*pb.Status, error) {
			r, err := fn(ctx, c)
			if err != nil {
				return nil, err
			}
			return r.GetStatus(), nil
		}}
	}
	type st = interface{ GetStatus() *pb.Status }
	return []call{
		unary("QueryRoute", pb.Code_FORBIDDEN, func(ctx context.Context, c pb.MessagingServiceClient) (st, error) {
			return c.QueryRoute(ctx, &pb.QueryRouteRequest{Topic: res("byuser")})
		}),
		unary("Heartbeat", pb.Code_FORBIDDEN, func(ctx context.Context, c pb.MessagingServiceClient) (st, error) {
			return c.Heartbeat(ctx, &pb.HeartbeatRequest{Group: res("g"), ClientType: pb.ClientType_PUSH_CONSUMER})
		}),
		unary("SendMessage", pb.Code_FORBIDDEN, func(ctx context.Context, c pb.MessagingServiceClient) (st, error) {
			return c.SendMessage(ctx, &pb.SendMessageRequest{Messages: []*pb.Message{msg("t", "M", nil)}})
		}),
		unary("QueryAssignment", pb.Code_FORBIDDEN, func(ctx context.Context, c pb.MessagingServiceClient) (st, error) {
			return c.QueryAssignment(ctx, &pb.QueryAssignmentRequest{Topic: res("t"), Group: res("g")})
		}),
		{name: "ReceiveMessage", reply: pb.Code_FORBIDDEN, make: func(ctx context.Context, c pb.MessagingServiceClient) (*pb.Status, error) {
			got, err := tryPull(ctx, c, simple("g", "t", 1))
			if err == nil && got.order != "sd" {
				t.Errorf("a refused receive answers %q, want status and delivery time", got.order)
			}
			return got.status, err
		}},
		unary("AckMessage", pb.Code_INVALID_RECEIPT_HANDLE, func(ctx context.Context, c pb.MessagingServiceClient) (st, error) {
			return c.AckMessage(ctx, &pb.AckMessageRequest{Topic: res("t"), Group: res("g"), Entries: []*pb.AckMessageEntry{{ReceiptHandle: "x"}}})
		}),
		unary("ChangeInvisibleDuration", pb.Code_INVALID_RECEIPT_HANDLE, func(ctx context.Context, c pb.MessagingServiceClient) (st, error) {
			return c.ChangeInvisibleDuration(ctx, &pb.ChangeInvisibleDurationRequest{Topic: res("t"), Group: res("g"), ReceiptHandle: "x"})
		}),
		unary("ForwardMessageToDeadLetterQueue", pb.Code_FORBIDDEN, func(ctx context.Context, c pb.MessagingServiceClient) (st, error) {
			return c.ForwardMessageToDeadLetterQueue(ctx, &pb.ForwardMessageToDeadLetterQueueRequest{Topic: res("t"), Group: res("g"), ReceiptHandle: "x"})
		}),
		unary("EndTransaction", pb.Code_FORBIDDEN, func(ctx context.Context, c pb.MessagingServiceClient) (st, error) {
			return c.EndTransaction(ctx, &pb.EndTransactionRequest{Topic: res("t"), TransactionId: "x"})
		}),
		unary("RecallMessage", pb.Code_FORBIDDEN, func(ctx context.Context, c pb.MessagingServiceClient) (st, error) {
			return c.RecallMessage(ctx, &pb.RecallMessageRequest{Topic: res("t"), RecallHandle: "x"})
		}),
		unary("NotifyClientTermination", pb.Code_OK, func(ctx context.Context, c pb.MessagingServiceClient) (st, error) {
			return c.NotifyClientTermination(ctx, &pb.NotifyClientTerminationRequest{Group: res("g")})
		}),
		unary("SyncLiteSubscription", pb.Code_FORBIDDEN, func(ctx context.Context, c pb.MessagingServiceClient) (st, error) {
			return c.SyncLiteSubscription(ctx, &pb.SyncLiteSubscriptionRequest{Topic: res("t"), Group: res("g")})
		}),
		{name: "PullMessage", reply: pb.Code_FORBIDDEN, make: func(ctx context.Context, c pb.MessagingServiceClient) (*pb.Status, error) {
			s, err := c.PullMessage(ctx, &pb.PullMessageRequest{Group: res("g"), MessageQueue: mq})
			if err != nil {
				return nil, err
			}
			r, err := s.Recv()
			return r.GetStatus(), err
		}},
		unary("UpdateOffset", pb.Code_FORBIDDEN, func(ctx context.Context, c pb.MessagingServiceClient) (st, error) {
			return c.UpdateOffset(ctx, &pb.UpdateOffsetRequest{Group: res("g"), MessageQueue: mq})
		}),
		unary("GetOffset", pb.Code_FORBIDDEN, func(ctx context.Context, c pb.MessagingServiceClient) (st, error) {
			return c.GetOffset(ctx, &pb.GetOffsetRequest{Group: res("g"), MessageQueue: mq})
		}),
		unary("QueryOffset", pb.Code_FORBIDDEN, func(ctx context.Context, c pb.MessagingServiceClient) (st, error) {
			return c.QueryOffset(ctx, &pb.QueryOffsetRequest{MessageQueue: &pb.MessageQueue{Topic: res("byuser")}})
		}),
		{name: "Telemetry", reply: pb.Code_FORBIDDEN, make: func(ctx context.Context, c pb.MessagingServiceClient) (*pb.Status, error) {
			s, err := c.Telemetry(ctx)
			if err != nil {
				return nil, err
			}
			_ = s.Send(command(consumerSettings(pb.ClientType_SIMPLE_CONSUMER, pb.Language_JAVA, "g"))) // Recv has the reason
			cmd, err := s.Recv()
			if err == nil {
				return cmd.GetStatus(), nil
			}
			name, text, _ := strings.Cut(status.Convert(err).Message(), ": ")
			if code := status.Code(err); code != codes.Unauthenticated && code != codes.PermissionDenied {
				return nil, err
			}
			return &pb.Status{Code: pb.Code(pb.Code_value[name]), Message: text}, nil
		}},
	}
}

// TestEveryCallIsJudged: without credentials, with wrong ones, and without the
// permission, each RPC answers in the form that its clients know.
func TestEveryCallIsJudged(t *testing.T) {
	var lines bytes.Buffer
	var mu sync.Mutex
	b := start(t, func(o *Options) {
		o.Access = newSwap(t, accessText)
		o.Logger = slog.New(slog.NewTextHandler(lockedWriter{&mu, &lines}, nil))
	})
	b.guard.hold = time.Millisecond
	c := b.dial(t, nil)
	list := calls(t)
	seen := map[string]bool{}
	for _, x := range list {
		seen[x.name] = true
		for _, who := range []struct {
			name string
			ctx  context.Context
			want pb.Code
		}{
			{"nobody", metadata.AppendToOutgoingContext(within(t), "x-mq-client-id", "c"), pb.Code_UNAUTHORIZED},
			{"wrong secret", signedAs(within(t), "c", "payments", "guess"), pb.Code_UNAUTHORIZED},
			{"unknown key", signedAs(within(t), "c", "payment", paySecret), pb.Code_UNAUTHORIZED},
			{"no permission", signedAs(within(t), "c", "reader", readSecret), x.reply},
		} {
			st, err := x.make(who.ctx, c)
			if err != nil {
				t.Errorf("%s by %s: gRPC error %v", x.name, who.name, err)
				continue
			}
			if st.GetCode() != who.want {
				t.Errorf("%s by %s: %v (%s), want %v", x.name, who.name, st.GetCode(), st.GetMessage(), who.want)
			}
		}
	}
	for _, m := range pb.MessagingService_ServiceDesc.Methods {
		if !seen[m.MethodName] {
			t.Errorf("%s is not tested", m.MethodName)
		}
	}
	for _, m := range pb.MessagingService_ServiceDesc.Streams {
		if !seen[m.StreamName] {
			t.Errorf("%s is not tested", m.StreamName)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	text := lines.String()
	if !strings.Contains(text, "access_key=payments") || !strings.Contains(text, "user=reader") {
		t.Errorf("the log does not say who was refused:\n%s", text)
	}
	if strings.Contains(text, paySecret) || strings.Contains(text, readSecret) || strings.Contains(text, "Signature") {
		t.Errorf("the log has a secret:\n%s", text)
	}
	if n := strings.Count(text, "client not known"); n > deniedLines {
		t.Errorf("%d lines in a moment, want at most %d", n, deniedLines)
	}
	if needs := needsOf(t.Context(), new(pb.Status)); len(needs) != 1 || needs[0].met(&policy.User{}) {
		t.Error("a request that is not known has to be refused")
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (w lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(b)
}

// TestWhoMayDoes: with its permissions a user's calls reach the store, under a client
// id that no other user can take.
func TestWhoMayDoes(t *testing.T) {
	b := start(t, func(o *Options) { o.Access = newSwap(t, accessText) })
	c := b.dial(t, nil)
	pay := func() context.Context { return signedAs(within(t), "same", "payments", paySecret) }
	resp, err := c.SendMessage(pay(), &pb.SendMessageRequest{Messages: []*pb.Message{msg("t", "M", nil)}})
	if err != nil {
		t.Fatal(err)
	}
	want(t, resp.GetStatus(), pb.Code_OK)
	// Each topic is asked for, whatever else is wrong with the request.
	mixed, err := c.SendMessage(pay(), &pb.SendMessageRequest{Messages: []*pb.Message{msg("t", "M1", nil), msg("byuser", "M2", nil)}})
	if err != nil {
		t.Fatal(err)
	}
	want(t, mixed.GetStatus(), pb.Code_FORBIDDEN)
	got, err := tryPull(pay(), c, simple("g", "t", 1))
	if err != nil || len(got.msgs) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	b.store.mu.Lock()
	id := b.store.last.ClientID
	b.store.mu.Unlock()
	if id != "payments|same" {
		t.Errorf("the client is %q", id)
	}
	if _, err := c.NotifyClientTermination(signedAs(within(t), "same", "reader", readSecret), &pb.NotifyClientTerminationRequest{}); err != nil {
		t.Fatal(err)
	}
	if !b.Alive("payments|same", 0) {
		t.Error("another user ended the client")
	}
	if n := b.memory.line.Len(); n != 0 {
		t.Errorf("%d sends are still said to be arriving", n)
	}
}

// TestRefusedSendIsNotRead: wrong credentials are answered before the body has come,
// and leave nothing behind.
func TestRefusedSendIsNotRead(t *testing.T) {
	b := start(t, func(o *Options) { o.Access = newSwap(t, accessText) })
	c := b.dial(t, nil)
	large := msg("t", "M", func(m *pb.Message) { m.Body = make([]byte, maxBody) })
	for range 3 {
		resp, err := c.SendMessage(signedAs(within(t), "c", "payments", "guess"), &pb.SendMessageRequest{Messages: []*pb.Message{large}})
		if err != nil {
			t.Fatal(err)
		}
		want(t, resp.GetStatus(), pb.Code_UNAUTHORIZED)
	}
	forbidden, err := c.SendMessage(signedAs(within(t), "c", "reader", readSecret), &pb.SendMessageRequest{Messages: []*pb.Message{large}})
	if err != nil {
		t.Fatal(err)
	}
	want(t, forbidden.GetStatus(), pb.Code_FORBIDDEN)
	b.stop()
	if n := b.memory.line.Len(); n != 0 {
		t.Errorf("%d sends are still said to be arriving", n)
	}
}

// ended reads a stream to its end, before which a command has to say why: Node.js
// looks at that, the others at the error.
func ended(s pb.MessagingService_TelemetryClient, why pb.Code) error {
	var told pb.Code
	for {
		cmd, err := s.Recv()
		if err != nil && told != why {
			return fmt.Errorf("the last command said %v: %w", told, err)
		}
		if err != nil {
			return err
		}
		told = cmd.GetStatus().GetCode()
	}
}

// TestStreamsEndWithThePermission: a long poll and a Telemetry stream that were
// allowed end when the file takes that away, with the reason; those that are still
// allowed go on.
func TestStreamsEndWithThePermission(t *testing.T) {
	source := newSwap(t, accessText)
	b := start(t, func(o *Options) { o.Access = source })
	c := b.dial(t, nil)
	open := func(group, key, secret string) pb.MessagingService_TelemetryClient {
		s, err := c.Telemetry(signedAs(within(t), key, key, secret))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(command(consumerSettings(pb.ClientType_SIMPLE_CONSUMER, pb.Language_JAVA, group))); err != nil {
			t.Fatal(err)
		}
		reply(t, s)
		return s
	}
	pay, read := open("g", "payments", paySecret), open("steps", "reader", readSecret)
	type outcome struct {
		received
		err error
	}
	poll := func(group, key, secret string) chan outcome {
		done := make(chan outcome, 1)
		req := simple(group, "t", 1)
		req.LongPollingTimeout = durationpb.New(20 * time.Second)
		go func() {
			got, err := tryPull(signedAs(within(t), key, key, secret), c, req)
			done <- outcome{got, err}
		}()
		return done
	}
	payPoll, readPoll := poll("g", "payments", paySecret), poll("steps", "reader", readSecret)
	for b.polls.size() < 2 { // both wait in the store
		runtime.Gosched()
	}
	source.set(t, `
users:
  - {access_key: payments, secret: `+paySecret+`, publish: [t], consume: [t], groups: [another]}
  - {access_key: reader, secret: `+readSecret+`, consume: [t], groups: [steps]}
`)
	if got := <-payPoll; got.err != nil || got.status.GetCode() != pb.Code_FORBIDDEN {
		t.Errorf("the poll ended with %v, %v", got.status, got.err)
	}
	if err := ended(pay, pb.Code_FORBIDDEN); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "FORBIDDEN: payments may not act for the consumer group g") {
		t.Errorf("the stream ended with %v", err)
	}
	source.set(t, "users: [{access_key: payments, secret: "+paySecret+"}]")
	if got := <-readPoll; got.err != nil || got.status.GetCode() != pb.Code_UNAUTHORIZED {
		t.Errorf("the poll of a user that went ended with %v, %v", got.status, got.err)
	}
	if err := ended(read, pb.Code_UNAUTHORIZED); status.Code(err) != codes.Unauthenticated {
		t.Errorf("the stream of a user that went ended with %v", err)
	}
}

// TestA4_CredentialsChangeInTheMiddle: a client goes over to a new secret without a
// gap: both hold for a while; its stream with the old one ends when that goes, and
// what it does under the new one goes on.
func TestA4_CredentialsChangeInTheMiddle(t *testing.T) {
	const newSecret = "new-secret-of-payments"
	rights := ", publish: [t], consume: [t], groups: [g]}]"
	source := newSwap(t, "users: [{access_key: payments, secret: "+paySecret+rights)
	b := start(t, func(o *Options) { o.Access = source })
	c := b.dial(t, nil)
	send := func(secret string) *pb.Status {
		resp, err := c.SendMessage(signedAs(within(t), "c", "payments", secret), &pb.SendMessageRequest{Messages: []*pb.Message{msg("t", "M", nil)}})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetStatus()
	}
	telemetry := func(secret string) pb.MessagingService_TelemetryClient {
		s, err := c.Telemetry(signedAs(within(t), "c", "payments", secret))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(command(producerSettings("t"))); err != nil {
			t.Fatal(err)
		}
		reply(t, s)
		return s
	}
	old := telemetry(paySecret)
	want(t, send(paySecret), pb.Code_OK)
	want(t, send(newSecret), pb.Code_UNAUTHORIZED)
	source.set(t, "users: [{access_key: payments, secrets: ["+newSecret+", "+paySecret+"]"+rights)
	want(t, send(paySecret), pb.Code_OK)
	want(t, send(newSecret), pb.Code_OK)
	renewed := telemetry(newSecret)
	source.set(t, "users: [{access_key: payments, secret: "+newSecret+rights)
	if err := ended(old, pb.Code_UNAUTHORIZED); status.Code(err) != codes.Unauthenticated {
		t.Errorf("the stream with the old secret ended with %v", err)
	}
	want(t, send(paySecret), pb.Code_UNAUTHORIZED)
	want(t, send(newSecret), pb.Code_OK)
	if err := renewed.Send(command(producerSettings("t"))); err != nil {
		t.Fatal(err)
	}
	reply(t, renewed)
}

// TestFailuresAreHeld: an address that fails on and on is answered late, and good
// credentials from it are not; nothing that is remembered grows without bound.
func TestFailuresAreHeld(t *testing.T) {
	b := start(t, func(o *Options) { o.Access = newSwap(t, accessText) })
	b.guard.hold = time.Hour
	c := b.dial(t, nil)
	guess := func(ctx context.Context) error {
		_, err := c.QueryRoute(ctx, &pb.QueryRouteRequest{Topic: res("t")})
		return err
	}
	for range failBurst {
		if err := guess(signedAs(within(t), "c", "payments", "guess")); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(signedAs(within(t), "c", "payments", "guess"))
	failed := make(chan error, 1)
	go func() { failed <- guess(ctx) }()
	for b.guard.held.Load() == 0 {
		select {
		case err := <-failed:
			t.Fatalf("the answer was not held: %v", err)
		default:
			runtime.Gosched()
		}
	}
	if err := guess(signedAs(within(t), "c", "payments", paySecret)); err != nil {
		t.Fatalf("good credentials from the same address: %v", err)
	}
	cancel()
	if err := <-failed; status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
	for i := range 3 * maxSuspect {
		b.guard.suspect(fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255))
	}
	if n := b.guard.suspects.Len(); n != maxSuspect {
		t.Errorf("%d addresses are remembered", n)
	}
}

// resting is how many connections were told to rest.
func (b *bench) resting() (n int) {
	b.answers.mu.Lock()
	defer b.answers.mu.Unlock()
	for _, l := range b.answers.links {
		if l.rests.Load() > 0 {
			n++
		}
	}
	return n
}

// TestFloodOfFailuresKeepsNobodyOut: as many failures of an address are held as may be.
// What fails beyond is told so, and its connection rests; a client with good credentials
// that comes from the same address is served.
func TestFloodOfFailuresKeepsNobodyOut(t *testing.T) {
	b := start(t, func(o *Options) { o.Access = newSwap(t, accessText) })
	c := b.dial(t, nil)
	ask := func(c pb.MessagingServiceClient, secret string) *pb.Status {
		resp, err := c.QueryRoute(signedAs(within(t), "c", "payments", secret), &pb.QueryRouteRequest{Topic: res("t")})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetStatus()
	}
	want(t, ask(c, "guess"), pb.Code_UNAUTHORIZED)
	if n := b.resting(); n != 0 {
		t.Fatalf("%d connections rest after one failure", n)
	}
	flood := b.guard.suspect("127.0.0.1:1")
	flood.fails.SetLimit(0)
	flood.fails.SetBurst(0)
	flood.held.Store(maxHeld)
	want(t, ask(c, "guess"), pb.Code_UNAUTHORIZED)
	if n := b.resting(); n != 1 {
		t.Errorf("%d connections rest, want the one that failed", n)
	}
	want(t, ask(b.dial(t, nil), paySecret), pb.Code_OK)
	want(t, ask(c, paySecret), pb.Code_OK)
}

func TestFailuresOfIPv6AreThoseOfTheNetwork(t *testing.T) {
	a, ok := addressOf("[2001:db8::1%eth0]:99")
	b, _ := addressOf("[2001:db8::ffff:1]:1")
	if !ok || a != b {
		t.Errorf("%v and %v", a, b)
	}
	v4, _ := addressOf("[::ffff:192.0.2.1]:1")
	plain, _ := addressOf("192.0.2.1:2")
	if v4 != plain {
		t.Errorf("%v and %v", v4, plain)
	}
	if _, ok := addressOf("bufconn"); ok {
		t.Error("bufconn has no address")
	}
}

// TestCredentialThatWasFoundGoodIsNotComputedAgain: clients sign the second.
func TestCredentialThatWasFoundGoodIsNotComputedAgain(t *testing.T) {
	b := start(t, func(o *Options) { o.Access = newSwap(t, accessText) })
	c := b.dial(t, nil)
	ctx := signedAs(within(t), "c", "payments", paySecret)
	for range 2 {
		resp, err := c.QueryRoute(ctx, &pb.QueryRouteRequest{Topic: res("t")})
		if err != nil {
			t.Fatal(err)
		}
		want(t, resp.GetStatus(), pb.Code_OK)
	}
	if n := b.guard.proven.Len(); n != 1 {
		t.Errorf("%d connections are remembered", n)
	}
	spoiled := metadata.AppendToOutgoingContext(within(t), "x-mq-client-id", "c", "x-mq-date-time", time.Now().UTC().Format("20060102T150405Z"),
		"authorization", "MQv2-HMAC-SHA1 Credential=payments, Signature=00")
	resp, err := c.QueryRoute(spoiled, &pb.QueryRouteRequest{Topic: res("t")})
	if err != nil {
		t.Fatal(err)
	}
	want(t, resp.GetStatus(), pb.Code_UNAUTHORIZED)
}

// TestTheErrorTellsTheSkew: who signs with a clock that is wrong, or writes the date in a
// way that nobody reads, is told so, and not that the secret is wrong.
func TestTheErrorTellsTheSkew(t *testing.T) {
	a, _ := newSwap(t, accessText).Watch()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for date, want := range map[string]string{
		now.Add(6 * time.Minute).Format("20060102T150405Z"):    "20261130T120600Z, is off by 6m0s or more, and 5m0s are allowed",
		now.Add(-406 * time.Minute).Format("20060102T150405Z"): "is off by 1m0s or more", // of a zone
		now.Add(26 * time.Hour).Format("20060102T150405Z"):     "is off by 12h0m0s or more",
		now.Add(-time.Hour).Format(time.RFC3339):               "is off by 1h0m0s or more",
		"99991231T235959Z":                                     "is off by 2562033h",
		"00010101T000000Z":                                     "is off by 2562033h",
		"20261130T235960Z":                                     "20261130T235960Z, is none: write it like 20261130T120000Z", // a leap second
		"20260229T000000Z":                                     "is none",
		"2026-11-30 12:00:00":                                  "is none",
		"":                                                     ", is none",
		strings.Repeat("9", maxTold) + "\xff":                  "9..., is none",
		now.Add(time.Minute).In(time.FixedZone("", 8*3600)).String():    "is none",
		now.Add(5*time.Minute + time.Second).Format("20060102T150405Z"): "off by 5m1s or more",
	} {
		text := outOfTime(a, date, now)
		if !strings.Contains(text, want) || !utf8.ValidString(text) {
			t.Errorf("%q: %s, want %q", date, text, want)
		}
	}
	b := start(t, func(o *Options) { o.Access = newSwap(t, accessText) })
	m := hmac.New(sha1.New, []byte(paySecret))
	m.Write([]byte("yesterday"))
	ctx := metadata.AppendToOutgoingContext(within(t), "x-mq-client-id", "c", "x-mq-date-time", "yesterday",
		"authorization", "MQv2-HMAC-SHA1 Credential=payments, Signature="+hex.EncodeToString(m.Sum(nil)))
	resp, err := b.dial(t, nil).QueryRoute(ctx, &pb.QueryRouteRequest{Topic: res("t")})
	if err != nil {
		t.Fatal(err)
	}
	want(t, resp.GetStatus(), pb.Code_UNAUTHORIZED)
	if text := resp.GetStatus().GetMessage(); !strings.Contains(text, "yesterday, is none") {
		t.Error(text)
	}
}
