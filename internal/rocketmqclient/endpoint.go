package rocketmqclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// endpoint is one broker address with its connections and its Telemetry session.
type endpoint struct {
	addr   string
	pb     *pb.Endpoints
	conns  []*grpc.ClientConn
	stubs  []pb.MessagingServiceClient
	next   atomic.Uint32
	unused int // route refreshes that did not name it; only the holder of loading

	silent atomic.Int64    // until when it is passed over, in Unix ns: the last request got no answer; 0 = it got one
	stale  chan<- struct{} // of the core

	cancel    context.CancelFunc // ends the session
	ready     chan struct{}      // closed at the first Settings of the server
	readyOnce sync.Once
	refused   chan struct{} // closed when the server refuses this client's Settings; lastErr says why
	refuse    sync.Once
	lastErr   atomic.Pointer[error] // why the stream broke last; nil before
}

// endpoint returns the endpoint of an address, connecting it the first time.
func (c *core) endpoint(addr string) (*endpoint, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if ep := c.endpoints[addr]; ep != nil {
		return ep, nil
	}
	if len(c.endpoints) >= maxEndpoints {
		return nil, fmt.Errorf("%w: %d endpoints", ErrBound, maxEndpoints)
	}
	ep, err := c.dial(addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(c.ctx)
	ep.cancel = cancel
	c.endpoints[addr] = ep
	c.wg.Go(func() { c.session(ctx, ep) })
	return ep, nil
}

// dial makes the connections without waiting for any; grpc connects at first use
// and again after each failure.
func (c *core) dial(addr string) (*endpoint, error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%w: address %q", ErrProtocol, addr)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%w: port of %q", ErrProtocol, addr)
	}
	creds := insecure.NewCredentials()
	if c.cfg.TLS != nil {
		creds = credentials.NewTLS(c.cfg.TLS)
	}
	ep := &endpoint{addr: addr, stale: c.stale, ready: make(chan struct{}), refused: make(chan struct{}), pb: &pb.Endpoints{
		Scheme:    scheme(host),
		Addresses: []*pb.Address{{Host: host, Port: int32(port)}},
	}}
	options, target := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 3 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		callOptions(),
	}, addr
	if c.cfg.Dial != nil {
		options, target = append(options, grpc.WithContextDialer(c.cfg.Dial)), "passthrough:///"+addr
	}
	for range c.cfg.Connections {
		conn, err := grpc.NewClient(target, options...)
		if err != nil {
			for _, open := range ep.conns {
				err = errors.Join(err, open.Close())
			}
			return nil, &OpError{Op: "dial", Endpoint: addr, Err: err}
		}
		ep.conns = append(ep.conns, conn)
		ep.stubs = append(ep.stubs, pb.NewMessagingServiceClient(conn))
	}
	return ep, nil
}

// stub returns the next connection's stub.
func (e *endpoint) stub() pb.MessagingServiceClient {
	if len(e.stubs) == 1 {
		return e.stubs[0]
	}
	return e.stubs[e.next.Add(1)%uint32(len(e.stubs))]
}

// broken reports whether the endpoint is believed not to answer: its last request was
// not answered, a moment ago, or the first connection does not come about.
func (e *endpoint) broken() bool {
	until := e.silent.Load()
	return until != 0 && time.Now().UnixNano() < until || e.conns[0].GetState() == connectivity.TransientFailure
}

// heard notes how a request ended, by the error of gRPC. What was not answered has the
// routes asked for again. Who says at once that it cannot answer is soon asked again;
// who lets its callers wait, when it has answered a heartbeat.
func (e *endpoint) heard(err error) {
	quiet := passOverFor
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		quiet = heartbeatEvery
		fallthrough
	case codes.Unavailable:
		e.silent.Store(time.Now().Add(quiet).UnixNano())
		select {
		case e.stale <- struct{}{}:
		default:
		}
	case codes.Canceled: // by who asked
	default:
		e.answers()
	}
}

// answers notes that the endpoint has answered something.
func (e *endpoint) answers() {
	if e.silent.Load() != 0 {
		e.silent.Store(0)
	}
}

