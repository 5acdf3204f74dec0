package broker

import (
	"context"
	"errors"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// opened is a receipt handle that is of this store, group and topic.
type opened struct {
	hands *hands
	consumer.Handle
}

// openHandle checks whom the handle belongs to. A handle of a topic of that
// name that existed before is refused like a foreign one.
func (b *Broker) openHandle(op string, g zone.ConsumerGroup, t zone.Topic, text string) (opened, error) {
	if err := b.ready(op); err != nil {
		return opened{}, err
	}
	refuse := func(err error) (opened, error) {
		return opened{}, &Error{Op: op, Kind: KindHandle, Group: g, Topic: t, Err: err}
	}
	hd, err := b.sealer.Open(text)
	if err != nil {
		return refuse(err)
	}
	h := b.handsOf(subKey{g, t})
	if h == nil || hd.Incarnation != b.log.Incarnation() || hd.Group != consumer.HashGroup(g) {
		return refuse(&consumer.HandleError{Reason: consumer.ReasonForeign})
	}
	if marks := h.marks.Load(); hd.Topic != h.handleID(marks, hd.Queue) {
		if marks != nil && (*marks)[hd.Queue] != 0 {
			return refuse(&consumer.HandleError{Reason: consumer.ReasonReset})
		}
		return refuse(&consumer.HandleError{Reason: consumer.ReasonForeign})
	}
	return opened{hands: h, Handle: hd}, nil
}

// Ack settles a delivered message, as long as nobody else can have it: within
// its invisible time, and afterwards until it is delivered again. It is
// idempotent, except that a message that went to the dead-letter topic is
// refused (KindHandle). It returns before the acknowledgement is durable: a
// crash may deliver the last few again, a graceful Close does not.
func (b *Broker) Ack(ctx context.Context, g zone.ConsumerGroup, t zone.Topic, handle string) error {
	if err := b.enter("ack"); err != nil {
		return err
	}
	defer b.leave()
	hd, err := b.openHandle("ack", g, t, handle)
	if err != nil {
		return err
	}
	if err := hd.hands.disp.Ack(b.now(), hd.Queue, hd.Offset, hd.Delivery); err != nil {
		return &Error{Op: "ack", Kind: KindHandle, Group: g, Topic: t, Err: err}
	}
	b.metrics.acked()
	poke(b.kick)
	return nil
}

// ChangeInvisible makes the message visible again after d from now and returns
// the handle that replaces the one given.
func (b *Broker) ChangeInvisible(ctx context.Context, g zone.ConsumerGroup, t zone.Topic, handle string, d time.Duration) (string, error) {
	return b.changeInvisible(g, t, handle, d, (*consumer.Dispatcher).ChangeInvisible)
}

// Suspend is ChangeInvisible for a consumer that put the message off: the delivery
// does not count as an attempt.
func (b *Broker) Suspend(ctx context.Context, g zone.ConsumerGroup, t zone.Topic, handle string, d time.Duration) (string, error) {
	return b.changeInvisible(g, t, handle, d, (*consumer.Dispatcher).Suspend)
}

func (b *Broker) changeInvisible(g zone.ConsumerGroup, t zone.Topic, handle string, d time.Duration,
	change func(*consumer.Dispatcher, consumer.Instant, uint16, uint64, uint64, time.Duration) (uint64, error)) (string, error) {
	if err := b.enter("change invisible"); err != nil {
		return "", err
	}
	defer b.leave()
	hd, err := b.openHandle("change invisible", g, t, handle)
	if err != nil {
		return "", err
	}
	d = min(max(d, 0), b.limits.MaxInvisible)
	marks := hd.hands.marks.Load()
	delivery, err := change(hd.hands.disp, b.now(), hd.Queue, hd.Offset, hd.Delivery, d)
	if err != nil {
		return "", &Error{Op: "change invisible", Kind: KindHandle, Group: g, Topic: t, Err: err}
	}
	poke(b.kick)
	return b.handle(hd.hands, marks, hd.Queue, hd.Offset, delivery), nil
}

// EndRenewal renews a delivery of before no more (ReceiveRequest.Renew): its answer
// broke off behind it, so that it may not have arrived. The message comes again when its
// time is over; until then an acknowledgement counts, and a repeated attempt id brings it.
func (b *Broker) EndRenewal(ctx context.Context, g zone.ConsumerGroup, t zone.Topic, handle string) error {
	const op = "end renewal"
	if err := b.enter(op); err != nil {
		return err
	}
	defer b.leave()
	hd, err := b.openHandle(op, g, t, handle)
	if err == nil {
		err = hd.hands.disp.EndRenewal(b.now(), hd.Queue, hd.Offset, hd.Delivery)
	}
	if err != nil {
		return &Error{Op: op, Kind: KindHandle, Group: g, Topic: t, Err: err}
	}
	return nil
}

// DeadLetter moves a delivered message to the group's dead-letter topic: copy
// and settlement are one log record, so it is in one of both places whatever
// fails; when it fails, the message stays and is moved later. It returns when
// the copy is committed, and is idempotent.
func (b *Broker) DeadLetter(ctx context.Context, g zone.ConsumerGroup, t zone.Topic, handle string) error {
	if isDeadLetter(t) {
		return &Error{Op: "dead letter", Kind: KindInvalid, Group: g, Topic: t, Text: "the message is in a dead-letter topic already"}
	}
	done := make(chan error, 1)
	err := b.condemn(ctx, g, t, handle, func(err error) { done <- err })
	if err != nil {
		var he *consumer.HandleError
		if errors.As(err, &he) && (he.Reason == consumer.ReasonSettled || he.Reason == consumer.ReasonDeadLettered) {
			return nil
		}
		return err
	}
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return &Error{Op: "dead letter", Kind: kindOfLog(err), Group: g, Topic: t, Err: err}
	}
	return nil
}

