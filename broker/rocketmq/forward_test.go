package rocketmq

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// throne says who is master, as a directory would.
type throne struct {
	mu      sync.Mutex
	now     Upstream
	changed chan struct{}
}

func newThrone(addr string) *throne {
	s := &throne{changed: make(chan struct{})}
	s.now = Upstream{Node: zone.Node(addr), Epoch: 1, Addr: addr}
	if addr == "" {
		s.now = Upstream{}
	}
	return s
}

func (s *throne) master() (Upstream, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, s.changed
}

// move makes the node at an address the master; "" = nobody.
func (s *throne) move(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = Upstream{Node: zone.Node(addr), Epoch: s.now.Epoch + 1, Addr: addr}
	close(s.changed)
	s.changed = make(chan struct{})
}

// replica is a running forwarder.
type replica struct {
	*Forwarder
	addr string
	stop func()
}

func startReplica(t *testing.T, s *throne, change func(*ForwarderOptions)) *replica {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := ForwarderOptions{Master: s.master, Grace: 5 * time.Second}
	if change != nil {
		change(&o)
	}
	f, err := NewForwarder(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx, l) }()
	var once sync.Once
	r := &replica{Forwarder: f, addr: l.Addr().String(), stop: func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}}
	t.Cleanup(r.stop)
	return r
}

// stubAt returns a client of an address.
func stubAt(t *testing.T, addr string) pb.MessagingServiceClient {
	t.Helper()
	return (&bench{addr: addr}).dial(t, nil)
}

func sendTo(t *testing.T, stub pb.MessagingServiceClient, ctx context.Context, body string) (*pb.SendMessageResponse, error) { //nolint:revive // t first, as everywhere
	t.Helper()
	return stub.SendMessage(ctx, &pb.SendMessageRequest{Messages: []*pb.Message{msg("t", body, nil)}})
}

// TestClientsOfAReplicaAreServedByTheMaster lets clients of this repository publish and
// consume through a replica, while it is the only address that they know.
func TestClientsOfAReplicaAreServedByTheMaster(t *testing.T) {
	master := start(t, nil)
	r := startReplica(t, newThrone(master.addr), nil)
	stub := stubAt(t, r.addr)
	ctx := as(t, "c1")

	large := make([]byte, 3<<20)
	resp, err := stub.SendMessage(ctx, &pb.SendMessageRequest{Messages: []*pb.Message{msg("t", "large", func(m *pb.Message) { m.Body = large })}})
	if err != nil || resp.GetStatus().GetCode() != pb.Code_OK || len(resp.GetEntries()) != 1 {
		t.Fatalf("send: %v, %v", resp, err)
	}
	settings := consumerSettings(pb.ClientType_SIMPLE_CONSUMER, pb.Language_GOLANG, "g")
	telemetry := stream(t, stub, "c1", settings)
	for range 3 { // it goes both ways, more than once
		reply(t, telemetry)
		if err := telemetry.Send(command(settings)); err != nil {
			t.Fatal(err)
		}
	}
	got := pull(t, stub, simple("g", "t", 1))
	want(t, got.status, pb.Code_OK)
	if len(got.msgs) != 1 || len(got.msgs[0].GetBody()) != len(large) {
		t.Fatalf("received %d messages", len(got.msgs))
	}
	handle := got.msgs[0].GetSystemProperties().GetReceiptHandle()
	ack, err := stub.AckMessage(ctx, &pb.AckMessageRequest{Topic: &pb.Resource{Name: "t"}, Group: &pb.Resource{Name: "g"},
		Entries: []*pb.AckMessageEntry{{ReceiptHandle: handle, MessageId: "x"}}})
	if err != nil || ack.GetStatus().GetCode() != pb.Code_OK {
		t.Errorf("ack: %v, %v", ack, err)
	}
	if h, err := stub.Heartbeat(ctx, &pb.HeartbeatRequest{ClientType: pb.ClientType_SIMPLE_CONSUMER}); err != nil || h.GetStatus().GetCode() != pb.Code_OK {
		t.Errorf("heartbeat: %v, %v", h, err)
	}
	if err := telemetry.CloseSend(); err != nil {
		t.Error(err)
	}
}

