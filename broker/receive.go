package broker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// minInvisible is the shortest invisible time: less would have a message back
// before its consumer could see it.
const minInvisible = 10 * time.Millisecond

// Receive returns messages for the consumer group and hides them from others
// for the invisible time. It waits for at least one message; it returns none
// and no error when the wait is over. A message that expires unacknowledged is
// delivered again, and goes to the dead-letter topic after the group's maximum
// of deliveries. It costs no goroutine while it waits. KindBusy when there is a
// message, and no room for it.
//
// Messages that the filter excludes are settled for the group. Messages of a
// dead-letter topic have no maximum of deliveries.
//
// Of a FIFO topic, a group that reads in order (zone.Topology.InOrder) gets one
// message of each message group at a time. There a repeated AttemptID of a client
// brings what it has in hands under it once more, with new handles.
func (b *Broker) Receive(ctx context.Context, r ReceiveRequest) ([]Delivery, error) {
	if err := b.ready("receive"); err != nil {
		return nil, err
	}
	r.Max = min(max(r.Max, 1), b.limits.MaxReceive)
	r.Invisible = min(max(r.Invisible, minInvisible), b.limits.MaxInvisible)
	h, err := b.subscriptionFor(ctx, "receive", r.Group, r.Topic)
	if err != nil {
		return nil, err
	}
	if h.lite != nil {
		h.lite.heard(r.ClientID, b.now())
	}
	attempt := h.begin(&r)
	defer h.end(attempt)
	deadline := time.NewTimer(max(r.Wait, 0))
	defer deadline.Stop()
	var woken *consumer.Waiter // whose wake-up the next look uses
	for {
		// In line before the look, so that nothing can come unseen between.
		w := h.disp.WaitFor(r.ClientID)
		list, more, err := b.take(ctx, h, &r, attempt)
		if woken != nil {
			woken.Stop() // only now: before, it would wake another for the same message
		}
		if err != nil {
			w.Stop()
			return nil, err
		}
		if len(list) > 0 || (r.Wait <= 0 && !more) || h.outdated(attempt) {
			w.Stop()
			return list, nil
		}
		if more && ctx.Err() == nil {
			w.Stop()
			if r.Wait > 0 && over(deadline.C) {
				return nil, nil
			}
			woken = nil
			continue // the filter let none of those through that were looked at
		}
		if err = b.waitTurn(ctx, h, w, deadline.C); err != nil {
			w.Stop()
			if errors.Is(err, errWaitOver) {
				err = nil
			}
			return nil, err
		}
		if b.handsOf(h.sub.key) != h {
			w.Stop()
			return nil, &Error{Op: "receive", Kind: KindBusy, Group: r.Group, Topic: r.Topic, Text: "the subscription changed"}
		}
		woken = w
	}
}

func over(deadline <-chan time.Time) bool {
	select {
	case <-deadline:
		return true
	default:
		return false
	}
}

var errWaitOver = errors.New("wait is over")

func (b *Broker) waitTurn(ctx context.Context, h *hands, w *consumer.Waiter, deadline <-chan time.Time) error {
	select {
	case <-w.C():
		return nil
	case <-deadline:
		return errWaitOver
	case <-h.gone:
		return errWaitOver
	case <-ctx.Done():
		return ctx.Err()
	case <-b.failed:
		return &Error{Op: "receive", Kind: KindStopped, Err: b.failErr}
	case <-b.ctx.Done():
		return &Error{Op: "receive", Kind: KindClosed}
	}
}

// taker reads what the dispatcher offers.
type taker struct {
	b      *Broker
	h      *hands
	r      *ReceiveRequest
	ctx    context.Context // of the receive
	hashes []uint32        // of the filter's tags; nil = it is not by tag
	queues []*topicQueue
	marks  *map[uint16]uint64 // of before the take: a handle is never newer than its delivery
	bytes  int
	full   bool          // there was no room for a message
	read   []record.View // what was let through, in the order of the answers
}

// newTaker returns a taker for a look at the queues of a topic.
func newTaker(ctx context.Context, b *Broker, h *hands, r *ReceiveRequest, queues []*topicQueue) *taker {
	return &taker{b: b, h: h, r: r, ctx: ctx, hashes: r.Filter.tagHashes(), marks: h.marks.Load(), queues: queues}
}

