package broker

import (
	"fmt"
	"hash/crc32"
	"time"

	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/broker/once"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/broker/transaction"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Bounds of the fold. They keep state small whatever the log holds.
const (
	maxQueues   = 4096 // queues of a topic that the fold opens
	maxMarks    = 64   // lineage rows of a flow that every destination has passed; older ones are forgotten
	maxAllMarks = 1024 // lineage rows of a flow at all: a destination that is behind by more is refused
	maxHistory  = 64   // lineages of an origin that a destination remembers
	maxOutcomes = 8192 // outcome ranges of a flow that wait for the origin's cursor
)

// state is what the log folds to, in memory. Everything in it but the fields
// marked volatile follows from the log alone and is part of snapshots. It is
// guarded by Broker.mu.
type state struct {
	self    zone.Group
	store   record.Incarnation
	indexes *queue.Store

	position record.Position // end of the last entry folded
	epoch    uint64          // of the lineage that is being folded
	lineage  record.LineageID
	topology zone.Epoch // last applied; zero = none yet
	digest   zone.Digest

	channels  map[string][]legKey
	onward    map[string][]legKey  // legs of a channel from this group to the zones of its city
	owners    map[zone.Zone]uint64 // what each zone owned; see ownerBody
	topics    map[zone.Topic]*topic
	subs      map[subKey]*subscription
	progress  *consumer.Progress
	out       map[record.FlowID]*outFlow
	in        map[record.FlowID]*inFlow
	relays    map[record.FlowID]*relay // of flows in in
	once      *once.Table              // which messages of idempotent topics were stored
	timers    timers
	halves    *transaction.Table // half messages that wait for a decision, and late decisions
	again     again              // what was lost with the tail of a log and stored again
	nextIndex uint64             // number of the next index; never given twice
	counts    counts

	// Volatile: what the entries of this delivery touched, for whoever wakes
	// the waiting.
	dirtyTopics []*topic
	dirtyFlows  []*outFlow
	dirtyRelays []*relay
	resets      []queueReset
	receiptsDue bool           // receipts may have to be given
	dropped     []droppedIndex // to be deleted; ascending by at

	envelope record.Envelope // volatile: of the landing at hand; its strings serve the next one
}

// droppedIndex is an index that the fold no longer has. Snapshots up to the
// entry that dropped it name it, so its files stay until none of those is kept.
type droppedIndex struct {
	name string
	at   record.Position // of that entry
}

// counts are running totals since the store was made.
type counts struct {
	Orphans       uint64 // numbers landed in a lineage that the origin gave up
	Refused       uint64 // landings that the fold ignored: duplicate or out of order
	VoidProgress  uint64 // progress of topics or groups that no longer exist
	DeadLetters   uint64
	RepeatedDead  uint64 // dead-letter copies ignored because the first one counted
	LegsAtHead    uint64 // legs of channels that began with a gap
	DroppedTopics uint64
	Withdrawn     uint64 // numbers that operators gave up for destinations that will not come back
	OffsetsSet    uint64 // queues in which a consumer group was made to go on elsewhere
	Receipts      uint64 // messages that a receipt was given for
	NoReceipts    uint64 // messages of topics with receipts that can have none
	Fired         uint64 // delayed messages that fell due
	Recalled      uint64 // delayed messages that were taken back before
	LateRecalls   uint64 // recalls of messages that had fallen due, or were recalled already
	VoidTimers    uint64 // copies of delayed messages that were ignored since they were settled already
	LateCommits   uint64 // commits that were ignored since the half message was decided already
	LiteForgotten uint64 // lite topics whose time was over
	LiteEvicted   uint64 // lite topics that made room for others
	LiteMoved     uint64 // consumer groups that were made to go on elsewhere in a lite topic

	RepeatedSends    uint64 // copies of messages of idempotent topics that came at once and were ignored
	ConflictingSends uint64 // likewise, with other content than the first

	Again         uint64 // messages of tails that were stored again
	AgainRepeated uint64 // likewise, ignored since they had been stored again before
	AgainRefused  uint64 // likewise, ignored since there is no room to remember them
}

// topic is a topic as the fold knows it.
type topic struct {
	name       zone.Topic
	first      record.Position // of the entry that made it: its incarnation
	declared   bool            // by the last topology
	deadLetter bool
	broadcast  bool
	channel    string // of a broadcast topic: whose numbers its records have
	want       int    // queues that new records are spread over
	retention  time.Duration
	receipts   zone.Topic // where its receipts go; empty = it has none
	lite       *liteTable // its lite topics; nil = it has none
	queues     []*topicQueue

	dirty bool            // volatile: listed in state.dirtyTopics
	grown chan struct{}   // volatile: closed when the topic changes; nil when nobody waits
	subs  []*subscription // volatile: mirrors state.subs
}

type topicQueue struct {
	id      uint64 // of the index
	index   *queue.Index
	carried carriedList // of a dead-letter topic: letters that were appended again
	givenUp givenUp     // of a topic with receipts: what groups gave up and has no receipt yet
}

type subKey struct {
	group zone.ConsumerGroup
	topic zone.Topic
}

// subscription is a consumer group's use of a topic.
type subscription struct {
	key      subKey
	topic    *topic
	declared bool
	cache    bool
	since    []uint64 // of a topic with receipts, by queue: where the group began; beyond its end 0

	hands *hands // volatile: deliveries in consumers' hands; nil until first asked for
}

func newState(self zone.Group, store record.Incarnation, indexes *queue.Store) *state {
	return &state{
		self: self, store: store, indexes: indexes,
		channels: map[string][]legKey{},
		onward:   map[string][]legKey{},
		owners:   map[zone.Zone]uint64{},
		topics:   map[zone.Topic]*topic{},
		subs:     map[subKey]*subscription{},
		out:      map[record.FlowID]*outFlow{},
		in:       map[record.FlowID]*inFlow{},
		relays:   map[record.FlowID]*relay{},
		timers:   timers{byID: map[uint64]*timerBucket{}},
		progress: consumer.NewProgress(),
		halves:   transaction.NewTable(),
		once:     &once.Table{},
	}
}

// newIndex opens the next index. Its number follows from the log, so a replay
// gives the same one.
func (s *state) newIndex() (uint64, *queue.Index, error) {
	id := s.nextIndex
	ix, err := s.indexes.Index(indexName(id))
	if err != nil {
		return 0, nil, err
	}
	// A run that ended before its snapshot may have left files of that name.
	if err := ix.Reset(0); err != nil {
		return 0, nil, err
	}
	s.nextIndex++
	return id, ix, nil
}

func indexName(id uint64) string { return fmt.Sprintf("%08x", id) }

// grow gives the topic as many queues as wanted, and has each of its
// subscriptions begin a new queue at its beginning.
func (s *state) grow(t *topic, n int) error {
	n = wanted(n)
	for len(t.queues) < n {
		id, ix, err := s.newIndex()
		if err != nil {
			return err
		}
		for _, sub := range t.subs {
			s.progress.Create(sub.key.group, t.name, uint16(len(t.queues)), 0)
		}
		t.queues = append(t.queues, &topicQueue{id: id, index: ix})
	}
	t.want = n
	return nil
}

// wanted returns how many queues a topic gets that asks for n.
func wanted(n int) int { return min(max(n, 1), maxQueues) }

// ensureTopic returns the topic, made at pos when there is none.
func (s *state) ensureTopic(name zone.Topic, pos record.Position, queues int) (*topic, error) {
	if t := s.topics[name]; t != nil {
		return t, nil
	}
	t := &topic{name: name, first: pos, deadLetter: isDeadLetter(name)}
	if err := s.grow(t, queues); err != nil {
		return nil, err
	}
	s.topics[name] = t
	return t, nil
}

// subscribe returns the subscription, made when there is none. The caller
// gives it its progress.
func (s *state) subscribe(key subKey, t *topic) *subscription {
	if sub := s.subs[key]; sub != nil {
		return sub
	}
	sub := &subscription{key: key, topic: t}
	s.subs[key] = sub
	t.subs = append(t.subs, sub)
	return sub
}

// undeclared returns how many subscriptions the topology does not declare.
func (s *state) undeclared() int {
	n := 0
	for _, sub := range s.subs {
		if !sub.declared && !ownGroup(sub.key.group) {
			n++
		}
	}
	return n
}

// dropTopic forgets a topic, its subscriptions and its indexes, at the entry at
// pos.
func (s *state) dropTopic(t *topic, pos record.Position) {
	for _, sub := range t.subs {
		delete(s.subs, sub.key)
		s.progress.Drop(sub.key.group, sub.key.topic)
	}
	t.subs = nil
	delete(s.topics, t.name)
	s.counts.DroppedTopics++
	s.touchTopic(t)
	for _, q := range t.queues {
		s.dropped = append(s.dropped, droppedIndex{indexName(q.id), pos})
	}
}

// deleteDropped deletes the indexes that no snapshot from oldest on names.
func (s *state) deleteDropped(oldest record.Position) error {
	for len(s.dropped) > 0 && s.dropped[0].at < oldest {
		if err := s.indexes.Delete(s.dropped[0].name); err != nil {
			return err
		}
		s.dropped = s.dropped[1:]
	}
	return nil
}

func (s *state) dropSubscription(sub *subscription) {
	delete(s.subs, sub.key)
	s.progress.Drop(sub.key.group, sub.key.topic)
	t := sub.topic
	for i, o := range t.subs {
		if o == sub {
			t.subs = append(t.subs[:i:i], t.subs[i+1:]...)
			break
		}
	}
	s.touchTopic(t)
}

func (s *state) touchTopic(t *topic) {
	if !t.dirty {
		t.dirty = true
		s.dirtyTopics = append(s.dirtyTopics, t)
	}
}

func (s *state) touchFlow(f *outFlow) {
	if !f.dirty {
		f.dirty = true
		s.dirtyFlows = append(s.dirtyFlows, f)
	}
}

// placement says where the fold put a record.
type placement struct {
	ok     bool // false: the fold ignored the record
	queue  int
	offset uint64 // in the queue, or the number in the flow, or in the bucket; of a half message: its position
	waits  bool   // it waits for its delivery time, in the bucket of that name
	bucket uint64
	half   bool   // it waits for its producer's decision
	epoch  uint64 // of the lineage, of a half message

	again    bool // the message was stored before: this is where
	conflict bool // another message has its id: it was ignored
	offer    offerFate
}

// place returns the queue that a record goes to which names queue q.
func (t *topic) place(q int) int {
	if t.broadcast || t.deadLetter {
		return 0 // one order: that of landing
	}
	return q % t.want
}

// enqueue appends a record to a queue of the topic.
func (s *state) enqueue(t *topic, q int, e queue.Entry) (placement, error) {
	q = t.place(q)
	ix := t.queues[q].index
	offset, err := ix.Append(e)
	if err != nil {
		return placement{}, err
	}
	s.touchTopic(t)
	return placement{ok: true, queue: q, offset: offset}, nil
}

func isDeadLetter(name zone.Topic) bool {
	return len(name) >= len(DeadLetterPrefix) && name[:len(DeadLetterPrefix)] == DeadLetterPrefix
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// tagHash is the hash of a tag in queue entries: its CRC32C, and never 0 but
// for the empty tag.
func tagHash(tag []byte) uint32 {
	if len(tag) == 0 {
		return 0
	}
	if h := crc32.Checksum(tag, castagnoli); h != 0 {
		return h
	}
	return 1
}

// mark is the lineage row for numbers given now.
func (s *state) mark(first uint64) flow.Mark {
	return flow.Mark{Epoch: s.epoch, ID: s.lineage, First: first}
}
