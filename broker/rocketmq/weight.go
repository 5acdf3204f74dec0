package rocketmq

import (
	"fmt"

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
// not.
func (m *memory) admit(req proto.Message, weight int64) bool {
	switch {
	case weight == 0:
		m.settle(req)
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
