package rocketmq

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/disk"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// rpc is a call with the types of its request and answer.
type rpc struct {
	name     string
	request  func() proto.Message
	response func() proto.Message
}

func typed[Q, R any, PQ interface {
	*Q
	proto.Message
}, PR interface {
	*R
	proto.Message
}](name string) rpc {
	return rpc{name, func() proto.Message { return PQ(new(Q)) }, func() proto.Message { return PR(new(R)) }}
}

// rpcs are all calls of the protocol. The order is part of the fuzzers' corpus.
var rpcs = []rpc{
	typed[pb.QueryRouteRequest, pb.QueryRouteResponse]("QueryRoute"),
	typed[pb.HeartbeatRequest, pb.HeartbeatResponse]("Heartbeat"),
	typed[pb.SendMessageRequest, pb.SendMessageResponse]("SendMessage"),
	typed[pb.QueryAssignmentRequest, pb.QueryAssignmentResponse]("QueryAssignment"),
	typed[pb.ReceiveMessageRequest, pb.ReceiveMessageResponse]("ReceiveMessage"),
	typed[pb.AckMessageRequest, pb.AckMessageResponse]("AckMessage"),
	typed[pb.ForwardMessageToDeadLetterQueueRequest, pb.ForwardMessageToDeadLetterQueueResponse]("ForwardMessageToDeadLetterQueue"),
	typed[pb.EndTransactionRequest, pb.EndTransactionResponse]("EndTransaction"),
	typed[pb.TelemetryCommand, pb.TelemetryCommand]("Telemetry"),
	typed[pb.NotifyClientTerminationRequest, pb.NotifyClientTerminationResponse]("NotifyClientTermination"),
	typed[pb.ChangeInvisibleDurationRequest, pb.ChangeInvisibleDurationResponse]("ChangeInvisibleDuration"),
	typed[pb.RecallMessageRequest, pb.RecallMessageResponse]("RecallMessage"),
	typed[pb.SyncLiteSubscriptionRequest, pb.SyncLiteSubscriptionResponse]("SyncLiteSubscription"),
	typed[pb.PullMessageRequest, pb.PullMessageResponse]("PullMessage"),
	typed[pb.UpdateOffsetRequest, pb.UpdateOffsetResponse]("UpdateOffset"),
	typed[pb.GetOffsetRequest, pb.GetOffsetResponse]("GetOffset"),
	typed[pb.QueryOffsetRequest, pb.QueryOffsetResponse]("QueryOffset"),
}

// TestFuzzersKnowEveryCall: a call that is added to the protocol is fuzzed too.
func TestFuzzersKnowEveryCall(t *testing.T) {
	known := map[string]bool{}
	for _, r := range rpcs {
		known[r.name] = true
	}
	desc := pb.MessagingService_ServiceDesc
	for _, m := range desc.Methods {
		if !known[m.MethodName] {
			t.Errorf("the call %s is not fuzzed", m.MethodName)
		}
	}
	for _, s := range desc.Streams {
		if !known[s.StreamName] {
			t.Errorf("the call %s is not fuzzed", s.StreamName)
		}
	}
	if n := len(desc.Methods) + len(desc.Streams); n != len(rpcs) {
		t.Errorf("%d calls are fuzzed, the protocol has %d", len(rpcs), n)
	}
}

// written are requests that no official client sends.
var written = map[string]proto.Message{
	"PullMessage":  &pb.PullMessageRequest{Group: res("g"), MessageQueue: at(1), Offset: 1, BatchSize: 3},
	"UpdateOffset": &pb.UpdateOffsetRequest{Group: res("g"), MessageQueue: at(0)},
	"GetOffset":    &pb.GetOffsetRequest{Group: res("g"), MessageQueue: at(0)},
	"QueryOffset":  &pb.QueryOffsetRequest{MessageQueue: at(1), QueryOffsetPolicy: pb.QueryOffsetPolicy_TIMESTAMP, Timestamp: timestamppb.Now()},
}

