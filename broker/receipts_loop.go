package broker

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/broker/timer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// receiptWindow is how many offsets of a queue are looked at under one lock.
const receiptWindow = 1 << 16

// receiptLoop writes receipts. What it remembers only spares it work: the fold says what
// is due, and lets the first receipt of a message count.
type receiptLoop struct {
	b     *Broker
	waits map[receiptQueue]*receiptWaits // not empty ones
	since map[receiptsAt]time.Time       // since when there are some
}

// receiptsAt are receipts of a topic's messages that have one destination.
type receiptsAt struct {
	topic  zone.Topic
	target string
}

// receiptQueue names a queue, and where its receipts go.
type receiptQueue struct {
	topic *topic
	queue int
	to    zone.Topic
}

// receiptWaits are the messages of a queue whose receipts have a destination whose
// backlog has reached the budget. They are not read again before that has room, so that
// they cost the receipts that go elsewhere nothing. How many they are has no other bound
// than that of the log: they cost a bit each, in chunks of 512 bytes for each
// destination, and the fold has them as holes in its progress anyway.
type receiptWaits struct {
	base  uint64 // of the offsets in the sets: no receipt was missing below when this was made
	all   timer.Set
	lanes map[string]*receiptLane // by destination; not empty ones
}

// receiptLane are those of one destination.
type receiptLane struct {
	refused record.Record // the last receipt that had no room: where it would have gone
	offsets timer.Set
	grant   int // messages of the next try
}

// blockedReceipt are the messages of a receipt that had no room.
type blockedReceipt struct {
	refused record.Record // only where it would have gone
	marks   []consumer.Range
}

// ReceiptsWaiting says how many messages of a topic are settled and their receipts wait
// for room in the backlog of a broker group. Zero ones are not listed.
type ReceiptsWaiting struct {
	Topic    zone.Topic // of the messages
	Target   string
	Messages uint64
	Since    time.Time // by the wall clock; a restart begins anew
}

// ReceiptTopic says how many messages of a topic have no receipt yet.
type ReceiptTopic struct {
	Topic, To zone.Topic
	Open      uint64             // messages without one that may still have one
	Slowest   zone.ConsumerGroup // of those that it waits for, the one with the most messages to settle; empty: all are settled
}

// receiptLoop gives receipts when something was settled, and tries again later what
// could not be given.
func (b *Broker) receiptLoop() {
	l := &receiptLoop{b: b, waits: map[receiptQueue]*receiptWaits{}, since: map[receiptsAt]time.Time{}}
	more := false
	b.loop(0, b.receiptKick, func() time.Duration {
		// Wait for company: one receipt then tells of many messages.
		if !more && !b.pause(b.limits.ProgressDelay) {
			return farWake
		}
		var later bool
		later, more = l.round(b.ctx)
		l.tell()
		switch {
		case more:
			return 0
		case later:
			return receiptRetry
		}
		return farWake
	})
}

// round gives what receipts are due, and then some of those that waited for room which
// there is now. later says that some could not be given now, more that there is still
// room for some that waited.
func (l *receiptLoop) round(ctx context.Context) (later, more bool) {
	if l.b.log.Writable() != nil {
		return true, false // the log says so itself; what is due is read when it can be stored
	}
	queues := l.queues()
	for _, q := range queues {
		later = l.giveDue(ctx, q) || later
	}
	for _, q := range queues {
		if w := l.waits[q]; w != nil {
			again, failed := l.giveWaiting(ctx, q, w)
			more, later = more || again, later || failed
		}
	}
	return later || len(l.waits) > 0, more && ctx.Err() == nil
}

// queues returns the queues that may have receipts to give, in order, and forgets what
// waits of others.
func (l *receiptLoop) queues() (list []receiptQueue) {
	b := l.b
	b.mu.RLock()
	for _, t := range b.state.topics {
		for n := 0; t.receipts != "" && n < len(t.queues); n++ {
			list = append(list, receiptQueue{t, n, t.receipts})
		}
	}
	maps.DeleteFunc(l.waits, func(q receiptQueue, _ *receiptWaits) bool {
		return b.state.topics[q.topic.name] != q.topic || q.topic.receipts != q.to
	})
	b.mu.RUnlock()
	slices.SortFunc(list, func(x, y receiptQueue) int {
		return cmp.Or(compareStrings(x.topic.name, y.topic.name), cmp.Compare(x.queue, y.queue))
	})
	return list
}

