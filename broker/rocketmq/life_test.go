package rocketmq

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// lifeCalls are the calls of a client that are answered at once.
var lifeCalls = map[string]func(ctx context.Context, s *Server) error{
	"heartbeat": func(ctx context.Context, s *Server) error {
		_, err := s.Heartbeat(ctx, &pb.HeartbeatRequest{ClientType: pb.ClientType_PRODUCER})
		return err
	},
	"send": func(ctx context.Context, s *Server) error {
		_, err := s.SendMessage(ctx, &pb.SendMessageRequest{Messages: []*pb.Message{msg("t", "M", nil)}})
		return err
	},
	"refused send": func(ctx context.Context, s *Server) error {
		_, err := s.SendMessage(ctx, &pb.SendMessageRequest{Messages: []*pb.Message{msg("no-such-topic", "M", nil)}})
		return err
	},
	"decision": func(ctx context.Context, s *Server) error {
		_, err := s.EndTransaction(ctx, &pb.EndTransactionRequest{Topic: res("tx"), TransactionId: "none"})
		return err
	},
	"route": func(ctx context.Context, s *Server) error {
		_, err := s.QueryRoute(ctx, &pb.QueryRouteRequest{Topic: res("t")})
		return err
	},
	"assignment": func(ctx context.Context, s *Server) error {
		_, err := s.QueryAssignment(ctx, &pb.QueryAssignmentRequest{Topic: res("t"), Group: res("g")})
		return err
	},
	"recall": func(ctx context.Context, s *Server) error {
		_, err := s.RecallMessage(ctx, &pb.RecallMessageRequest{Topic: res("later"), RecallHandle: "none"})
		return err
	},
	"acknowledgement": func(ctx context.Context, s *Server) error {
		_, err := s.AckMessage(ctx, &pb.AckMessageRequest{Topic: res("t"), Group: res("g"), Entries: []*pb.AckMessageEntry{{ReceiptHandle: "none"}}})
		return err
	},
	"offset": func(ctx context.Context, s *Server) error {
		_, err := s.QueryOffset(ctx, &pb.QueryOffsetRequest{MessageQueue: &pb.MessageQueue{Topic: res("t")}})
		return err
	},
	"lite topics": func(ctx context.Context, s *Server) error {
		_, err := s.SyncLiteSubscription(ctx, &pb.SyncLiteSubscriptionRequest{Topic: res("chat"), Group: res("chatters")})
		return err
	},
}

// TestEachCallIsLife: a client whose stream broke lives on by whatever it calls, and
// is gone when it calls nothing more.
func TestEachCallIsLife(t *testing.T) {
	for name, call := range lifeCalls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHeld(t)
				h.clients.detach("c", h.connect("c", pb.Language_JAVA))
				ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-mq-client-id", "c"))
				for range 3 {
					time.Sleep(comesBack(pb.Language_JAVA) - time.Second)
					if err := call(ctx, h.Server); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(aliveTTL - time.Second)
				if !h.Alive("c", 0) {
					t.Error("it is taken for gone although it called")
				}
				time.Sleep(time.Second)
				if h.Alive("c", 0) {
					t.Error("it lives on without a call")
				}
			})
		})
	}
}

// TestSendsTakeNoPlaceAmongClients: who only sends is not kept.
func TestSendsTakeNoPlaceAmongClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(t)
		for _, name := range []string{"send", "decision", "route", "recall"} {
			ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-mq-client-id", name))
			if err := lifeCalls[name](ctx, h.Server); err != nil {
				t.Fatal(err)
			}
		}
		if n := h.clients.size(); n != 0 {
			t.Errorf("%d clients are kept, want none", n)
		}
	})
}

// TestAnAnsweredCheckWasRead: producers that answer a question with "unknown" and end
// before their next heartbeat have read it, so the half message is parked after as many
// as its topic says. What nobody answered does not count.
func TestAnAnsweredCheckWasRead(t *testing.T) {
	for answered, want := range map[bool]pb.Code{true: pb.Code_PRECONDITION_FAILED, false: pb.Code_OK} {
		synctest.Test(t, func(t *testing.T) {
			h := newHeld(t)
			h.core.SetProducers(h.CheckBack)
			half := []broker.Message{{Topic: h.core.Topology().FindTopic("tx"), ID: "M", Kind: zone.KindTransaction, Born: time.Now(), Queue: broker.AnyQueue}}
			var out [1]broker.PublishResult
			if err := h.core.Publish(t.Context(), half, out[:]); err != nil || out[0].Err != nil {
				t.Fatal(err, out[0].Err)
			}
			decide := func(id string, r pb.TransactionResolution) pb.Code {
				ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-mq-client-id", id))
				resp, err := h.EndTransaction(ctx, &pb.EndTransactionRequest{Topic: res("tx"), TransactionId: out[0].TransactionID, Resolution: r})
				if err != nil {
					t.Fatal(err)
				}
				return resp.GetStatus().GetCode()
			}
			for i := range 3 { // the topic's checks
				id, s := fmt.Sprint("p", i), newSession()
				h.clients.attach(id, s)
				h.clients.settings(id, s, clientInfo{kind: pb.ClientType_PRODUCER, language: pb.Language_JAVA, topics: declared{"tx": res("tx")}})
				c := <-s.checks
				c.back.Sent()
				h.clients.wrote(s, c.back)
				time.Sleep(time.Millisecond)
				if answered {
					decide(id, pb.TransactionResolution_TRANSACTION_RESOLUTION_UNSPECIFIED)
				}
				h.clients.detach(id, s)
				h.clients.giveUp(s)
			}
			time.Sleep(time.Second)
			if got := decide("late", pb.TransactionResolution_COMMIT); got != want {
				t.Errorf("answered %t: then a commit is %v, want %v", answered, got, want)
			}
		})
	}
}
