package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// benchPatience bounds a request of a load, and how long one that nobody answers, or that
// is refused for the moment, is made again: a saturated broker takes seconds to answer,
// and a broker group as long to have another master.
const benchPatience = 30 * time.Second

// request is messages that are sent, and committed if they are halves, with one call each
// time, until each is stored or refused for good. Its memory is used again for the next.
type request struct {
	kind     *kindFlags
	messages []*rocketmqclient.Message // of one topic
	results  []rocketmqclient.SendResult
	stage    []requestStage // of each message

	at    []int                     // of the messages that try sends
	batch []*rocketmqclient.Message // likewise
}

// requestStage is how far a message of a request is.
type requestStage int

const (
	unsent requestStage = iota
	half                // stored and to be committed
	done                // stored, or refused for good
)

func newRequest(kind *kindFlags, topic string, n int) *request {
	r := &request{kind: kind, messages: make([]*rocketmqclient.Message, n), results: make([]rocketmqclient.SendResult, n), stage: make([]requestStage, n)}
	for i := range r.messages {
		r.messages[i] = &rocketmqclient.Message{Topic: topic}
	}
	return r
}

// send sends the messages by way of a producer that outlives its brokers. Each has its id
// over all calls: a topic that says idempotent stores it once, any other as often as it
// was sent, if answers were lost. It returns the number of calls; what became of each
// message is in results.
func (r *request) send(ctx context.Context, p *persistent[*rocketmqclient.Producer], ids *rocketmqclient.IDs) (calls int) {
	for i, m := range r.messages {
		m.ID = ids.Next()
		r.results[i], r.stage[i] = rocketmqclient.SendResult{}, unsent
		if r.kind.kind == "fifo" {
			m.MessageGroup = r.messages[0].MessageGroup // as the protocol asks of one request
		}
	}
	calls, err := p.do(ctx, func(ctx context.Context, p *rocketmqclient.Producer) error { return r.try(ctx, p) })
	for i := range r.results {
		if r.stage[i] != done && r.results[i].Err == nil {
			r.results[i].Err = fmt.Errorf("not answered: %w", err)
		}
	}
	return calls
}

// requester is what try needs of a producer.
type requester interface {
	SendBatch(ctx context.Context, ms []*rocketmqclient.Message) ([]rocketmqclient.SendResult, error)
	EndTransaction(ctx context.Context, topic string, sent rocketmqclient.SendResult, commit bool) error
}

// try sends once what is not stored, and commits what is. The error is one after which
// it is to be called again.
func (r *request) try(ctx context.Context, p requester) (again error) {
	r.at, r.batch = r.at[:0], r.batch[:0]
	for i, m := range r.messages {
		if r.stage[i] == unsent {
			r.at, r.batch = append(r.at, i), append(r.batch, m)
		}
	}
	if len(r.batch) > 0 {
		results, err := p.SendBatch(ctx, r.batch)
		if err != nil {
			r.fail(r.at, err)
			return err
		}
		for k, i := range r.at {
			r.results[i] = results[k]
			if r.after(i, results[k].Err, half) {
				again = results[k].Err
			}
		}
	}
	for i := range r.messages {
		if r.stage[i] == half {
			err := p.EndTransaction(ctx, r.messages[i].Topic, r.results[i], true)
			r.results[i].Err = err
			if r.after(i, err, done) {
				again = err
			}
		}
	}
	return again
}

// after notes the answer to a step of a message, and whether the step is to be made again.
func (r *request) after(i int, err error, next requestStage) (again bool) {
	switch {
	case err == nil && (next == done || r.kind.kind != "transaction"):
		r.stage[i] = done
	case err == nil:
		r.stage[i] = next
	case final(err):
		r.stage[i] = done
	default:
		return true
	}
	return false
}

// fail notes that messages were not answered, or are refused for good.
func (r *request) fail(at []int, err error) {
	for _, i := range at {
		r.results[i].Err = err
		if final(err) {
			r.stage[i] = done
		}
	}
}
