package broker

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/once"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Of a topic with a window (TopicInfo.Idempotent) a message id counts once. The fold
// decides, by the time that records carry: two copies that come at once are both in
// the log, and the second is ignored and answered like the first. What is known
// before the append is answered from the state, and costs no append.

// applyOnce folds a message or half message of an idempotent topic.
func (s *state) applyOnce(e *commitlog.Entry, v record.View, o *record.Once) (placement, error) {
	name, at := zone.Topic(v.Topic()), v.Stored()
	place, answer := s.once.Look(name, o, at)
	switch answer {
	case once.Repeat:
		s.counts.RepeatedSends++
		return placementOf(place), nil
	case once.Conflict:
		s.counts.ConflictingSends++
		return placement{conflict: true}, nil
	}
	var p placement
	var err error
	if v.Type() == record.TypeHalf {
		p, err = s.applyHalf(e, v)
	} else {
		p, err = s.applyMessage(e, v)
	}
	if err == nil && p.ok {
		s.once.Enter(name, o, at, p.once(), uint64(e.Position))
	}
	return p, err
}

// countsOnce returns what the fold needs to let a record count once; false for
// records that may come again, and for those that settle something, such as a
// delayed message that is due: they are no sends.
func countsOnce(v *record.View) (record.Once, bool) {
	o := v.Once()
	if o.Window == 0 || v.Type() == record.TypeHalf || len(v.Cause()) == 0 {
		return o, o.Window > 0
	}
	c, err := ParseCause(v.Cause())
	return o, err == nil && c.Kind == CauseDue && c.Bucket == 0 // was due when it was sent
}

// once returns what is remembered of where a message went.
func (p *placement) once() once.Place {
	place := once.Place{Queue: uint16(p.queue), Offset: p.offset}
	switch {
	case p.waits:
		place.Flags, place.Extra = placeWaits, p.bucket
	case p.half:
		place.Flags, place.Extra = placeHalf, p.epoch
	}
	return place
}

// Place.Flags and Place.Extra.
const (
	placeWaits = 1 // it waited for its delivery time, in the bucket of that name
	placeHalf  = 2 // it was a half message, stored in the lineage of that epoch
)

// placementOf is the placement of a message's first copy.
func placementOf(p once.Place) placement {
	at := placement{ok: true, again: true, queue: int(p.Queue), offset: p.Offset}
	switch p.Flags {
	case placeWaits:
		at.waits, at.bucket = true, p.Extra
	case placeHalf:
		at.half, at.epoch = true, p.Extra
	}
	return at
}

// onceOf says how a message of a topic is recognized when it comes again.
func onceOf(t *zone.TopicInfo, m *Message) record.Once {
	if t.Idempotent == 0 {
		return record.Once{}
	}
	return record.Once{Window: t.Idempotent, Key: once.Key(m.ID), Content: once.Content(contentOf(m), m.Body)}
}

// contentOf lists, besides the body, what a publisher means by a message: all but
// what a repeated send may change (attempt, trace, times and hints).
func contentOf(m *Message) []string {
	texts := append(make([]string, 0, 5+len(m.Keys)+2*len(m.Properties)), m.Tag, m.MessageGroup, strconv.Itoa(int(m.Encoding)))
	if !m.DeliverAt.IsZero() {
		texts = append(texts, strconv.FormatInt(m.DeliverAt.UnixMicro(), 10))
	}
	texts = append(texts, strconv.Itoa(len(m.Keys)))
	texts = append(texts, m.Keys...)
	for _, k := range slices.Sorted(maps.Keys(m.Properties)) {
		texts = append(texts, k, m.Properties[k])
	}
	return texts
}

// recognize answers a message that was stored before, and one that conflicts with it;
// false when it is new. A new one takes a place in the window, which the
// publication gives back once the fold has counted it.
func (b *Broker) recognize(v *view, m *Message, r *PublishResult, stored time.Time, p *publication) (answered bool) {
	p.once = record.Once{}
	if m.Topic == nil {
		return false
	}
	t := v.topics[m.Topic.Name]
	if t == nil || t.info.Idempotent == 0 || m.ID == "" {
		return false
	}
	o := onceOf(t.info, m)
	b.mu.RLock()
	place, answer := b.state.once.Look(t.info.Name, &o, stored)
	full := ""
	if answer == once.New {
		full = b.windowFull(t.info.Name, stored)
	}
	b.mu.RUnlock()
	switch {
	case answer == once.Conflict:
		r.Err = b.conflict(t.info.Name, m)
	case full != "":
		b.onceRefused.Add(1)
		r.Err = &Error{Op: "publish", Kind: KindBusy, Topic: t.info.Name, Text: full}
	case answer == once.Repeat:
		// A topology that has lost the destination meanwhile unmakes no message.
		r.Destination, _ = v.destination(t, m)
		known := placementOf(place)
		b.result(m, r, &known)
	default:
		p.once = o
		p.windows++
		b.oncePending.Add(1)
		return false
	}
	return true
}

// windowFull says why no more ids of the topic can be remembered; empty when they
// can. Forgetting one early would store a message twice, so the send is refused.
// mu is held.
func (b *Broker) windowFull(name zone.Topic, now time.Time) string {
	s, pending := b.state, int(b.oncePending.Load())
	n, oldest := s.once.Topic(name)
	switch {
	case n+pending >= b.limits.MaxTopicIDs && (n == 0 || oldest.After(now)):
		return fmt.Sprintf("%d message ids of its window are remembered here, the limit of a topic is %d; the next one is forgotten in %s",
			n, b.limits.MaxTopicIDs, max(oldest.Sub(now), 0).Round(time.Second))
	case s.once.Len()+pending >= b.limits.MaxIDs && !s.once.Over(now):
		return fmt.Sprintf("%d message ids of all idempotent topics are remembered here, the limit is %d", s.once.Len(), b.limits.MaxIDs)
	}
	return ""
}

// conflict refuses a message whose id came before with other content. Either of the
// two may be the right one, so that neither storing it nor acknowledging it would be.
func (b *Broker) conflict(name zone.Topic, m *Message) error {
	b.metrics.conflicted(name)
	return &Error{Op: "publish", Kind: KindConflict, Topic: name,
		Text: fmt.Sprintf("message id %q was sent before, within the topic's window, with other content; give each message an id of its own", m.ID)}
}

// forgetPending gives back the places of a publication's new messages.
func (b *Broker) forgetPending(p *publication) {
	b.oncePending.Add(-int64(p.windows))
	p.windows = 0
}

// WindowStatus is what a broker remembers of an idempotent topic.
type WindowStatus struct {
	Topic zone.Topic
	IDs   int       // message ids, those included whose window is over and that nothing has made go yet
	Limit int       // most that may be
	Until time.Time // when the window of the oldest one ends
}

// windows lists the topics with ids. mu is held.
func (b *Broker) windows() []WindowStatus {
	var list []WindowStatus
	for _, name := range b.state.once.Topics() {
		if n, until := b.state.once.Topic(name); n > 0 {
			list = append(list, WindowStatus{Topic: name, IDs: n, Limit: b.limits.MaxTopicIDs, Until: until})
		}
	}
	return list
}
