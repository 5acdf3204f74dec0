package consumer

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/mqrouter/mqrouter/zone"
)

// QueueState is the progress of a group in one queue, as a copy.
type QueueState struct {
	Queue   uint16
	Floor   uint64  // every offset below is settled
	Acked   []Range // settled offsets above Floor, ascending
	Retries []Retry // ascending
	Mark    uint64  // of the last Reset; 0 = none
}

// Progress is what all consumer groups have settled. It belongs to the fold
// and is not safe for concurrent use. The zero value is not usable; see
// NewProgress.
type Progress struct {
	groups map[groupTopic]*groupProgress
}

type groupTopic struct {
	group zone.ConsumerGroup
	topic zone.Topic
}

// groupProgress holds the queues of a group in a topic, ascending.
type groupProgress struct {
	queues []*queueProgress
}

type queueProgress struct {
	queue   uint16
	floor   uint64
	acked   rangeSet // all above floor, none touching it
	retries map[uint64]retryState
	mark    uint64 // of the last reset
}

type retryState struct {
	attempts uint32
	visible  int64 // Unix milliseconds; 0 = at once
	attempt  uint64
}

// NewProgress returns an empty progress.
func NewProgress() *Progress { return &Progress{groups: make(map[groupTopic]*groupProgress)} }

// find returns where the queue is, or where it belongs.
func (g *groupProgress) find(queue uint16) (int, bool) {
	if int(queue) < len(g.queues) && g.queues[queue].queue == queue {
		return int(queue), true // the usual case: queues 0 to n-1
	}
	return slices.BinarySearchFunc(g.queues, queue, func(q *queueProgress, n uint16) int { return cmp.Compare(q.queue, n) })
}

func (p *Progress) lookup(g zone.ConsumerGroup, t zone.Topic, queue uint16) *queueProgress {
	gp := p.groups[groupTopic{g, t}]
	if gp == nil {
		return nil
	}
	if i, ok := gp.find(queue); ok {
		return gp.queues[i]
	}
	return nil
}

// create returns the queue, made with the start offset when it is new.
func (p *Progress) create(g zone.ConsumerGroup, t zone.Topic, queue uint16, start uint64) (q *queueProgress, made bool) {
	k := groupTopic{g, t}
	gp := p.groups[k]
	if gp == nil {
		gp = &groupProgress{}
		p.groups[k] = gp
	}
	i, ok := gp.find(queue)
	if !ok {
		gp.queues = slices.Insert(gp.queues, i, &queueProgress{queue: queue, floor: start})
	}
	return gp.queues[i], !ok
}

// Create makes a group start at an offset of a queue; false when the group has
// the queue already, which then stays as it is.
func (p *Progress) Create(g zone.ConsumerGroup, t zone.Topic, queue uint16, start uint64) bool {
	_, made := p.create(g, t, queue, start)
	return made
}

// Apply applies a delta. A queue that the group does not have yet starts at
// the delta's start, else at 0. Applying the same delta again changes nothing.
// What was collected before a Reset of its queue is void; void counts such queues.
func (p *Progress) Apply(d Delta) (void int) {
	for i := range d.Groups {
		g := &d.Groups[i]
		for k := range g.Queues {
			qd := &g.Queues[k]
			q, _ := p.create(g.Group, g.Topic, qd.Queue, qd.Start)
			if qd.Mark != q.mark {
				void++
				continue
			}
			for _, r := range qd.Acked {
				q.settle(r)
			}
			for _, r := range qd.Retries {
				q.retry(r)
			}
		}
	}
	return void
}

// Settle marks one offset as settled: what a dead-letter record does.
func (p *Progress) Settle(g zone.ConsumerGroup, t zone.Topic, queue uint16, offset uint64) {
	q, _ := p.create(g, t, queue, 0)
	q.settle(Range{From: offset, To: offset + 1})
}

func (q *queueProgress) settle(r Range) {
	r.From = max(r.From, q.floor)
	if r.From >= r.To {
		return
	}
	if uint64(len(q.retries)) < r.To-r.From {
		maps.DeleteFunc(q.retries, func(o uint64, _ retryState) bool { return r.From <= o && o < r.To })
	} else if len(q.retries) > 0 {
		for o := r.From; o < r.To; o++ {
			delete(q.retries, o)
		}
	}
	if r.From > q.floor {
		q.acked.add(r)
		return
	}
	q.floor = r.To
	for len(q.acked) > 0 && q.acked[0].From <= q.floor {
		q.floor = max(q.floor, q.acked[0].To)
		q.acked = q.acked[1:] // as in rangeSet.take
	}
}

func (q *queueProgress) retry(r Retry) {
	if r.Offset < q.floor || q.acked.contains(r.Offset) {
		return
	}
	if q.retries == nil {
		q.retries = make(map[uint64]retryState)
	}
	q.retries[r.Offset] = retryState{attempts: r.Attempts, visible: toMillis(r.Visible), attempt: r.Attempt}
}

