package rocketmq

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// A request of a few bytes may be large once it is decoded: an empty entry of a list
// takes two bytes on the wire and hundreds afterwards. So what a request weighs is
// asked before it is decoded, and counts until its call ends. A request above a share
// of the limit is refused whatever the load.

// heaviest is the part of the limit, as a divisor, that one request may weigh.
const heaviest = 2

// tooHeavy stands in weights for a request that was not decoded for its weight.
type tooHeavy struct{ status *pb.Status }

// admit is asked by the codec before it decodes a request, and with 0 when it could
// not. One that is decoded into twice, as gRPC does when a call has a request too many,
// counts for what was decoded last.
func (m *memory) admit(req proto.Message, weight int64) bool {
	m.settle(req)
	switch {
	case weight == 0:
		return true
	case weight > m.limit/heaviest:
		m.full.Add(1)
		m.weights.Store(req, tooHeavy{refuse(pb.Code_PAYLOAD_TOO_LARGE,
			fmt.Sprintf("the request takes about %d bytes of memory, the limit is %d: it has too many parts", weight, m.limit/heaviest))})
		return false
	case !m.charge(weight):
		m.weights.Store(req, tooHeavy{m.noRoom()})
		return false
	}
	m.weights.Store(req, weight)
	return true
}

// settle ends the counting of a request. It returns why the request was not decoded,
// or nil.
func (m *memory) settle(req any) *pb.Status {
	v, ok := m.weights.LoadAndDelete(req)
	if !ok {
		return nil // a light one
	}
	if heavy, ok := v.(tooHeavy); ok {
		return heavy.status
	}
	m.release(v.(int64))
	return nil
}

// look returns why a request was not decoded, or nil: then counts says whether it goes
// on to count until settle.
func (m *memory) look(req any) (counts bool, st *pb.Status) {
	v, ok := m.weights.Load(req)
	if heavy, is := v.(tooHeavy); is {
		m.weights.Delete(req)
		return false, heavy.status
	}
	return ok, nil
}

// errHeavy is how a stream ends whose request was not decoded for its weight.
func errHeavy(st *pb.Status) error {
	return status.Error(codes.ResourceExhausted, st.GetCode().String()+": "+st.GetMessage())
}

// settling returns the methods such that what was decoded of a request counts no more
// when gRPC does not hand it over after all, since its call sent another one, or broke.
func (m *memory) settling(methods []grpc.MethodDesc) []grpc.MethodDesc {
	methods = slices.Clone(methods)
	for i := range methods {
		serve := methods[i].Handler
		methods[i].Handler = func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) { //nolint:revive // the order is gRPC's
			return serve(srv, ctx, func(req any) error {
				err := decode(req)
				if err != nil {
					m.settle(req)
				}
				return err
			}, interceptor)
		}
	}
	return methods
}
