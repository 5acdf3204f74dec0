package rocketmq

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// tellTime is what is left of a client's time, at most, to tell it that there is no
// master: a round trip between the two.
const tellTime = 250 * time.Millisecond

// How a call's answers look.
type answerKind uint8

const (
	answerStatus answerKind = iota + 1 // each begins with a Status as field 1
	answerError                        // a gRPC error: Telemetry
)

// forwarded are the methods that go on to the master.
var forwarded = func() map[string]answerKind {
	all := map[string]answerKind{pb.MessagingService_Telemetry_FullMethodName: answerError}
	prefix := "/" + pb.MessagingService_ServiceDesc.ServiceName + "/"
	for _, m := range pb.MessagingService_ServiceDesc.Methods {
		all[prefix+m.MethodName] = answerStatus
	}
	for _, s := range pb.MessagingService_ServiceDesc.Streams {
		if prefix+s.StreamName != pb.MessagingService_Telemetry_FullMethodName {
			all[prefix+s.StreamName] = answerStatus
		}
	}
	return all
}()

// bothWays serves every method: a unary call is a stream of one message each way.
var bothWays = grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

// forward is the handler of every call.
func (f *Forwarder) forward(_ any, down grpc.ServerStream) error {
	ctx := down.Context()
	method, _ := grpc.MethodFromServerStream(down)
	kind, known := forwarded[method]
	client := throughOf(ctx)
	switch {
	case !known:
		return status.Errorf(codes.Unimplemented, "unknown method %s", method)
	case client == nil:
		return status.Error(codes.Internal, "the call did not come over a connection of this server")
	case f.memory.used.Load() >= f.memory.soft && method == pb.MessagingService_SendMessage_FullMethodName:
		f.memory.full.Add(1)
		f.memory.cutOldest(patience)
		return answerWith(down, f.memory.noRoom())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := false
	up, on, err := f.open(ctx, client, method)
	if err == nil {
		defer context.AfterFunc(on.ctx, cancel)()
		answered, err = f.pass(down, up, cancel)
	}
	switch {
	case err == nil:
		return nil
	case down.Context().Err() != nil: // nobody waits for an answer
		return status.FromContextError(down.Context().Err()).Err()
	case status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled:
		return err
	case kind == answerError || answered:
		return status.Error(codes.Unavailable, "the group's master changes: try again")
	}
	f.refused.Add(1)
	return answerWith(down, refuse(pb.Code_TOO_MANY_REQUESTS, "the group's master did not answer, or changes: try again"))
}

// throughOf returns the connection that brought a call.
func throughOf(ctx context.Context) *through {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(*throughAddr); ok {
			return a.of
		}
	}
	return nil
}

// open begins the call at the master. Without one it waits, with the request unread.
// It fails with codes.Unavailable when the wait is over.
func (f *Forwarder) open(ctx context.Context, client *through, method string) (grpc.ClientStream, *upstream, error) {
	until, held := f.holdUntil(ctx), false
	defer func() {
		if held {
			f.held.Add(-1)
		}
	}()
	md := passedOn(ctx)
	client.tell(ctx, md)
	out := metadata.NewOutgoingContext(ctx, md)
	for {
		to, changed := f.o.Master()
		if to.Node != "" {
			up, err := client.upstream(to)
			if err != nil {
				return nil, nil, status.Error(codes.Unavailable, err.Error())
			}
			s, err := up.begin(out, method, until)
			if err == nil {
				return s, up, nil
			}
			if code := status.Code(err); code != codes.Unavailable && (code != codes.Canceled || ctx.Err() != nil) {
				return nil, nil, err
			}
		}
		if !held {
			if held = f.held.Add(1) <= int64(f.o.MaxHeld); !held {
				f.held.Add(-1)
				f.unheld.Add(1)
				return nil, nil, status.Error(codes.Unavailable, "too many requests wait for a master")
			}
		}
		if !f.await(ctx, changed, to.Node != "", until) {
			return nil, nil, status.Error(codes.Unavailable, "no master")
		}
	}
}

// holdUntil returns how long a call waits for a master.
func (f *Forwarder) holdUntil(ctx context.Context) time.Time {
	until := time.Now().Add(f.o.Hold)
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		if soon := end.Add(-min(left/4, tellTime)); soon.Before(until) {
			until = soon
		}
	}
	return until
}

// await returns when the master may have changed, or when a master that could not be
// reached is tried again. It reports false when the time is over.
func (f *Forwarder) await(ctx context.Context, changed <-chan struct{}, unreached bool, until time.Time) bool {
	wait := time.Until(until)
	if unreached {
		wait = min(wait, upstreamWait)
	}
	if wait <= 0 {
		return false
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-f.stopping.Done():
		return false
	case <-changed:
		return true
	case <-t.C:
		return unreached && time.Now().Before(until)
	}
}

// passedOn returns the metadata of a call without what belongs to its connection, and
// without what only members say.
func passedOn(ctx context.Context) metadata.MD {
	in, _ := metadata.FromIncomingContext(ctx)
	out := make(metadata.MD, len(in))
	for k, v := range in {
		if k != "content-type" && k != "user-agent" && k != "te" && !strings.HasPrefix(k, ":") && !strings.HasPrefix(k, "grpc-") &&
			k != headerClient && k != headerOpen {
			out[k] = v
		}
	}
	return out
}

// pass passes a call's messages on in both directions until it ends. answered is true
// once something went back to the client.
// The reader of requests ends after the handler of its call has returned.
func (f *Forwarder) pass(down grpc.ServerStream, up grpc.ClientStream, cancel context.CancelFunc) (answered bool, err error) {
	client, _ := linkFrom(down.Context()) // nil: of a listener that is not the forwarder's own
	f.readers.Go(func() {
		for {
			var x frame
			err := down.RecvMsg(&x)
			if errors.Is(err, io.EOF) {
				_ = up.CloseSend() // the answer says what went wrong
				return
			}
			if err == nil {
				err = up.SendMsg(&x)
				x.data.Free() // nil unless it was not sent
			}
			if err != nil {
				if !errors.Is(err, io.EOF) { // the end of the call, which the answer tells
					cancel()
				}
				return
			}
		}
	})
	for {
		var x frame
		if err := up.RecvMsg(&x); err != nil {
			if md := up.Trailer(); len(md) > 0 {
				down.SetTrailer(md)
			}
			if errors.Is(err, io.EOF) {
				return true, nil
			}
			return answered, err
		}
		if err := client.takeAnswer(&x); err != nil {
			return answered, err
		}
		answered = true
		if err := down.SendMsg(&x); err != nil {
			x.data.Free()
			return true, err
		}
	}
}

// answerWith answers a call with a Status, which is field 1 of every answer.
func answerWith(down grpc.ServerStream, st *pb.Status) error {
	b, err := proto.Marshal(&pb.AckMessageResponse{Status: st})
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return down.SendMsg(&frame{data: mem.BufferSlice{mem.SliceBuffer(b)}})
}