// giveDue gives the receipts of a queue that are due and do not wait for room. later says
// that some could not be given for another reason.
func (l *receiptLoop) giveDue(ctx context.Context, q receiptQueue) (later bool) {
	for from := uint64(0); ctx.Err() == nil; {
		r, next := l.look(q, from)
		if r == nil {
			break
		}
		if len(r.due) > 0 && !l.give(ctx, q, r) {
			return true
		}
		from = next
	}
	return false
}

// giveWaiting gives a part of the receipts of a queue that waited for room, for each
// destination that has some. more says that there may be room for more of them, failed
// that some could not be given for another reason.
func (l *receiptLoop) giveWaiting(ctx context.Context, q receiptQueue, w *receiptWaits) (more, failed bool) {
	for _, target := range sortedKeys(w.lanes) {
		to := l.b.view.Load().topics[q.to]
		if to == nil || ctx.Err() != nil || l.b.checkBudget(to.info, &w.lanes[target].refused) != nil {
			continue
		}
		lane := w.lanes[target]
		offsets := w.take(target, lane.grant)
		left := lane.offsets.Count()
		r := l.begin(q, func(s *state, groups []*subscription) (due []consumer.Range) {
			for _, o := range offsets {
				if s.isDue(q.topic, q.queue, groups, o) {
					due = appendOffset(due, o)
				}
			}
			return due
		})
		if r != nil && len(r.due) > 0 && !l.give(ctx, q, r) {
			failed = true // giveDue finds them, when it is tried again
			continue
		}
		if left > 0 && lane.offsets.Count() == left { // none came back
			more, lane.grant = true, min(2*lane.grant, maxReceipts)
		}
	}
	if w.all.Count() == 0 {
		delete(l.waits, q)
	}
	return more, failed
}

// give writes receipts. False says that they cannot be written now.
func (l *receiptLoop) give(ctx context.Context, q receiptQueue, r *receipts) bool {
	if r.to == nil {
		return false
	}
	if err := r.give(ctx); err != nil {
		if ctx.Err() == nil {
			l.b.logger.Warn("receipts cannot be written, trying again", "topic", string(r.t.name), "queue", r.queue, "err", err)
		}
		return false
	}
	for _, x := range r.blocked {
		w := l.waits[q]
		if w == nil {
			w = &receiptWaits{base: r.floor, lanes: map[string]*receiptLane{}}
			l.waits[q] = w
		}
		w.put(x)
	}
	return true
}

// look begins the receipts of what is due of a part of a queue from an offset on, and does
// not wait for room. next is where the part ends that was looked at. It returns nil at the
// end.
func (l *receiptLoop) look(q receiptQueue, from uint64) (r *receipts, next uint64) {
	end := false
	r = l.begin(q, func(s *state, groups []*subscription) (due []consumer.Range) {
		index := q.topic.queues[q.queue].index
		floor, _ := s.progress.Floor(receiptGroup, q.topic.name, uint16(q.queue))
		w := l.waits[q]
		if w != nil && from == 0 {
			w.drop(max(floor, index.First())) // that they are gone is for others to say
		}
		from = max(from, floor)
		next = min(from+receiptWindow, index.Next())
		if end = from >= next; end {
			return nil
		}
		left := uint64(maxReceipts)
		for _, d := range s.due(q.topic, q.queue, groups, consumer.Range{From: from, To: next}) {
			for o := w.nextOut(d.From, d.To); o < d.To; o = w.nextOut(o+1, d.To) {
				if left == 0 {
					next = o
					return due
				}
				due, left = appendOffset(due, o), left-1
			}
		}
		return due
	})
	if end {
		return nil, next
	}
	return r, next
}

// begin begins the receipts of what choose returns, which is called with Broker.mu held; nil
// when the queue has none any more.
func (l *receiptLoop) begin(q receiptQueue, choose func(*state, []*subscription) []consumer.Range) *receipts {
	b, t := l.b, q.topic
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.state.topics[t.name] != t || t.receipts != q.to || q.queue >= len(t.queues) {
		return nil
	}
	v := b.view.Load()
	r := &receipts{b: b, v: v, t: t, to: v.topics[q.to], queue: q.queue, now: b.wallNow(), givenUp: givenUp{}}
	r.floor, _ = b.state.progress.Floor(receiptGroup, t.name, uint16(q.queue))
	subs := b.state.awaited(t)
	for _, sub := range subs {
		r.groups = append(r.groups, receiptAwaits{sub.key.group, sub.began(q.queue)})
	}
	r.due = choose(b.state, subs)
	given := t.queues[q.queue].givenUp
	for _, d := range r.due {
		for o := d.From; o < d.To && len(given) > 0; o++ {
			if names := given[o]; names != nil {
				r.givenUp[o] = slices.Clone(names)
			}
		}
	}
	return r
}

