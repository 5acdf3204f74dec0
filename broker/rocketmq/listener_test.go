package rocketmq

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

func TestTLSAndPlaintextShareThePort(t *testing.T) {
	cert, pool := identity(t)
	b := start(t, func(o *Options) { o.TLS = &tls.Config{Certificates: []tls.Certificate{cert}} })
	secure := b.dial(t, credentials.NewTLS(&tls.Config{RootCAs: pool}))
	mustSend(t, secure, msg("t", "A", nil))
	mustSend(t, b.dial(t, nil), msg("t", "B", nil))
	if got := pull(t, secure, simple("g", "t", 32)); len(got.msgs) != 2 {
		t.Errorf("received %d messages, want 2", len(got.msgs))
	}
}

func TestPlaintextCanBeSwitchedOff(t *testing.T) {
	cert, pool := identity(t)
	b := start(t, func(o *Options) {
		o.TLS, o.PlaintextOff = &tls.Config{Certificates: []tls.Certificate{cert}}, true
	})
	mustSend(t, b.dial(t, credentials.NewTLS(&tls.Config{RootCAs: pool})), msg("t", "A", nil))
	if _, err := b.dial(t, nil).Heartbeat(as(t, "c"), &pb.HeartbeatRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("plaintext was served: %v", err)
	}
}

func TestTLSWithoutACertificateIsRefused(t *testing.T) {
	b := start(t, nil)
	_, pool := identity(t)
	if _, err := b.dial(t, credentials.NewTLS(&tls.Config{RootCAs: pool})).Heartbeat(as(t, "c"), &pb.HeartbeatRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
	mustSend(t, b.dial(t, nil), msg("t", "A", nil))
}

func TestCertificateIsReloaded(t *testing.T) {
	oldCert, oldPool := identity(t)
	newCert, newPool := identity(t)
	var current atomic.Pointer[tls.Certificate]
	current.Store(&oldCert)
	b := start(t, func(o *Options) {
		o.TLS = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return current.Load(), nil }}
	})
	mustSend(t, b.dial(t, credentials.NewTLS(&tls.Config{RootCAs: oldPool})), msg("t", "A", nil))
	current.Store(&newCert)
	mustSend(t, b.dial(t, credentials.NewTLS(&tls.Config{RootCAs: newPool})), msg("t", "B", nil))
}

