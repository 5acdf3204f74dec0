package broker

import (
	"fmt"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/broker/transaction"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// FoldError says that a committed entry cannot be folded. The broker stops:
// going on would make another state than a replay of the log makes.
type FoldError struct {
	Position record.Position
	Err      error
}

// Error names the position and the cause.
func (e *FoldError) Error() string {
	return fmt.Sprintf("fold of the entry at %d: %v", e.Position, e.Err)
}

// Unwrap returns the cause.
func (e *FoldError) Unwrap() error { return e.Err }

// apply folds one committed entry. Entries come in log order, each once; what
// it does follows from the state and the entry alone.
func (s *state) apply(e *commitlog.Entry) (placement, error) {
	p, err := s.applyEntry(e)
	if err != nil {
		return p, &FoldError{Position: e.Position, Err: err}
	}
	s.position = e.Position + record.Position(e.Size)
	return p, nil
}

func (s *state) applyEntry(e *commitlog.Entry) (placement, error) {
	if e.Kind == commitlog.KindLanding {
		return s.applyLanding(e)
	}
	v, err := record.Parse(e.Record)
	if err != nil {
		return placement{}, err
	}
	switch v.Type() {
	case record.TypeMessage, record.TypeHalf:
		if a, again := comesAgain(&v); again {
			return s.applyAgain(e, v, &a)
		}
		return s.applySend(e, v)
	case record.TypeRollback:
		return s.applyRollback(v.Body())
	case record.TypeChecked:
		return placement{ok: true}, s.applyChecked(v.Body(), v.Stored())
	case record.TypeDeadLetter:
		return s.applyDeadLetter(e, v)
	case record.TypeProgress:
		return placement{ok: true}, s.applyProgress(v.Body())
	case record.TypeSettle:
		return placement{ok: true}, s.applySettle(v.Body())
	case record.TypeSeal:
		return placement{ok: true}, s.applySeal(v.Body())
	case record.TypeCarried:
		return placement{ok: true}, s.applyCarried(e, v.Body())
	case record.TypeOffsets:
		return placement{ok: true}, s.applyOffsets(e.Position, v.Body())
	case record.TypeRecall:
		return s.applyRecall(e.Position, v.Body())
	case record.TypeLite:
		return placement{ok: true}, s.applyLite(v.Body())
	case record.TypeGiveUp:
		return placement{ok: true}, s.applyGiveUp(v.Body())
	case record.TypeLineageStart:
		return placement{ok: true}, s.applyLineage(v)
	case record.TypeTopologyApplied:
		return placement{ok: true}, s.applyTopology(e.Position, v.Body())
	}
	return placement{}, fmt.Errorf("record type %d is not known to this version", v.Type())
}

// applyMessage puts a record of this group into its queue, or gives it the next
// number of its flow. A message whose time has not come waits instead, and comes
// again with a cause.
func (s *state) applyMessage(e *commitlog.Entry, v record.View) (placement, error) {
	if cause := v.Cause(); len(cause) > 0 {
		if counts, err := s.settleCause(e, v); err != nil || !counts {
			return placement{}, err
		}
	}
	if isWaiting(v) {
		return s.wait(e, v)
	}
	if isOutgoing(v) {
		return s.number(e, v)
	}
	return s.store1(e, v)
}

// settleCause folds what a message settles besides being one; false when it was
// settled already, so that the message does not count either.
func (s *state) settleCause(e *commitlog.Entry, v record.View) (bool, error) {
	c, err := ParseCause(v.Cause())
	if err != nil {
		return false, err
	}
	switch c.Kind {
	case CauseReplay:
		s.markReplayed(&c)
	case CauseReceipt:
		return s.applyReceipt(&c), nil
	case CauseDue:
		return s.fire(&c, v, e.Position), nil
	case CauseCommit:
		if !s.halves.Decide(keyOfHalf(c.Original), transaction.Committed) {
			s.counts.LateCommits++
			return false, nil
		}
	}
	return true, nil
}

// isOutgoing reports whether a message of this group's own goes to a flow
// rather than to a queue.
func isOutgoing(v record.View) bool { return len(v.Target()) > 0 }

// queueEntry is the entry of a record in its queue. That of a message of a message
// group or lite topic has the group's hash in place of the tag's, and says so; dead letters have
// no order.
func queueEntry(e *commitlog.Entry, v record.View) queue.Entry {
	entry := queue.Entry{Position: e.Position, Size: uint32(e.Size)}
	if k := v.Kind(); (k == zone.KindFIFO || k == zone.KindLite) && v.Type() == record.TypeMessage && v.GroupHash() != 0 {
		entry.Hash, entry.Label = uint32(v.GroupHash()), groupLabel
	} else {
		entry.Hash = tagHash(v.Tag())
	}
	return entry
}

// store1 puts a local or landed record into the queue that it names.
func (s *state) store1(e *commitlog.Entry, v record.View) (placement, error) {
	t := s.topics[zone.Topic(v.Topic())]
	if t == nil {
		// Published or landed in the moment in which a topology took the topic
		// away. It was acknowledged, so it is kept until the next topology.
		var err error
		if t, err = s.ensureTopic(zone.Topic(v.Topic()), e.Position, int(v.Queue())+1); err != nil {
			return placement{}, err
		}
	}
	if t.isLite(&v) {
		return s.storeLite(t, e, v)
	}
	return s.enqueue(t, int(v.Queue()), queueEntry(e, v))
}

// applyLineage begins a lineage. Flows name it when they next give a number.
func (s *state) applyLineage(v record.View) error {
	start, err := commitlog.ParseLineageStart(v.Body())
	if err != nil {
		return err
	}
	s.epoch, s.lineage = start.Epoch, start.ID
	return nil
}

// applyDeadLetter folds copy and settlement, which are one record. A copy of
// what is settled already is ignored: the first one counted.
func (s *state) applyDeadLetter(e *commitlog.Entry, v record.View) (placement, error) {
	c, err := ParseCause(v.Cause())
	if err != nil {
		return placement{}, err
	}
	switch c.Kind {
	case CauseConsumer:
		key := subKey{c.Group, c.Topic}
		if s.queueOf(key, c.TopicIncarnation, c.Queue) == nil {
			s.counts.VoidProgress++
			return placement{}, nil
		}
		if s.settledIn(key, c.Queue, c.Offset) {
			s.counts.RepeatedDead++
			return placement{}, nil
		}
		s.progress.Settle(key.group, key.topic, uint16(c.Queue), c.Offset)
		s.noteGivenUp(key, c.Queue, c.Offset)
	case CauseLeg:
		l := s.legOf(c.Flow, legKey{c.City, c.Destination})
		if l == nil || c.Number <= l.cursor || c.Number <= l.parked {
			s.counts.RepeatedDead++
			return placement{}, nil
		}
		l.parked = c.Number
	case CauseUndecided:
		if !s.halves.Decide(keyOfHalf(c.Original), transaction.Parked) {
			s.counts.RepeatedDead++
			return placement{}, nil
		}
	case CauseStranded:
		if !s.strand(&c, v, e.Position) {
			s.counts.RepeatedDead++
			return placement{}, nil
		}
	default:
		return placement{}, fmt.Errorf("dead-letter cause kind %d is not known", c.Kind)
	}
	t, err := s.ensureTopic(zone.Topic(v.Topic()), e.Position, 1)
	if err != nil {
		return placement{}, err
	}
	s.counts.DeadLetters++
	return s.enqueue(t, 0, queueEntry(e, v))
}

// queueOf returns the queue, or nil when topic, queue or subscription is not the
// one meant.
func (s *state) queueOf(key subKey, incarnation record.Position, q int) *topicQueue {
	sub := s.subs[key]
	if sub == nil || sub.topic.first != incarnation || q < 0 || q >= len(sub.topic.queues) {
		return nil
	}
	return sub.topic.queues[q]
}

// settledIn reports whether the group has settled the offset.
func (s *state) settledIn(key subKey, q int, offset uint64) bool {
	return s.progress.Settled(key.group, key.topic, uint16(q), offset)
}

// applyProgress folds progress of consumer groups and new subscriptions.
func (s *state) applyProgress(body []byte) error {
	topics, delta, err := parseProgressBody(body)
	if err != nil {
		return err
	}
	kept := delta.Groups[:0]
	for _, g := range delta.Groups {
		t := s.topics[g.Topic]
		if t == nil && isDeadLetter(g.Topic) {
			if t, err = s.ensureTopic(g.Topic, s.position, 1); err != nil {
				return err
			}
			topics[g.Topic] = t.first
		}
		if t == nil || topics[g.Topic] != t.first || !s.knows(t, &g) {
			s.counts.VoidProgress++
			continue
		}
		if g.Group == receiptGroup {
			for _, q := range g.Queues {
				s.counts.NoReceipts += s.dropReceipts(g.Topic, int(q.Queue), q.Acked)
			}
			continue
		}
		kept = append(kept, g)
		s.receiptsDue = s.receiptsDue || t.receipts != ""
	}
	s.counts.VoidProgress += uint64(s.progress.Apply(consumer.Delta{Groups: kept}))
	return nil
}

// knows reports whether the delta is of a subscription, and makes it when the
// delta says that it begins.
func (s *state) knows(t *topic, g *consumer.GroupDelta) bool {
	key := subKey{g.Group, g.Topic}
	for _, q := range g.Queues {
		if int(q.Queue) >= len(t.queues) {
			return false
		}
		if q.Created {
			s.subscribe(key, t)
		}
	}
	return s.subs[key] != nil
}
