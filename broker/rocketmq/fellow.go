package rocketmq

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// What a member of the group says of the client whose call it passes on. It is believed
// on a connection that negotiated fellowProto, for which the member has shown its
// certificate; from anybody else it is dropped, or read by nobody.
const (
	fellowProto  = "mqrouter-fellow"   // ALPN, besides h2: clients never offer it, so none is asked for a certificate
	headerClient = "x-mqrouter-client" // the client's address, host:port
	headerOpen   = "x-mqrouter-open"   // "1": the client's connection has no TLS
)

// ofFellow reports whether a connection is one of another member of the group, which has
// proved that.
func ofFellow(c net.Conn) bool {
	t, ok := c.(*tls.Conn)
	return ok && t.ConnectionState().NegotiatedProtocol == fellowProto
}

// fellowServer returns the configuration for the connections of fellow members; see
// Options.Fellow.
func fellowServer(c *tls.Config) *tls.Config {
	c = c.Clone()
	c.GetConfigForClient = nil
	c.NextProtos = []string{fellowProto}
	return c
}

// fellowClient returns the configuration with which a master is dialled: one that knows
// no fellows, or does not believe in any, takes it for a client's.
func fellowClient(c *tls.Config) *tls.Config {
	c = c.Clone()
	c.NextProtos = []string{fellowProto, "h2"}
	return c
}

// origin is where a call comes from.
type origin struct {
	client string // the client's address
	conn   string // the address at the other end of the connection: the client's, or the fellow's that passes it on
	open   bool   // the client's own connection has no TLS; known of calls that were passed on only
}

// via returns the address of the member that passed the call on; "" = nobody did.
func (o origin) via() string {
	if o.client == o.conn {
		return ""
	}
	return o.conn
}

// originOf returns where a call comes from.
func originOf(ctx context.Context) origin {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return origin{}
	}
	o := origin{conn: p.Addr.String()}
	o.client = o.conn
	if l, ok := linkFrom(ctx); !ok || !l.fellow {
		return o
	}
	if v := metadata.ValueFromIncomingContext(ctx, headerClient); len(v) == 1 {
		if _, err := netip.ParseAddrPort(v[0]); err == nil {
			o.client = v[0]
		}
	}
	v := metadata.ValueFromIncomingContext(ctx, headerOpen)
	o.open = slices.Equal(v, []string{"1"})
	return o
}

// tell puts what a replica says of a client into the metadata of a call that it passes
// on: what another member has said of it, or what this one sees.
func (c *through) tell(ctx context.Context, md metadata.MD) {
	o := origin{client: c.Conn.RemoteAddr().String(), open: !c.sealed}
	if c.fellow {
		o = originOf(ctx)
	}
	md[headerClient] = []string{o.client}
	if o.open {
		md[headerOpen] = []string{"1"}
	}
}

// The interceptors of a server that takes TLS only refuse what came to another member
// without it.

// sealed reports whether there can be such calls.
func (s *Server) sealed() bool { return s.opts.PlaintextOff && s.opts.Fellow != nil }

func (s *Server) sealedUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	st := s.open(ctx)
	if st == nil {
		return handler(ctx, req)
	}
	if answer := refusalOf(req, st); answer != nil {
		return answer, nil
	}
	return nil, status.Error(codes.PermissionDenied, st.GetMessage())
}

func (s *Server) sealedStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	st := s.open(ss.Context())
	if st == nil {
		return handler(srv, ss)
	}
	if r, ok := ss.Context().Value(receivingKey{}).(*receiving); ok {
		s.memory.whole(r)
		defer r.cancel()
	}
	return answerRefused(ss, info.FullMethod, st)
}

// open returns why the call of a client without TLS is refused; nil = its client has it.
func (s *Server) open(ctx context.Context) *pb.Status {
	l, ok := linkFrom(ctx)
	if !ok || !l.fellow { // its listener has judged that
		return nil
	}
	o := originOf(ctx)
	if !o.open {
		return nil
	}
	if missed, ok := s.opened.Allow(time.Now()); ok {
		s.opts.Logger.Warn("call without TLS refused", "peer", o.client, "via", o.via(), "suppressed", missed)
	}
	return refuse(pb.Code_FORBIDDEN, "the master of this broker group takes TLS only, and the client's connection to the replica has none")
}
