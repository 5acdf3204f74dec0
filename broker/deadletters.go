package broker

import (
	"bytes"
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

// Bounds of one look at dead letters.
const (
	maxLetters        = 1000     // of one page
	maxLettersScanned = 5000     // of one page: a filter that matches little goes on in the next one
	maxLettersBytes   = 32 << 20 // of one page: records that are in memory together
	maxReasonsCounted = 1000     // of one queue in an overview
)

// DeadLetterQueue is a dead-letter topic of this broker in short.
type DeadLetterQueue struct {
	Topic       zone.Topic
	Group       zone.ConsumerGroup // whose letters they are; empty in ParkedTopic and UndecidedTopic
	First, Next uint64             // offsets held
	Pending     uint64             // of these: not replayed
	Oldest      time.Time          // when the oldest pending one was given up; zero = none
	Reasons     map[string]int     // Cause.Word -> pending letters, of the oldest Counted
	Counted     int
}

// DeadLetter is one dead letter.
type DeadLetter struct {
	Topic    zone.Topic
	Offset   uint64
	Replayed bool
	Cause    Cause
	Dead     time.Time // when it was given up
	Record   record.View
}

// DeadLetterQuery selects dead letters of a topic. Zero fields select all.
type DeadLetterQuery struct {
	Topic        zone.Topic
	From         uint64 // lowest offset
	Limit        int    // 1 to 1000; other values are as 1000
	MessageID    string
	Reason       string // as Cause.Word says it
	Tag          string
	Key          string            // one of the message's keys
	Properties   []record.Property // user properties that the message has, all of them
	City         zone.City
	Destination  zone.Group
	Since, Until time.Time // given up at or after, before
	Pending      bool      // only what was not replayed
}

// Word says in a word why the message was given up: "consumer", or why its
// destination did not take it.
func (c *Cause) Word() string {
	if c.Kind == CauseConsumer {
		return "consumer"
	}
	if c.Kind == CauseUndecided && c.Reason == record.ReasonNone {
		return "undecided"
	}
	if c.Outcome == record.OutcomeMoved {
		return "moved"
	}
	if w, ok := reasonWords[c.Reason]; ok {
		return w
	}
	return "parked"
}

var reasonWords = map[record.Reason]string{
	record.ReasonTooLarge: "too-large", record.ReasonDenied: "denied", record.ReasonUnknownTopic: "unknown-topic",
	record.ReasonUnknownZone: "unknown-zone", record.ReasonResidency: "residency", record.ReasonHops: "hops",
	record.ReasonCorrupt: "corrupt", record.ReasonNotOwner: "not-owner", record.ReasonTrimmed: "trimmed",
	record.ReasonExcluded: "excluded", record.ReasonUnsupported: "unsupported", record.ReasonQuota: "lite-quota", record.ReasonKnown: "known",
}

// letters is a dead-letter topic as it was at one moment.
type letters struct {
	topic       zone.Topic
	incarnation record.Position
	index       *queue.Index
	queue       *topicQueue
	done        []consumer.Range // replayed, ascending, none touching another
}

// lettersOf returns nil when there is no such dead-letter topic here.
func (b *Broker) lettersOf(name zone.Topic) *letters {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.state.lettersOf(name)
}

func (s *state) lettersOf(name zone.Topic) *letters {
	t := s.topics[name]
	if t == nil || !t.deadLetter || len(t.queues) == 0 {
		return nil
	}
	l := &letters{topic: name, incarnation: t.first, index: t.queues[0].index, queue: t.queues[0]}
	for _, q := range s.progress.State(replayGroup, name) {
		if q.Queue != 0 {
			continue
		}
		if q.Floor > 0 {
			l.done = append(l.done, consumer.Range{To: q.Floor})
		}
		l.done = append(l.done, q.Acked...)
	}
	return l
}

// extent returns the offsets that can be read.
func (l *letters) extent(begin record.Position) (first, next uint64) {
	next = l.index.Next()
	i, _, err := l.index.Search(begin)
	if err != nil {
		i = l.index.First()
	}
	first = min(max(i, l.index.First()), next)
	if carried := l.queue.carried.all(); len(carried) > 0 {
		first = min(first, carried[0].offset)
	}
	return first, next
}

// replayed reports whether the letter at the offset is marked.
func (l *letters) replayed(offset uint64) bool {
	i, found := slices.BinarySearchFunc(l.done, offset, func(r consumer.Range, o uint64) int {
		switch {
		case r.To <= o:
			return -1
		case r.From > o:
			return 1
		}
		return 0
	})
	return found && i < len(l.done)
}

// pending returns how many of the offsets are not marked.
func (l *letters) pending(first, next uint64) uint64 {
	n := next - first
	for _, r := range l.done {
		if from, to := max(r.From, first), min(r.To, next); from < to {
			n -= to - from
		}
	}
	return n
}

// DeadLetterQueues returns the dead-letter topics of this broker, by name. It
// reads up to 1000 letters of each.
func (b *Broker) DeadLetterQueues(ctx context.Context) ([]DeadLetterQueue, error) {
	if err := b.ready("dead letters"); err != nil {
		return nil, err
	}
	b.mu.RLock()
	var all []*letters
	for _, name := range sortedKeys(b.state.topics) {
		if l := b.state.lettersOf(name); l != nil {
			all = append(all, l)
		}
	}
	b.mu.RUnlock()
	var out []DeadLetterQueue
	for _, l := range all {
		q := DeadLetterQueue{Topic: l.topic, Reasons: map[string]int{}}
		if l.topic != UndecidedTopic {
			q.Group = zone.ConsumerGroup(l.topic[len(DeadLetterPrefix):])
		}
		q.First, q.Next = l.extent(b.log.Begin())
		q.Pending = l.pending(q.First, q.Next)
		for offset := q.First; offset < q.Next && q.Counted < maxReasonsCounted && ctx.Err() == nil; offset++ {
			if l.replayed(offset) {
				continue
			}
			d, ok, err := b.letter(l, offset)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue
			}
			if q.Oldest.IsZero() {
				q.Oldest = d.Dead
			}
			q.Counted++
			q.Reasons[d.Cause.Word()]++
		}
		out = append(out, q)
	}
	return out, ctx.Err()
}

