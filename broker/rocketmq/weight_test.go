package rocketmq

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// TestRequestsOfCallsThatFailCountNoMore: gRPC decodes a second request of a call that
// may have one only into the first, and fails the call before anybody is handed either;
// access control refuses what was decoded. However such a call ends, nothing of it counts
// afterwards.
func TestRequestsOfCallsThatFailCountNoMore(t *testing.T) {
	encoded := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	light := map[string][]byte{
		"SendMessage":    encoded(&pb.SendMessageRequest{Messages: []*pb.Message{msg("t", "A", nil)}}),
		"ReceiveMessage": encoded(simple("g", "t", 1)),
		"PullMessage":    encoded(&pb.PullMessageRequest{Group: res("g"), MessageQueue: &pb.MessageQueue{Topic: res("t")}}),
		"Telemetry":      encoded(command(producerSettings("t"))),
		"AckMessage":     encoded(&pb.AckMessageRequest{Group: res("g"), Topic: res("t")}),
	}
	junk := in(99, bytes.Repeat([]byte{1}, 8<<10)) // of no field, so a request that has it is as it was, and is weighed
	empty := map[string][]byte{
		"SendMessage": in(1, nil), "ReceiveMessage": in(2, in(4, in(3, in(2, nil)))), "PullMessage": in(2, in(4, in(3, in(2, nil)))),
		"Telemetry": in(2, in(5, in(1, nil))), "AckMessage": in(3, nil),
	}
	for _, judged := range []bool{false, true} {
		b := start(t, func(o *Options) {
			o.MaxRequests = 1
			if judged {
				o.Access = newSwap(t, accessText)
			}
		})
		conn, err := grpc.NewClient(b.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for call, one := range light {
			heavy, tooHeavy := slices.Concat(one, junk), slices.Concat(one, junk, bytes.Repeat(empty[call], 200_000))
			for name, requests := range map[string][][]byte{
				"one": {heavy}, "one that is too heavy": {tooHeavy}, "two": {heavy, heavy}, "a light second one": {heavy, one}, "no request behind it": {heavy, {0xff}},
				"a large one that is none": {heavy, append(junk, 0xff)}, "a second one that is too heavy": {heavy, tooHeavy}, "two that are too heavy": {tooHeavy, tooHeavy},
			} {
				ctx, cancel := context.WithTimeout(signedAs(t.Context(), "attacker", "reader", readSecret), enough)
				stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, service+call, grpc.ForceCodec(rawCodec{}))
				for _, r := range requests {
					if err == nil {
						if err = stream.SendMsg(&r); errors.Is(err, io.EOF) { // refused already
							err = nil
						}
					}
				}
				if err = errors.Join(err, stream.CloseSend()); err != nil {
					t.Fatal(err)
				}
				for err == nil {
					var answer []byte
					err = stream.RecvMsg(&answer)
				}
				cancel()
				if code := status.Code(err); code == codes.DeadlineExceeded || code == codes.Unavailable {
					t.Errorf("%s, %s: %v", call, name, err)
				}
				await(t, "nothing counts of "+call+", "+name, func() bool {
					none := true
					b.memory.weights.Range(func(any, any) bool { none = false; return false })
					return none
				})
			}
		}
		emptied(t, b)
	}
}

// TestSmallRequestsThatWaitCountWhenTheyHaveGrown: a receive of less than 4 KiB is tens of
// times as large once it is decoded, and held for as long as it waits.
func TestSmallRequestsThatWaitCountWhenTheyHaveGrown(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	ctx, leave := context.WithCancel(as(t, "attacker"))
	defer leave()
	honest, grown := push("g", "t", time.Minute), push("g", "t", time.Minute)
	grown.MessageQueue.Broker = &pb.Broker{Endpoints: &pb.Endpoints{}}
	for range 1800 {
		grown.MessageQueue.Broker.Endpoints.Addresses = append(grown.MessageQueue.Broker.Endpoints.Addresses, &pb.Address{})
	}
	if n := proto.Size(grown); n > 4<<10 {
		t.Fatalf("it has %d bytes", n)
	}
	for i, req := range []*pb.ReceiveMessageRequest{honest, grown} {
		if _, err := c.ReceiveMessage(ctx, req); err != nil {
			t.Fatal(err)
		}
		await(t, "it waits", func() bool { return b.polls.size() == i+1 })
		weighs := 0
		b.memory.weights.Range(func(_, v any) bool { weighs += int(v.(int64)); return true })
		if i == 0 && weighs != 0 || i == 1 && weighs < 100<<10 {
			t.Errorf("request %d counts for %d bytes", i, weighs)
		}
	}
	leave()
	emptied(t, b)
}

// TestHeadersOfARefusedCallDoNotCount: gRPC does not end the context of a call that is
// refused before it is read.
func TestHeadersOfARefusedCallDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // all arrive at the same time, so that none is old enough to be ended
		m := newMemory(leastRequests)
		for range maxReceiving {
			if _, err := m.begin(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		large := &tap.Info{Header: map[string][]string{"x-junk": {strings.Repeat("~", 60<<10)}}}
		if _, err := m.begin(t.Context(), large); status.Code(err) != codes.Unavailable {
			t.Fatalf("one more than may arrive: %v, want UNAVAILABLE", err)
		}
		if n := m.used.Load(); n != 0 {
			t.Errorf("%d bytes of a call that was refused count", n)
		}
	})
}
