package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// EveryQueue as ResetRequest.Queue stands for all queues of the topic.
const EveryQueue = -1

// ResetRequest asks to have a consumer group go on elsewhere in a topic.
type ResetRequest struct {
	Group   zone.ConsumerGroup
	Topic   zone.Topic // a topic, or a dead-letter topic
	Queue   int        // EveryQueue, or one
	To      Where
	Time    time.Time // of WhereTime
	Offset  uint64    // of WhereOffset
	Preview bool      // say what would happen, and do nothing
}

// ResetQueue is what a reset does in a queue.
type ResetQueue struct {
	Queue    int
	From, To uint64 // offset below which everything was settled, and will be
	Again    uint64 // messages that were settled and come again
	Skipped  uint64 // messages that were not settled and never come
	InHands  int    // messages from To on that consumers had, or that waited for a retry; they come again
	Extent
}

// ResetGroup has a consumer group go on elsewhere: everything below the place is
// settled for it, nothing from there on. It is one record of the log, for all queues,
// and is durable at nil. It works while consumers are connected: what they have in
// hands counts no more, so an acknowledgement of before the reset is refused
// (KindHandle), and the message comes again, with its attempts counted anew, or not
// at all. Only a message that is on its way to the dead-letter topic at that moment
// may be there and come again, too.
//
// What the results say was true when the reset was prepared; consumers may have gone
// on until it was folded, and what they acknowledged within the last
// Limits.ProgressDelay may count as not consumed.
func (b *Broker) ResetGroup(ctx context.Context, r ResetRequest) ([]ResetQueue, error) {
	const op = "reset"
	if err := b.ready(op); err != nil {
		return nil, err
	}
	key := subKey{r.Group, r.Topic}
	if ownGroup(key.group) || key.group == "" {
		return nil, &Error{Op: op, Kind: KindInvalid, Group: r.Group, Topic: r.Topic, Text: "no such consumer group"}
	}
	queues, err := b.resetQueues(key, r.Queue)
	if err != nil {
		return nil, err
	}
	body := &offsetsBody{key: key, incarnation: queues[0].topic.first}
	list := make([]ResetQueue, 0, len(queues))
	for i := range queues {
		to, err := b.resetTo(ctx, &queues[i], &r)
		if err != nil {
			return nil, err
		}
		list = append(list, b.previewReset(key, &queues[i], to))
		body.queues = append(body.queues, queueOffset{queues[i].n, to})
	}
	if r.Preview {
		return list, nil
	}
	if err := b.setOffsets(ctx, op, body); err != nil {
		return nil, err
	}
	b.logger.Info("consumer group goes on elsewhere", "group", string(r.Group), "topic", string(r.Topic), "queues", len(list))
	return list, nil
}

// resetQueues returns the queues that a reset is for, at least one.
func (b *Broker) resetQueues(key subKey, queue int) ([]queueAt, error) {
	refuse := func(kind Kind, text string) ([]queueAt, error) {
		return nil, &Error{Op: "reset", Kind: kind, Group: key.group, Topic: key.topic, Text: text}
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	sub := b.state.subs[key]
	switch {
	case b.state.topics[key.topic] == nil:
		return refuse(KindTopicUnknown, "the topic does not land here")
	case sub == nil:
		return refuse(KindGroupUnknown, "the consumer group does not consume the topic here")
	case sub.cache:
		return refuse(KindUnsupported, "the position of a cache's subscription lives in the cache")
	case queue != EveryQueue && (queue < 0 || queue >= len(sub.topic.queues)):
		return refuse(KindInvalid, fmt.Sprintf("queue %d; broker %s has the queues 0 to %d of the topic", queue, b.self, len(sub.topic.queues)-1))
	}
	var list []queueAt
	for n, q := range sub.topic.queues {
		if queue == EveryQueue || n == queue {
			list = append(list, queueAt{sub.topic, q, n})
		}
	}
	return list, nil
}

// resetTo returns the offset that the request means in the queue.
func (b *Broker) resetTo(ctx context.Context, q *queueAt, r *ResetRequest) (uint64, error) {
	if r.To == WhereOffset {
		return r.Offset, q.check("reset", r.Offset)
	}
	return b.findOffset(ctx, "reset", q, r.To, r.Time)
}

// previewReset counts what a reset to the offset changes.
func (b *Broker) previewReset(key subKey, q *queueAt, to uint64) ResetQueue {
	e := q.extent()
	r, h := b.countReset(key, q, to, e)
	if h != nil {
		r.InHands = h.disp.InHands(uint16(q.n), to)
	}
	return r
}

func (b *Broker) countReset(key subKey, q *queueAt, to uint64, e Extent) (ResetQueue, *hands) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	p := b.state.progress
	unsettled := func(end uint64) uint64 { return p.Lag(key.group, key.topic, uint16(q.n), end) }
	r := ResetQueue{Queue: q.n, To: to, Extent: e}
	r.From, _ = p.Floor(key.group, key.topic, uint16(q.n))
	if to > e.First {
		r.Skipped = unsettled(to) - unsettled(e.First) // below, they are gone anyway
	}
	if e.Next > to {
		r.Again = (e.Next - to) - (unsettled(e.Next) - unsettled(to))
	}
	if sub := b.state.subs[key]; sub != nil {
		return r, sub.hands
	}
	return r, nil
}