// DeadLetters returns a page of dead letters in the order of their offsets, and
// the offset to go on from; 0 when there are no more. It reads the disk.
func (b *Broker) DeadLetters(ctx context.Context, q DeadLetterQuery) ([]DeadLetter, uint64, error) {
	if err := b.ready("dead letters"); err != nil {
		return nil, 0, err
	}
	l := b.lettersOf(q.Topic)
	if l == nil {
		return nil, 0, &Error{Op: "dead letters", Kind: KindTopicUnknown, Topic: q.Topic, Text: "nothing was given up there"}
	}
	if q.Limit < 1 || q.Limit > maxLetters {
		q.Limit = maxLetters
	}
	first, next := l.extent(b.log.Begin())
	var out []DeadLetter
	at := max(q.From, first)
	for scanned, bytes := 0, 0; at < next; at++ {
		if len(out) == q.Limit || scanned == maxLettersScanned || bytes >= maxLettersBytes {
			return out, at, nil
		}
		if err := ctx.Err(); err != nil {
			return out, at, &Error{Op: "dead letters", Kind: KindBusy, Topic: q.Topic, Err: err}
		}
		if q.Pending && l.replayed(at) {
			continue
		}
		scanned++
		d, ok, err := b.letter(l, at)
		if err != nil {
			return out, at, err
		}
		if ok && q.matches(&d) {
			bytes += len(d.Record.Bytes())
			out = append(out, d)
		}
	}
	return out, 0, nil
}

func (q *DeadLetterQuery) matches(d *DeadLetter) bool {
	for _, p := range q.Properties {
		if v, ok := d.Record.Property(p.Key); !ok || string(v) != p.Value {
			return false
		}
	}
	switch {
	case q.Tag != "" && string(d.Record.Tag()) != q.Tag, q.Key != "" && !hasKey(d.Record, q.Key):
		return false
	case q.MessageID != "" && !bytes.Equal(d.Record.MessageID(), []byte(q.MessageID)),
		q.Reason != "" && q.Reason != d.Cause.Word(),
		q.City != "" && q.City != d.Cause.City,
		q.Destination != "" && q.Destination != d.Cause.Destination,
		!q.Since.IsZero() && d.Dead.Before(q.Since),
		!q.Until.IsZero() && !d.Dead.Before(q.Until):
		return false
	}
	return true
}

// hasKey reports whether the key is one of the record's.
func hasKey(v record.View, key string) bool {
	for k := range v.Keys {
		if string(k) == key {
			return true
		}
	}
	return false
}

// letter reads one dead letter; false when it was trimmed meanwhile.
func (b *Broker) letter(l *letters, offset uint64) (DeadLetter, bool, error) {
	e, err := l.queue.get(offset)
	var v record.View
	if err == nil {
		v, err = b.readMessage(l.queue, offset, e)
	}
	var outside *queue.RangeError
	if errors.Is(err, commitlog.ErrTrimmed) || (errors.As(err, &outside) && offset < outside.First) {
		return DeadLetter{}, false, nil
	}
	var c Cause
	if err == nil {
		c, err = ParseCause(v.Cause())
	}
	if err != nil {
		return DeadLetter{}, false, &Error{Op: "dead letters", Kind: kindOfLog(err), Topic: l.topic, Err: err}
	}
	return DeadLetter{Topic: l.topic, Offset: offset, Replayed: l.replayed(offset), Cause: c, Dead: v.Stored(), Record: v}, true, nil
}
