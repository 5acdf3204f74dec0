package broker

import (
	"context"
	"fmt"
	"sort"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/replication/record"
)

const (
	// maxLiteMove bounds the messages of a lite topic in which a consumer group is
	// made to go on elsewhere: 8 MB of offsets.
	maxLiteMove = 1 << 20
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
	full    bool                // one has more than maxLiteMove
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
		if len(list) >= maxLiteMove {
			s.full = true
			return nil
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
	const op = "subscribe"
	fail := func(kind Kind, err error, text string) error {
		return &Error{Op: op, Kind: kind, Group: r.Group, Topic: r.Topic, Err: err, Text: text}
	}
	b.liteMoving.Lock()
	defer b.liteMoving.Unlock()
	list := b.lookUp(h.topic, r.Names)
	if len(list) == 0 {
		return nil
	}
	scan := b.scanLite(h.topic)
	scan.next = list[0].first
	for i := range list {
		scan.next = min(scan.next, list[i].first)
		scan.offsets[list[i].id] = nil
	}
	if err := scan.scanTo(ctx, scan.q.index.Next()); err != nil {
		return fail(kindOfLog(err), err, "")
	}
	b.gate.Lock() // nobody takes or settles
	defer b.gate.Unlock()
	if b.closing || h.retired {
		return fail(KindBusy, nil, "the subscription changes at this moment")
	}
	if err := scan.scanTo(ctx, scan.q.index.Next()); err != nil {
		return fail(kindOfLog(err), err, "")
	}
	if scan.full {
		return fail(KindBusy, nil, fmt.Sprintf("a lite topic has more than %d messages, too many to go on elsewhere in it", maxLiteMove))
	}
	for _, o := range b.collectHands(h) { // what was settled before does not undo a part of it
		undo := o.finished
		if err := b.appendWait(b.ctx, o); err != nil {
			undo(err)
			return fail(kindOfLog(err), err, "")
		}
	}
	defer poke(b.kick)
	if err := b.moveAll(h, list, scan, r); err != nil {
		return fail(kindOfLog(err), err, "")
	}
	return nil
}

// moveAll makes the moves durable, as many as fit in one append, and has the dispatcher
// follow. At an error those have moved that were durable before. The gate is held.
func (b *Broker) moveAll(h *hands, list []liteTopic, scan *liteScan, r *LiteRequest) error {
	places := make([]int, len(list))
	for i := range list {
		var err error
		if places[i], err = b.placeIn(scan.q, &list[i], scan.offsets[list[i].id], r); err != nil {
			return err
		}
	}
	var entries []commitlog.Entry
	size, moved := 0, 0
	flush := func(end int) error { // which is behind the last that is whole
		if len(entries) > 0 {
			if err := b.appendWait(b.ctx, &op{batch: commitlog.Batch{Entries: entries, Reserved: true}}); err != nil {
				return err
			}
		}
		for ; moved < end; moved++ {
			l := &list[moved]
			h.disp.Rewind(b.keys([]string{l.name})[0], scan.offsets[l.id], places[moved])
		}
		entries, size = nil, 0
		return nil
	}
	for i := range list {
		for _, body := range moveBodies(h, scan.offsets[list[i].id], places[i]) {
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
	return flush(len(list))
}

// placeIn returns which of a lite topic's offsets the request means; their number for
// its end.
func (b *Broker) placeIn(q *topicQueue, l *liteTopic, offsets []uint64, r *LiteRequest) (int, error) {
	n := len(offsets)
	switch r.From {
	case LiteFromMin:
		return 0, nil
	case LiteFromOffset:
		gone := l.count - min(l.count, uint64(n)) // trimmed
		return int(min(uint64(r.N)-min(uint64(r.N), gone), uint64(n))), nil
	case LiteFromTail:
		return n - int(min(uint64(r.N), uint64(n))), nil
	case LiteFromTime:
		var failed error
		at := sort.Search(n, func(i int) bool {
			stored, err := b.storedAt(q, offsets[i])
			if err != nil && !isGone(err, offsets[i]) {
				failed = err
			}
			return err == nil && stored.UnixMilli() >= r.N
		})
		return at, failed
	}
	return n, nil
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