// tell publishes what waits for room.
func (l *receiptLoop) tell() {
	var counts map[receiptsAt]uint64
	for q, w := range l.waits {
		for target, lane := range w.lanes {
			if counts == nil {
				counts = map[receiptsAt]uint64{}
			}
			counts[receiptsAt{q.topic.name, target}] += lane.offsets.Count()
		}
	}
	maps.DeleteFunc(l.since, func(at receiptsAt, _ time.Time) bool { return counts[at] == 0 })
	var list []ReceiptsWaiting
	for at, n := range counts {
		if _, known := l.since[at]; !known {
			l.since[at] = l.b.wallNow()
		}
		list = append(list, ReceiptsWaiting{Topic: at.topic, Target: at.target, Messages: n, Since: l.since[at]})
	}
	slices.SortFunc(list, func(x, y ReceiptsWaiting) int {
		return cmp.Or(compareStrings(x.Topic, y.Topic), compareStrings(x.Target, y.Target))
	})
	l.b.receiptsWait.Store(&list)
}

// receiptTopics returns the topics with messages that have no receipt yet. Called with
// Broker.mu held; the groups are those of the status.
func (b *Broker) receiptTopics(groups []GroupStatus) (list []ReceiptTopic) {
	for _, name := range sortedKeys(b.state.topics) {
		t := b.state.topics[name]
		if t.receipts == "" {
			continue
		}
		r := ReceiptTopic{Topic: name, To: t.receipts}
		for i, q := range t.queues {
			r.Open += b.state.progress.Lag(receiptGroup, name, uint16(i), q.index.Next())
		}
		if r.Open == 0 {
			continue
		}
		most := uint64(0)
		for _, g := range groups {
			if g.Topic == name && g.Declared && !g.Cache && g.Lag > most {
				r.Slowest, most = g.Group, g.Lag
			}
		}
		list = append(list, r)
	}
	return list
}

// put adds the messages of a receipt that had no room.
func (w *receiptWaits) put(x blockedReceipt) {
	lane := w.lanes[x.refused.Target]
	if lane == nil {
		lane = &receiptLane{}
		w.lanes[x.refused.Target] = lane
	}
	lane.refused, lane.grant = x.refused, maxReceiptBatch
	for _, r := range x.marks {
		for o := max(r.From, w.base); o < r.To; o++ { // nothing that is due is below: floors do not sink
			if w.all.Add(o - w.base) {
				lane.offsets.Add(o - w.base)
			}
		}
	}
}

// nextOut returns the first offset from one on and below end that does not wait, or end;
// w may be nil. It costs a step for 64 offsets that wait.
func (w *receiptWaits) nextOut(from, end uint64) uint64 {
	if w == nil || from < w.base || from >= end {
		return min(from, end)
	}
	return w.base + w.all.NextOut(from-w.base, end-w.base)
}

// take takes out up to n messages of a destination, the oldest first.
func (w *receiptWaits) take(target string, n int) []uint64 {
	return w.takeBelow(target, w.lanes[target].offsets.End(), n)
}

func (w *receiptWaits) takeBelow(target string, end uint64, n int) (offsets []uint64) {
	lane := w.lanes[target]
	for k := uint64(0); len(offsets) < n; {
		if k = lane.offsets.NextIn(k, end); k >= end {
			break
		}
		lane.offsets.Remove(k)
		w.all.Remove(k)
		offsets = append(offsets, w.base+k)
	}
	if lane.offsets.Count() == 0 {
		delete(w.lanes, target)
	}
	return offsets
}

// drop forgets what is below an offset.
func (w *receiptWaits) drop(offset uint64) {
	if offset <= w.base || w.all.NextIn(0, offset-w.base) == offset-w.base {
		return
	}
	for _, target := range sortedKeys(w.lanes) {
		for len(w.takeBelow(target, offset-w.base, maxReceipts)) == maxReceipts && w.lanes[target] != nil {
		}
	}
}
