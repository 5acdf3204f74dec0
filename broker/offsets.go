package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// A consumer group has one progress in a queue, however its clients consume. Those
// that receive move it by acknowledgements; those that pull move it by SetOffset,
// which is a reset of the queue to that offset (see ResetGroup). A group whose
// clients do both loses nothing: every message is received until it is acknowledged
// or an offset behind it is set. But each offset that is set voids what others of the
// group have in hands there, and pulling hides nothing from them.

// Extent is the range of offsets that a queue holds: from First up to Next.
type Extent struct{ First, Next uint64 }

// OffsetError says that an offset is outside of what a queue holds.
type OffsetError struct {
	Queue  int
	Offset uint64
	Extent
}

// Error names the offset and what is legal.
func (e *OffsetError) Error() string {
	return fmt.Sprintf("offset %d is outside of queue %d, which holds %d to %d", e.Offset, e.Queue, e.First, e.Next)
}

// Nearest returns the legal offset that is nearest to the one given.
func (e *OffsetError) Nearest() uint64 { return min(max(e.Offset, e.First), e.Next) }

// queueAt is a queue as it was at one moment.
type queueAt struct {
	topic *topic
	q     *topicQueue
	n     int
}

// extent returns what can be read of the queue.
func (q *queueAt) extent() Extent {
	next := q.q.index.Next()
	first := min(q.q.index.First(), next)
	if carried := q.q.carried.all(); len(carried) > 0 {
		first = min(first, carried[0].offset)
	}
	return Extent{first, next}
}

// check returns KindOffset with an *OffsetError for an offset that is neither held
// nor the next.
func (q *queueAt) check(op string, offset uint64) error {
	if e := q.extent(); offset < e.First || offset > e.Next {
		return &Error{Op: op, Kind: KindOffset, Topic: q.topic.name, Err: &OffsetError{Queue: q.n, Offset: offset, Extent: e}}
	}
	return nil
}

// queue finds a queue of a topic that lands here.
func (b *Broker) queue(op string, t zone.Topic, n int) (queueAt, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	topic := b.state.topics[t]
	switch {
	case topic == nil && isDeadLetter(t):
		return queueAt{}, &Error{Op: op, Kind: KindTopicUnknown, Topic: t, Text: "nothing was given up there"}
	case topic == nil:
		return queueAt{}, &Error{Op: op, Kind: KindTopicUnknown, Topic: t, Text: "the topic does not land here"}
	case n < 0 || n >= len(topic.queues):
		return queueAt{}, &Error{Op: op, Kind: KindInvalid, Topic: t,
			Text: fmt.Sprintf("queue %d; broker %s has the queues 0 to %d of the topic", n, b.self, len(topic.queues)-1)}
	}
	return queueAt{topic, topic.queues[n], n}, nil
}