// take takes what is there. more says that it stopped early.
func (b *Broker) take(ctx context.Context, h *hands, r *ReceiveRequest, attempt *consumer.Attempt) ([]Delivery, bool, error) {
	if err := b.enter("receive"); err != nil {
		return nil, false, err
	}
	defer b.leave()
	if h.retired {
		return nil, false, &Error{Op: "receive", Kind: KindBusy, Group: r.Group, Topic: r.Topic, Text: "the order of the topic changed"}
	}
	b.mu.RLock()
	queues := slices.Clone(h.topic.queues)
	b.mu.RUnlock()
	t := newTaker(ctx, b, h, r, queues)
	now := b.now()
	got, more := h.disp.Take(consumer.TakeRequest{
		Now: now, Max: r.Max, Invisible: r.Invisible, Renew: r.Renew, Client: r.ClientID, Link: r.Link, Match: t.match,
		Key: t.key, Attempt: attempt,
	}, nil)
	poke(b.kick) // the filter may have settled some, an expiry is due later
	list := make([]Delivery, 0, len(got))
	for i := range got {
		list = append(list, t.delivery(&got[i], t.read[i]))
	}
	if t.full && len(list) == 0 {
		return nil, false, noRoom("receive", r.Group, r.Topic)
	}
	b.metrics.received(len(list))
	return list, more, nil
}

// noRoom refuses a call whose first message has no room.
func noRoom(op string, g zone.ConsumerGroup, t zone.Topic) error {
	return &Error{Op: op, Kind: KindBusy, Group: g, Topic: t, Text: "clients have not read what they were sent before; there is no room for more"}
}

// match looks at a message: first at the hash of its tag, which costs no
// read of the log, if the filter is by tag, then at the message itself.
func (t *taker) match(q uint16, offset uint64) consumer.Verdict {
	if int(q) >= len(t.queues) {
		return consumer.Later
	}
	e, err := t.queues[q].get(offset)
	if err != nil {
		return t.unreadable(q, offset, err)
	}
	if e.Label == markLabel || (t.hashes != nil && e.Label != groupLabel && !slices.Contains(t.hashes, e.Hash)) {
		return consumer.Skip
	}
	if t.h.ofLite && e.Label == groupLabel {
		if _, alive := t.b.liteKey(t.h.topic, e.Hash, offset); !alive {
			return consumer.Skip
		}
	}
	if t.r.Filter.SQL != nil && t.ctx.Err() != nil {
		return consumer.Stop // each costs a read of the log and an evaluation
	}
	if t.r.Room == nil {
		return t.look(q, offset, e)
	}
	if !t.r.Room.Take(int(e.Size)) {
		t.full = true
		return consumer.Stop
	}
	verdict := t.look(q, offset, e)
	if verdict != consumer.Deliver {
		t.r.Room.Give(int(e.Size))
	}
	return verdict
}

// look reads a message.
func (t *taker) look(q uint16, offset uint64, e queue.Entry) consumer.Verdict {
	v, err := t.b.readMessage(t.queues[q], offset, e)
	if err != nil {
		return t.unreadable(q, offset, err)
	}
	if !t.r.Filter.Matches(&v) {
		return consumer.Skip
	}
	if !meantFor(v, t.r.Group) {
		return consumer.Skip
	}
	if t.r.MaxBytes > 0 && len(t.read) > 0 && t.bytes+len(v.Body()) > t.r.MaxBytes {
		return consumer.Stop
	}
	t.bytes += len(v.Body())
	t.read = append(t.read, v)
	return consumer.Deliver
}

// unreadable settles what is trimmed, which is counted, and has everything
// else tried again later: damage is reported, never skipped.
func (t *taker) unreadable(q uint16, offset uint64, err error) consumer.Verdict {
	var outside *queue.RangeError
	if errors.Is(err, commitlog.ErrTrimmed) || (errors.As(err, &outside) && offset < outside.First) {
		t.b.metrics.trimmedUnread()
		return consumer.Skip
	}
	t.b.metrics.unreadable()
	if missed, ok := t.b.damage.Allow(time.Now()); ok {
		t.b.logger.Error("message cannot be read", "topic", string(t.h.topic.name), "queue", q, "seq", offset, "suppressed", missed, "err", err)
	}
	return consumer.Later
}

func (t *taker) delivery(got *consumer.Taken, v record.View) Delivery {
	return Delivery{
		Record: v, Topic: t.h.topic.name, Queue: int(got.Queue), Offset: int64(got.Offset),
		Attempt: int(got.Attempt), Invisible: t.r.Invisible, Stored: v.Stored(),
		Handle: t.b.handle(t.h, t.marks, got.Queue, got.Offset, got.Delivery),
	}
}

func (b *Broker) handle(h *hands, marks *map[uint16]uint64, q uint16, offset, delivery uint64) string {
	return b.sealer.Seal(consumer.Handle{
		Incarnation: b.log.Incarnation(), Group: consumer.HashGroup(h.sub.key.group), Topic: h.handleID(marks, q),
		Queue: q, Offset: offset, Delivery: delivery,
	})
}

// readRecord reads the record of an index entry.
func (b *Broker) readRecord(e queue.Entry) (record.View, error) {
	entry, err := b.log.ReadAt(e.Position, int(e.Size))
	if err != nil {
		return record.View{}, err
	}
	return recordOf(&entry)
}

// recordOf parses the record of an entry; of one that carries another, that one.
func recordOf(e *commitlog.Entry) (record.View, error) {
	v, err := record.Parse(e.Record)
	if err != nil {
		return v, err
	}
	return unwrap(v)
}
