package rocketmq

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// frame is a message as it is on the wire. Whoever has it frees it, or hands it to
// gRPC's SendMsg, once.
type frame struct{ data mem.BufferSlice }

// frameCodec passes messages on without looking at them.
type frameCodec struct{}

var _ encoding.CodecV2 = frameCodec{}

// Name is that of gRPC's own codec: the bytes are of that form.
func (frameCodec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2. gRPC frees what it gets.
func (frameCodec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("rocketmq: %T is no raw message", v)
	}
	data := f.data
	f.data = nil
	return data, nil
}

// Unmarshal implements encoding.CodecV2.
func (frameCodec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("rocketmq: %T is no raw message", v)
	}
	data.Ref()
	f.data = data
	return nil
}

// throughs is a listener whose connections have one of their own to the master.
type throughs struct {
	net.Listener
	f *Forwarder
}

// Accept is the listener's below.
func (l *throughs) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	_, sealed := raw.(*tls.Conn)
	c := &through{Conn: raw, f: l.f, sealed: sealed, fellow: ofFellow(raw)}
	c.remote = &throughAddr{Addr: raw.RemoteAddr(), of: c}
	l.f.mu.Lock()
	l.f.clients[c] = struct{}{}
	l.f.mu.Unlock()
	return c, nil
}

// through is a client's connection and what goes on from it.
type through struct {
	net.Conn
	f      *Forwarder
	remote *throughAddr
	sealed bool // it has TLS
	fellow bool // it is another member's, which takes this node for the master

	mu     sync.Mutex
	up     *upstream // guarded by mu; nil = none yet, or the master was left
	closed bool      // guarded by mu
}

// throughAddr is an address that knows its connection.
type throughAddr struct {
	net.Addr
	of *through
}

// RemoteAddr is the peer's address, by which handlers find the connection.
func (c *through) RemoteAddr() net.Addr { return c.remote }

// Close closes the connection, and with it the one to the master.
func (c *through) Close() error {
	c.f.mu.Lock()
	delete(c.f.clients, c)
	c.f.mu.Unlock()
	c.mu.Lock()
	up := c.up
	c.up, c.closed = nil, true
	c.mu.Unlock()
	if up != nil {
		up.close()
	}
	return c.Conn.Close()
}

// leave ends the connection to a node that is not the master.
func (c *through) leave(master Upstream) {
	c.mu.Lock()
	up := c.up
	if up == nil || up.to == master {
		c.mu.Unlock()
		return
	}
	c.up = nil
	c.mu.Unlock()
	up.close()
}

// upstream returns the connection to the master, which it makes when there is none.
func (c *through) upstream(to Upstream) (*upstream, error) {
	c.leave(to)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, net.ErrClosed
	}
	if c.up == nil {
		up, err := newUpstream(to, c.f.dials)
		if err != nil {
			return nil, err
		}
		c.up = up
	}
	return c.up, nil
}

// upstream is a connection to a master's front end.
type upstream struct {
	to     Upstream
	conn   *grpc.ClientConn
	ctx    context.Context // ends with the connection
	cancel context.CancelFunc
}

// Bounds of a connection to a master.
const (
	dialTime     = time.Second            // connect, and handshake: a master that takes longer for either is as good as none
	connectTime  = 30 * time.Second       // both, and the wait for a place before; calls wait for less
	upstreamWait = 50 * time.Millisecond  // between attempts to reach a master
	upstreamMax  = 500 * time.Millisecond // the design's bound for anything that dials
	upstreamRead = 1 << 20                // bytes of a stream that the master may have sent ahead
	// maxAnswerBytes bounds one message of an answer: a message of the largest legal
	// size and what is said about it.
	maxAnswerBytes = 16 << 20
)

func newUpstream(to Upstream, d *dials) (*upstream, error) {
	creds := insecure.NewCredentials()
	if to.TLS != nil {
		creds = credentials.NewTLS(fellowClient(to.TLS))
	}
	conn, err := grpc.NewClient("passthrough:///"+to.Addr,
		grpc.WithTransportCredentials(promptly{creds}),
		grpc.WithContextDialer(d.connect),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(frameCodec{}), grpc.MaxCallRecvMsgSize(maxAnswerBytes), grpc.MaxCallSendMsgSize(maxAnswerBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: connectTime,
			Backoff: backoff.Config{BaseDelay: upstreamWait, Multiplier: 1.6, Jitter: 0.2, MaxDelay: upstreamMax}}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		grpc.WithInitialWindowSize(upstreamRead),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithUserAgent("mqrouter-replica"),
		grpc.WithIdleTimeout(0))
	if err != nil {
		return nil, err
	}
	u := &upstream{to: to, conn: conn}
	u.ctx, u.cancel = context.WithCancel(context.Background())
	return u, nil
}

// begin begins a call, unless the master has not been reached by then.
func (u *upstream) begin(ctx context.Context, method string, until time.Time) (grpc.ClientStream, error) {
	ctx, cancel := context.WithCancel(ctx) // ends with the call
	late := time.AfterFunc(time.Until(until), cancel)
	s, err := u.conn.NewStream(ctx, &bothWays, method)
	if !late.Stop() && err == nil {
		err = status.Error(codes.Unavailable, "the master was reached too late")
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return s, nil
}

// close ends the calls on the connection, and it.
func (u *upstream) close() {
	u.cancel()
	_ = u.conn.Close() // its calls have seen why
}