// recorded calls use with the requests of TestRecordRequests.
func recorded(f *testing.F, use func(call int, request []byte)) {
	f.Helper()
	n := 0
	for i, r := range rpcs {
		files, err := filepath.Glob(filepath.Join(requestsDir, r.name, "*"))
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			use(i, b)
			n++
		}
	}
	if n == 0 {
		f.Fatal("no recorded requests")
	}
	for name, m := range written {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		use(slices.IndexFunc(rpcs, func(r rpc) bool { return r.name == name }), b)
	}
}

// fuzzServer is the server with the real broker, and a connection to it.
func fuzzServer(f *testing.F) *grpc.ClientConn {
	f.Helper()
	var core *broker.Broker
	b := start(f, func(o *Options) {
		topo := o.Store.Topology()
		var err error
		core, err = broker.Open(f.Context(), broker.Options{FS: disk.NewMem(), Dir: "data", Node: topo.FindNode("bc1"), Topology: topo})
		if err != nil {
			f.Fatal(err)
		}
		o.Store, o.Zone, o.MaxPoll = core, "c1", time.Millisecond
	})
	conn, err := grpc.NewClient(b.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		_ = conn.Close()
		b.stop()
		if err := core.Close(); err != nil {
			f.Errorf("close: %v", err)
		}
	})
	return conn
}

// exchange sends the bytes as the only request of a call and returns the answers.
func exchange(t *testing.T, conn *grpc.ClientConn, call string, request []byte) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-mq-client-id", "fuzz"), enough)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, service+call, grpc.ForceCodec(rawCodec{}))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(stream.SendMsg(&request), stream.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var answers [][]byte
	for {
		var b []byte
		if err := stream.RecvMsg(&b); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return answers, err
		}
		answers = append(answers, b)
	}
}

// judge holds an exchange against the protocol: bytes that are no request are a
// gRPC error of the call alone; a request is answered with a status, which never
// blames the server.
func judge(t *testing.T, conn *grpc.ClientConn, r rpc, request []byte) {
	t.Helper()
	parsed := proto.Unmarshal(request, r.request()) == nil
	answers, err := exchange(t, conn, r.name, request)
	switch code := status.Code(err); {
	case !parsed && code == codes.Internal:
		return
	case !parsed:
		t.Fatalf("%s took bytes that are no request: %v", r.name, err)
	case code == codes.InvalidArgument && r.name == "Telemetry":
		return // it has no other way to say so
	case err != nil:
		t.Fatalf("%s: gRPC error %v", r.name, err)
	}
	for _, b := range answers {
		answer := r.response()
		if err := proto.Unmarshal(b, answer); err != nil {
			t.Fatalf("%s: answer %x: %v", r.name, b, err)
		}
		m := answer.ProtoReflect()
		field := m.Descriptor().Fields().ByName("status")
		if !m.Has(field) {
			if r.name != "ReceiveMessage" && r.name != "PullMessage" {
				t.Fatalf("%s: no status in %v", r.name, answer)
			}
			continue // a message, the delivery time, or the offset to go on from
		}
		st := m.Get(field).Message().Interface().(*pb.Status)
		switch st.GetCode() {
		case pb.Code_CODE_UNSPECIFIED, pb.Code_INTERNAL_ERROR, pb.Code_INTERNAL_SERVER_ERROR, pb.Code_PROXY_TIMEOUT, pb.Code_MASTER_PERSISTENCE_TIMEOUT:
			t.Fatalf("%s: %v", r.name, st)
		}
	}
	if len(answers) == 0 && r.name != "Telemetry" {
		t.Fatalf("%s: no answer", r.name)
	}
}

