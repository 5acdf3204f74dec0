package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// delay judges the delivery time of a message that is published, and reports
// whether it waits. A time that is past is now: the message is delivered at once.
func (b *Broker) delay(t *zone.TopicInfo, r *record.Record) (waits bool, err error) {
	r.DeliverAt = time.UnixMilli(dueMillis(r.DeliverAt)) // records keep microseconds; rounding down would be early
	ahead := r.DeliverAt.Sub(b.clock.Now())
	switch {
	case ahead <= 0:
		b.metrics.publishedPast()
		r.Cause = appendCause(nil, &Cause{Kind: CauseDue})
		return false, nil
	case ahead > t.MaxDelay:
		return false, &Error{Op: "publish", Kind: KindDeliveryTime, Topic: t.Name,
			Text: fmt.Sprintf("the delivery time is %s; the topic allows at most %s from now", r.DeliverAt.UTC().Format(time.RFC3339), zone.FormatDuration(t.MaxDelay))}
	}
	pending := b.timersPending()
	if pending >= uint64(b.limits.MaxTimers) {
		b.timersRefused.Add(1)
		b.metrics.timerRefused()
		return false, &Error{Op: "publish", Kind: KindBusy, Topic: t.Name,
			Text: fmt.Sprintf("%d delayed messages wait here; at most %d may", pending, b.limits.MaxTimers)}
	}
	return true, nil
}

// recallToken is what a recall handle says, before its seal (consumer.Sealer):
//
//	version u8 = 1 | group str | incarnation u64 | bucket uvarint | number uvarint | due ms u64 | message id str
//
// The seal covers the topic as well. Only the owner group can check it; others
// read from it whom to ask.
type recallToken struct {
	group       zone.Group
	incarnation record.Incarnation
	bucket      uint64
	number      uint64
	due         int64 // Unix milliseconds
	messageID   string
}

const recallTokenVersion = 1

// maxRecallHandle bounds the text of a recall handle (bytes): names and ids are
// bounded, and are the most of it.
const maxRecallHandle = 2 << 10

func (t *recallToken) append(dst []byte) []byte {
	e := encoder{b: dst}
	e.byte(recallTokenVersion)
	e.str(string(t.group))
	e.u64(uint64(t.incarnation))
	e.uint(t.bucket)
	e.uint(t.number)
	e.u64(uint64(t.due))
	e.str(t.messageID)
	return e.b
}

func parseRecallToken(text string) (recallToken, error) {
	if len(text) > maxRecallHandle {
		return recallToken{}, &Error{Op: "recall", Kind: KindRecallHandle, Text: "the recall handle is too long"}
	}
	data, err := consumer.PeekToken(text)
	if err != nil {
		return recallToken{}, &Error{Op: "recall", Kind: KindRecallHandle, Text: "the recall handle is none that a broker gave"}
	}
	d := decoder{b: data}
	version := d.byte()
	t := recallToken{group: zone.Group(d.str()), incarnation: record.Incarnation(d.u64()), bucket: d.uint(), number: d.uint(),
		due: int64(d.u64()), messageID: d.str()}
	if !d.ok() || version != recallTokenVersion || t.bucket == 0 {
		return recallToken{}, &Error{Op: "recall", Kind: KindRecallHandle, Text: "the recall handle is malformed"}
	}
	return t, nil
}

// recallHandle makes the handle of a message that was put into a bucket.
func (b *Broker) recallHandle(m *Message, p *placement) string {
	return b.sealRecall(m.Topic.Name, &recallToken{bucket: p.bucket, number: p.offset, due: dueMillis(m.DeliverAt), messageID: m.ID})
}

// sealRecall makes a handle of this group and store.
func (b *Broker) sealRecall(topic zone.Topic, t *recallToken) string {
	t.group, t.incarnation = b.self, b.log.Incarnation()
	return b.sealer.SealToken(consumer.TokenRecall, t.append(nil), string(topic))
}

// Recall takes a delayed message back before it goes to its topic, and returns its id.
// It goes when it is due; one whose time came while its broker was away, or whose
// destination takes nothing, can be recalled until it does. At nil that is durable: it
// will not be delivered, whatever fails. It may be called at any
// broker of the zone; the one that holds the message is asked. A repeated recall
// succeeds again as long as the hour in which the message was due is not over.
//
// Errors: KindRecallHandle when the handle is none, or is of another topic or zone;
// KindSettled when the message fell due, or its store is gone; KindUnavailable when
// its holder cannot be asked; those of the log. After any other error than the first
// two the message may or may not be recalled.
func (b *Broker) Recall(ctx context.Context, topic zone.Topic, handle string) (messageID string, err error) {
	if err := b.ready("recall"); err != nil {
		return "", err
	}
	t, err := parseRecallToken(handle)
	if err != nil {
		return "", err
	}
	if t.group != b.self {
		return b.recallElsewhere(ctx, topic, handle, t.group)
	}
	return b.recallHere(ctx, topic, handle, t)
}

// recallHere recalls a message of this group.
func (b *Broker) recallHere(ctx context.Context, topic zone.Topic, handle string, t recallToken) (string, error) {
	if _, err := b.sealer.OpenToken(consumer.TokenRecall, handle, string(topic)); err != nil {
		return "", &Error{Op: "recall", Kind: KindRecallHandle, Topic: topic, Text: "the recall handle is of another topic or store, or was changed"}
	}
	late := &Error{Op: "recall", Kind: KindSettled, Topic: topic, Text: fmt.Sprintf("message %s is no longer waiting: it fell due", t.messageID)}
	if t.incarnation != b.log.Incarnation() {
		return "", late
	}
	for {
		number, done, err := b.recallable(t)
		switch {
		case err != nil:
			return "", &Error{Op: "recall", Kind: kindOfLog(err), Topic: topic, Err: err}
		case done == recallDone:
			return t.messageID, nil
		case done == recallLate:
			b.metrics.recallLate()
			return "", late
		}
		counts, err := b.appendRecall(ctx, topic, t.messageID, recallBody{bucket: t.bucket, number: number})
		if err != nil {
			return "", &Error{Op: "recall", Kind: kindOfLog(err), Topic: topic, Err: err}
		}
		if counts {
			b.metrics.recalled()
			return t.messageID, nil
		}
		// It fell due, was recalled by another call, or was carried, just now.
	}
}

