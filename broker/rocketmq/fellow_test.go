package rocketmq

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// circle is the TLS of a broker group: one certificate for what clients meet, another
// that members show each other.
type circle struct {
	server *tls.Config // for Options.TLS
	fellow *tls.Config // for Options.Fellow
	way    *tls.Config // for Upstream.TLS
	client credentials.TransportCredentials
}

func newCircle(t *testing.T) *circle {
	t.Helper()
	cert, pool := identity(t)
	member, _ := identity(t)
	c := &circle{
		server: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		fellow: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert,
			VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
				if !bytes.Equal(raw[0], member.Certificate[0]) {
					return errors.New("no fellow")
				}
				return nil
			}},
		way:    &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{member}, MinVersion: tls.VersionTLS13},
		client: credentials.NewTLS(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}),
	}
	return c
}

// master runs a server that takes TLS, and fellows.
func (c *circle) master(t *testing.T, change func(*Options)) *bench {
	t.Helper()
	return start(t, func(o *Options) {
		o.TLS, o.Fellow = c.server, c.fellow
		if change != nil {
			change(o)
		}
	})
}

// replica runs a forwarder to an address; it takes TLS, fellows and plaintext.
func (c *circle) replica(t *testing.T, to string) *replica {
	t.Helper()
	s := newThrone("")
	s.now = Upstream{Node: zone.Node(to), Epoch: 1, Addr: to, TLS: c.way}
	return startReplica(t, s, func(o *ForwarderOptions) { o.TLS, o.Fellow = c.server, c.fellow })
}

// stubFrom is a client of addr whose own address is from.
func stubFrom(t *testing.T, addr, from string, c credentials.TransportCredentials) pb.MessagingServiceClient {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(c),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewMessagingServiceClient(conn)
}

func routeOf(t *testing.T, stub pb.MessagingServiceClient, ctx context.Context) pb.Code { //nolint:revive // t first, as everywhere
	t.Helper()
	resp, err := stub.QueryRoute(ctx, &pb.QueryRouteRequest{Topic: res("t")})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetStatus().GetCode()
}

// TestAClientOfAReplicaFailsForItsOwnAddress: at the master the failures of one client
// behind a replica are that client's, and not of all that the replica passes on; also
// when it came by two replicas, since one took the other for the master.
func TestAClientOfAReplicaFailsForItsOwnAddress(t *testing.T) {
	ring := newCircle(t)
	master := ring.master(t, func(o *Options) { o.Access = newSwap(t, accessText) })
	master.guard.hold = time.Hour
	near := ring.replica(t, master.addr)
	far := ring.replica(t, near.addr)
	const bad, good = "127.0.0.2", "127.0.0.3"
	for _, at := range []*replica{near, far} {
		if code := routeOf(t, stubFrom(t, at.addr, bad, insecure.NewCredentials()), signedAs(within(t), "c", "payments", "guess")); code != pb.Code_UNAUTHORIZED {
			t.Fatalf("a wrong secret: %v", code)
		}
	}
	counted := master.guard.suspects.Keys()
	if len(counted) != 1 || counted[0] != netip.MustParseAddr(bad) {
		t.Fatalf("failures are counted for %v", counted)
	}
	flood := master.guard.suspect(bad + ":1")
	flood.held.Store(maxHeld)
	flood.fails.SetLimit(0)
	flood.fails.SetBurst(0)
	for i, at := range []*replica{near, far} {
		if code := routeOf(t, stubFrom(t, at.addr, bad, insecure.NewCredentials()), signedAs(within(t), "c", "payments", "guess")); code != pb.Code_UNAUTHORIZED {
			t.Errorf("an address that floods is answered %v", code)
		}
		if n := master.resting(); n != i+1 {
			t.Errorf("%d connections rest at the master, want %d", n, i+1)
		}
		if code := routeOf(t, stubFrom(t, at.addr, good, insecure.NewCredentials()), signedAs(within(t), "d", "payments", paySecret)); code != pb.Code_OK {
			t.Errorf("another client of the same replica is answered %v", code)
		}
	}
}

