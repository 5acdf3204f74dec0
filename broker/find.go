package broker

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// maxFound bounds the answer of FindMessage.
const maxFound = 100

// Found is one place in this broker's log where a message is.
type Found struct {
	Type     record.Type
	Position record.Position
	Topic    zone.Topic
	Original record.Identity
	Stored   time.Time // at its origin; of a dead letter: when it was given up

	// In a queue here: a local record, a landing, or a dead-letter copy.
	Queued bool
	Queue  int
	Offset uint64
	Groups []FoundGroup

	// On a flow that ends here (Landed) or begins here.
	Landed  bool
	Flow    record.FlowID
	Number  uint64
	Path    []zone.City
	At      time.Time // when it landed; zero when it did not
	Outcome record.Outcome
	Reason  record.Reason
	Legs    []FoundLeg

	// Of a message that was delayed, and of its recall.
	DeliverAt time.Time // zero = it was not delayed
	Waits     bool      // its time has not come yet

	Cause    *Cause // of a dead-letter copy
	Replay   *Cause // of a dead letter that was brought back here
	Replayed bool   // of a dead-letter copy: it was brought back

	Half      *FoundHalf // of a half message
	Committed bool       // it was a half message before
	Order     Order      // of a recall, rollback or commit that an operator ordered
}

// FoundHalf is what became of a half message.
type FoundHalf struct {
	State  string // "waits for its decision", or what was decided, as far as it is known
	Checks int    // how often producers were asked; of one that waits
}

// FoundGroup is what a consumer group has done with the message.
type FoundGroup struct {
	Group    zone.ConsumerGroup
	Settled  bool
	Attempts int // deliveries so far that are known; 0 when settled or never retried
}

// FoundLeg is what a destination has done with the record.
type FoundLeg struct {
	City    zone.City
	Group   zone.Group
	Settled bool
}

// FindMessage returns every place where the message is in this broker's log, at
// most 100, oldest first. It reads the segments that were written after the id
// was made, as far as the id tells its time (the standard form of RocketMQ 5
// does), else the whole log. It blocks while it reads; ctx ends it.
func (b *Broker) FindMessage(ctx context.Context, id string) ([]Found, error) {
	if err := b.ready("find"); err != nil {
		return nil, err
	}
	if id == "" {
		return nil, &Error{Op: "find", Kind: KindInvalid, Text: "no message id"}
	}
	from, err := b.scanFrom(ctx, id)
	if err != nil {
		return nil, &Error{Op: "find", Kind: kindOfLog(err), Err: err}
	}
	return b.findFrom(ctx, from, id)
}

// findFrom finds from a position on. What is trimmed under the scan is passed over:
// of it, what is still needed was appended again before, where the scan has yet to
// come.
func (b *Broker) findFrom(ctx context.Context, from record.Position, id string) ([]Found, error) {
	var found []Found
	for {
		err := b.findIn(ctx, from, b.log.Committed(), []byte(id), &found)
		begin := b.log.Begin()
		switch {
		case err == nil:
			return found, nil
		case !errors.Is(err, commitlog.ErrTrimmed) || begin <= from:
			return found, &Error{Op: "find", Kind: kindOfLog(err), Err: err}
		}
		from = begin
	}
}

// findIn adds what is between two positions.
func (b *Broker) findIn(ctx context.Context, from, to record.Position, want []byte, found *[]Found) error {
	return b.log.Scan(ctx, from, to, func(e commitlog.Entry) error {
		if len(*found) == maxFound || len(e.Record) == 0 || !bytes.Contains(e.Record, want) {
			return nil
		}
		v, err := record.Parse(e.Record)
		if err == nil && v.Type() == record.TypeCarried {
			return b.findCarried(found, &e, v.Body(), want)
		}
		if err != nil || !bytes.Equal(v.MessageID(), want) {
			return err
		}
		*found = append(*found, b.describe(&e, v))
		return nil
	})
}

// clockSlack is how far the clock that made an id may be ahead of this one.
const clockSlack = 10 * time.Minute

// scanFrom returns where to begin: the first segment that was still written to
// when the id was made.
func (b *Broker) scanFrom(ctx context.Context, id string) (record.Position, error) {
	made, ok := idTime(id)
	if !ok {
		return b.log.Begin(), nil
	}
	times, err := b.log.SegmentTimes(ctx)
	if err != nil {
		return 0, err
	}
	from := b.log.Begin()
	for _, s := range times {
		if s.Last.IsZero() || !s.Last.Before(made.Add(-clockSlack)) {
			break
		}
		from = max(from, s.End)
	}
	return from, nil
}

// idTime returns the time in a message id of the standard form: 34 hexadecimal
// digits, version 01, MAC address (12), process (4), seconds since 2021-01-01
// UTC (8), counter (8).
func idTime(id string) (time.Time, bool) {
	if len(id) != 34 || id[:2] != "01" {
		return time.Time{}, false
	}
	var seconds int64
	for _, c := range []byte(id[18:26]) {
		switch {
		case c >= '0' && c <= '9':
			seconds = seconds<<4 | int64(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			seconds = seconds<<4 | int64(c|0x20-'a'+10)
		default:
			return time.Time{}, false
		}
	}
	return time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(seconds) * time.Second), true
}