// recallState is what can be done about a recall.
type recallState uint8

const (
	recallOpen recallState = iota // the message waits
	recallDone                    // it was recalled before
	recallLate                    // it fell due
)

// recallable finds the entry that a handle means now: a message that was carried
// has another one than at first.
func (b *Broker) recallable(t recallToken) (number uint64, done recallState, err error) {
	for {
		b.mu.RLock()
		k := b.state.timers.bucketOf(t.bucket)
		number, done = t.number, recallLate
		carried := uint64(0)
		if k != nil {
			carried, done = k.carried, k.recallState(number)
		}
		b.mu.RUnlock()
		if done != recallLate || carried == 0 {
			return number, done, nil
		}
		number, done, err = b.recallableIn(k, t)
		b.mu.RLock()
		again := done == recallLate && k.carried != carried // the entry that says it may have come just now
		b.mu.RUnlock()
		if !again {
			return number, done, err
		}
	}
}

// recallableIn looks among the entries of a bucket that carry messages.
func (b *Broker) recallableIn(k *timerBucket, t recallToken) (number uint64, done recallState, err error) {
	number = t.number
	// The newest entry that carries it says what became of it. Only those that are due
	// when it is are read from the log: an hour may have carried millions.
	var buf [256]queue.Entry
	for next := k.index.Next(); next > t.number+1; {
		from := max(t.number+1, k.index.First(), next-min(next, uint64(len(buf))))
		if from >= next {
			break
		}
		n, err := k.index.Read(from, buf[:next-from])
		if isGone(err, from) {
			continue
		}
		if err != nil {
			return 0, recallLate, err
		}
		for i := n - 1; i >= 0; i-- {
			if buf[i].Label != carriedLabel || k.due(buf[i]) != t.due {
				continue
			}
			ok, err := b.carries(buf[i], t.number)
			if errors.Is(err, commitlog.ErrTrimmed) {
				return number, recallLate, nil // as is all before it: nothing of it waits
			}
			if err != nil {
				return 0, recallLate, err
			}
			if ok {
				number = from + uint64(i)
				b.mu.RLock()
				done = k.recallState(number)
				b.mu.RUnlock()
				return number, done, nil
			}
		}
		next = from
	}
	return number, recallLate, nil
}

func (k *timerBucket) recallState(number uint64) recallState {
	switch {
	case k.waits(number):
		return recallOpen
	case k.recalled.Has(number):
		return recallDone
	}
	return recallLate
}

// carries reports whether the entry is of the message that had the number at first.
func (b *Broker) carries(e queue.Entry, number uint64) (bool, error) {
	entry, err := b.log.ReadAt(e.Position, int(e.Size))
	if err != nil {
		return false, err
	}
	v, err := record.Parse(entry.Record)
	if err != nil {
		return false, err
	}
	c, err := parseCarried(v.Body())
	return err == nil && c.origin == number, err
}

// appendRecall logs a recall and reports whether it counts.
func (b *Broker) appendRecall(ctx context.Context, topic zone.Topic, id string, body recallBody) (bool, error) {
	e, err := b.recallRecord(topic, id, body, Order{})
	if err != nil {
		return false, err
	}
	o := &op{batch: commitlog.Batch{Entries: []commitlog.Entry{e}, Reserved: true}}
	if err := b.appendWait(ctx, o); err != nil {
		return false, err
	}
	return o.places[0].ok, nil
}

// recallRecord makes the record of a recall, which an operator may have ordered.
func (b *Broker) recallRecord(topic zone.Topic, id string, body recallBody, order Order) (commitlog.Entry, error) {
	return b.own(&record.Record{Type: record.TypeRecall, Topic: topic, MessageID: id, Shard: record.NoShard, Stored: b.wallNow(),
		Cause: order.append(nil), Body: body.append(nil)})
}

// recallElsewhere asks the group that holds the message. The body of the call is
// topic str and handle str, that of the answer the message id.
func (b *Broker) recallElsewhere(ctx context.Context, topic zone.Topic, handle string, group zone.Group) (string, error) {
	if !b.inZone(group) {
		return "", &Error{Op: "recall", Kind: KindRecallHandle, Topic: topic, Text: "the recall handle is of another zone"}
	}
	var e encoder
	e.str(string(topic))
	e.str(handle)
	id, err := b.call(ctx, group, CallRecall, e.b)
	return string(id), err
}

// serveRecall answers the call of another group.
func (b *Broker) serveRecall(ctx context.Context, body []byte) ([]byte, error) {
	d := decoder{b: body}
	topic, handle := zone.Topic(d.str()), d.str()
	if !d.ok() {
		return nil, &Error{Op: "recall", Kind: KindInvalid, Text: "the call is malformed"}
	}
	t, err := parseRecallToken(handle)
	if err == nil && t.group != b.self {
		err = &Error{Op: "recall", Kind: KindRecallHandle, Topic: topic, Text: "the recall handle is of another group"}
	}
	if err != nil {
		return nil, err
	}
	id, err := b.recallHere(ctx, topic, handle, t)
	return []byte(id), err
}
