package broker

import (
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/broker/transaction"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Status is what a broker tells people about itself at one moment.
type Status struct {
	Node        zone.Node
	Group       zone.Group
	Zone        zone.Zone
	City        zone.City
	Epoch       zone.Epoch // topology in force
	Incarnation record.Incarnation
	Lineage     uint64 // epoch of the present lineage
	Held        string // why nothing can be stored now; empty when all is well
	Member      MemberStatus
	Log         LogStatus
	Counts      Counts
	Topics      []TopicStatus
	Groups      []GroupStatus
	Outgoing    []OutgoingStatus
	Incoming    []IncomingStatus
	Timers      TimerStatus
	// Transactions are the topics with half messages that wait for decisions.
	Transactions []TransactionStatus
	Decided      transaction.Totals // since the store was made
	Windows      []WindowStatus     // of idempotent topics
	Limits       []LimitStatus      // of which something is in use, or was in the way
	Receipts     []ReceiptsWaiting  // that wait for room in the backlog of their destination
	// ReceiptTopics are the topics with messages that have no receipt yet, for whatever reason.
	ReceiptTopics []ReceiptTopic
}

// TransactionStatus is what waits for decisions of a topic.
type TransactionStatus struct {
	Topic   zone.Topic
	Pending int
	Oldest  time.Duration // age of the oldest one, by the wall clock
	Checked int           // of these: a producer was asked at least once
	Alone   bool          // the last check found no producer connected
}

// fillTransactions copies what waits for decisions. mu is held.
func (b *Broker) fillTransactions(st *Status) {
	st.Decided = b.state.halves.Totals()
	now := b.wallNow()
	for _, s := range b.state.halves.Summaries() {
		st.Transactions = append(st.Transactions, TransactionStatus{Topic: s.Topic, Pending: s.Pending,
			Oldest: max(now.Sub(s.Oldest), 0), Checked: s.Checked, Alone: b.halves.check.lonely[s.Topic]})
	}
}

// LogStatus is the extent of the log.
type LogStatus struct {
	Begin, Committed record.Position
	Snapshot         record.Position // of the newest snapshot
}

// Counts are running totals since the store was made.
type Counts = counts

// TopicStatus is a topic of this broker.
type TopicStatus struct {
	Topic    zone.Topic
	Declared bool
	Queues   []QueueStatus
	Lite     *LiteStatus // nil for a topic without lite topics
}

// QueueStatus is the extent of a queue: offsets from First up to Next.
type QueueStatus struct{ First, Next uint64 }

// GroupStatus is a consumer group's use of a topic.
type GroupStatus struct {
	Group    zone.ConsumerGroup
	Topic    zone.Topic
	Declared bool
	Cache    bool
	Lag      uint64   // messages that are not settled
	InHands  int      // of these: with consumers, or waiting for a retry; in order also the next of a message group
	Behind   int      // in order: of these, known to wait behind an earlier one of their message group
	Moving   int      // in order: message groups of which one is in hands
	Waiting  int      // receives that wait for messages
	Lite     *LiteUse // nil for a topic without lite topics
	Held     int64    // log bytes that what is not settled holds back, as of the last look at retention; -1 = unknown
}

// OutgoingStatus is a destination of a flow that begins here, or lands here and
// goes onward.
type OutgoingStatus struct {
	Flow         record.FlowID
	City         zone.City
	Group        zone.Group
	Onward       bool // the flow began elsewhere, landed here and goes on; Head is its settled prefix
	Head, Cursor uint64
	BacklogBytes int64
	Oldest       time.Duration // age of the oldest unsettled record; 0 = none

	// Removed: the topology has no such destination any more. What it has not
	// settled is kept for its return, until an operator withdraws it.
	Removed   bool
	Lost      uint64 // numbers that the origin has declared lost for it, ever
	LostBytes uint64
	Untold    uint64 // of these: not yet settled as lost by the destination
	Compacted uint64 // numbers left out since newer records of their keys follow, ever
	Topics    []TopicBacklog
}

// TopicBacklog is what one destination holds back of a topic.
type TopicBacklog struct {
	Topic zone.Topic
	Bytes int64 // in this lane
	Held  int64 // in all lanes of the flow, which is what the budget bounds
	Limit int64 // the topic's budget; 0 = the topology has no such topic any more
	End   zone.BudgetEnd
}

// topicBacklogs lists what the leg holds back, by topic.
func (s *state) topicBacklogs(topo *zone.Topology, f *outFlow, l *leg, lanes int) []TopicBacklog {
	var list []TopicBacklog
	for i, name := range f.topics {
		tb := TopicBacklog{Topic: name, Bytes: l.topicBacklog(uint8(i + 1)), Held: s.heldBack(f, l, name, lanes)}
		if t := topo.FindTopic(name); t != nil {
			tb.Limit, tb.End = t.Budget, t.AtBudget
		}
		list = append(list, tb)
	}
	return list
}

// IncomingStatus is a flow that ends here.
type IncomingStatus struct {
	Flow     record.FlowID
	Settled  uint64
	Outcomes int // ranges that wait for the origin's cursor
	Orphans  uint64
	Sealed   bool
}

// Status returns the broker's status. It reads a record for each destination
// with a backlog.
func (b *Broker) Status() Status {
	v := b.view.Load()
	st := Status{
		Node: v.node, Group: b.self, Zone: v.zone.Name, City: v.zone.City.Name, Epoch: v.topo.Epoch,
		Incarnation: b.log.Incarnation(), Log: LogStatus{Begin: b.log.Begin(), Committed: b.log.Committed()},
	}
	st.Member = b.MemberStatus()
	if err := b.Sink().Writable(); err != nil {
		st.Held = err.Error()
	}
	st.Timers = b.timerStatus()
	if list := b.receiptsWait.Load(); list != nil {
		st.Receipts = slices.Clone(*list)
	}
	oldest := b.fillStatus(&st)
	now := b.wallNow()
	for i, n := range oldest {
		if n.index == nil {
			continue
		}
		e, err := n.index.Get(n.from)
		if err != nil {
			continue
		}
		if rec, err := b.readRecord(e); err == nil {
			st.Outgoing[i].Oldest = max(now.Sub(rec.Stored()), 0)
		}
	}
	return st
}

// fillStatus copies from the state; it returns where the oldest unsettled record
// of each element of Outgoing is, without an index when there is none.
func (b *Broker) fillStatus(st *Status) []need {
	b.mu.RLock()
	defer b.mu.RUnlock()
	s := b.state
	st.Lineage, st.Counts, st.Log.Snapshot = s.epoch, s.counts, b.snapAt
	now := b.wallNow()
	for _, name := range sortedKeys(s.topics) {
		t := s.topics[name]
		ts := TopicStatus{Topic: name, Declared: t.declared, Lite: b.liteStatus(t, now)}
		for _, q := range t.queues {
			ts.Queues = append(ts.Queues, QueueStatus{First: q.index.First(), Next: q.index.Next()})
		}
		st.Topics = append(st.Topics, ts)
	}
	for _, sub := range s.sortedSubs() {
		if ownGroup(sub.key.group) {
			continue // marks of dead letters, and no consumers
		}
		gs := GroupStatus{Group: sub.key.group, Topic: sub.key.topic, Declared: sub.declared, Cache: sub.cache, Held: -1}
		if held := b.held.Load(); held != nil {
			if n, ok := (*held)[sub.key]; ok {
				gs.Held = n
			}
		}
		for i, q := range sub.topic.queues {
			gs.Lag += s.progress.Lag(sub.key.group, sub.key.topic, uint16(i), q.index.Next())
		}
		var hs consumer.Stats
		if sub.hands != nil {
			hs = sub.hands.disp.Stats()
			gs.InHands, gs.Waiting, gs.Behind, gs.Moving = hs.InFlight, hs.Waiters, hs.Waiting, hs.Groups
		}
		gs.Lite = b.liteUse(sub, hs.Asleep)
		st.Groups = append(st.Groups, gs)
	}
	st.ReceiptTopics = b.receiptTopics(st.Groups)
	b.fillTransactions(st)
	st.Windows = b.windows()
	st.Limits = b.limitStatus(st)
	var oldest []need
	topo := b.Topology()
	for _, id := range sortedFlows(s.out) {
		f := s.out[id]
		for _, l := range f.legs {
			leg, live := liveLeg(topo, id, l.key)
			st.Outgoing = append(st.Outgoing, OutgoingStatus{
				Flow: id, City: leg.City, Group: l.key.group, Head: l.last(f.head()), Cursor: l.cursor, BacklogBytes: l.backlog,
				Removed: !live || l.end > 0, Lost: l.given.Lost, LostBytes: l.given.LostBytes, Untold: l.untold(), Compacted: l.given.Compacted,
				Topics: s.topicBacklogs(topo, f, l, b.log.Lanes()),
			})
			n := need{f.index, l.firstPending(l.last(f.head())) - 1}
			if n.from >= l.last(f.head()) {
				n.index = nil
			}
			oldest = append(oldest, n)
		}
	}
	oldest = append(oldest, b.onwardStatus(st)...)
	for _, id := range sortedFlows(s.in) {
		f := s.in[id]
		st.Incoming = append(st.Incoming, IncomingStatus{
			Flow: id, Settled: f.settled, Outcomes: len(f.outcomes), Orphans: f.orphans, Sealed: f.sealed,
		})
	}
	return oldest
}
