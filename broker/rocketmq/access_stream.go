package rocketmq

import (
	"context"
	"errors"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// guarded is a stream whose requests are judged as they are read, and which ends
// when what is in force allows it no more.
type guarded struct {
	grpc.ServerStream
	guard  *guard
	ctx    context.Context // with the owned client id; ends when the permission does
	end    context.CancelFunc
	caller caller

	mu      sync.Mutex
	needs   []need     // guarded by mu: of the last request that has any
	refused *pb.Status // guarded by mu: why it ends; nil while it may go on
}

// errDenied ends a handler whose stream was refused.
var errDenied = errors.New("rocketmq: the stream is refused")

// Context implements grpc.ServerStream.
func (s *guarded) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream: it reads a request and judges it.
func (s *guarded) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	// A command without Settings is an answer: what the stream is for stays.
	if c, ok := m.(*pb.TelemetryCommand); !ok || c.GetSettings() != nil {
		s.mu.Lock()
		s.needs = needsOf(s.ctx, m)
		s.mu.Unlock()
	}
	if s.judge() != nil {
		return errDenied
	}
	return nil
}

// SendMsg implements grpc.ServerStream: nothing more is handed to who may not have it.
// A question about a half message goes to whoever may publish to its topic, which the
// stream's Settings need not name.
func (s *guarded) SendMsg(m any) error {
	c, ok := m.(*pb.TelemetryCommand)
	if !ok {
		c, ok = pb.Sent(m).(*pb.TelemetryCommand)
	}
	if ok && c.GetRecoverOrphanedTransactionCommand() != nil {
		s.require(need{right: rightPublish, topic: zone.Topic(fullName(s.ctx, c.GetRecoverOrphanedTransactionCommand().GetMessage().GetTopic()))})
		s.judge()
	}
	if s.why() != nil {
		return errDenied
	}
	return s.ServerStream.SendMsg(m)
}

// require adds to what the stream needs.
func (s *guarded) require(n need) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.needs, n) {
		s.needs = append(slices.Clip(s.needs), n) // judge may be reading the old ones
	}
}

// judge looks at the stream by what is in force now, and ends it if that refuses it.
// It returns why.
func (s *guarded) judge() *pb.Status {
	a, _ := s.guard.source.Watch()
	s.mu.Lock()
	needs, st := s.needs, s.refused
	s.mu.Unlock()
	if st != nil {
		return st
	}
	user, ok := s.caller.user, true
	if a != s.caller.access {
		user, ok = a.Still(s.caller.cred)
	}
	if !ok {
		st = refuse(pb.Code_UNAUTHORIZED, "the credentials are accepted no more")
		s.guard.count(s.ctx, "unauthorized")
	} else {
		st = s.guard.may(s.ctx, s.caller, user, needs)
	}
	if st != nil {
		s.mu.Lock()
		s.refused = st
		s.mu.Unlock()
		s.end()
	}
	return st
}

// why returns why the stream is refused, or nil.
func (s *guarded) why() *pb.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

// stream is the interceptor of streams, SendMessage among them. Who it is, is judged
// before a request is read.
func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	g := s.guard
	a, _ := g.source.Watch()
	c, st := g.who(ss.Context(), a)
	if st != nil {
		if r, ok := ss.Context().Value(receivingKey{}).(*receiving); ok {
			s.memory.whole(r)
			defer r.cancel()
		}
		return answerRefused(ss, info.FullMethod, st)
	}
	call := &guarded{ServerStream: ss, guard: g, caller: c}
	ctx, cancel := context.WithCancel(owned(ss.Context(), c.user))
	defer cancel()
	call.ctx, call.end = ctx, cancel
	if info.FullMethod == pb.MessagingService_SendMessage_FullMethodName {
		return handler(srv, call) // it is short, and answers itself
	}
	defer g.forget(call)
	g.remember(call)
	err := handler(srv, call)
	if st := call.why(); st != nil {
		return answerRefused(ss, info.FullMethod, st)
	}
	return err
}

func (g *guard) remember(c *guarded) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls[c] = struct{}{}
}

func (g *guard) forget(c *guarded) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.calls, c)
}

// answerSend answers a send whose request was refused.
func (s *guarded) answerSend() error {
	return s.ServerStream.SendMsg(&pb.SendMessageResponse{Status: s.why()})
}

// answerRefused ends a stream with a refusal in the form that its clients know. A
// receive may have had a status before: clients take the last.
func answerRefused(ss grpc.ServerStream, method string, st *pb.Status) error {
	switch method {
	case pb.MessagingService_SendMessage_FullMethodName:
		return ss.SendMsg(&pb.SendMessageResponse{Status: st})
	case pb.MessagingService_ReceiveMessage_FullMethodName:
		if err := ss.SendMsg(&pb.ReceiveMessageResponse{Content: &pb.ReceiveMessageResponse_Status{Status: st}}); err != nil {
			return err
		}
		return ss.SendMsg(&pb.ReceiveMessageResponse{Content: &pb.ReceiveMessageResponse_DeliveryTimestamp{DeliveryTimestamp: timestamppb.Now()}})
	case pb.MessagingService_PullMessage_FullMethodName:
		return ss.SendMsg(&pb.PullMessageResponse{Content: &pb.PullMessageResponse_Status{Status: st}})
	}
	// Node.js fails at a command with nothing but a status, the others at the error.
	if err := ss.SendMsg(&pb.TelemetryCommand{Status: st}); err != nil {
		return err
	}
	code := codes.PermissionDenied
	if st.GetCode() == pb.Code_UNAUTHORIZED {
		code = codes.Unauthenticated
	}
	return status.Error(code, st.GetCode().String()+": "+st.GetMessage())
}

// follow judges the running streams again whenever something else is in force,
// until ctx ends.
func (g *guard) follow(ctx context.Context) {
	for {
		_, changed := g.source.Watch()
		g.again()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

func (g *guard) again() {
	g.mu.Lock()
	calls := make([]*guarded, 0, len(g.calls))
	for c := range g.calls {
		calls = append(calls, c)
	}
	g.mu.Unlock()
	for _, c := range calls {
		c.judge()
	}
}
