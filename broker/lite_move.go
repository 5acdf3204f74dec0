package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/replication/record"
)

const (
	// maxLiteMove bounds the messages of all lite topics together in which one request
	// has a consumer group go on elsewhere: 8 MB of offsets.
	maxLiteMove = 1 << 20
	// maxLiteLooks bounds how often a move begins anew because lite topics came to an
	// end, or sprang into being, while it looked for their messages.
	maxLiteLooks = 3
	// maxLiteMoves bounds the lite topics of one request in which a consumer group is
	// made to go on elsewhere: everybody waits meanwhile.
	maxLiteMoves = 100
	// moveBytes is from how many bytes on TypeLite records are appended without those
	// that follow.
	moveBytes = 512 << 10
	// moveRun bounds the offsets that one TypeLite record names: some 500 KB.
	moveRun = 100_000
)

// liteScan collects the offsets of lite topics from the index.
type liteScan struct {
	q       *topicQueue
	next    uint64              // where the scan goes on
	offsets map[uint32][]uint64 // by number; ascending
	most    int                 // offsets that may be added; 0 = any number
	full    bool                // there are more
}

func (b *Broker) scanLite(t *topic) *liteScan {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return &liteScan{q: t.queues[0], offsets: map[uint32][]uint64{}}
}

// scanTo reads the index up to an offset.
func (s *liteScan) scanTo(ctx context.Context, end uint64) error {
	for s.next = max(s.next, s.q.index.First()); s.next < end; s.next++ {
		if s.next%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		e, err := s.q.get(s.next)
		if err != nil {
			if isGone(err, s.next) {
				continue
			}
			return err
		}
		list, wanted := s.offsets[e.Hash]
		if !wanted || e.Label != groupLabel {
			continue
		}
		if s.most > 0 {
			if s.most--; s.most == 0 {
				s.full = true
				return nil
			}
		}
		s.offsets[e.Hash] = append(list, s.next)
	}
	return nil
}

// lookUp returns the lite topics that live among the names.
func (b *Broker) lookUp(t *topic, names []string) []liteTopic {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var list []liteTopic
	if t.lite == nil {
		return nil
	}
	for _, name := range names {
		if l := t.lite.byName[name]; l != nil {
			list = append(list, *l)
		}
	}
	return list
}

// moveLite has a consumer group go on elsewhere in lite topics. One that has no
// message yet begins with its first one anyway. What consumers have in hands of them
// counts no more. Everybody else waits while the end of the index is looked through and
// the records are made durable.
func (b *Broker) moveLite(ctx context.Context, h *hands, r *LiteRequest) error {
	b.liteMoving.Lock()
	defer b.liteMoving.Unlock()
	for range maxLiteLooks {
		m, err := b.newLiteMove(ctx, h, r)
		if err == nil && len(m.list) > 0 {
			err = m.make(ctx)
		}
		if !errors.Is(err, errLiteChanged) {
			return err
		}
	}
	return &Error{Op: "subscribe", Kind: KindBusy, Group: r.Group, Topic: r.Topic, Text: "the lite topics come and go at this moment"}
}

// errLiteChanged says that a name is not the lite topic any more that it was.
var errLiteChanged = errors.New("lite topics came to an end, or sprang into being")

// liteMove is a consumer group that is to go on elsewhere in lite topics.
type liteMove struct {
	b      *Broker
	h      *hands
	r      *LiteRequest
	list   []liteTopic
	scan   *liteScan
	places []int // by lite topic: which of its offsets is the next
}

func (m *liteMove) fail(err error, text string) error {
	kind := KindBusy
	if err != nil {
		kind = kindOfLog(err)
	}
	return &Error{Op: "subscribe", Kind: kind, Group: m.r.Group, Topic: m.r.Topic, Err: err, Text: text}
}

// newLiteMove looks for the messages and the places, of which what comes until nobody
// takes is a small part.
func (b *Broker) newLiteMove(ctx context.Context, h *hands, r *LiteRequest) (*liteMove, error) {
	m := &liteMove{b: b, h: h, r: r, list: b.lookUp(h.topic, r.Names)}
	if len(m.list) == 0 {
		return m, nil
	}
	m.places = make([]int, len(m.list))
	m.scan = b.scanLite(h.topic)
	m.scan.next, m.scan.most = m.list[0].first, maxLiteMove+1
	for i := range m.list {
		m.scan.next = min(m.scan.next, m.list[i].first)
		m.scan.offsets[m.list[i].id] = nil
	}
	return m, m.look(ctx)
}

// look goes on to the end of the index, and finds the places.
func (m *liteMove) look(ctx context.Context) error {
	if err := m.scan.scanTo(ctx, m.scan.q.index.Next()); err != nil {
		return m.fail(err, "")
	}
	if m.scan.full {
		return m.fail(nil, fmt.Sprintf("the lite topics have more than %d messages, too many to go on elsewhere in them at once", maxLiteMove))
	}
	for i := range m.list {
		var err error
		if m.places[i], err = m.b.placeIn(m.scan.q, &m.list[i], m.scan.offsets[m.list[i].id], m.places[i], m.r); err != nil {
			return m.fail(err, "")
		}
	}
	return nil
}