func (q *queueProgress) state() QueueState {
	s := QueueState{Queue: q.queue, Floor: q.floor, Acked: slices.Clone(q.acked), Mark: q.mark}
	if len(q.retries) > 0 {
		s.Retries = make([]Retry, 0, len(q.retries))
		for _, o := range slices.Sorted(maps.Keys(q.retries)) {
			r := q.retries[o]
			s.Retries = append(s.Retries, Retry{Offset: o, Attempts: r.attempts, Visible: fromMillis(r.visible), Attempt: r.attempt})
		}
	}
	return s
}

// State returns a copy of the group's progress in a topic, by queue; nil when unknown.
func (p *Progress) State(g zone.ConsumerGroup, t zone.Topic) []QueueState {
	gp := p.groups[groupTopic{g, t}]
	if gp == nil {
		return nil
	}
	out := make([]QueueState, len(gp.queues))
	for i, q := range gp.queues {
		out[i] = q.state()
	}
	return out
}

// Floors calls fn for each queue that the group has in a topic, ascending, with
// the offset below which everything is settled. It copies nothing.
func (p *Progress) Floors(g zone.ConsumerGroup, t zone.Topic, fn func(queue uint16, floor uint64)) {
	if gp := p.groups[groupTopic{g, t}]; gp != nil {
		for _, q := range gp.queues {
			fn(q.queue, q.floor)
		}
	}
}

// Settled reports whether the group has settled an offset. It copies nothing.
func (p *Progress) Settled(g zone.ConsumerGroup, t zone.Topic, queue uint16, offset uint64) bool {
	q := p.lookup(g, t, queue)
	return q != nil && (offset < q.floor || q.acked.contains(offset))
}

// Lag returns how many offsets of a queue below end are not settled.
func (p *Progress) Lag(g zone.ConsumerGroup, t zone.Topic, queue uint16, end uint64) uint64 {
	q := p.lookup(g, t, queue)
	if q == nil {
		return end
	}
	if end <= q.floor {
		return 0
	}
	lag := end - q.floor
	for _, r := range q.acked {
		if r.From >= end {
			break
		}
		lag -= min(r.To, end) - r.From
	}
	return lag
}

// Drop forgets a group in a topic.
func (p *Progress) Drop(g zone.ConsumerGroup, t zone.Topic) { delete(p.groups, groupTopic{g, t}) }

func (p *Progress) sorted() []groupTopic {
	return slices.SortedFunc(maps.Keys(p.groups), func(a, b groupTopic) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.topic, b.topic))
	})
}

// snapshotVersion is the first byte of an encoded progress.
const snapshotVersion = 2

// AppendSnapshot appends the encoding of the whole progress; equal progress
// gives equal bytes. The form is that of Delta.Append, except that a queue is
// its number, its floor, its mark, its acked ranges and its retries.
func (p *Progress) AppendSnapshot(dst []byte) []byte {
	dst = append(dst, snapshotVersion)
	dst = binary.AppendUvarint(dst, uint64(len(p.groups)))
	for _, k := range p.sorted() {
		gp := p.groups[k]
		dst = appendText(dst, string(k.group))
		dst = appendText(dst, string(k.topic))
		dst = binary.AppendUvarint(dst, uint64(len(gp.queues)))
		for _, q := range gp.queues {
			s := q.state()
			dst = binary.AppendUvarint(dst, uint64(s.Queue))
			dst = binary.AppendUvarint(dst, s.Floor)
			dst = binary.AppendUvarint(dst, s.Mark)
			dst = appendRanges(dst, s.Acked)
			dst = appendRetries(dst, s.Retries)
		}
	}
	return dst
}

// ParseSnapshot decodes what AppendSnapshot wrote, or returns *FormatError.
// Nothing of b is kept.
func ParseSnapshot(b []byte) (*Progress, error) {
	r := &decoder{what: "snapshot", b: b}
	if r.byte() != snapshotVersion {
		r.fail("unknown version")
	}
	p := NewProgress()
	for range r.count(3) {
		g, t := zone.ConsumerGroup(r.text()), zone.Topic(r.text())
		gp := &groupProgress{}
		if p.groups[groupTopic{g, t}] != nil {
			r.fail("group twice")
		}
		p.groups[groupTopic{g, t}] = gp
		for range r.count(5) {
			q := &queueProgress{queue: r.queue(), floor: r.uvarint(), mark: r.uvarint()}
			for _, acked := range r.ranges() {
				q.acked.add(acked)
			}
			for _, retry := range r.retries() {
				q.retry(retry)
			}
			if n := len(gp.queues); n > 0 && gp.queues[n-1].queue >= q.queue {
				r.fail("queues do not ascend")
			}
			if len(q.acked) > 0 && q.acked[0].From <= q.floor {
				r.fail("acked ranges below the floor")
			}
			if r.err != nil {
				return nil, r.err
			}
			gp.queues = append(gp.queues, q)
		}
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	return p, nil
}
