package broker

import (
	"context"
	"errors"
	"time"

	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/broker/transaction"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Bounds of one look at messages that wait.
const (
	maxWaiting        = 1000     // of one page
	maxWaitingScanned = 5000     // of one page: a filter that matches little goes on in the next one
	maxWaitingBytes   = 32 << 20 // of one page: records that are in memory together
)

// WaitingKind says what a message waits for.
type WaitingKind uint8

// The kinds.
const (
	WaitingDelayed   WaitingKind = iota + 1 // for its delivery time, or for what blocks it since
	WaitingUndecided                        // a half message, for the decision of its producers
)

// WaitingPlace is a place in the list of messages that wait, behind which a page goes
// on. The zero value is its beginning, and its end as what comes next.
type WaitingPlace struct{ Hour, Number uint64 }

// Waiting is a message that waits.
type Waiting struct {
	Kind   WaitingKind
	Topic  zone.Topic  // that it was published to; empty when it cannot be read
	Handle string      // its recall handle or transaction id
	Record record.View // as it was published; none when Problem says why
	Due    time.Time   // of WaitingDelayed
	Stored time.Time   // zero when it cannot be read
	Checks int         // of WaitingUndecided: how often producers were asked

	Gone    bool   // the topology does not have its topic
	Problem string // why it cannot be read; empty when it can
}

// WaitingQuery selects messages that wait. Zero fields select all.
type WaitingQuery struct {
	Kind         WaitingKind // needed
	From         WaitingPlace
	Limit        int // 1 to 1000; other values are as 1000
	Topic        zone.Topic
	MessageID    string
	Since, Until time.Time // stored at or after, before
	DueFrom      time.Time // of WaitingDelayed: due at or after
	DueUntil     time.Time // of WaitingDelayed: due before
	Gone         bool      // only those whose topic the topology does not have
	Unreadable   bool      // only those that cannot be read
}

// Waiting returns a page of the messages that wait here, and the place to go on from;
// the zero place when that was all. Delayed ones come by the hour in which they are
// due, those of an hour as they were published; half messages as they were. It reads
// the disk.
func (b *Broker) Waiting(ctx context.Context, q WaitingQuery) ([]Waiting, WaitingPlace, error) {
	const op = "waiting"
	if err := b.ready(op); err != nil {
		return nil, WaitingPlace{}, err
	}
	if q.Limit < 1 || q.Limit > maxWaiting {
		q.Limit = maxWaiting
	}
	p := waitingPage{b: b, q: &q, ctx: ctx, view: b.view.Load()}
	var next WaitingPlace
	var err error
	switch q.Kind {
	case WaitingDelayed:
		next, err = p.delayed()
	case WaitingUndecided:
		next, err = p.undecided()
	default:
		return nil, next, &Error{Op: op, Kind: KindInvalid, Text: "say which: delayed or undecided"}
	}
	if err != nil {
		return nil, WaitingPlace{}, &Error{Op: op, Kind: kindOfLog(err), Topic: q.Topic, Err: err}
	}
	return p.out, next, nil
}

// waitingPage is a page that is being made.
type waitingPage struct {
	b       *Broker
	q       *WaitingQuery
	ctx     context.Context
	view    *view
	out     []Waiting
	scanned int
	bytes   int
}

func (p *waitingPage) full() bool {
	return len(p.out) == p.q.Limit || p.scanned >= maxWaitingScanned || p.bytes >= maxWaitingBytes
}

// add takes a message into the page if the query selects it.
func (p *waitingPage) add(w Waiting) {
	q := p.q
	w.Gone = w.Topic != "" && p.view.topics[w.Topic] == nil
	switch {
	case q.Unreadable && w.Problem == "", q.Gone && !w.Gone, q.Topic != "" && q.Topic != w.Topic,
		!q.Since.IsZero() && w.Stored.Before(q.Since), !q.Until.IsZero() && !w.Stored.Before(q.Until):
		return
	case q.MessageID != "" && (w.Problem != "" || string(w.Record.MessageID()) != q.MessageID):
		return
	}
	p.bytes += len(w.Record.Bytes())
	p.out = append(p.out, w)
}

// delayed looks through the hours.
func (p *waitingPage) delayed() (WaitingPlace, error) {
	q := p.q
	for _, k := range p.b.buckets() {
		begin := k.start * bucketMillis
		if uint64(k.start) < q.From.Hour || !q.DueUntil.IsZero() && begin >= q.DueUntil.UnixMilli() ||
			!q.DueFrom.IsZero() && begin+bucketMillis <= q.DueFrom.UnixMilli() {
			continue
		}
		from := uint64(0)
		if uint64(k.start) == q.From.Hour {
			from = q.From.Number
		}
		at, err := p.hour(k, from)
		if err != nil {
			return WaitingPlace{}, err
		}
		if p.full() {
			return WaitingPlace{Hour: uint64(k.start), Number: at}, nil
		}
	}
	return WaitingPlace{}, nil
}

// hour looks through a bucket from entry n on, and returns where it has come to.
func (p *waitingPage) hour(k *timerBucket, n uint64) (uint64, error) {
	b, end := p.b, k.index.Next()
	for ; !p.full(); n++ {
		if err := p.ctx.Err(); err != nil {
			return n, err
		}
		b.mu.RLock()
		n = max(k.settled.NextOut(n, end), min(k.index.First(), end))
		b.mu.RUnlock()
		if n >= end {
			return n, nil
		}
		p.scanned++
		e, err := k.index.Get(n)
		var outside *queue.RangeError
		switch {
		case errors.As(err, &outside): // settled and trimmed meanwhile
			continue
		case err != nil:
			p.unreadable(k, n, err)
			continue
		}
		if due := k.due(e); p.q.outside(due) {
			continue
		}
		p.readDelayed(&stray{k, n, e})
	}
	return n, nil
}

// outside reports whether a delivery time is none of those asked for.
func (q *WaitingQuery) outside(due int64) bool {
	at := time.UnixMilli(due)
	return !q.DueFrom.IsZero() && at.Before(q.DueFrom) || !q.DueUntil.IsZero() && !at.Before(q.DueUntil)
}

func (p *waitingPage) readDelayed(x *stray) {
	b := p.b
	bytes, origin, err := b.readStray(x)
	var v record.View
	if err == nil {
		v, err = record.Parse(bytes)
	}
	if err != nil {
		b.mu.RLock()
		waits := x.bucket.waits(x.number)
		b.mu.RUnlock()
		if waits { // else it was settled or carried, and the log behind it went, meanwhile
			p.unreadable(x.bucket, x.number, err)
		}
		return
	}
	due, topic := x.bucket.due(x.entry), zone.Topic(v.Topic())
	p.add(Waiting{
		Kind: WaitingDelayed, Topic: topic, Record: v, Due: time.UnixMilli(due), Stored: v.Stored(),
		Handle: b.sealRecall(topic, &recallToken{bucket: x.bucket.name(), number: origin, due: due, messageID: string(v.MessageID())}),
	})
}

// unreadable adds a message of which nothing is known but where it waits. Its handle
// is good until it is carried, which it cannot be.
func (p *waitingPage) unreadable(k *timerBucket, n uint64, err error) {
	due := k.start * bucketMillis
	p.add(Waiting{
		Kind: WaitingDelayed, Due: time.UnixMilli(due), Problem: err.Error(),
		Handle: p.b.sealRecall("", &recallToken{bucket: k.name(), number: n, due: due}),
	})
}

// undecided looks through the half messages, in the order in which they were stored.
func (p *waitingPage) undecided() (WaitingPlace, error) {
	b, from := p.b, record.Position(p.q.From.Number)
	for {
		b.mu.RLock()
		list := b.state.halves.From(from, waitingLook)
		checks := make([]int, len(list))
		for i, h := range list {
			checks[i] = h.Asked
		}
		b.mu.RUnlock()
		for i, h := range list {
			if p.full() {
				return WaitingPlace{Number: uint64(h.Key.Position)}, nil
			}
			if err := p.ctx.Err(); err != nil {
				return WaitingPlace{}, err
			}
			p.scanned++
			p.readHalf(h, checks[i])
			from = h.Key.Position + 1
		}
		if len(list) < waitingLook {
			return WaitingPlace{}, nil
		}
	}
}

// waitingLook is how many half messages are taken from the fold at a time.
const waitingLook = 512

func (p *waitingPage) readHalf(h *transaction.Half, checks int) {
	b, q := p.b, p.q
	if q.Topic != "" && q.Topic != h.Topic {
		return
	}
	w := Waiting{
		Kind: WaitingUndecided, Topic: h.Topic, Stored: h.Stored, Checks: checks,
		Handle: b.halves.sealer.Seal(record.Identity{Group: b.self, Incarnation: b.log.Incarnation(), Epoch: h.Key.Epoch, Position: h.Key.Position}),
	}
	v, err := b.readHalf(h)
	if err != nil {
		b.mu.RLock()
		decided := h.Decided()
		b.mu.RUnlock()
		if decided {
			return // and the log behind it went
		}
		w.Problem = err.Error()
	}
	w.Record = v
	p.add(w)
}
