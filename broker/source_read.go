package broker

import (
	"errors"
	"fmt"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
)

// maxRun bounds the numbers of one item that has no record.
const maxRun = 1 << 20

// Read implements flow.Source. Numbers that the origin does not send this
// destination come as items without a record, as ranges.
func (b *Broker) Read(leg flow.Leg, from uint64, count, bytes int, dst []flow.Item) ([]flow.Item, error) {
	if b.isRelay(leg.Flow) {
		return b.relayRead(leg, from, count, bytes, dst)
	}
	size, start := 0, len(dst)
	for count > 0 {
		p := b.plan(leg, from, count)
		if p.through == 0 {
			return dst, nil
		}
		if p.fate != fateSend {
			dst = append(dst, flow.Item{Number: from, Through: p.through, Skip: true, Gap: p.fate == fateGap, Reason: p.fate.reason()})
			count -= int(min(p.through-from+1, uint64(count)))
		} else {
			before := len(dst)
			var err error
			dst, err = b.readRun(leg, from, p, bytes-size, len(dst) == start, dst)
			if errors.Is(err, flow.ErrTrimmed) && len(dst) == start {
				return b.trimmedRun(from, p, dst)
			}
			if err != nil {
				if len(dst) > start {
					return dst, nil // what was read is of use; the next call meets the fault
				}
				return dst, err
			}
			for _, it := range dst[before:] {
				size += len(it.Record)
			}
			if n := len(dst); n == before || dst[n-1].Number < p.through || size >= bytes {
				return dst, nil
			}
			count -= len(dst) - before
		}
		if p.through >= p.last {
			return dst, nil
		}
		from = p.through + 1
	}
	return dst, nil
}

// readPlan is what a leg does with the numbers from one on.
type readPlan struct {
	fate    fate
	through uint64 // the last number of the same fate; 0 = there is nothing to read
	last    uint64 // the last number of the lineage
	index   *queue.Index
}

// plan looks at what becomes of the numbers from one on, and copies what is
// needed to do it outside the fold's lock.
func (b *Broker) plan(leg flow.Leg, from uint64, count int) readPlan {
	b.mu.RLock()
	defer b.mu.RUnlock()
	f := b.state.out[leg.Flow]
	if f == nil || from == 0 || from > f.head() {
		return readPlan{}
	}
	_, until := f.lineageOf(from)
	p := readPlan{last: until - 1, index: f.index}
	p.through = min(p.last, from+uint64(count)-1)
	l := f.leg(keyOf(leg.Flow, leg.City, leg.Group))
	if l == nil {
		return p
	}
	if p.fate, _ = l.fateOf(from, from); p.fate != fateSend {
		p.through = min(p.last, from+maxRun-1)
	}
	p.fate, p.through = l.fateOf(from, p.through)
	return p
}

// readRun reads the records of a run until bytes is reached; any says that at
// least one is to be read, however large.
func (b *Broker) readRun(leg flow.Leg, from uint64, p readPlan, bytes int, any bool, dst []flow.Item) ([]flow.Item, error) {
	entries, err := readEntries(p.index, from, p.through)
	if err != nil {
		return dst, err
	}
	size := 0
	for i, e := range entries {
		if (i > 0 || !any) && size+int(e.Size) > bytes {
			break
		}
		v, err := b.readRecord(e)
		if errors.Is(err, commitlog.ErrTrimmed) {
			err = fmt.Errorf("%w: %w", flow.ErrTrimmed, err)
		}
		if err != nil {
			if i > 0 {
				break
			}
			return dst, err
		}
		item := flow.Item{Number: from + uint64(i), Record: v.Bytes()}
		if !v.MayEnter(leg.City) {
			item.Record, item.Skip, item.Reason = nil, true, record.ReasonExcluded
		}
		size += int(e.Size)
		dst = append(dst, item)
	}
	return dst, nil
}

// trimmedRun makes an item of the numbers from one on whose records are no longer
// kept. No decision took them out: they were settled once, and the destination
// came back without them.
func (b *Broker) trimmedRun(from uint64, p readPlan, dst []flow.Item) ([]flow.Item, error) {
	i, _, err := p.index.Search(b.log.Begin())
	if err != nil {
		return dst, err
	}
	through := min(i, p.through)
	if through < from {
		return dst, flow.ErrTrimmed // trimmed between: asked again, it is told
	}
	return append(dst, flow.Item{Number: from, Through: through, Skip: true, Gap: true, Reason: record.ReasonTrimmed}), nil
}

// readEntries returns index entries from a number on, at least one. It is called
// outside the fold's lock: see Origin.
func readEntries(index *queue.Index, from, through uint64) ([]queue.Entry, error) {
	entries := make([]queue.Entry, through-from+1)
	n, err := index.Read(from-1, entries)
	switch {
	case n > 0:
		return entries[:n], nil
	case err != nil && from <= index.First():
		return nil, flow.ErrTrimmed
	}
	return nil, err
}

// entryOf returns the index entry of a number; ok is false when the flow has no
// such number.
func (b *Broker) entryOf(id record.FlowID, number uint64) (e queue.Entry, ok bool, err error) {
	b.mu.RLock()
	f := b.state.out[id]
	if f == nil || number == 0 || number > f.head() {
		b.mu.RUnlock()
		return e, false, nil
	}
	index := f.index
	b.mu.RUnlock()
	list, err := readEntries(index, number, number)
	if err != nil || len(list) == 0 {
		return e, false, err
	}
	return list[0], true, nil
}