// offset is Offset for a queue of this broker.
func (b *Broker) offset(g zone.ConsumerGroup, t zone.Topic, queue int) (uint64, error) {
	const op = "get offset"
	if err := b.ready(op); err != nil {
		return 0, err
	}
	if err := b.mayConsume(op, subKey{g, t}); err != nil {
		return 0, err
	}
	if _, err := b.queue(op, t, queue); err != nil {
		return 0, err
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	floor, ok := b.state.progress.Floor(g, t, uint16(queue))
	if !ok {
		return 0, &Error{Op: op, Kind: KindNoOffset, Group: g, Topic: t, Text: "the group has no offset here yet"}
	}
	return floor, nil
}

// setOffset is SetOffset for a queue of this broker.
func (b *Broker) setOffset(ctx context.Context, g zone.ConsumerGroup, t zone.Topic, queue int, offset uint64) error {
	const op = "set offset"
	if err := b.ready(op); err != nil {
		return err
	}
	key := subKey{g, t}
	if err := b.mayConsume(op, key); err != nil {
		return err
	}
	q, err := b.queue(op, t, queue)
	if err != nil {
		return err
	}
	if err := q.check(op, offset); err != nil {
		return err
	}
	subscribed, there := b.standsAt(key, uint16(queue), offset)
	if there {
		return nil // many clients repeat themselves
	}
	if !subscribed {
		if err := b.createSubscription(ctx, op, key); err != nil {
			return err
		}
	}
	return b.setOffsets(ctx, op, &offsetsBody{key: key, incarnation: q.topic.first, queues: []queueOffset{{queue, offset}}})
}

// standsAt reports whether there is such a subscription, and whether setting the
// offset of the queue would change nothing: neither what is logged nor what
// consumers have in hands or have settled since.
func (b *Broker) standsAt(key subKey, queue uint16, offset uint64) (subscribed, there bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	sub := b.state.subs[key]
	if sub == nil {
		return false, false
	}
	if !b.state.progress.StandsAt(key.group, key.topic, queue, offset) {
		return true, false
	}
	return true, sub.hands == nil || sub.hands.disp.StandsAt(queue, offset)
}

// Clients may set offsets as often as they like, so on a full disk they may take the
// space that the log keeps back, which acknowledgements need, only at a rate: a record
// has some 200 bytes, so that 10 a second take 64 MiB in nine hours.
const (
	offsetsOnFull = 10 // a second
	offsetsAtOnce = 50
)

// setOffsets logs a reset and waits until it is folded. On a full disk it uses the space
// that the log keeps back, as other progress, but not at any rate.
func (b *Broker) setOffsets(ctx context.Context, call string, o *offsetsBody) error {
	if err := b.enter(call); err != nil {
		return err
	}
	defer b.leave()
	e, err := b.control(record.TypeOffsets, o.append(nil))
	if err == nil {
		err = b.appendWait(ctx, &op{batch: commitlog.Batch{Entries: []commitlog.Entry{e}}})
	}
	if errors.Is(err, commitlog.ErrFull) {
		if !b.offsetsFull.Allow() {
			return &Error{Op: call, Kind: KindDiskFull, Group: o.key.group, Topic: o.key.topic,
				Text: fmt.Sprintf("the disk is full: %d offsets a second are set here until it is not; try again", offsetsOnFull)}
		}
		err = b.appendWait(ctx, &op{batch: commitlog.Batch{Entries: []commitlog.Entry{e}, Reserved: true}})
	}
	if err != nil {
		return &Error{Op: call, Kind: kindOfLog(err), Group: o.key.group, Topic: o.key.topic, Err: err}
	}
	return nil
}

// Where is a place in a queue in words.
type Where uint8

// The places.
const (
	WhereEarliest Where = iota + 1 // the oldest message that is held
	WhereLatest                    // behind the newest
	WhereTime                      // the first that was stored here at or after a time
	WhereOffset                    // an offset
)

// findOffset returns the offset of a place in a queue.
func (b *Broker) findOffset(ctx context.Context, op string, q *queueAt, w Where, at time.Time) (uint64, error) {
	e := q.extent()
	switch w {
	case WhereEarliest:
		return e.First, nil
	case WhereLatest:
		return e.Next, nil
	case WhereTime:
	default:
		return 0, &Error{Op: op, Kind: KindInvalid, Topic: q.topic.name, Text: "no such place"}
	}
	offset, err := b.offsetAt(ctx, q, e, at)
	if err != nil {
		return 0, &Error{Op: op, Kind: kindOfLog(err), Topic: q.topic.name, Err: err}
	}
	return offset, nil
}

// offsetAt returns the first offset whose message was stored at or after the time,
// the next one when there is none. Whole segments are passed over by their times.
func (b *Broker) offsetAt(ctx context.Context, q *queueAt, e Extent, at time.Time) (uint64, error) {
	times, err := b.log.SegmentTimes(ctx)
	if err != nil {
		return 0, err
	}
	var from record.Position
	for _, s := range times {
		if s.Last.IsZero() || !s.Last.Before(at) {
			break
		}
		from = s.End
	}
	lo, _, err := q.q.index.Search(from)
	if err != nil {
		return 0, err
	}
	for lo, hi := max(lo, e.First), e.Next; ; {
		if lo >= hi {
			return lo, nil
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		mid := lo + (hi-lo)/2
		stored, err := b.storedAt(q.q, mid)
		switch {
		case err == nil && !stored.Before(at):
			hi = mid
		case err == nil, isGone(err, mid): // trimmed meanwhile: older than everything
			lo = mid + 1
		default:
			return 0, err
		}
	}
}

// isGone reports whether a read of the offset failed because it was trimmed.
func isGone(err error, offset uint64) bool {
	var outside *queue.RangeError
	return errors.Is(err, commitlog.ErrTrimmed) || (errors.As(err, &outside) && offset < outside.First)
}

// storedAt returns when the message at the offset was stored in this log.
func (b *Broker) storedAt(q *topicQueue, offset uint64) (time.Time, error) {
	e, err := q.get(offset)
	if err != nil {
		return time.Time{}, err
	}
	entry, err := b.readEntry(q, offset, e)
	if err != nil {
		return time.Time{}, err
	}
	if entry.Kind == commitlog.KindLanding {
		var env record.Envelope
		_, err := record.ParseEnvelope(entry.Envelope, &env)
		return env.Landed, err
	}
	v, err := recordOf(&entry)
	if err != nil {
		return time.Time{}, err
	}
	return v.Stored(), nil // a carried letter keeps its time
}