// TestMetadataAndBytesPassUnchanged compares what a client sent with what arrives: its
// signature is over its metadata, and fields of newer clients are in the bytes.
func TestMetadataAndBytesPassUnchanged(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	type seen struct {
		md     metadata.MD
		method string
		body   []byte
		left   time.Duration
	}
	calls := make(chan seen, 1)
	fake := grpc.NewServer(grpc.ForceServerCodecV2(frameCodec{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		var x frame
		if err := s.RecvMsg(&x); err != nil {
			return err
		}
		md, _ := metadata.FromIncomingContext(s.Context())
		method, _ := grpc.MethodFromServerStream(s)
		end, _ := s.Context().Deadline()
		calls <- seen{md, method, x.data.Materialize(), time.Until(end)}
		s.SetTrailer(metadata.Pairs("x-note", "kept"))
		return s.SendMsg(&x)
	}))
	go func() { _ = fake.Serve(l) }()
	defer fake.Stop()
	r := startReplica(t, newThrone(l.Addr().String()), nil)
	conn, err := grpc.NewClient(r.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(frameCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sent := metadata.Pairs("authorization", "MQv2-HMAC-SHA1 Credential=k, Signature=abc", "x-mq-date-time", "20260101T000000Z",
		"x-mq-client-id", "c1", "x-mq-language", "GO", "x-mq-blob-bin", "\x00\xff")
	var trailer metadata.MD
	body := []byte{0x0a, 0x02, 0x08, 0x01, 0xfa, 0x7f, 0x01, 0x78} // a field that nobody knows at its end
	in, out := &frame{data: mem.BufferSlice{mem.SliceBuffer(body)}}, &frame{}
	if err := conn.Invoke(metadata.NewOutgoingContext(ctx, sent), pb.MessagingService_Heartbeat_FullMethodName, in, out, grpc.Trailer(&trailer)); err != nil {
		t.Fatal(err)
	}
	got := <-calls
	for k, v := range sent {
		if !slices.Equal(got.md.Get(k), v) {
			t.Errorf("%s arrives as %q, was %q", k, got.md.Get(k), v)
		}
	}
	if got.method != pb.MessagingService_Heartbeat_FullMethodName || string(got.body) != string(body) || string(out.data.Materialize()) != string(body) {
		t.Errorf("%s with %x", got.method, got.body)
	}
	if got.left <= 0 || got.left > time.Minute || trailer.Get("x-note")[0] != "kept" {
		t.Errorf("%v are left, trailer %v", got.left, trailer)
	}
	if err := conn.Invoke(ctx, "/other.Service/Method", &frame{data: mem.BufferSlice{mem.SliceBuffer(body)}}, &frame{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("another service: %v", err)
	}
}

// TestRequestsWaitForAMaster: a request that comes while there is none is answered by
// the one that is elected in time.
func TestRequestsWaitForAMaster(t *testing.T) {
	master := start(t, nil)
	s := newThrone("")
	r := startReplica(t, s, func(o *ForwarderOptions) { o.MaxHeld, o.Hold = 2, enough })
	stub := stubAt(t, r.addr)
	done := make(chan error, 2)
	for range 2 {
		go func() {
			resp, err := sendTo(t, stub, as(t, "c1"), "x")
			if err == nil && resp.GetStatus().GetCode() != pb.Code_OK {
				err = errors.New(resp.GetStatus().String())
			}
			done <- err
		}()
	}
	until(t, func() bool { return r.held.Load() == 2 })
	// A third is one too many.
	if resp, err := sendTo(t, stub, as(t, "c2"), "x"); err != nil || resp.GetStatus().GetCode() != pb.Code_TOO_MANY_REQUESTS {
		t.Errorf("above the bound: %v, %v", resp, err)
	}
	s.move(master.addr)
	for range 2 {
		if err := <-done; err != nil {
			t.Errorf("a send that waited: %v", err)
		}
	}
	if n := master.store.count(); n != 2 {
		t.Errorf("%d messages are stored", n)
	}

	if r.Refused() != 1 {
		t.Errorf("%d calls are counted, want 1", r.Refused())
	}
}

// TestWithoutAMasterClientsAreToldToTryAgain: when the time that a request waits is over.
func TestWithoutAMasterClientsAreToldToTryAgain(t *testing.T) {
	r := startReplica(t, newThrone(""), func(o *ForwarderOptions) { o.Hold = 100 * time.Millisecond })
	stub := stubAt(t, r.addr)
	if resp, err := sendTo(t, stub, as(t, "c1"), "x"); err != nil || resp.GetStatus().GetCode() != pb.Code_TOO_MANY_REQUESTS {
		t.Errorf("without a master: %v, %v", resp, err)
	}
	if got, err := tryPull(as(t, "c1"), stub, simple("g", "t", 1)); err != nil || got.status.GetCode() != pb.Code_TOO_MANY_REQUESTS {
		t.Errorf("receive: %v, %v", got, err)
	}
	telemetry, err := stub.Telemetry(as(t, "c1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := telemetry.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("telemetry: %v", err)
	}
	if r.Refused() != 2 {
		t.Errorf("%d calls are counted, want 2", r.Refused())
	}
}

// TestAWaitEndsBeforeItsClientGivesUp: with time for the answer.
func TestAWaitEndsBeforeItsClientGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Forwarder{o: ForwarderOptions{Hold: 5 * time.Second}}
		for left, want := range map[time.Duration]time.Duration{
			400 * time.Millisecond: 300 * time.Millisecond,
			time.Second:            750 * time.Millisecond,
			4 * time.Second:        4*time.Second - tellTime,
			time.Minute:            5 * time.Second,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), left)
			if got := time.Until(f.holdUntil(ctx)); got != want {
				t.Errorf("a client that waits for %s: %s, want %s", left, got, want)
			}
			cancel()
		}
		if got := time.Until(f.holdUntil(t.Context())); got != 5*time.Second {
			t.Errorf("a client that waits for ever: %s", got)
		}
	})
}