// make moves the group. Progress that was collected before must not settle again what
// the move unsettles: all of it is made durable first, and none is collected meanwhile.
func (m *liteMove) make(ctx context.Context) error {
	b := m.b
	if err := b.deltas.lock(ctx); err != nil {
		return m.fail(err, "")
	}
	defer b.deltas.unlock()
	if err := b.deltas.settle(ctx); err != nil {
		return m.fail(err, "")
	}
	b.gate.Lock() // nobody takes or settles
	defer b.gate.Unlock()
	if b.closing || m.h.retired {
		return m.fail(nil, "the subscription changes at this moment")
	}
	now := b.lookUp(m.h.topic, m.r.Names)
	if !slices.EqualFunc(now, m.list, func(now, was liteTopic) bool { return now.id == was.id && now.first == was.first }) {
		return errLiteChanged
	}
	m.list = now
	if err := m.look(ctx); err != nil {
		return err
	}
	for _, o := range b.collectHands(m.h) {
		undo := o.finished
		if err := b.appendWait(b.ctx, o); err != nil {
			undo(err)
			return m.fail(err, "")
		}
	}
	defer poke(b.kick)
	if err := m.append(); err != nil {
		return m.fail(err, "")
	}
	return nil
}

// append makes the moves durable, as many as fit in one append, and has the dispatcher
// follow. At an error those have moved that were durable before. The gate is held.
func (m *liteMove) append() error {
	b := m.b
	var entries []commitlog.Entry
	size, moved := 0, 0
	flush := func(end int) error { // which is behind the last that is whole
		if len(entries) > 0 {
			if err := b.appendWait(b.ctx, &op{batch: commitlog.Batch{Entries: entries, Reserved: true}}); err != nil {
				return err
			}
		}
		for ; moved < end; moved++ {
			l := &m.list[moved]
			m.h.disp.Rewind(b.keys([]string{l.name})[0], m.scan.offsets[l.id], m.places[moved])
		}
		entries, size = nil, 0
		return nil
	}
	for i := range m.list {
		for _, body := range moveBodies(m.h, m.scan.offsets[m.list[i].id], m.places[i]) {
			e, err := b.control(record.TypeLite, body.append(nil))
			if err == nil && len(entries) > 0 && size+len(e.Record) > moveBytes {
				err = flush(i)
			}
			if err != nil {
				return err
			}
			entries, size = append(entries, e), size+len(e.Record)
		}
	}
	return flush(len(m.list))
}

// placeIn returns which of a lite topic's offsets the request means; their number for
// its end. When the offsets were fewer, it was the one of number before.
func (b *Broker) placeIn(q *topicQueue, l *liteTopic, offsets []uint64, before int, r *LiteRequest) (int, error) {
	n := len(offsets)
	switch r.From {
	case LiteFromMin:
		return 0, nil
	case LiteFromOffset:
		counted, _ := slices.BinarySearch(offsets, l.last+1)
		gone := l.count - min(l.count, uint64(counted)) // trimmed
		return int(min(uint64(r.N)-min(uint64(r.N), gone), uint64(n))), nil
	case LiteFromTail:
		return n - int(min(uint64(r.N), uint64(n))), nil
	case LiteFromTime:
		return b.placeByTime(q, offsets, before, r.N)
	}
	return n, nil
}

// placeByTime returns which of the offsets is the first of a message that was stored at
// a time, Unix milliseconds, or later. The first ones, before many, are known to be
// earlier; the next one is the likeliest, as it was the answer when it was there before.
func (b *Broker) placeByTime(q *topicQueue, offsets []uint64, before int, at int64) (int, error) {
	var failed error
	late := func(i int) bool {
		stored, err := b.storedAt(q, offsets[i])
		if err != nil && !isGone(err, offsets[i]) {
			failed = err
		}
		return err == nil && stored.UnixMilli() >= at
	}
	tail := offsets[before:]
	if len(tail) > 0 && late(before) {
		return before, failed
	}
	return before + sort.Search(len(tail), func(i int) bool { return late(before + i) }), failed
}

// moveBodies say that the group has settled the offsets before one, and none from there
// on.
func moveBodies(h *hands, offsets []uint64, next int) (list []*liteBody) {
	for from := 0; from < len(offsets); from += moveRun {
		run := offsets[from:min(from+moveRun, len(offsets))]
		at := min(max(next-from, 0), len(run))
		list = append(list, &liteBody{topic: h.topic.name, incarnation: h.topic.first, group: h.sub.key.group,
			settled: rangesOf(run[:at]), again: rangesOf(run[at:])})
	}
	return list
}

// rangesOf joins offsets that ascend.
func rangesOf(offsets []uint64) []consumer.Range {
	var list []consumer.Range
	for _, o := range offsets {
		if n := len(list); n > 0 && list[n-1].To == o {
			list[n-1].To++
			continue
		}
		list = append(list, consumer.Range{From: o, To: o + 1})
	}
	return list
}
