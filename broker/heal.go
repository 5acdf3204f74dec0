package broker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/once"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// healing makes indexes anew that a snapshot names and that are lost, short or
// damaged, from what the log still holds. An index has its snapshot's length
// and ends in the entries that are in the log; those before were trimmed.
//
// The rules that place a record are those of the fold, but the state is the
// snapshot's and not that of each entry's time. So healing refuses where the two
// may differ, and proves what it counted by the indexes that are whole.
type healing struct {
	s       *state
	damaged map[uint64]*queue.Index  // by number
	next    map[uint64]uint64        // of every index, from the snapshot
	count   map[uint64]uint64        // entries in the log
	doubt   map[uint64]string        // why the count may be wrong
	wrapped map[*topic]bool          // has records whose queue depends on how many there were
	slots   []slot                   // of the entry at hand; its memory serves the next one
	once    *once.Table              // sends as far as the log holds them
	again   again                    // messages of tails, likewise
	ignored map[record.Position]bool // sends that the fold ignored, since they came again
}

// slot is a place in an index.
type slot struct {
	index uint64
	topic *topic // nil when it is a flow's
	entry queue.Entry
}

// heal opens the indexes of a snapshot and makes the damaged ones anew. It
// changes no damaged index before it knows that all of them can be made. A power
// cut on the way leaves indexes that are too short, which are made again.
func (b *Broker) heal(ctx context.Context, f *snapshotFile) error {
	began := b.now()
	h, err := b.diagnose(f)
	if err != nil {
		return err
	}
	b.logger.Warn("indexes are lost or damaged and are made anew from the log", "group", string(b.self), "indexes", len(h.damaged),
		"from", uint64(b.log.Begin()), "to", uint64(f.state.position))
	if err := b.log.Scan(ctx, b.log.Begin(), f.state.position, h.tally); err != nil {
		return fmt.Errorf("indexes cannot be made anew: %w", err)
	}
	h.doubtSends()
	if err := h.prove(b.log.Begin()); err != nil {
		return err
	}
	if err := b.rewrite(ctx, f.state.position, h); err != nil {
		return fmt.Errorf("indexes cannot be made anew: %w", err)
	}
	if err := f.cuts.open(b.indexes); err != nil {
		return err
	}
	for _, id := range h.numbers() {
		b.logger.Warn("index made anew from the log", "group", string(b.self), "index", indexName(id), "of", f.state.ownerOf(id),
			"entries", h.count[id], "first", h.next[id]-h.count[id])
	}
	b.logger.Warn("indexes made anew", "group", string(b.self), "indexes", len(h.damaged), "took", time.Duration(b.now()-began))
	b.healed = len(h.damaged)
	return nil
}

