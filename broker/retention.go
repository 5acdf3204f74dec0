package broker

import (
	"time"

	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/record"
)

// trimLoop removes what nobody needs any more.
func (b *Broker) trimLoop() {
	b.loop(b.limits.TrimEvery, nil, func() time.Duration {
		trim := b.trimFollowing
		if b.serves() {
			trim = func() error { return b.trim(b.wallNow()) }
		}
		if err := trim(); err != nil && b.ctx.Err() == nil {
			b.logger.Warn("trim failed", "group", string(b.self), "err", err)
		}
		return b.limits.TrimEvery
	})
}

// trim removes whole segments of the log below everything that is still
// needed, and then the index entries that point there.
func (b *Broker) trim(now time.Time) error {
	if b.isLent() {
		return nil
	}
	floor, over := b.floor()
	horizon, old, err := b.horizon(now)
	if err != nil {
		return err
	}
	floor = min(floor, horizon)
	for _, n := range b.letterNeeds() {
		lowest, err := b.carry(b.ctx, n, now, floor, old)
		if err != nil {
			return err
		}
		floor = min(floor, lowest)
	}
	if floor, err = b.keepTimers(b.ctx, floor); err != nil {
		return err
	}
	floor = min(floor, b.carryHalves(b.ctx, floor))
	if floor <= b.log.Begin() {
		return nil
	}
	before := b.log.Begin()
	begin, err := b.log.Trim(floor)
	if err != nil || begin == before {
		return err
	}
	b.logger.Info("log trimmed", "group", string(b.self), "seq", uint64(begin))
	unread := b.unread(over)
	if err := b.trimIndexes(begin); err != nil {
		return err
	}
	b.tellPassed(over, unread)
	return nil
}

// unread returns where the oldest message is that each subscription has not
// settled, by queue.
func (b *Broker) unread(over []subNeed) map[*queue.Index]uint64 {
	at := map[*queue.Index]uint64{}
	for _, sub := range over {
		for _, n := range sub.queues {
			at[n.index] = max(n.from, n.index.First())
		}
	}
	return at
}

// tellPassed tells of subscriptions that held back more than they may, and how
// many messages went before they were settled.
func (b *Broker) tellPassed(over []subNeed, unread map[*queue.Index]uint64) {
	for _, sub := range over {
		var passed uint64
		for _, n := range sub.queues {
			if first := n.index.First(); first > max(unread[n.index], n.from) {
				passed += first - max(unread[n.index], n.from)
			}
		}
		if passed == 0 {
			continue
		}
		b.metrics.passed(sub, passed)
		b.logger.Error("messages went before a subscription had read them: it held back more log than it may",
			"group", string(sub.key.group), "topic", string(sub.key.topic), "messages", passed, "bound", sub.budget)
	}
}

// floor returns the lowest position that cursors, declared consumer groups or
// snapshots need, and the subscriptions that were left out of account since they
// hold back more than they may.
func (b *Broker) floor() (record.Position, []subNeed) {
	end := b.log.Committed()
	floor, legs, subs := b.needs()
	for _, n := range legs {
		floor = min(floor, positionOf(n.index, n.from))
	}
	floor = b.relayFloor(floor, end)
	var over []subNeed
	held := make(map[subKey]int64, len(subs))
	for _, sub := range subs {
		lowest := end
		for _, n := range sub.queues {
			lowest = min(lowest, positionOf(n.index, n.from))
		}
		held[sub.key] = int64(end - lowest)
		if sub.budget > 0 && held[sub.key] > sub.budget {
			over = append(over, sub)
			continue
		}
		floor = min(floor, lowest)
	}
	b.held.Store(&held)
	return floor, over
}

// need says that an index is needed from a number on.
type need struct {
	index *queue.Index
	from  uint64
}

// subNeed is what a declared subscription needs.
type subNeed struct {
	key    subKey
	budget int64 // log bytes that it may hold back; 0 = no bound
	cache  bool
	queues []need
}

