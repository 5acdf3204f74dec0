package broker

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// QueueName names a queue of a topic at a broker of this zone.
type QueueName struct {
	Broker zone.Group // empty = this one
	Topic  zone.Topic // a topic, or a dead-letter topic
	Queue  int
}

// Offset returns the offset below which the group has settled everything in the
// queue: where a client that pulls goes on. What was acknowledged within the last
// Limits.ProgressDelay may be missing in it. KindNoOffset when the group never
// consumed the topic there.
func (b *Broker) Offset(ctx context.Context, g zone.ConsumerGroup, q QueueName) (uint64, error) {
	if b.hasQueue(&q) {
		return b.offset(g, q.Topic, q.Queue)
	}
	return b.askOffset(ctx, q.Broker, &offsetCall{what: offsetGet, group: g, queue: q})
}

// SetOffset makes the group go on at the offset in the queue, as ResetGroup does.
// It is durable at nil. KindOffset when the queue does not hold the offset. A group
// that the topology does not declare begins with it, at the newest message of the
// topic's other queues.
func (b *Broker) SetOffset(ctx context.Context, g zone.ConsumerGroup, q QueueName, offset uint64) error {
	if b.hasQueue(&q) {
		return b.setOffset(ctx, g, q.Topic, q.Queue, offset)
	}
	_, err := b.askOffset(ctx, q.Broker, &offsetCall{what: offsetSet, group: g, queue: q, offset: offset})
	return err
}

// FindOffset returns the offset of a place in a queue. A time is compared with when
// messages were stored in the broker's log (of a message that came from another group:
// when it landed). The search halves the queue, so near a moment at which the clock
// was set back it finds one of the places that fit.
func (b *Broker) FindOffset(ctx context.Context, q QueueName, w Where, at time.Time) (uint64, error) {
	if !b.hasQueue(&q) {
		return b.askOffset(ctx, q.Broker, &offsetCall{what: offsetFind, queue: q, where: w, time: at})
	}
	const op = "query offset"
	if err := b.ready(op); err != nil {
		return 0, err
	}
	at1, err := b.queue(op, q.Topic, q.Queue)
	if err != nil {
		return 0, err
	}
	return b.findOffset(ctx, op, &at1, w, at)
}

// hasQueue reports whether the queue is one of this broker.
func (b *Broker) hasQueue(q *QueueName) bool { return q.Broker == "" || q.Broker == b.self }

// What an offsetCall asks. The values travel between brokers.
const (
	offsetGet = iota + 1
	offsetSet
	offsetFind
)

// offsetCall is the body of a CallOffset: what u8, group str, topic str, queue uvarint,
// offset uvarint, where u8, time ms u64. Its answer is the offset, a uvarint.
type offsetCall struct {
	what   byte
	group  zone.ConsumerGroup
	queue  QueueName
	offset uint64
	where  Where
	time   time.Time
}

func (c *offsetCall) append(dst []byte) []byte {
	e := encoder{b: dst}
	e.byte(c.what)
	e.str(string(c.group))
	e.str(string(c.queue.Topic))
	e.uint(uint64(max(c.queue.Queue, 0)))
	e.uint(c.offset)
	e.byte(byte(c.where))
	e.u64(uint64(c.time.UnixMilli()))
	return e.b
}

func parseOffsetCall(b []byte) (*offsetCall, bool) {
	d := decoder{b: b}
	c := &offsetCall{what: d.byte(), group: zone.ConsumerGroup(d.str())}
	c.queue.Topic, c.queue.Queue = zone.Topic(d.str()), int(min(d.uint(), maxQueues))
	c.offset, c.where, c.time = d.uint(), Where(d.byte()), time.UnixMilli(int64(d.u64()))
	return c, d.ok()
}

// askOffset asks the group of this zone that has the queue.
func (b *Broker) askOffset(ctx context.Context, group zone.Group, c *offsetCall) (uint64, error) {
	if err := b.ready("offset"); err != nil {
		return 0, err
	}
	answer, err := b.call(ctx, group, CallOffset, c.append(nil))
	if err != nil {
		return 0, err
	}
	offset, n := binary.Uvarint(answer)
	if n <= 0 || n != len(answer) {
		return 0, &Error{Op: "offset", Kind: KindInternal, Topic: c.queue.Topic, Text: "the answer of group " + string(group) + " is malformed"}
	}
	return offset, nil
}

// serveOffset answers the call of another group.
func (b *Broker) serveOffset(ctx context.Context, body []byte) ([]byte, error) {
	c, ok := parseOffsetCall(body)
	if !ok {
		return nil, &Error{Op: "offset", Kind: KindInvalid, Text: "the call is malformed"}
	}
	var offset uint64
	var err error
	switch c.what {
	case offsetGet:
		offset, err = b.Offset(ctx, c.group, c.queue)
	case offsetSet:
		err = b.SetOffset(ctx, c.group, c.queue, c.offset)
	case offsetFind:
		offset, err = b.FindOffset(ctx, c.queue, c.where, c.time)
	default:
		err = &Error{Op: "offset", Kind: KindUnsupported, Text: "the call asks for what this version does not know"}
	}
	return binary.AppendUvarint(nil, offset), err
}