func TestALPNIsH2(t *testing.T) {
	cert, pool := identity(t)
	b := start(t, func(o *Options) { o.TLS = &tls.Config{Certificates: []tls.Certificate{cert}} })
	for _, tt := range []struct {
		offer []string
		ok    bool
	}{{[]string{"h2"}, true}, {nil, true}, {[]string{"other"}, false}} {
		conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: pool, NextProtos: tt.offer}}).DialContext(t.Context(), "tcp", b.addr)
		if (err == nil) != tt.ok {
			t.Errorf("offer %v: %v", tt.offer, err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}

// TestSilentAndForeignConnectionsDelayNobody: connections that show no protocol do
// not hold up the accept loop.
func TestSilentAndForeignConnectionsDelayNobody(t *testing.T) {
	b := start(t, nil)
	for range 20 {
		silent, err := net.Dial("tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
	}
	foreign, err := net.Dial("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	if _, err := foreign.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(foreign); err != nil && !isReset(err) {
		t.Errorf("the foreign connection was not closed: %v", err)
	}
	mustSend(t, b.dial(t, nil), msg("t", "A", nil))
}

// TestManySilentConnectionsKeepNobodyOut: a client is served while as many
// connections as are allowed show nothing.
func TestManySilentConnectionsKeepNobodyOut(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newSniffer(inner, &Options{MaxConnections: 10_000, Logger: slog.New(slog.DiscardHandler)}, func(string) {}, newAnswers(leastRequests))
	defer s.Close()
	silent := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.shaking.size
	}
	for range maxHandshakes + 50 {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	c, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("PRI")); err != nil {
		t.Fatal(err)
	}
	served, err := s.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	if n := silent(); n != maxHandshakes-1 {
		t.Errorf("%d connections are silent when the client is served, want %d", n, maxHandshakes-1)
	}
}

func isReset(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && !op.Timeout()
}

func TestConnectionsAreBounded(t *testing.T) {
	b := start(t, func(o *Options) { o.MaxConnections = 1 })
	c := b.dial(t, nil)
	mustSend(t, c, msg("t", "A", nil))
	if _, err := b.dial(t, nil).Heartbeat(as(t, "c"), &pb.HeartbeatRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a second connection was served: %v", err)
	}
	mustSend(t, c, msg("t", "B", nil))
}

func TestGarbageAfterThePrefaceHarmsNobody(t *testing.T) {
	b := start(t, nil)
	for _, junk := range []string{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff", "P", "\x16\x03\x01\xff\xff", "\x00", ""} {
		conn, err := net.Dial("tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(junk)); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
	mustSend(t, b.dial(t, nil), msg("t", "A", nil))
}

// TestStopEndsPollsAndStreamsAtOnce: a long poll and a stream do not use up the
// grace period, and a poll that is cut gets an answer that clients understand.
func TestStopEndsPollsAndStreamsAtOnce(t *testing.T) {
	b := start(t, func(o *Options) { o.Grace = time.Hour })
	c := b.dial(t, nil)
	st := stream(t, c, "p", producerSettings("t"))
	reply(t, st)
	got := make(chan received, 1)
	ctx := as(t, "c")
	go func() {
		r, _ := tryPull(ctx, c, push("g", "t", 15*time.Second))
		got <- r
	}()
	for b.polls.size() == 0 {
		if _, err := c.Heartbeat(as(t, "x"), &pb.HeartbeatRequest{ClientType: pb.ClientType_PRODUCER}); err != nil {
			t.Fatal(err)
		}
	}
	b.stop()
	want(t, (<-got).status, pb.Code_MESSAGE_NOT_FOUND)
	if _, err := st.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
	if err := b.Run(t.Context(), nil); !errors.Is(err, errRan) {
		t.Errorf("a second Run: %v", err)
	}
}

func TestRunReportsAFailedListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Store: newMemStore(nil), Zone: "z"})
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if err := s.Run(t.Context(), l); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestValidateReportsEveryFault(t *testing.T) {
	_, err := New(Options{PlaintextOff: true, MaxPolls: -1})
	for _, want := range []error{errNoStore, errNoZone, errNoTransport, errNegative} {
		if !errors.Is(err, want) {
			t.Errorf("%v does not report %v", err, want)
		}
	}
}

func TestMetricsCountWhatHappened(t *testing.T) {
	reader := metric.NewManualReader()
	b := start(t, func(o *Options) { o.Meter = metric.NewMeterProvider(metric.WithReader(reader)).Meter("test") })
	c := b.dial(t, nil)
	mustSend(t, c, msg("t", "A", nil), msg("t", "B", nil))
	got := pull(t, c, simple("g", "t", 32))
	ack(t, c, got.msgs[0].GetSystemProperties().GetReceiptHandle(), "forged")
	var rm metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &rm); err != nil {
		t.Fatal(err)
	}
	sums := map[string]int64{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					sums[m.Name] += p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					sums[m.Name] += int64(p.Count)
				}
			case metricdata.Gauge[int64]:
				sums[m.Name] = d.DataPoints[0].Value
			}
		}
	}
	for name, n := range map[string]int64{
		metricPublished: 2, metricDelivered: 2, metricSettled: 2, metricBytes: int64(2 * len("body of A")), metricDuration: 3, metricClients: 1, metricPolls: 0,
	} {
		if sums[name] != n {
			t.Errorf("%s = %d, want %d", name, sums[name], n)
		}
	}
}

// rawCodec sends the bytes that a test gives as a request.
type rawCodec struct{}

func (rawCodec) Name() string                    { return "proto" }
func (rawCodec) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(b []byte, v any) error { *v.(*[]byte) = b; return nil }

func TestMalformedRequestsHarmNobody(t *testing.T) {
	b := start(t, nil)
	conn, err := grpc.NewClient(b.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, junk := range [][]byte{{0xff}, {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}, {0x0a, 0x03, 0x22, 0x05, 1}, []byte("\x0a\x05\x0a\x03\x12\x01\xff")} {
		for _, rpc := range []string{"SendMessage", "AckMessage", "QueryRoute", "NoSuchCall"} {
			var out []byte
			err := conn.Invoke(as(t, "c"), "/apache.rocketmq.v2.MessagingService/"+rpc, &junk, &out, grpc.ForceCodec(rawCodec{}))
			if code := status.Code(err); code != codes.Internal && code != codes.Unimplemented && (err != nil || rpc == "NoSuchCall") {
				t.Errorf("%s with %x: %v", rpc, junk, err)
			}
		}
	}
	mustSend(t, pb.NewMessagingServiceClient(conn), msg("t", "A", nil))
}