// needs notes what is needed; the indexes are read outside the fold's lock.
// snapshots is the position that snapshots need.
func (b *Broker) needs() (snapshots record.Position, legs []need, subs []subNeed) {
	topo := b.Topology()
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, f := range b.state.out {
		for _, l := range f.legs {
			if n := l.firstPending(l.last(f.head())); n <= l.last(f.head()) {
				legs = append(legs, need{f.index, n - 1})
			}
		}
	}
	for key, sub := range b.state.subs {
		if !sub.declared {
			continue
		}
		n := subNeed{key: key, cache: sub.cache}
		if t := topo.FindTopic(key.topic); sub.cache && t != nil {
			n.budget = t.Budget
		}
		if g := topo.FindConsumerGroup(key.group); g != nil && g.Hold > 0 {
			n.budget = g.Hold
		}
		b.state.progress.Floors(key.group, key.topic, func(queue uint16, at uint64) {
			if int(queue) < len(sub.topic.queues) {
				n.queues = append(n.queues, need{sub.topic.queues[queue].index, at})
			}
		})
		subs = append(subs, n)
	}
	return b.trimAt, legs, subs
}

// positionOf returns where number i is, or the end of time when the index has
// nothing there yet. An index that cannot be read holds everything back.
func positionOf(ix *queue.Index, i uint64) record.Position {
	i = max(i, ix.First())
	if i >= ix.Next() {
		return ^record.Position(0)
	}
	e, err := ix.Get(i)
	if err != nil {
		return 0
	}
	return e.Position
}

// horizon returns the position below which everything is older than it must be
// kept: the retention of each topic that has anything there, and what an origin
// keeps past the acknowledgement so that a destination can be rewound. Dead
// letters have their own: old is the position below which they are too old.
func (b *Broker) horizon(now time.Time) (at, old record.Position, err error) {
	times, err := b.log.SegmentTimes(b.ctx)
	if err != nil {
		return 0, 0, err
	}
	before := func(keep time.Duration) (at record.Position) {
		for _, s := range times {
			if s.Last.IsZero() || now.Sub(s.Last) < keep {
				break
			}
			at = s.End
		}
		return at
	}
	type kept struct {
		index *queue.Index
		time  time.Duration
	}
	var list []kept
	b.mu.RLock()
	for _, t := range b.state.topics {
		for _, q := range t.queues {
			if !t.deadLetter {
				list = append(list, kept{q.index, t.retention})
			}
		}
	}
	for _, f := range b.state.out {
		list = append(list, kept{f.index, b.limits.FlowHorizon})
	}
	for _, r := range b.state.relays {
		list = append(list, kept{r.index, b.limits.FlowHorizon})
	}
	b.mu.RUnlock()
	at = before(0)
	positions := map[time.Duration]record.Position{}
	for _, k := range list {
		p, ok := positions[k.time]
		if !ok {
			p = before(k.time)
			positions[k.time] = p
		}
		// The first entry that is young enough is what this index needs.
		i, _, err := k.index.Search(p)
		if err != nil {
			return 0, 0, err
		}
		at = min(at, positionOf(k.index, i))
	}
	return at, before(b.limits.DeadLetterRetention), nil
}

// trimIndexes drops index entries below the log's beginning. The fold stands
// still meanwhile: indexes have one writer.
func (b *Broker) trimIndexes(begin record.Position) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.state.topics {
		for _, q := range t.queues {
			if err := trimIndex(q.index, begin); err != nil {
				return err
			}
			q.carried.dropBelow(begin)
		}
	}
	for id, f := range b.state.out {
		if need, ok := b.trimNeeds[id]; !ok || f.index.First() >= need {
			continue
		} else if err := trimIndexTo(f.index, begin, need); err != nil {
			return err
		}
	}
	for _, r := range b.state.relays {
		if err := trimIndex(r.index, begin); err != nil {
			return err
		}
	}
	for _, k := range b.state.timers.list {
		if err := trimIndex(k.index, begin); err != nil {
			return err
		}
	}
	return nil
}

func trimIndex(ix *queue.Index, begin record.Position) error {
	return trimIndexTo(ix, begin, ix.Next())
}

// trimIndexTo trims no entry from most on.
func trimIndexTo(ix *queue.Index, begin record.Position, most uint64) error {
	i, _, err := ix.Search(begin)
	if i = min(i, most); err != nil || i <= ix.First() {
		return err
	}
	return ix.TrimBefore(i)
}

// indexNeeds returns the first entry of each flow's index that folding the log
// behind this state reads: cursors that move and decisions to give up count the
// bytes of what they pass. The log may have forgotten the records by then; a fold
// that no longer finds their entries would leave them in the backlog.
func (s *state) indexNeeds() map[record.FlowID]uint64 {
	needs := make(map[record.FlowID]uint64, len(s.out))
	for id, f := range s.out {
		need := f.head()
		for _, l := range f.legs {
			need = min(need, l.firstPending(l.last(f.head()))-1)
		}
		needs[id] = need
	}
	return needs
}