// condemn takes the message out of delivery and begins to bury it.
func (b *Broker) condemn(ctx context.Context, g zone.ConsumerGroup, t zone.Topic, handle string, finished func(error)) error {
	if err := b.enter("dead letter"); err != nil {
		return err
	}
	defer b.leave()
	hd, err := b.openHandle("dead letter", g, t, handle)
	if err != nil {
		return err
	}
	dead, err := hd.hands.disp.Condemn(b.now(), hd.Queue, hd.Offset, hd.Delivery)
	if err != nil {
		return &Error{Op: "dead letter", Kind: KindHandle, Group: g, Topic: t, Err: err}
	}
	b.bury(ctx, hd.hands, dead, finished)
	return nil
}

// bury appends the dead-letter copy of a condemned message and tells the
// dispatcher what became of it. finished is called once and must not block.
func (b *Broker) bury(ctx context.Context, h *hands, d consumer.Dead, finished func(error)) {
	end := func(err error) {
		if err != nil {
			h.disp.DeadLetterFailed(b.now(), d.Queue, d.Offset)
		} else {
			h.disp.DeadLettered(d.Queue, d.Offset)
			b.metrics.deadLettered()
		}
		finished(err)
	}
	e, err := b.deadCopy(h, d)
	o := &op{finished: end}
	var outside *queue.RangeError
	switch {
	case errors.Is(err, commitlog.ErrTrimmed), errors.As(err, &outside) && d.Offset < outside.First:
		b.metrics.trimmedUnread() // nothing is left to copy: it is settled like an acknowledgement
		o = b.sealOp(o, record.TypeProgress, settledBody(h, d))
	case err != nil:
		b.logger.Warn("dead letter cannot be copied, trying again", "group", string(h.sub.key.group), "topic", string(h.topic.name),
			"queue", d.Queue, "seq", d.Offset, "err", err)
		end(err)
		return
	default:
		o.batch.Entries = []commitlog.Entry{e}
	}
	if o == nil {
		return
	}
	if err := b.append(ctx, o); err != nil {
		end(err)
	}
}

// settledBody is the progress of one settled message.
func settledBody(h *hands, d consumer.Dead) []byte {
	key := h.sub.key
	return appendProgressBody(nil, map[zone.Topic]record.Position{key.topic: h.topic.first}, &consumer.Delta{
		Groups: []consumer.GroupDelta{{Group: key.group, Topic: key.topic, Queues: []consumer.QueueDelta{{
			Queue: d.Queue, Mark: d.Mark, Acked: []consumer.Range{{From: d.Offset, To: d.Offset + 1}},
		}}}},
	})
}

// deadCopy encodes the copy: the message as it was, with a cause.
func (b *Broker) deadCopy(h *hands, d consumer.Dead) (commitlog.Entry, error) {
	b.mu.RLock()
	q := h.topic.queues[d.Queue]
	b.mu.RUnlock()
	ie, err := q.get(d.Offset)
	if err != nil {
		return commitlog.Entry{}, err
	}
	v, err := b.readMessage(q, d.Offset, ie)
	if err != nil {
		return commitlog.Entry{}, err
	}
	cause := Cause{
		Kind: CauseConsumer, Topic: h.topic.name, Queue: int(d.Queue), Offset: d.Offset,
		TopicIncarnation: h.topic.first, Group: h.sub.key.group, Attempts: int(d.Attempts), Original: v.Identity(),
	}
	return b.copyTo(DeadLetterTopic(h.sub.key.group), v, &cause)
}

// copyTo encodes a dead-letter copy of a record.
func (b *Broker) copyTo(topic zone.Topic, v record.View, c *Cause) (commitlog.Entry, error) {
	var r record.Record
	if err := v.Decode(&r); err != nil {
		return commitlog.Entry{}, err
	}
	r.Type, r.Topic, r.Queue = record.TypeDeadLetter, topic, 0
	r.Target, r.Channel, r.Lane = "", false, 0
	r.Identity, r.Stored, r.Cause, r.Again = record.Identity{}, b.wallNow(), appendCause(nil, c), record.Again{}
	return b.own(&r)
}
