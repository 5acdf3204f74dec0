package broker

import (
	"slices"

	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/zone"
)

// CauseReceipt is the Cause of a message (TypeMessage) that is a receipt: its Topic,
// TopicIncarnation, Queue and Offsets name the messages that all groups have settled
// here. The fold marks them when it folds the receipt: message and mark are one
// record, and a receipt of which any part is marked already does not count.
const CauseReceipt CauseKind = 10

// receiptGroup is the subscription of a topic with receipts in which those messages
// are settled that have their receipt, or can have none. No client can ask for it:
// consumer groups have no colon.
const receiptGroup = zone.ConsumerGroup("receipt:")

// ownGroup reports whether a subscription is the broker's own.
func ownGroup(g zone.ConsumerGroup) bool { return g == replayGroup || g == receiptGroup }

// maxGivenUp bounds the messages of a queue that one group gave up while their receipt
// waits for another. What comes beyond it gets no receipt, which is counted: a wrong
// one would be worse.
const maxGivenUp = 10_000

// givenUp tells which groups gave messages up, by offset.
type givenUp map[uint64][]zone.ConsumerGroup

func (e *encoder) givenUp(g givenUp) {
	e.uint(uint64(len(g)))
	for _, offset := range sortedKeys(g) {
		e.uint(offset)
		e.uint(uint64(len(g[offset])))
		for _, name := range g[offset] {
			e.str(string(name))
		}
	}
}

func (d *decoder) givenUp() givenUp {
	var g givenUp
	for range d.count() {
		offset := d.uint()
		var names []zone.ConsumerGroup
		for range d.count() {
			names = append(names, zone.ConsumerGroup(d.str()))
		}
		if g == nil {
			g = givenUp{}
		}
		g[offset] = names
	}
	return g
}

// offsets writes ranges as distances, like those of a numberSet.
func (e *encoder) offsets(list []consumer.Range) {
	e.uint(uint64(len(list)))
	last := uint64(0)
	for _, r := range list {
		e.uint(r.From - last)
		e.uint(r.To - r.From)
		last = r.To
	}
}

func (d *decoder) offsets() []consumer.Range {
	var list []consumer.Range
	last := uint64(0)
	for range d.count() {
		from := last + d.uint()
		to := from + d.uint()
		if from < last || to <= from {
			d.bad = true
			return nil
		}
		list, last = append(list, consumer.Range{From: from, To: to}), to
	}
	return list
}

// declareReceipts begins or ends the receipts of a topic: they are given for messages
// that come from now on.
func (s *state) declareReceipts(t *topic, to zone.Topic) {
	key := subKey{receiptGroup, t.name}
	switch {
	case to != "" && t.receipts == "":
		s.subscribe(key, t)
		for i, q := range t.queues {
			s.progress.Create(key.group, key.topic, uint16(i), q.index.Next())
		}
	case to == "" && t.receipts != "":
		s.dropSubscription(s.subs[key])
		for _, q := range t.queues {
			q.givenUp = nil
		}
		for _, sub := range t.subs {
			sub.since = nil
		}
	}
	t.receipts = to
}

// begins notes where a group began in a queue: receipts of messages before do not
// wait for it.
func (sub *subscription) begins(queue int, offset uint64) {
	for len(sub.since) <= queue {
		sub.since = append(sub.since, 0)
	}
	sub.since[queue] = offset
}

// began returns where the group began in a queue, as far as receipts go.
func (sub *subscription) began(queue int) uint64 {
	if queue >= len(sub.since) {
		return 0
	}
	return sub.since[queue]
}

// noteGivenUp notes that a group gave a message up, if there will be a receipt to say
// so.
func (s *state) noteGivenUp(key subKey, queue int, offset uint64) {
	t := s.topics[key.topic]
	if t == nil || t.receipts == "" || !s.subs[key].declared {
		return
	}
	s.receiptsDue = true
	if s.progress.Settled(receiptGroup, t.name, uint16(queue), offset) {
		return
	}
	q := t.queues[queue]
	if q.givenUp == nil {
		q.givenUp = givenUp{}
	}
	if _, known := q.givenUp[offset]; !known && len(q.givenUp) >= maxGivenUp {
		s.progress.Settle(receiptGroup, t.name, uint16(queue), offset)
		s.counts.NoReceipts++
		return
	}
	q.givenUp[offset] = append(q.givenUp[offset], key.group)
}

// applyReceipt marks what a receipt is of; false when it does not count.
func (s *state) applyReceipt(c *Cause) bool {
	if s.queueOf(subKey{receiptGroup, c.Topic}, c.TopicIncarnation, c.Queue) == nil {
		s.counts.VoidProgress++
		return false
	}
	marked := slices.ContainsFunc(c.Offsets, func(r consumer.Range) bool {
		return s.progress.Overlaps(receiptGroup, c.Topic, uint16(c.Queue), r)
	})
	if marked {
		return false
	}
	s.counts.Receipts += s.dropReceipts(c.Topic, c.Queue, c.Offsets)
	return true
}

// dropReceipts marks offsets as having a receipt, or none to come, and returns how
// many they are.
func (s *state) dropReceipts(name zone.Topic, queue int, offsets []consumer.Range) (n uint64) {
	s.progress.SettleAll(receiptGroup, name, uint16(queue), offsets)
	given := s.topics[name].queues[queue].givenUp
	for _, r := range offsets {
		n += r.To - r.From
		if uint64(len(given)) < r.To-r.From {
			for o := range given {
				if r.From <= o && o < r.To {
					delete(given, o)
				}
			}
			continue
		}
		for o := r.From; o < r.To && len(given) > 0; o++ {
			delete(given, o)
		}
	}
	return n
}

// awaited returns the groups that receipts of a topic wait for, in order of their names.
func (s *state) awaited(t *topic) (groups []*subscription) {
	for _, sub := range t.subs {
		if sub.declared && !sub.cache {
			groups = append(groups, sub)
		}
	}
	slices.SortFunc(groups, func(a, b *subscription) int { return compareStrings(a.key.group, b.key.group) })
	return groups
}

// due returns what of a part of a queue all groups have settled and has no receipt yet.
func (s *state) due(t *topic, queue int, groups []*subscription, in consumer.Range) []consumer.Range {
	ranges := []consumer.Range{in}
	for _, sub := range groups {
		ranges = consumer.Intersect(ranges, s.progress.SettledRanges(sub.key.group, t.name, uint16(queue), sub.began(queue), in))
	}
	return consumer.Subtract(ranges, s.progress.SettledRanges(receiptGroup, t.name, uint16(queue), 0, in))
}

// isDue reports whether all groups have settled a message and it has no receipt yet.
func (s *state) isDue(t *topic, queue int, groups []*subscription, offset uint64) bool {
	for _, sub := range groups {
		if offset >= sub.began(queue) && !s.progress.Settled(sub.key.group, t.name, uint16(queue), offset) {
			return false
		}
	}
	return !s.progress.Settled(receiptGroup, t.name, uint16(queue), offset)
}