// diagnose finds what is damaged, and cuts the rest back to the snapshot.
func (b *Broker) diagnose(f *snapshotFile) (*healing, error) {
	h := &healing{
		s: f.state, damaged: map[uint64]*queue.Index{}, next: map[uint64]uint64{},
		count: map[uint64]uint64{}, doubt: map[uint64]string{}, wrapped: map[*topic]bool{},
		once: &once.Table{}, ignored: map[record.Position]bool{},
	}
	names, err := b.indexes.Damaged(f.cuts.next)
	if err != nil {
		return nil, err
	}
	for _, o := range f.state.indexPlaces() {
		name := indexName(o.id)
		ix, err := b.indexes.Index(name)
		if err != nil {
			return nil, err
		}
		*o.index, h.next[o.id] = ix, f.cuts.next[name]
		if slices.Contains(names, name) {
			h.damaged[o.id] = ix
			continue
		}
		if err := ix.Truncate(h.next[o.id]); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// indexPlace is where the state keeps an index.
type indexPlace struct {
	id    uint64
	index **queue.Index
}

func (s *state) indexPlaces() []indexPlace {
	var list []indexPlace
	for _, t := range s.topics {
		for _, q := range t.queues {
			list = append(list, indexPlace{q.id, &q.index})
		}
	}
	for _, f := range s.out {
		list = append(list, indexPlace{f.ixID, &f.index})
	}
	for _, r := range s.relays {
		list = append(list, indexPlace{r.ixID, &r.index})
	}
	for _, k := range s.timers.list {
		list = append(list, indexPlace{k.id, &k.index})
	}
	return list
}

// ownerOf tells of what an index is, for people.
func (s *state) ownerOf(id uint64) string {
	for _, t := range s.topics {
		for i, q := range t.queues {
			if q.id == id {
				return fmt.Sprintf("queue %d of topic %s", i, t.name)
			}
		}
	}
	for _, f := range s.out {
		if f.ixID == id {
			return fmt.Sprintf("flow to %s, class %s, lane %d", f.id.Target, f.id.Class, f.id.Lane)
		}
	}
	for _, r := range s.relays {
		if r.ixID == id {
			return fmt.Sprintf("flow of %s onward on channel %s", r.id.Origin, r.id.Target)
		}
	}
	if k := s.timers.byID[id]; k != nil {
		return fmt.Sprintf("messages that are due in the hour from %s", time.UnixMilli(k.start*bucketMillis).UTC().Format(time.RFC3339))
	}
	return ""
}

func (h *healing) numbers() []uint64 {
	ids := make([]uint64, 0, len(h.damaged))
	for id := range h.damaged {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// slotsOf returns the indexes that the fold put an entry into, but for those that
// are no longer there. dst gives the memory.
func (s *state) slotsOf(e *commitlog.Entry, dst []slot) ([]slot, error) {
	if e.Kind == commitlog.KindLanding {
		if _, err := record.ParseEnvelope(e.Envelope, &s.envelope); err != nil {
			return dst, err
		}
		if at, ok := s.onwardSlot(e); ok {
			dst = append(dst, at)
		}
		if s.envelope.Outcome != record.OutcomeLanded {
			for _, t := range s.channelTopics(s.envelope.Flow) {
				if e.Position >= t.first {
					dst = append(dst, slot{index: t.queues[0].id, topic: t, entry: markEntry(e)})
				}
			}
			return dst, nil
		}
	}
	v, err := record.Parse(e.Record)
	if err != nil {
		return dst, err
	}
	switch {
	case e.Kind == commitlog.KindLanding, v.Type() == record.TypeDeadLetter:
	case v.Type() == record.TypeCarried, v.Type() == record.TypeMessage && isWaiting(v):
		return s.timerSlot(e, v, dst)
	case v.Type() != record.TypeMessage:
		return dst, nil
	case isOutgoing(v):
		f := s.flowOf(v)
		if f == nil {
			return dst, fmt.Errorf("the snapshot has no flow for the record at %d", e.Position)
		}
		return append(dst, slot{index: f.ixID, entry: flowEntry(f, e, v)}), nil
	}
	t := s.topics[zone.Topic(v.Topic())]
	if t == nil || e.Position < t.first {
		return dst, nil // of a topic that was dropped
	}
	return append(dst, slot{index: t.queues[t.place(int(v.Queue()))].id, topic: t, entry: t.liteEntry(queueEntry(e, v), &v)}), nil
}

// onwardSlot returns the entry of a landing in the index of its relay; false when
// it has none. The envelope is parsed.
func (s *state) onwardSlot(e *commitlog.Entry) (slot, bool) {
	if e.Kind != commitlog.KindLanding {
		return slot{}, false
	}
	r := s.relays[s.envelope.Flow]
	if r == nil || e.Position < r.since {
		return slot{}, false
	}
	return slot{index: r.ixID, entry: relayEntry(e, &s.envelope)}, true
}

// tally counts an entry, and notes what makes counts doubtful.
func (h *healing) tally(e commitlog.Entry) error {
	ignored := false
	if e.Kind != commitlog.KindLanding {
		v, err := record.Parse(e.Record)
		if err != nil {
			return err
		}
		if v.Type() == record.TypeTopologyApplied {
			return h.compare(e.Position, v.Body())
		}
		if h.ignores(&e, &v) {
			return nil
		}
		ignored = h.s.counts.VoidTimers > 0 && mayBeVoid(v) || h.s.counts.LateCommits > 0 && isCommit(v)
	}
	slots, err := h.s.slotsOf(&e, h.slots[:0])
	h.slots = slots
	for _, at := range slots {
		if ignored {
			h.doubt[at.index] = "the fold ignored copies of delayed or half messages that were settled, which the log may still hold"
		}
	}
	for _, at := range slots {
		h.count[at.index]++
		if err == nil && at.topic != nil {
			err = h.weigh(&e, at)
		} else if e.Kind == commitlog.KindLanding && h.s.counts.Refused > 0 {
			h.doubt[at.index] = repeatedLandings
		}
	}
	return err
}

const repeatedLandings = "the fold ignored repeated landings, which the log may still hold"

// weigh notes what makes the count of a topic's queue doubtful.
func (h *healing) weigh(e *commitlog.Entry, at slot) error {
	t, c := at.topic, &h.s.counts
	if at.entry.Label == markLabel {
		if c.Refused > 0 {
			h.doubt[at.index] = repeatedLandings
		}
		return nil
	}
	v, err := record.Parse(e.Record)
	if err != nil {
		return err
	}
	switch {
	case t.deadLetter:
		if v.Type() == record.TypeDeadLetter && c.RepeatedDead+c.VoidProgress > 0 {
			h.doubt[at.index] = "the fold ignored repeated dead letters, which the log may still hold"
		}
		return nil
	case e.Kind == commitlog.KindLanding && c.Refused > 0:
		h.doubt[at.index] = repeatedLandings
	}
	if !t.broadcast && (int(v.Queue()) >= t.want || e.Position == t.first) {
		h.wrapped[t] = true
	}
	return nil
}

// compare refuses damaged topics whose queues a topology in the log changed: where
// their records went before is not known.
func (h *healing) compare(pos record.Position, body []byte) error {
	topo, err := parseTopologyBody(body)
	if err != nil {
		return err
	}
	for _, d := range topo.topics {
		t := h.s.topics[d.name]
		if t == nil || pos < t.first || !h.hurts(t) {
			continue
		}
		if wanted(d.queues) != t.want || d.broadcast != t.broadcast || d.channel != t.channel || h.wrapped[t] {
			return fmt.Errorf("the topology applied at %d changed the queues of topic %s", pos, t.name)
		}
	}
	return nil
}

// hurts reports whether an index of the topic is damaged.
func (h *healing) hurts(t *topic) bool {
	return slices.ContainsFunc(t.queues, func(q *topicQueue) bool { return h.damaged[q.id] != nil })
}

// prove checks the counts against everything that is known besides them.
func (h *healing) prove(begin record.Position) error {
	for _, id := range h.numbers() {
		count, next := h.count[id], h.next[id]
		refuse := func(what string) error {
			return fmt.Errorf("index %s (%s) cannot be made anew: it has %d numbers, %d of them in the log: %s",
				indexName(id), h.s.ownerOf(id), next, count, what)
		}
		if count > next {
			return refuse("the log holds too many")
		}
		// What is left of it may tell which number comes first in the log. That it
		// begins there tells nothing: an older file may be lost.
		ix := h.damaged[id]
		first, _, err := ix.Search(begin)
		known := err == nil && first < ix.Next() && (first > ix.First() || first == 0)
		switch {
		case known && first != next-count:
			return refuse(fmt.Sprintf("what is left of it says that the log begins at number %d", first))
		case !known && h.doubt[id] != "":
			return refuse(h.doubt[id])
		}
	}
	for _, t := range h.s.topics {
		if !h.hurts(t) {
			continue
		}
		for _, q := range t.queues {
			if h.damaged[q.id] != nil {
				continue
			}
			first, _, err := q.index.Search(begin)
			if err != nil {
				return err
			}
			if held := h.next[q.id] - first; held != h.count[q.id] {
				return fmt.Errorf("indexes of topic %s cannot be made anew: its index %s holds %d numbers and the log has %d for it",
					t.name, indexName(q.id), held, h.count[q.id])
			}
		}
	}
	return nil
}

// rewrite makes the damaged indexes anew. The last entry of each is written when
// the others are durable: with it, the index would count as whole.
func (b *Broker) rewrite(ctx context.Context, end record.Position, h *healing) error {
	for id, ix := range h.damaged {
		if err := ix.Reset(h.next[id] - h.count[id]); err != nil {
			return err
		}
	}
	last := map[uint64]queue.Entry{}
	err := b.log.Scan(ctx, b.log.Begin(), end, func(e commitlog.Entry) error {
		if h.ignored[e.Position] {
			return nil
		}
		slots, err := h.s.slotsOf(&e, h.slots[:0])
		h.slots = slots
		for _, at := range slots {
			ix := h.damaged[at.index]
			switch {
			case err != nil || ix == nil:
			case ix.Next()+1 == h.next[at.index]:
				last[at.index] = at.entry
			default:
				_, err = ix.Append(at.entry)
			}
		}
		return err
	})
	if err == nil {
		err = b.indexes.Flush()
	}
	if err == nil {
		err = b.indexes.Sync(ctx)
	}
	if err != nil {
		return err
	}
	for id, e := range last {
		if _, err := h.damaged[id].Append(e); err != nil {
			return err
		}
	}
	if err := b.indexes.Flush(); err != nil {
		return err
	}
	return b.indexes.Sync(ctx)
}