// FuzzRequestBytes gives any bytes to any call, through the server's own codec.
func FuzzRequestBytes(f *testing.F) {
	conn := fuzzServer(f)
	recorded(f, func(call int, request []byte) { f.Add(uint8(call), request) })
	for i := range rpcs {
		f.Add(uint8(i), []byte(nil))
	}
	f.Fuzz(func(t *testing.T, call uint8, request []byte) {
		judge(t, conn, rpcs[int(call)%len(rpcs)], request)
	})
}

// FuzzRequestFields changes fields of what the official clients send: all of it is
// well formed, and some of it means something.
func FuzzRequestFields(f *testing.F) {
	conn := fuzzServer(f)
	recorded(f, func(call int, request []byte) {
		for seed := range uint64(4) {
			f.Add(uint8(call), request, seed)
		}
	})
	f.Fuzz(func(t *testing.T, call uint8, request []byte, seed uint64) {
		r := rpcs[int(call)%len(rpcs)]
		m := r.request()
		if proto.Unmarshal(request, m) != nil {
			t.Skip("no request")
		}
		rng := rand.New(rand.NewPCG(seed, 1))
		for range 1 + rng.IntN(3) {
			mutate(rng, m.ProtoReflect(), 5)
		}
		changed, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Skip("not to be encoded")
		}
		judge(t, conn, r, changed)
	})
}

// mutate changes one field of m, or of a message in it.
func mutate(rng *rand.Rand, m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	if fields.Len() == 0 || depth == 0 {
		return
	}
	fd := fields.Get(rng.IntN(fields.Len()))
	switch {
	case rng.IntN(8) == 0:
		m.Clear(fd)
	case fd.IsMap():
		entries := m.Mutable(fd).Map()
		for range 1 + rng.IntN(3)*rng.IntN(80) {
			entries.Set(scalar(rng, fd.MapKey()).MapKey(), scalar(rng, fd.MapValue()))
		}
	case fd.IsList():
		list := m.Mutable(fd).List()
		if n := list.Len(); n > 0 && rng.IntN(2) == 0 {
			if fd.Message() != nil {
				mutate(rng, list.Get(rng.IntN(n)).Message(), depth-1)
			} else {
				list.Truncate(rng.IntN(n))
			}
			return
		}
		for range 1 + rng.IntN(3) {
			if fd.Message() == nil {
				list.Append(scalar(rng, fd))
				continue
			}
			e := list.NewElement()
			mutate(rng, e.Message(), depth-1)
			list.Append(e)
		}
	case fd.Message() != nil:
		mutate(rng, m.Mutable(fd).Message(), depth-1)
	default:
		m.Set(fd, scalar(rng, fd))
	}
}

// names exist in the topology, in part, so that a changed request still means
// something.
var names = []string{
	"", " ", "t", "g", "small", "ordered", "member", "fifos", "%DLQ%g", "%DLQ%", "%RETRY%g", "*", "a||b", "||", "\x00", "支付", "🚀", "user", "mqr.version",
	"KEYS", "127.0.0.1", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}

// scalar returns a value for a field that is no message, often at an edge.
func scalar(rng *rand.Rand, fd protoreflect.FieldDescriptor) protoreflect.Value {
	edges := []int64{0, 1, -1, 31, 32, 33, 1024, 1 << 31, 1<<31 - 1, -1 << 31, 1<<63 - 1, -1 << 63, 253402300799, 315576000000, 999999999, 1000000000}
	n := edges[rng.IntN(len(edges))]
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n%2 == 0)
	case protoreflect.EnumKind:
		if values := fd.Enum().Values(); rng.IntN(2) == 0 {
			return protoreflect.ValueOfEnum(values.Get(rng.IntN(values.Len())).Number())
		}
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(int32(n)))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(n)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(n))
	case protoreflect.BytesKind:
		b := make([]byte, rng.IntN(64))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return protoreflect.ValueOfBytes(b)
	default:
		s := names[rng.IntN(len(names))]
		if rng.IntN(8) == 0 {
			for range rng.IntN(10) {
				s += s + "x"
			}
		}
		return protoreflect.ValueOfString(s)
	}
}
