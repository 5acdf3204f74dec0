package rocketmq

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// topologyText has zone z1 with two brokers, of which the first is the server
// under test at port %[1]d.
const topologyText = `
deployment: test
epoch: {term: 1, number: 1}
unknown_groups: refuse
shards:
  count: 10
  by: last-digits
  owners: {z1: 0-4, z2: 5-9}
cities:
  - name: here
    routers: [{name: r1, quic: "127.0.0.1:7001", peer: "127.0.0.1:9001", gossip: "127.0.0.1:6001", wan: "127.0.0.1:6101"}]
    zones:
      - name: z1
        kind: RZone
        standby: none
        groups:
          - name: g1
            slots: 0-511
            nodes: [{name: b1, client: "127.0.0.1:%[1]d", peer: "127.0.0.1:9002", gossip: "127.0.0.1:6002"}]
          - name: g2
            slots: 512-1023
            nodes: [{name: b2, client: "broker.example:8082", peer: "127.0.0.1:9003", gossip: "127.0.0.1:6003"}]
      - name: c1
        kind: CZone
        groups: [{name: gc1, nodes: [{name: bc1, client: "127.0.0.1:2", peer: "127.0.0.1:9004", gossip: "127.0.0.1:6004"}]}]
  - name: there
    routers: [{name: r2, quic: "127.0.0.1:7002", peer: "127.0.0.1:9005", gossip: "127.0.0.1:6005", wan: "127.0.0.1:6102"}]
    zones:
      - name: z2
        kind: RZone
        standby: none
        groups: [{name: g3, nodes: [{name: b3, client: "127.0.0.1:3", peer: "127.0.0.1:9006", gossip: "127.0.0.1:6006"}]}]
      - name: c2
        kind: CZone
        groups: [{name: gc2, nodes: [{name: bc2, client: "127.0.0.1:4", peer: "127.0.0.1:9007", gossip: "127.0.0.1:6007"}]}]
topics:
  - {name: t, queues: 2, route: local}
  - {name: small, max_body: 1KiB, route: local}
  - {name: byuser, route: {shard: {property: user}}}
  - {name: member, route: {broadcast: city}}
  - {name: far, route: local, residency: [there]}
  - {name: ordered, kind: fifo, route: local}
  - {name: urgent, kind: priority, route: local}
  - {name: tx, kind: transaction, route: local, transaction: {immunity: 300ms, interval: 300ms, checks: 3}}
  - {name: chat, kind: lite, route: local, lite: {topics: 3, subscriptions: 3}}
  - {name: later, kind: delay, max_delay: 1h, route: local}
consumer_groups:
  - {name: g, topics: [t, byuser, small, tx, urgent], max_attempts: 5, retry: {initial: 2s, max: 60s, multiplier: 3}}
  - {name: steps, topics: [t], max_attempts: 4, retry: {steps: [1s, 5s, 9s]}}
  - {name: fifos, topics: [ordered], fifo: true}
  - {name: chatters, topics: [chat]}
  - {name: lates, topics: [later]}
  - {name: watch, topics: [member]}
  - {name: cache, topics: [member], cache: true}
`

// bench is a running server with its store.
type bench struct {
	*Server
	store *memStore
	addr  string
	stop  func() // ends Run and waits for it
}

// start runs a server on loopback; change may adjust its options.
func start(t testing.TB, change func(*Options)) *bench {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	topo, err := zone.Parse(fmt.Appendf(nil, topologyText, l.Addr().(*net.TCPAddr).Port), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	store := newMemStore(topo)
	o := Options{Store: store, Zone: "z1", Grace: 5 * time.Second}
	if change != nil {
		change(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, l) }()
	b := &bench{Server: s, store: store, addr: l.Addr().String()}
	ended := false
	b.stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(b.stop)
	return b
}

// dial returns a raw stub over plaintext, or over TLS when c is not nil.
func (b *bench) dial(t *testing.T, c credentials.TransportCredentials) pb.MessagingServiceClient {
	t.Helper()
	if c == nil {
		c = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(b.addr, grpc.WithTransportCredentials(c), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(32<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewMessagingServiceClient(conn)
}

// enough bounds what is waited for, on a machine that stands still now and then; what
// comes sooner decides nothing.
const enough = 3 * time.Minute

// as returns a context with a client id.
func as(t *testing.T, id string) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), enough)
	t.Cleanup(cancel)
	return metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", id)
}

func res(name string) *pb.Resource { return &pb.Resource{Name: name} }

// msg is a good message; change may spoil it.
func msg(topic, id string, change func(*pb.Message)) *pb.Message {
	m := &pb.Message{Topic: res(topic), Body: []byte("body of " + id), SystemProperties: &pb.SystemProperties{
		MessageId: id, MessageType: pb.MessageType_NORMAL, BodyEncoding: pb.Encoding_IDENTITY, BornTimestamp: timestamppb.Now(), BornHost: "here",
	}}
	if change != nil {
		change(m)
	}
	return m
}

func send(t *testing.T, c pb.MessagingServiceClient, ms ...*pb.Message) *pb.SendMessageResponse {
	t.Helper()
	resp, err := c.SendMessage(as(t, "producer"), &pb.SendMessageRequest{Messages: ms})
	if err != nil {
		t.Fatalf("send: gRPC error %v", err)
	}
	return resp
}

// mustSend sends messages that have to be stored.
func mustSend(t *testing.T, c pb.MessagingServiceClient, ms ...*pb.Message) {
	t.Helper()
	want(t, send(t, c, ms...).GetStatus(), pb.Code_OK)
}

func want(t *testing.T, st *pb.Status, code pb.Code) {
	t.Helper()
	if st.GetCode() != code {
		t.Errorf("status %v (%s), want %v", st.GetCode(), st.GetMessage(), code)
	}
}

// received is the outcome of one ReceiveMessage.
type received struct {
	status *pb.Status
	msgs   []*pb.Message
	order  string // s, m and d for status, message and delivery time
}

func pull(t *testing.T, c pb.MessagingServiceClient, req *pb.ReceiveMessageRequest) received {
	t.Helper()
	out, err := tryPull(as(t, "consumer"), c, req)
	if err != nil {
		t.Fatalf("receive: gRPC error %v", err)
	}
	return out
}

func tryPull(ctx context.Context, c pb.MessagingServiceClient, req *pb.ReceiveMessageRequest) (received, error) {
	var out received
	stream, err := c.ReceiveMessage(ctx, req)
	if err != nil {
		return out, err
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return out, err
		}
		switch x := resp.GetContent().(type) {
		case *pb.ReceiveMessageResponse_Status:
			out.status, out.order = x.Status, out.order+"s"
		case *pb.ReceiveMessageResponse_Message:
			out.msgs, out.order = append(out.msgs, x.Message), out.order+"m"
		case *pb.ReceiveMessageResponse_DeliveryTimestamp:
			out.order += "d"
		}
	}
}

// identity makes a certificate for 127.0.0.1 and a pool that trusts it.
func identity(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
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
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func str(s string) *string { return proto.String(s) }
