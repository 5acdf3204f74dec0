package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// scripted is a producer that answers as it is told, one step for each call.
type scripted struct {
	sends [][]error // of each message; nil: the call gets no answer
	ends  []error
	calls []string
}

var errLost = &rocketmqclient.OpError{Op: "SendMessage", Endpoint: "e", Err: errors.New("connection refused")}

func (s *scripted) SendBatch(_ context.Context, ms []*rocketmqclient.Message) (results []rocketmqclient.SendResult, err error) {
	call := "send"
	for _, m := range ms {
		call += " " + string(m.Body)
	}
	s.calls = append(s.calls, call)
	errs := s.sends[0]
	s.sends = s.sends[1:]
	if errs == nil {
		return nil, errLost
	}
	for i, m := range ms {
		results = append(results, rocketmqclient.SendResult{MessageID: m.ID, TransactionID: "t" + string(m.Body), Err: errs[i]})
	}
	return results, nil
}

func (s *scripted) EndTransaction(_ context.Context, _ string, sent rocketmqclient.SendResult, _ bool) error {
	s.calls = append(s.calls, "commit "+sent.TransactionID)
	err := s.ends[0]
	s.ends = s.ends[1:]
	return err
}

// TestARequestIsMadeAgainWhereItFailed: what is stored is not sent again, what is
// committed not committed again, and what is refused for good is let be.
func TestARequestIsMadeAgainWhereItFailed(t *testing.T) {
	busy := &rocketmqclient.StatusError{Code: pb.Code_HA_NOT_AVAILABLE}
	refused := &rocketmqclient.StatusError{Code: pb.Code_MESSAGE_BODY_TOO_LARGE}
	for _, c := range []struct {
		name, kind string
		producer   scripted
		want       []string
		failed     []int
	}{
		{"stored", "normal", scripted{sends: [][]error{{nil, nil, nil}}}, []string{"send 0 1 2"}, nil},
		{"lost, then stored", "normal", scripted{sends: [][]error{nil, {nil, nil, nil}}}, []string{"send 0 1 2", "send 0 1 2"}, nil},
		{"one is refused for the moment", "normal", scripted{sends: [][]error{{nil, busy, nil}, {nil}}}, []string{"send 0 1 2", "send 1"}, nil},
		{"one is refused for good", "normal", scripted{sends: [][]error{{busy, refused, nil}, {nil}}}, []string{"send 0 1 2", "send 0"}, []int{1}},
		{"a commit is lost", "transaction", scripted{sends: [][]error{{nil, busy, nil}, {nil}}, ends: []error{errLost, nil, nil, nil}},
			[]string{"send 0 1 2", "commit t0", "commit t2", "send 1", "commit t0", "commit t1"}, nil},
		{"a commit is refused for good", "transaction", scripted{sends: [][]error{{nil, refused, nil}}, ends: []error{refused, nil}},
			[]string{"send 0 1 2", "commit t0", "commit t2"}, []int{0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRequest(&kindFlags{kind: c.kind}, "orders", 3)
			for i, m := range r.messages {
				m.Body = fmt.Append(nil, i)
			}
			tries := 1
			for ; r.try(t.Context(), &c.producer) != nil; tries++ {
				if tries > 5 {
					t.Fatal("it is never done")
				}
			}
			if !slices.Equal(c.producer.calls, c.want) || len(c.producer.sends)+len(c.producer.ends) > 0 {
				t.Errorf("%q, want %q", c.producer.calls, c.want)
			}
			for i := range r.results {
				if failed := slices.Contains(c.failed, i); r.stage[i] != done || (r.results[i].Err != nil) != failed {
					t.Errorf("message %d: stage %d, %v", i, r.stage[i], r.results[i].Err)
				}
			}
		})
	}
}