// waitReady blocks until the server has answered this client's Settings, or refuses
// them, which is a *StatusError, or ctx.
func (e *endpoint) waitReady(ctx context.Context) error {
	select {
	case <-e.ready:
		return nil
	case <-e.refused:
		select {
		case <-e.ready: // it was refused once
			return nil
		default:
			return *e.lastErr.Load()
		}
	case <-ctx.Done():
		if last := e.lastErr.Load(); last != nil {
			return &OpError{Op: "Telemetry", Endpoint: e.addr, Err: *last}
		}
		return &OpError{Op: "Telemetry", Endpoint: e.addr, Err: ctx.Err()}
	}
}

// session keeps one Telemetry stream open until the endpoint is retired.
func (c *core) session(ctx context.Context, ep *endpoint) {
	for {
		err := c.telemetry(ctx, ep)
		if ctx.Err() != nil {
			return
		}
		refusal := refusalOf(err)
		if refusal != nil {
			err = refusal
		}
		ep.lastErr.Store(&err)
		if refusal != nil {
			ep.refuse.Do(func() { close(ep.refused) })
		}
		c.cfg.Logger.Debug("rocketmq telemetry stream ended", "peer", ep.addr, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(reopenAfter):
		}
	}
}

// refusalOf returns the refusal that a Telemetry stream ended with, or nil: servers
// refuse it by a command's status, or by a gRPC error whose text begins with the
// protocol's code.
func refusalOf(err error) error {
	var told *StatusError
	if errors.As(err, &told) {
		return told
	}
	st := status.Convert(err)
	code := pb.Code_BAD_REQUEST
	switch st.Code() {
	case codes.InvalidArgument:
	case codes.Unauthenticated:
		code = pb.Code_UNAUTHORIZED
	case codes.PermissionDenied:
		code = pb.Code_FORBIDDEN
	default:
		return nil
	}
	name, text, ok := strings.Cut(st.Message(), ": ")
	if known, found := pb.Code_value[name]; ok && found {
		return &StatusError{Code: pb.Code(known), Text: text}
	}
	return &StatusError{Code: code, Text: st.Message()}
}

// telemetry runs one stream: it sends Settings and reads until the stream ends.
// The server's commands besides Settings concern things this client does not have.
func (c *core) telemetry(ctx context.Context, ep *endpoint) error {
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, c.signer.md()))
	defer cancel()
	stream, err := ep.stubs[0].Telemetry(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&pb.TelemetryCommand{Command: &pb.TelemetryCommand_Settings{Settings: c.settings}}); err != nil && !errors.Is(err, io.EOF) {
		return err // io.EOF: Recv has the reason
	}
	for {
		cmd, err := stream.Recv()
		if err != nil {
			return err
		}
		if st := cmd.GetStatus(); st != nil && st.GetCode() != pb.Code_OK {
			return &StatusError{Code: st.GetCode(), Text: st.GetMessage()}
		}
		if cmd.GetSettings() != nil {
			ep.answers() // it may have started again
			ep.readyOnce.Do(func() { close(ep.ready) })
		}
	}
}

// snapshot returns the present endpoints.
func (c *core) snapshot() []*endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*endpoint, 0, len(c.endpoints))
	for _, ep := range c.endpoints {
		all = append(all, ep)
	}
	return all
}

// retire ends the endpoint's session and closes its connections.
func (c *core) retire(ep *endpoint) {
	c.mu.Lock()
	delete(c.endpoints, ep.addr)
	c.mu.Unlock()
	ep.cancel()
	for _, conn := range ep.conns {
		if err := conn.Close(); err != nil {
			c.cfg.Logger.Debug("rocketmq connection close failed", "peer", ep.addr, "err", err)
		}
	}
}

// scheme names the kind of a host.
func scheme(host string) pb.AddressScheme {
	ip := net.ParseIP(host)
	switch {
	case ip == nil:
		return pb.AddressScheme_DOMAIN_NAME
	case ip.To4() != nil:
		return pb.AddressScheme_IPv4
	}
	return pb.AddressScheme_IPv6
}

// joinAddress returns host:port.
func joinAddress(a *pb.Address) string {
	return net.JoinHostPort(a.GetHost(), strconv.Itoa(int(a.GetPort())))
}
