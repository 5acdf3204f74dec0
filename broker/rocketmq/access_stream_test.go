package rocketmq

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// scripted is a stream that brings what it was given and takes everything.
type scripted struct {
	grpc.ServerStream
	in []*pb.TelemetryCommand
}

func (s *scripted) RecvMsg(m any) error {
	proto.Merge(m.(proto.Message), s.in[0])
	s.in = s.in[1:]
	return nil
}

func (s *scripted) SendMsg(any) error { return nil }

// telemetryOf is a Telemetry stream of the user payments that has brought the
// commands, and what is in force for it.
func telemetryOf(t *testing.T, in ...*pb.TelemetryCommand) (*guarded, *swap) {
	t.Helper()
	source := newSwap(t, accessText)
	o := Options{Access: source}.withDefaults()
	g, err := newGuard(&o, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := source.Watch()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	s := &guarded{ServerStream: &scripted{in: in}, guard: g, ctx: ctx, end: cancel}
	for _, u := range a.Users() {
		if u.Key == "payments" {
			s.caller = caller{user: u, access: a}
		}
	}
	for range in {
		if err := s.RecvMsg(new(pb.TelemetryCommand)); err != nil {
			t.Fatal(err)
		}
	}
	return s, source
}

// refusePublish takes the right to publish from the user of the stream.
func refusePublish(t *testing.T, s *guarded, source *swap) {
	t.Helper()
	source.set(t, "users: [{access_key: payments, secret: "+paySecret+", consume: [t], groups: [g]}]")
	a, _ := source.Watch()
	s.caller.user, s.caller.access = a.Users()[0], a // as if it had signed again
}

// TestAnswersDoNotHideWhatAStreamIsFor: a producer answers a command, loses the
// permission to publish, and with it the stream.
func TestAnswersDoNotHideWhatAStreamIsFor(t *testing.T) {
	s, source := telemetryOf(t, command(producerSettings("t")), &pb.TelemetryCommand{Status: statusOK})
	if st := s.judge(); st != nil {
		t.Fatalf("refused with %v", st)
	}
	refusePublish(t, s, source)
	if st := s.judge(); st.GetCode() != pb.Code_FORBIDDEN {
		t.Errorf("the stream has %v, want FORBIDDEN", st)
	}
}

// TestHalfMessagesAreShownToWhoMayPublish: a producer whose Settings name no topic is
// asked about those of which it has sent half messages, and no longer once it may
// not publish to them.
func TestHalfMessagesAreShownToWhoMayPublish(t *testing.T) {
	s, source := telemetryOf(t, command(producerSettings()))
	question := &pb.TelemetryCommand{Command: &pb.TelemetryCommand_RecoverOrphanedTransactionCommand{
		RecoverOrphanedTransactionCommand: &pb.RecoverOrphanedTransactionCommand{Message: &pb.Message{Topic: res("t"), Body: []byte("secret")}}}}
	for range 2 {
		if err := s.SendMsg(question); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.needs) != 1 {
		t.Errorf("it needs %v, want the topic once", s.needs)
	}
	refusePublish(t, s, source)
	if err := s.SendMsg(question); !errors.Is(err, errDenied) || s.why().GetCode() != pb.Code_FORBIDDEN {
		t.Errorf("%v, %v, want the question refused", err, s.why())
	}
}

// TestWhatClientsWroteFitsIntoAnswers: texts that are too long, or no UTF-8, are made
// such that a refusal can tell of them.
func TestWhatClientsWroteFitsIntoAnswers(t *testing.T) {
	long := strings.Repeat("é", 1<<16)
	for _, text := range []string{
		cut("\xff"), cut("x" + long), need{right: rightConsume, topic: zone.Topic("x" + long), group: zone.ConsumerGroup("x" + long)}.String(),
		string(queueOf(&zone.Topology{}, subject{}, &pb.MessageQueue{Broker: &pb.Broker{Name: "x" + long}}).Broker),
	} {
		if !utf8.ValidString(text) || len(text) > 4*maxTold {
			t.Errorf("%d bytes, UTF-8: %v", len(text), utf8.ValidString(text))
		}
	}
}
