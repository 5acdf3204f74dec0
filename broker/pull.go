package broker

import (
	"context"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/zone"
)

// maxPulled bounds the messages that one Pull looks at under a filter that matches
// little: the client goes on from Pulled.Next.
const maxPulled = 16 << 10

// PullRequest asks for the messages of a queue from an offset on.
type PullRequest struct {
	Group    zone.ConsumerGroup // whose permission counts, and who gets what was replayed for it
	Topic    zone.Topic         // a topic, or a dead-letter topic
	Queue    int
	Offset   uint64
	Filter   Filter
	Max      int           // at most so many messages; below 1 is as 1
	MaxBytes int           // stop before this many body bytes, but return at least one message; 0 = no bound
	Wait     time.Duration // how long to wait for the first message
	Room     Room          // of the bytes of what is read; nil = no bound
}

// Pulled is what a pull found.
type Pulled struct {
	Messages []Delivery // without handles: there is nothing to settle
	Next     uint64     // the offset to go on from; behind what the filter left out
}

// Pull returns messages of a queue from an offset on, and waits for the first. It
// returns none and no error when the wait is over, or when it has looked at many that
// the filter left out. It changes nothing: no message is hidden from others or counts
// as delivered, and the group's offset stays where it is (SetOffset).
//
// KindOffset with an *OffsetError when the queue does not hold the offset: it was
// trimmed, or was never given out. A waiting Pull costs a timer and a channel, no
// goroutine.
func (b *Broker) Pull(ctx context.Context, r PullRequest) (Pulled, error) {
	const op = "pull"
	if err := b.ready(op); err != nil {
		return Pulled{}, err
	}
	if err := b.mayConsume(op, subKey{r.Group, r.Topic}); err != nil {
		return Pulled{}, err
	}
	q, err := b.queue(op, r.Topic, r.Queue)
	if err != nil {
		return Pulled{}, err
	}
	r.Max = min(max(r.Max, 1), b.limits.MaxReceive)
	out := Pulled{Next: r.Offset}
	deadline := time.NewTimer(max(r.Wait, 0))
	defer deadline.Stop()
	for {
		// The channel before the look, so that nothing can come unseen between.
		grown, ok := b.grown(&q)
		if !ok {
			return Pulled{}, &Error{Op: op, Kind: KindBusy, Group: r.Group, Topic: r.Topic, Text: "the topic changed"}
		}
		if err := q.check(op, out.Next); err != nil {
			return Pulled{}, err
		}
		more, err := b.pull(ctx, &q, &r, &out)
		if err != nil || len(out.Messages) > 0 || more || r.Wait <= 0 {
			return out, err
		}
		select {
		case <-grown:
		case <-deadline.C:
			return out, nil
		case <-ctx.Done():
			return out, ctx.Err()
		case <-b.failed:
			return out, &Error{Op: op, Kind: KindStopped, Err: b.failErr}
		case <-b.ctx.Done():
			return out, &Error{Op: op, Kind: KindClosed}
		}
	}
}

// grown returns a channel that closes when the queue's topic changes; false when the
// topic is gone.
func (b *Broker) grown(q *queueAt) (<-chan struct{}, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state.topics[q.topic.name] != q.topic {
		return nil, false
	}
	if q.topic.grown == nil {
		q.topic.grown = make(chan struct{})
	}
	return q.topic.grown, true
}

// pull reads what is there and moves out.Next over it. more says that it stopped
// early without a message.
func (b *Broker) pull(ctx context.Context, q *queueAt, r *PullRequest, out *Pulled) (more bool, err error) {
	b.mu.RLock()
	queues := slices.Clone(q.topic.queues)
	b.mu.RUnlock()
	t := newTaker(ctx, b, &hands{topic: q.topic}, &ReceiveRequest{Group: r.Group, Topic: r.Topic, Filter: r.Filter, MaxBytes: r.MaxBytes, Room: r.Room}, queues)
	next := q.q.index.Next()
	for examined := 0; out.Next < next && len(out.Messages) < r.Max; examined++ {
		if examined == maxPulled {
			return true, nil
		}
		switch t.match(uint16(q.n), out.Next) {
		case consumer.Deliver:
			v := t.read[len(t.read)-1]
			out.Messages = append(out.Messages, Delivery{Record: v, Topic: q.topic.name, Queue: q.n, Offset: int64(out.Next), Attempt: 1, Stored: v.Stored()})
		case consumer.Skip:
		case consumer.Stop:
			if t.full && len(out.Messages) == 0 {
				return false, noRoom("pull", r.Group, r.Topic)
			}
			return false, nil
		default:
			if len(out.Messages) > 0 {
				return false, nil
			}
			return false, &Error{Op: "pull", Kind: KindCorrupt, Topic: q.topic.name, Text: "the message at the offset cannot be read now"}
		}
		out.Next++
	}
	b.metrics.received(len(out.Messages))
	return false, nil
}