// until waits for what other goroutines bring about; a broken promise ends in the
// test's own time limit.
func until(t *testing.T, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("it did not come about")
		}
	}
}

// count returns how many messages are stored.
func (s *memStore) count() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.topics {
		n += len(q)
	}
	return n
}

// TestCallsEndWhenTheMasterMoves: what is on its way to the old master ends, although
// that says nothing any more, and the same connection of the client goes on with the
// new one.
func TestCallsEndWhenTheMasterMoves(t *testing.T) {
	old, next := start(t, nil), start(t, nil)
	old.store.lasting = true
	s := newThrone(old.addr)
	r := startReplica(t, s, func(o *ForwarderOptions) { o.Hold = 100 * time.Millisecond })
	stub := stubAt(t, r.addr)
	telemetry := stream(t, stub, "c1", producerSettings("t"))
	reply(t, telemetry)
	polled, err := stub.ReceiveMessage(as(t, "c1"), push("g", "t", 18*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return old.Server.polls.size() == 1 })
	s.move(next.addr)
	for {
		if _, err := telemetry.Recv(); err != nil {
			if status.Code(err) != codes.Unavailable {
				t.Errorf("the stream ends with %v", err)
			}
			break
		}
	}
	if x, err := polled.Recv(); err != nil || x.GetStatus().GetCode() != pb.Code_TOO_MANY_REQUESTS {
		t.Errorf("the poll ends with %v, %v", x, err)
	}
	if resp, err := sendTo(t, stub, as(t, "c1"), "x"); err != nil || resp.GetStatus().GetCode() != pb.Code_OK {
		t.Errorf("send: %v, %v", resp, err)
	}
	if next.store.count() != 1 || old.store.count() != 0 {
		t.Error("the send did not go to the new master")
	}
	// A master that dies is met with the same words, and waited for.
	next.stop()
	if resp, err := sendTo(t, stub, as(t, "c1"), "x"); err != nil || resp.GetStatus().GetCode() != pb.Code_TOO_MANY_REQUESTS {
		t.Errorf("a dead master: %v, %v", resp, err)
	}
}

// TestAClientsConnectionEndsAtTheMasterToo: the master learns that a client is gone.
func TestAClientsConnectionEndsAtTheMasterToo(t *testing.T) {
	master := start(t, nil)
	r := startReplica(t, newThrone(master.addr), nil)
	open := func() int {
		master.answers.mu.Lock()
		defer master.answers.mu.Unlock()
		return len(master.answers.links)
	}
	var conns []*grpc.ClientConn
	for range 3 {
		conn, err := grpc.NewClient(r.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		if _, err := sendTo(t, pb.NewMessagingServiceClient(conn), as(t, "c"), "x"); err != nil {
			t.Fatal(err)
		}
	}
	if n := open(); n != 3 {
		t.Errorf("%d connections at the master, want one for each client", n)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	until(t, func() bool { return open() == 0 })
}

// TestTheMastersCertificateIsChecked: a front end that is not the master's gets nothing.
func TestTheMastersCertificateIsChecked(t *testing.T) {
	cert, pool := identity(t)
	master := start(t, func(o *Options) { o.TLS = &tls.Config{Certificates: []tls.Certificate{cert}} })
	for _, c := range []struct {
		name  string
		roots *x509.CertPool
		want  pb.Code
	}{
		{"the right authority", pool, pb.Code_OK},
		{"another one", x509.NewCertPool(), pb.Code_TOO_MANY_REQUESTS},
	} {
		s := newThrone(master.addr)
		s.now.TLS = &tls.Config{RootCAs: c.roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
		r := startReplica(t, s, func(o *ForwarderOptions) { o.Hold = 100 * time.Millisecond })
		resp, err := sendTo(t, stubAt(t, r.addr), as(t, "c1"), "x")
		if err != nil || resp.GetStatus().GetCode() != c.want {
			t.Errorf("%s: %v, %v", c.name, resp, err)
		}
	}
}

// TestEveryAnswerBeginsWithAStatus holds what answerWith relies on.
func TestEveryAnswerBeginsWithAStatus(t *testing.T) {
	methods := pb.File_mqrouter_rocketmqpb_service_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		name := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
		kind, known := forwarded[name]
		if !known {
			t.Errorf("%s is not passed on", name)
			continue
		}
		f := m.Output().Fields().ByNumber(1)
		isStatus := f != nil && f.Kind() == protoreflect.MessageKind && f.Message().Name() == "Status" && !f.IsList()
		if isStatus != (kind == answerStatus) && name != pb.MessagingService_Telemetry_FullMethodName {
			t.Errorf("%s answers with %v", name, m.Output().FullName())
		}
	}
	if len(forwarded) != methods.Len() {
		t.Errorf("%d methods are passed on, the service has %d", len(forwarded), methods.Len())
	}
}