// TestOnlyAFellowIsBelievedWhatItSaysOfAClient: a client that makes the words up is who
// it is, at the master and through a replica, and nobody opens a fellow's connection
// without a fellow's certificate.
func TestOnlyAFellowIsBelievedWhatItSaysOfAClient(t *testing.T) {
	ring := newCircle(t)
	master := ring.master(t, func(o *Options) { o.Access, o.PlaintextOff = newSwap(t, accessText), true })
	r := ring.replica(t, master.addr)
	for _, addr := range []string{master.addr, r.addr} {
		ctx := metadata.AppendToOutgoingContext(signedAs(within(t), "c", "payments", "guess"), headerClient, "192.0.2.7:1", headerOpen, "1")
		if code := routeOf(t, stubFrom(t, addr, "127.0.0.1", ring.client), ctx); code != pb.Code_UNAUTHORIZED {
			t.Errorf("%s: %v", addr, code)
		}
	}
	if counted := master.guard.suspects.Keys(); len(counted) != 1 || counted[0] != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("failures are counted for %v", counted)
	}
	stranger, _ := identity(t)
	for name, certs := range map[string][]tls.Certificate{"no certificate": nil, "a stranger's": {stranger}} {
		way := ring.way.Clone()
		way.Certificates = certs
		stub := stubFrom(t, master.addr, "127.0.0.1", credentials.NewTLS(fellowClient(way)))
		if _, err := stub.QueryRoute(signedAs(within(t), "c", "payments", paySecret), &pb.QueryRouteRequest{Topic: res("t")}); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAMasterThatTakesTLSOnlyTakesItOnlyThroughReplicasToo: what a replica let in without
// TLS is refused at the master, each call in the form that its client knows.
func TestAMasterThatTakesTLSOnlyTakesItOnlyThroughReplicasToo(t *testing.T) {
	for name, access := range map[string]bool{"with access control": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			ring := newCircle(t)
			master := ring.master(t, func(o *Options) {
				if o.PlaintextOff = true; access {
					o.Access = newSwap(t, accessText)
				}
			})
			near := ring.replica(t, master.addr)
			far := ring.replica(t, near.addr)
			for _, at := range []*replica{near, far} {
				sealed := stubFrom(t, at.addr, "127.0.0.1", ring.client)
				resp, err := sendTo(t, sealed, signedAs(within(t), "c", "payments", paySecret), "x")
				if err != nil || resp.GetStatus().GetCode() != pb.Code_OK {
					t.Fatalf("a client with TLS: %v, %v", resp, err)
				}
				refusedWithoutTLS(t, stubFrom(t, at.addr, "127.0.0.1", insecure.NewCredentials()))
			}
			if n := master.store.count(); n != 2 {
				t.Errorf("%d messages are stored, want those that came by TLS", n)
			}
			if n := master.memory.used.Load(); n != 0 {
				t.Errorf("%d bytes of refused requests are kept", n)
			}
		})
	}
}

func refusedWithoutTLS(t *testing.T, open pb.MessagingServiceClient) {
	t.Helper()
	ctx := signedAs(within(t), "c", "payments", paySecret)
	resp, err := sendTo(t, open, ctx, "x")
	if err != nil || resp.GetStatus().GetCode() != pb.Code_FORBIDDEN {
		t.Errorf("send: %v, %v", resp, err)
	}
	if code := routeOf(t, open, ctx); code != pb.Code_FORBIDDEN {
		t.Errorf("route: %v", code)
	}
	ack, err := open.AckMessage(ctx, &pb.AckMessageRequest{Topic: res("t"), Group: res("g")})
	if err != nil || ack.GetStatus().GetCode() != pb.Code_INVALID_RECEIPT_HANDLE {
		t.Errorf("ack: %v, %v", ack, err)
	}
	got, err := tryPull(ctx, open, simple("g", "t", 1))
	if err != nil || got.status.GetCode() != pb.Code_FORBIDDEN {
		t.Errorf("receive: %v, %v", got, err)
	}
	telemetry, err := open.Telemetry(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = telemetry.Recv()
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("telemetry: %v", err)
	}
}
