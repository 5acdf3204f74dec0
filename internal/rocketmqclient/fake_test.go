package rocketmqclient

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a server whose answers a test sets. It records what it was asked.
type fake struct {
	pb.UnimplementedMessagingServiceServer
	addr *pb.Address

	mu      sync.Mutex
	sends   []*pb.SendMessageRequest
	acks    []*pb.AckMessageRequest
	changes []*pb.ChangeInvisibleDurationRequest
	ended   int
	md      metadata.MD

	mute    bool  // Telemetry answers nothing
	reject  error // Telemetry ends with it
	send    func(*pb.SendMessageRequest) (*pb.SendMessageResponse, error)
	receive []*pb.ReceiveMessageResponse
	queues  []*pb.MessageQueue // instead of the default route
	routed  func()             // called when the route was asked for; may be nil
}

func ok() *pb.Status { return &pb.Status{Code: pb.Code_OK} }

// serve starts the fake and returns its address.
func (f *fake) serve(t *testing.T, opts ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = &pb.Address{Host: "127.0.0.1", Port: int32(l.Addr().(*net.TCPAddr).Port)}
	s := grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(64<<20))...)
	pb.RegisterMessagingServiceServer(s, f)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String()
}

func (f *fake) QueryRoute(ctx context.Context, r *pb.QueryRouteRequest) (*pb.QueryRouteResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.md, _ = metadata.FromIncomingContext(ctx)
	if f.routed != nil {
		f.routed()
	}
	if r.GetTopic().GetName() == "none" {
		return &pb.QueryRouteResponse{Status: &pb.Status{Code: pb.Code_TOPIC_NOT_FOUND, Message: "no such topic"}}, nil
	}
	queues := f.queues
	if queues == nil {
		queues = []*pb.MessageQueue{f.queue("b1", 0, pb.Permission_READ_WRITE), f.queue("b1", 1, pb.Permission_READ_WRITE)}
	}
	return &pb.QueryRouteResponse{Status: ok(), MessageQueues: queues}, nil
}

func (f *fake) queue(broker string, id int32, p pb.Permission) *pb.MessageQueue {
	return &pb.MessageQueue{
		Topic: &pb.Resource{Name: "t"}, Id: id, Permission: p, AcceptMessageTypes: []pb.MessageType{pb.MessageType_NORMAL},
		Broker: &pb.Broker{Name: broker, Endpoints: &pb.Endpoints{Scheme: pb.AddressScheme_IPv4, Addresses: []*pb.Address{f.addr}}},
	}
}

func (f *fake) Telemetry(s grpc.BidiStreamingServer[pb.TelemetryCommand, pb.TelemetryCommand]) error {
	for {
		cmd, err := s.Recv()
		if err != nil {
			return err
		}
		f.mu.Lock()
		mute, reject := f.mute, f.reject
		f.mu.Unlock()
		if reject != nil {
			return reject
		}
		if mute {
			continue
		}
		if err := s.Send(&pb.TelemetryCommand{Status: ok(), Command: cmd.Command}); err != nil {
			return err
		}
	}
}

func (f *fake) SendMessage(_ context.Context, r *pb.SendMessageRequest) (*pb.SendMessageResponse, error) {
	f.mu.Lock()
	f.sends = append(f.sends, proto.Clone(r).(*pb.SendMessageRequest))
	send := f.send
	f.mu.Unlock()
	if send != nil {
		return send(r)
	}
	resp := &pb.SendMessageResponse{Status: ok()}
	for i, m := range r.GetMessages() {
		resp.Entries = append(resp.Entries, &pb.SendResultEntry{Status: ok(), MessageId: m.GetSystemProperties().GetMessageId(), Offset: int64(i)})
	}
	return resp, nil
}

func (f *fake) ReceiveMessage(_ *pb.ReceiveMessageRequest, s grpc.ServerStreamingServer[pb.ReceiveMessageResponse]) error {
	for _, r := range f.receive {
		if err := s.Send(r); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) AckMessage(_ context.Context, r *pb.AckMessageRequest) (*pb.AckMessageResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.acks = append(f.acks, r)
	resp := &pb.AckMessageResponse{Status: ok()}
	for _, e := range r.GetEntries() {
		st := ok()
		if e.GetReceiptHandle() == "dead" {
			st = &pb.Status{Code: pb.Code_INVALID_RECEIPT_HANDLE}
		}
		resp.Entries = append(resp.Entries, &pb.AckMessageResultEntry{MessageId: e.GetMessageId(), Status: st})
	}
	return resp, nil
}

func (f *fake) ChangeInvisibleDuration(_ context.Context, r *pb.ChangeInvisibleDurationRequest) (*pb.ChangeInvisibleDurationResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes = append(f.changes, r)
	return &pb.ChangeInvisibleDurationResponse{Status: ok(), ReceiptHandle: r.GetReceiptHandle() + "+"}, nil
}

func (f *fake) NotifyClientTermination(context.Context, *pb.NotifyClientTerminationRequest) (*pb.NotifyClientTerminationResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended++
	return &pb.NotifyClientTerminationResponse{Status: ok()}, nil
}

// delivery is a message as a server hands it out.
func delivery(id, handle string) *pb.ReceiveMessageResponse {
	return &pb.ReceiveMessageResponse{Content: &pb.ReceiveMessageResponse_Message{Message: &pb.Message{
		Topic: &pb.Resource{Name: "t"}, Body: []byte("body " + id), UserProperties: map[string]string{"k": "v"},
		SystemProperties: &pb.SystemProperties{
			MessageId: id, ReceiptHandle: &handle, Tag: proto.String("a"), Keys: []string{"k1", "k2"},
			BodyEncoding: pb.Encoding_GZIP, DeliveryAttempt: proto.Int32(2), QueueId: 3, QueueOffset: proto.Int64(9),
			BornTimestamp: timestamppb.New(time.Unix(100, 0)), StoreTimestamp: timestamppb.New(time.Unix(101, 0)),
			DeadLetterQueue: &pb.DeadLetterQueue{Topic: "orig", MessageId: "M0"},
		},
	}}}
}

func statusAnswer(c pb.Code) *pb.ReceiveMessageResponse {
	return &pb.ReceiveMessageResponse{Content: &pb.ReceiveMessageResponse_Status{Status: &pb.Status{Code: c, Message: "why"}}}
}

// selfSigned returns server credentials and a pool that trusts them.
func selfSigned(t *testing.T) (credentials.TransportCredentials, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return credentials.NewServerTLSFromCert(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}), pool
}
