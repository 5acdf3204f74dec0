package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// newerRequests has a request of each RPC with every enum of it filled in.
func newerRequests() map[string]func() proto.Message {
	endpoints := func() *pb.Endpoints {
		return &pb.Endpoints{Scheme: pb.AddressScheme_IPv4, Addresses: []*pb.Address{{Host: "127.0.0.1", Port: 1}}}
	}
	mq := func() *pb.MessageQueue {
		return &pb.MessageQueue{Topic: res("t"), Permission: pb.Permission_READ_WRITE, AcceptMessageTypes: []pb.MessageType{pb.MessageType_NORMAL},
			Broker: &pb.Broker{Name: "g1", Endpoints: endpoints()}}
	}
	filter := &pb.FilterExpression{Type: pb.FilterType_TAG, Expression: "*"}
	message := func() *pb.Message {
		return msg("t", "M", func(m *pb.Message) {
			m.SystemProperties.BodyDigest = &pb.Digest{Type: pb.DigestType_MD5, Checksum: md5Hex(m.Body)}
		})
	}
	return map[string]func() proto.Message{
		"QueryRoute": func() proto.Message { return &pb.QueryRouteRequest{Topic: res("t"), Endpoints: endpoints()} },
		"Heartbeat": func() proto.Message {
			return &pb.HeartbeatRequest{Group: res("g"), ClientType: pb.ClientType_PUSH_CONSUMER}
		},
		"SendMessage": func() proto.Message { return &pb.SendMessageRequest{Messages: []*pb.Message{message()}} },
		"QueryAssignment": func() proto.Message {
			return &pb.QueryAssignmentRequest{Topic: res("t"), Group: res("g"), Endpoints: endpoints()}
		},
		"ReceiveMessage": func() proto.Message {
			return &pb.ReceiveMessageRequest{Group: res("g"), MessageQueue: mq(), FilterExpression: proto.CloneOf(filter), BatchSize: 1, InvisibleDuration: durationpb.New(minInvisible), LongPollingTimeout: durationpb.New(0)}
		},
		"AckMessage": func() proto.Message {
			return &pb.AckMessageRequest{Group: res("g"), Topic: res("t"), Entries: []*pb.AckMessageEntry{{MessageId: "M", ReceiptHandle: "x"}}}
		},
		"ForwardMessageToDeadLetterQueue": func() proto.Message {
			return &pb.ForwardMessageToDeadLetterQueueRequest{Group: res("g"), Topic: res("t"), ReceiptHandle: "x"}
		},
		"PullMessage": func() proto.Message {
			return &pb.PullMessageRequest{Group: res("g"), MessageQueue: mq(), FilterExpression: proto.CloneOf(filter), BatchSize: 1}
		},
		"UpdateOffset": func() proto.Message { return &pb.UpdateOffsetRequest{Group: res("g"), MessageQueue: mq()} },
		"GetOffset":    func() proto.Message { return &pb.GetOffsetRequest{Group: res("g"), MessageQueue: mq()} },
		"QueryOffset": func() proto.Message {
			return &pb.QueryOffsetRequest{MessageQueue: mq(), QueryOffsetPolicy: pb.QueryOffsetPolicy_END, Timestamp: timestamppb.Now()}
		},
		"EndTransaction": func() proto.Message {
			return &pb.EndTransactionRequest{Topic: res("t"), MessageId: "M", TransactionId: "x", Resolution: pb.TransactionResolution_COMMIT, Source: pb.TransactionSource_SOURCE_CLIENT}
		},
		"Telemetry": func() proto.Message {
			s := consumerSettings(pb.ClientType_PUSH_CONSUMER, pb.Language_JAVA, "g")
			s.AccessPoint = endpoints()
			s.GetSubscription().Subscriptions[0].Expression = proto.CloneOf(filter)
			return command(s)
		},
		"NotifyClientTermination": func() proto.Message { return &pb.NotifyClientTerminationRequest{Group: res("g")} },
		"ChangeInvisibleDuration": func() proto.Message {
			return &pb.ChangeInvisibleDurationRequest{Group: res("g"), Topic: res("t"), ReceiptHandle: "x", InvisibleDuration: durationpb.New(minInvisible)}
		},
		"RecallMessage": func() proto.Message { return &pb.RecallMessageRequest{Topic: res("t"), RecallHandle: "x"} },
		"SyncLiteSubscription": func() proto.Message {
			return &pb.SyncLiteSubscriptionRequest{Topic: res("chat"), Group: res("chatters"), Action: pb.LiteSubscriptionAction_COMPLETE_ADD, LiteTopicSet: []string{"x"},
				OffsetOption: &pb.OffsetOption{OffsetType: &pb.OffsetOption_Policy_{Policy: pb.OffsetOption_MIN}}}
		},
	}
}

// newerRefused are the enums of which an unknown value changes what was asked for,
// so that leaving it out would do something else.
var newerRefused = map[string]pb.Code{
	"SendMessage.messages.system_properties.message_type": pb.Code_UNSUPPORTED,
	"ReceiveMessage.filter_expression.type":               pb.Code_ILLEGAL_FILTER_EXPRESSION,
	"PullMessage.filter_expression.type":                  pb.Code_ILLEGAL_FILTER_EXPRESSION,
	"QueryOffset.query_offset_policy":                     pb.Code_BAD_REQUEST,
	"EndTransaction.resolution":                           pb.Code_BAD_REQUEST,
	"SyncLiteSubscription.action":                         pb.Code_BAD_REQUEST,
	"SyncLiteSubscription.offset_option.policy":           pb.Code_ILLEGAL_OFFSET,
}

