package broker

import (
	"cmp"
	"slices"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// outFlow is the origin's end of a flow. Number n is entry n-1 of its index;
// the entry's hash is the record's header checksum.
type outFlow struct {
	id    record.FlowID
	index *queue.Index
	ixID  uint64
	marks []flow.Mark
	legs  []*leg
	// topics are those that records of the flow are of: the one at i has label i+1.
	topics []zone.Topic

	dirty    bool          // volatile: listed in state.dirtyFlows
	advanced chan struct{} // volatile: closed when the head moves; nil when nobody waits
	seen     uint64        // volatile: the head when waiters were last told
}

// leg is one destination of an outFlow. The group alone names the leg of a
// unicast flow; its city is empty.
type leg struct {
	key     legKey
	cursor  uint64
	at      flow.Fingerprint // the origin's own, of the cursor; kept past trimming
	parked  uint64           // dead-letter copies up to here were made
	backlog int64            // bytes above the cursor that are to be sent
	topics  []int64          // of these, by label of the topic; [0] = without a label
	gap     numberSet        // numbers above the cursor that the origin has declared lost
	skip    numberSet        // likewise, that a newer record of their key makes needless
	given   given
	// end is not 0 once the topology has no such destination in the channel: it is
	// the last number that is for it. What it has not settled stays for its return,
	// or until an operator withdraws it.
	end uint64
}

// last returns the last number that is for the leg.
func (l *leg) last(head uint64) uint64 {
	if l.end > 0 {
		return min(l.end, head)
	}
	return head
}

// head returns the highest number given.
func (f *outFlow) head() uint64 { return f.index.Next() }

// oldest returns the lowest number that the index still holds.
func (f *outFlow) oldest() uint64 { return f.index.First() + 1 }

func (f *outFlow) leg(key legKey) *leg {
	for _, l := range f.legs {
		if l.key == key {
			return l
		}
	}
	return nil
}

// lineageOf returns the lineage of a number and the first number after it.
func (f *outFlow) lineageOf(number uint64) (id record.LineageID, until uint64) {
	until = f.head() + 1
	for i := len(f.marks) - 1; i >= 0; i-- {
		if f.marks[i].First <= number {
			return f.marks[i].ID, until
		}
		until = f.marks[i].First
	}
	return 0, until
}

// fingerprint returns the origin's own fingerprint of a number.
func (f *outFlow) fingerprint(number uint64) (flow.Fingerprint, bool) {
	for _, l := range f.legs {
		if number > 0 && l.at.Number == number {
			return l.at, true
		}
	}
	if number < f.oldest() || number > f.head() {
		return flow.Fingerprint{}, false
	}
	e, err := f.index.Get(number - 1)
	if err != nil {
		return flow.Fingerprint{}, false
	}
	id, _ := f.lineageOf(number)
	return flow.Fingerprint{Lineage: id, Number: number, Checksum: e.Hash}, id != 0
}

// keyOf returns the key under which a leg is kept.
func keyOf(id record.FlowID, city zone.City, group zone.Group) legKey {
	if !id.Channel {
		city = ""
	}
	return legKey{city: city, group: group}
}

func (s *state) legOf(id record.FlowID, key legKey) *leg {
	if f := s.out[id]; f != nil {
		return f.leg(keyOf(id, key.city, key.group))
	}
	if r := s.relays[id]; r != nil {
		return r.leg(key)
	}
	return nil
}

// flowOf returns the flow of an outgoing record, or nil when it has no number yet.
func (s *state) flowOf(v record.View) *outFlow {
	// Written out, since a string of bytes costs nothing inside an index only.
	return s.out[record.FlowID{
		Origin: s.self, Incarnation: s.store, Target: string(v.Target()),
		Channel: v.Channel(), Class: v.Class(), Lane: v.Lane(),
	}]
}

// flowEntry is the entry of a record in its flow.
func flowEntry(f *outFlow, e *commitlog.Entry, v record.View) queue.Entry {
	return queue.Entry{Position: e.Position, Size: uint32(e.Size), Hash: v.HeaderChecksum(), Label: f.labelOf(v.Topic())}
}

// number gives the record the next number of its flow.
func (s *state) number(e *commitlog.Entry, v record.View) (placement, error) {
	var err error
	f := s.flowOf(v)
	if f == nil {
		if f, err = s.newOutFlow(record.FlowID{
			Origin: s.self, Incarnation: s.store, Target: string(v.Target()),
			Channel: v.Channel(), Class: v.Class(), Lane: v.Lane(),
		}); err != nil {
			return placement{}, err
		}
	}
	entry := flowEntry(f, e, v)
	i, err := f.index.Append(entry)
	if err != nil {
		return placement{}, err
	}
	n := i + 1
	if last := len(f.marks) - 1; last < 0 || f.marks[last].ID != s.lineage {
		f.marks = append(f.marks, s.mark(n))
		f.forgetMarks()
	}
	for _, l := range f.legs {
		if l.end == 0 {
			l.more(entry)
		}
	}
	s.touchFlow(f)
	return placement{ok: true, queue: int(v.Queue()), offset: n}, nil
}

// forgetMarks drops the oldest lineage rows when there are many, but for those
// with a number that a destination may still stand at.
func (f *outFlow) forgetMarks() {
	slowest := f.head()
	for _, l := range f.legs {
		slowest = min(slowest, l.cursor)
	}
	for n := len(f.marks); n > maxAllMarks || n > maxMarks && f.marks[1].First <= slowest; n-- {
		f.marks = slices.Delete(f.marks, 0, 1)
	}
}

func (s *state) newOutFlow(id record.FlowID) (*outFlow, error) {
	f := &outFlow{id: id}
	var err error
	if f.ixID, f.index, err = s.newIndex(); err != nil {
		return nil, err
	}
	if id.Channel {
		for _, key := range s.legsOf(id.Target) {
			f.legs = append(f.legs, &leg{key: key})
		}
	} else {
		f.legs = []*leg{{key: legKey{group: zone.Group(id.Target)}}}
	}
	s.out[id] = f
	return f, nil
}

// applySettle moves cursors. A cursor never moves back or past the head.
func (s *state) applySettle(body []byte) error {
	items, err := parseSettleBody(body)
	if err != nil {
		return err
	}
	for _, it := range items {
		f := s.out[it.leg.Flow]
		if f == nil {
			if r := s.relays[it.leg.Flow]; r != nil {
				if err := r.settle(legKey{it.leg.City, it.leg.Group}, it.to); err != nil {
					return err
				}
				s.touchRelay(r)
			}
			continue
		}
		if err := f.settle(keyOf(it.leg.Flow, it.leg.City, it.leg.Group), it.to.through); err != nil {
			return err
		}
		s.touchFlow(f)
	}
	return nil
}

func (f *outFlow) settle(key legKey, through uint64) error {
	l := f.leg(key)
	through = min(through, f.head())
	if l == nil || through <= l.cursor {
		return nil
	}
	if err := f.settledBytes(l, through); err != nil {
		return err
	}
	l.cursor = through
	l.gap.dropThrough(through)
	l.skip.dropThrough(through)
	if at, ok := f.fingerprint(through); ok {
		l.at = at
	}
	return nil
}

// settledBytes takes what is settled up to through out of the leg's backlog.
func (f *outFlow) settledBytes(l *leg, through uint64) error {
	if through == f.head() { // the usual case: the leg has caught up
		l.backlog = 0
		clear(l.topics)
		return nil
	}
	return f.entries(numberRange{l.cursor + 1, through}, func(n uint64, e queue.Entry) {
		if !l.gap.has(n) && !l.skip.has(n) {
			l.less(e)
		}
	})
}

// flowOrder orders flows for snapshots and tables.
func flowOrder(a, b record.FlowID) int {
	return cmp.Or(
		cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Incarnation, b.Incarnation),
		cmp.Compare(a.Target, b.Target), cmp.Compare(a.Class, b.Class), cmp.Compare(a.Lane, b.Lane),
		// A channel may have the name of a group.
		cmp.Compare(flagIf(a.Channel, 1), flagIf(b.Channel, 1)),
	)
}