// describe tells what the fold made of the entry.
func (b *Broker) describe(e *commitlog.Entry, v record.View) Found {
	f := Found{Type: v.Type(), Position: e.Position, Topic: zone.Topic(v.Topic()), Original: v.Identity(), Stored: v.Stored()}
	if c, err := ParseCause(v.Cause()); err == nil && v.Type() == record.TypeDeadLetter {
		f.Cause = &c
	} else if err == nil && c.Kind == CauseReplay {
		f.Replay = &c
	} else if err == nil && c.Kind == CauseCommit && v.Type() == record.TypeMessage {
		f.Committed, f.Order = true, c.Order
	}
	if f.Type == record.TypeRecall || f.Type == record.TypeRollback {
		f.Order, _ = parseOrder(v.Cause()) // none when a client decided
	}
	var env record.Envelope
	if e.Kind == commitlog.KindLanding {
		if _, err := record.ParseEnvelope(e.Envelope, &env); err == nil {
			f.Landed, f.Flow, f.Number, f.Path, f.At = true, env.Flow, env.Number, env.Path, env.Landed
			f.Outcome, f.Reason = env.Outcome, env.Reason
		}
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	if e.Kind == commitlog.KindOwn && (v.Type() == record.TypeRecall || v.Type() == record.TypeMessage && isWaiting(v)) {
		b.describeTimer(&f, v)
		return f
	}
	if v.Type() == record.TypeHalf {
		f.Half = b.describeHalf(f.Original)
		return f
	}
	if e.Kind == commitlog.KindOwn && len(v.Target()) > 0 {
		b.describeFlow(&f, v)
		return f
	}
	b.describeQueue(&f)
	return f
}

// describeHalf tells what became of a half message. mu is held.
func (b *Broker) describeHalf(id record.Identity) *FoundHalf {
	k := keyOfHalf(id)
	if h := b.state.halves.Get(k); h != nil {
		return &FoundHalf{State: "waits for its decision", Checks: h.Asked}
	}
	if o, ok := b.state.halves.Outcome(k); ok {
		return &FoundHalf{State: o.String()}
	}
	return &FoundHalf{State: "decided long ago"}
}

func (b *Broker) describeFlow(f *Found, v record.View) {
	f.Flow = record.FlowID{
		Origin: b.self, Incarnation: b.log.Incarnation(), Target: string(v.Target()),
		Channel: v.Channel(), Class: v.Class(), Lane: v.Lane(),
	}
	out := b.state.out[f.Flow]
	if out == nil {
		return
	}
	i, ok, err := out.index.Search(f.Position)
	if err != nil || !ok {
		return
	}
	f.Number = i + 1
	for _, l := range out.legs {
		leg, _ := liveLeg(b.Topology(), f.Flow, l.key)
		f.Legs = append(f.Legs, FoundLeg{City: leg.City, Group: l.key.group, Settled: l.cursor >= f.Number})
	}
}

func (b *Broker) describeQueue(f *Found) {
	t := b.state.topics[f.Topic]
	if t == nil {
		return
	}
	for i, q := range t.queues {
		if offset, ok, err := q.index.Search(f.Position); err == nil && ok {
			f.Queued, f.Queue, f.Offset = true, i, offset
			break
		}
	}
	b.describeGroups(f, t)
}

// describeGroups tells what consumer groups did with a message in a queue.
func (b *Broker) describeGroups(f *Found, t *topic) {
	if !f.Queued {
		return
	}
	for _, sub := range t.subs {
		if sub.key.group == receiptGroup {
			continue
		}
		if sub.key.group == replayGroup {
			f.Replayed = b.state.settledIn(sub.key, f.Queue, f.Offset)
			continue
		}
		if f.Replay != nil && f.Replay.Group != "" && f.Replay.Group != sub.key.group {
			continue // not meant for it
		}
		g := FoundGroup{Group: sub.key.group, Settled: b.state.settledIn(sub.key, f.Queue, f.Offset)}
		for _, st := range b.state.progress.State(sub.key.group, sub.key.topic) {
			for _, r := range st.Retries {
				if int(st.Queue) == f.Queue && r.Offset == f.Offset && !g.Settled {
					g.Attempts = int(r.Attempts)
				}
			}
		}
		f.Groups = append(f.Groups, g)
	}
}

// findCarried adds a dead letter or half message that was appended again, unless
// its first copy is still there.
func (b *Broker) findCarried(found *[]Found, e *commitlog.Entry, body, want []byte) error {
	c, err := parseCarried(body)
	if err != nil {
		return err
	}
	v, err := record.Parse(c.record)
	if err != nil || !bytes.Equal(v.MessageID(), want) {
		return err
	}
	if c.bucket != 0 {
		return b.findCarriedTimer(found, e, &c, v)
	}
	first := slices.IndexFunc(*found, func(f Found) bool {
		if c.topic == "" {
			return f.Half != nil && f.Original == v.Identity()
		}
		return f.Type == record.TypeDeadLetter && f.Topic == c.topic && f.Original == v.Identity()
	})
	if first >= 0 && (c.topic == "" || (*found)[first].Queued) {
		return nil
	}
	inner := *e
	inner.Record = c.record
	f := b.describe(&inner, v)
	b.mu.RLock()
	defer b.mu.RUnlock()
	if t := b.state.topics[c.topic]; t != nil && t.first == c.incarnation {
		f.Queued, f.Offset = true, c.offset
		b.describeGroups(&f, t)
	}
	if first >= 0 { // trimmed from its queue while it was read
		(*found)[first] = f
	} else {
		*found = append(*found, f)
	}
	return nil
}