// TestNewerClientsAreServed: fields that are not known change nothing, in any message
// of any request, and values of enums that are not known are kept, left out or
// refused with a status; none breaks the call.
func TestNewerClientsAreServed(t *testing.T) {
	b := start(t, nil)
	conn, err := grpc.NewClient(b.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	service, err := protoregistry.GlobalFiles.FindDescriptorByName("apache.rocketmq.v2.MessagingService")
	if err != nil {
		t.Fatal(err)
	}
	methods := service.(protoreflect.ServiceDescriptor).Methods()
	requests := newerRequests()
	enums := 0
	for i := range methods.Len() {
		m := methods.Get(i)
		name := string(m.Name())
		fresh := requests[name]
		if fresh == nil {
			t.Errorf("%s is not tested", name)
			continue
		}
		plain := ask(t, conn, m, fresh())
		strange := fresh()
		walk(strange.ProtoReflect(), name, func(m protoreflect.Message) {
			raw := protowire.AppendTag(m.GetUnknown(), 1000, protowire.BytesType)
			raw = protowire.AppendString(raw, "of a newer client")
			raw = protowire.AppendTag(raw, 1001, protowire.VarintType)
			m.SetUnknown(protowire.AppendVarint(raw, 1<<40))
		}, nil)
		if got := ask(t, conn, m, strange); got.GetCode() != plain.GetCode() {
			t.Errorf("%s with unknown fields: %v, want %v as without", name, got, plain)
		}
		var paths []string
		walk(fresh().ProtoReflect(), name, nil, func(path string, _ func(protoreflect.EnumNumber)) { paths = append(paths, path) })
		for k, path := range paths {
			enums++
			newer, n := fresh(), 0
			walk(newer.ProtoReflect(), name, nil, func(_ string, set func(protoreflect.EnumNumber)) {
				if n == k {
					set(99)
				}
				n++
			})
			want := plain.GetCode()
			if code, refused := newerRefused[path]; refused {
				want = code
			}
			if got := ask(t, conn, m, newer); got.GetCode() != want {
				t.Errorf("%s = 99: %v, want %v", path, got, want)
			}
		}
	}
	if enums < 20 {
		t.Errorf("only %d enums were tried", enums)
	}
}

// walk visits every message that is set, and every enum in it.
func walk(m protoreflect.Message, path string, message func(protoreflect.Message), enum func(path string, set func(protoreflect.EnumNumber))) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() { // in the order of the descriptor
		f := fields.Get(i)
		if !m.Has(f) {
			continue
		}
		here := path + "." + string(f.Name())
		if kind := f.Kind(); f.IsMap() || kind != protoreflect.EnumKind && kind != protoreflect.MessageKind {
			continue
		}
		v := m.Get(f)
		switch {
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			for k := range v.List().Len() {
				walk(v.List().Get(k).Message(), here, message, enum)
			}
		case f.Kind() == protoreflect.MessageKind:
			walk(v.Message(), here, message, enum)
		case enum == nil:
		case f.IsList():
			enum(here, func(n protoreflect.EnumNumber) { v.List().Set(0, protoreflect.ValueOfEnum(n)) })
		default:
			enum(here, func(n protoreflect.EnumNumber) { m.Set(f, protoreflect.ValueOfEnum(n)) })
		}
	}
	if message != nil && m.Descriptor().ParentFile().Package() == "apache.rocketmq.v2" {
		message(m)
	}
}

// ask makes a call of any kind and returns the first status in its answer.
func ask(t *testing.T, conn *grpc.ClientConn, m protoreflect.MethodDescriptor, req proto.Message) *pb.Status {
	t.Helper()
	ctx, cancel := context.WithCancel(as(t, "newer"))
	defer cancel()
	st, err := tryAsk(ctx, conn, m, req)
	if err != nil {
		t.Errorf("%s %v: gRPC error %v", m.Name(), req, err)
	}
	return st
}

func tryAsk(ctx context.Context, conn *grpc.ClientConn, m protoreflect.MethodDescriptor, req proto.Message) (*pb.Status, error) {
	path := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	out, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	if err != nil {
		return nil, err
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: m.IsStreamingClient(), ServerStreams: true}, path)
	if err != nil {
		return nil, err
	}
	if err := s.SendMsg(req); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if !m.IsStreamingClient() {
		if err := s.CloseSend(); err != nil {
			return nil, err
		}
	}
	for {
		resp := out.New()
		if err := s.RecvMsg(resp.Interface()); err != nil {
			return nil, err
		}
		if f := resp.Descriptor().Fields().ByName("status"); resp.Has(f) {
			st := resp.Get(f).Message().Interface().(*pb.Status)
			if st.GetCode() == pb.Code_MESSAGE_NOT_FOUND {
				st = statusOK // an empty receive is served as well
			}
			return st, nil
		}
	}
}
