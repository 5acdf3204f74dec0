package flow

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// memFlow is what an origin holds of one flow.
type memFlow struct {
	id      record.FlowID
	legs    []Leg
	lineage []Mark
	oldest  uint64
	trimmed uint64   // highest oldest ever; no copy brings it back
	records [][]byte // number i+1
	waiters map[uint64][]chan struct{}
}

func (f *memFlow) head() uint64 { return uint64(len(f.records)) }

// memLeg is the origin's end of a leg. Only durable survives a crash.
type memLeg struct {
	settled, durable uint64
	at               Fingerprint
	parked           map[uint64]int // dead letters made, by number
}

// memSource is an origin in memory. Everything published is committed at once;
// cursors that moved without consequences become durable later.
type memSource struct {
	rng     *rand.Rand
	changed chan struct{}

	mu      sync.Mutex
	flows   map[record.FlowID]*memFlow
	legs    map[Leg]*memLeg
	uid     int
	epoch   uint64
	onMoved func(leg Leg, s Settlement) // called with mu held
	failing bool                        // Settle fails
	hidden  map[Leg]bool                // legs that the topology has lost
	compose func(r *record.Record)      // changes what publish is about to append; may be nil. Called with mu held
}

var _ Source = (*memSource)(nil)

func newMemSource(rng *rand.Rand) *memSource {
	return &memSource{rng: rng, changed: make(chan struct{}, 1), flows: map[record.FlowID]*memFlow{}, legs: map[Leg]*memLeg{}}
}

func (m *memSource) addFlow(id record.FlowID, legs ...Leg) {
	m.flows[id] = &memFlow{id: id, legs: legs, oldest: 1, waiters: map[uint64][]chan struct{}{}}
	for _, l := range legs {
		m.legs[l] = &memLeg{parked: map[uint64]int{}}
	}
}

// restart begins a new lineage in every flow, as a start of the store does.
func (m *memSource) restart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.epoch++
	for _, id := range m.sortedFlows() {
		f := m.flows[id]
		f.lineage = append(slices.Clip(f.lineage), Mark{Epoch: m.epoch, ID: record.LineageID(m.rng.Uint64() | 1), First: f.head() + 1})
		f.waiters = map[uint64][]chan struct{}{}
		for _, l := range f.legs {
			c := m.legs[l]
			c.settled = c.durable
		}
	}
	m.changed = make(chan struct{}, 1)
}

func (m *memSource) sortedFlows() []record.FlowID {
	var ids []record.FlowID
	for id := range m.flows {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b record.FlowID) int { return slices.Compare([]byte(FlowName(a)), []byte(FlowName(b))) })
	return ids
}

// snapshot returns a function that puts the records and cursors back.
func (m *memSource) snapshot() (restore func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	type saved struct {
		lineage []Mark
		records [][]byte
		oldest  uint64
		durable map[Leg]uint64
		at      map[Leg]Fingerprint
		parked  map[Leg][]uint64
	}
	all := map[record.FlowID]saved{}
	for id, f := range m.flows {
		s := saved{slices.Clone(f.lineage), slices.Clone(f.records), f.oldest, map[Leg]uint64{}, map[Leg]Fingerprint{}, map[Leg][]uint64{}}
		for _, l := range f.legs {
			s.durable[l], s.at[l] = m.legs[l].durable, m.legs[l].at
			for n := range m.legs[l].parked {
				s.parked[l] = append(s.parked[l], n)
			}
		}
		all[id] = s
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for id, s := range all {
			f := m.flows[id]
			f.lineage, f.records, f.oldest = s.lineage, s.records, s.oldest
			for _, l := range f.legs {
				c := m.legs[l]
				c.durable, c.settled, c.at = s.durable[l], s.durable[l], s.at[l]
				c.parked = map[uint64]int{}
				for _, n := range s.parked[l] {
					c.parked[n] = 1
				}
			}
		}
	}
}

// publish appends a record. tag "bad" is parked by every sink. residency may
// be nil.
func (m *memSource) publish(id record.FlowID, tag string, size int, residency ...zone.City) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.flows[id]
	m.uid++
	r := record.Record{
		Type: record.TypeMessage, Topic: "t", Kind: zone.KindNormal, Class: id.Class, Target: id.Target,
		Channel: id.Channel, Lane: id.Lane, Residency: residency, Tag: tag, Stored: time.Now(), Born: time.Now(),
		MessageID: fmt.Sprintf("m%d", m.uid), Body: make([]byte, size),
	}
	if m.compose != nil {
		m.compose(&r)
	}
	b, err := record.AppendRecord(nil, &r)
	if err != nil {
		panic(err)
	}
	f.records = append(f.records, b)
	head := f.head()
	for n, list := range f.waiters {
		if n < head {
			for _, c := range list {
				close(c)
			}
			delete(f.waiters, n)
		}
	}
	signal(m.changed)
	return head
}

// trim drops the records below oldest.
func (m *memSource) trim(id record.FlowID, oldest uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.flows[id]
	f.oldest = min(max(f.oldest, oldest), f.head()+1)
	f.trimmed = max(f.trimmed, f.oldest)
}

func (m *memSource) Topology() *zone.Topology { return nil }

func (m *memSource) Legs() []Leg {
	m.mu.Lock()
	defer m.mu.Unlock()
	var legs []Leg
	for _, id := range m.sortedFlows() {
		f := m.flows[id]
		for _, l := range f.legs {
			if m.legs[l].settled < f.head() && !m.hidden[l] {
				legs = append(legs, l)
			}
		}
	}
	return legs
}

func (m *memSource) LegsChanged() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

func (m *memSource) Origin(id record.FlowID) (OriginState, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.flows[id]
	if f == nil {
		return OriginState{}, false
	}
	return OriginState{Oldest: f.oldest, Head: f.head(), Lineage: f.lineage}, true
}

func (m *memSource) Cursor(l Leg) (uint64, Fingerprint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.legs[l]
	return c.durable, c.at
}

func (m *memSource) FingerprintAt(id record.FlowID, n uint64) (Fingerprint, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.flows[id]
	if n < f.oldest || n > f.head() {
		return Fingerprint{}, false
	}
	return f.fingerprint(n), true
}

func (f *memFlow) fingerprint(n uint64) Fingerprint {
	row, _ := markAt(f.lineage, n)
	v, err := record.Parse(f.records[n-1])
	if err != nil {
		panic(err)
	}
	return Fingerprint{Lineage: row.ID, Number: n, Checksum: v.HeaderChecksum()}
}

func (m *memSource) Read(l Leg, from uint64, count, bytes int, dst []Item) ([]Item, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.flows[l.Flow]
	if from < f.oldest {
		return dst, fmt.Errorf("read: %w", ErrTrimmed)
	}
	end := rowEnd(f.lineage, from, f.head())
	for n := from; n <= end && count > 0; n++ {
		b := f.records[n-1]
		if n > from && bytes < len(b) {
			break
		}
		v, err := record.Parse(b)
		if err != nil {
			return dst, err
		}
		it := Item{Number: n, Record: b}
		if !v.MayEnter(l.City) {
			it = Item{Number: n, Skip: true}
		}
		dst = append(dst, it)
		bytes -= len(b)
		count--
	}
	return dst, nil
}

func (m *memSource) Wait(id record.FlowID, n uint64) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.flows[id]
	c := make(chan struct{})
	if f.head() > n {
		close(c)
		return c
	}
	f.waiters[n] = append(f.waiters[n], c)
	return c
}

func (m *memSource) Settle(_ context.Context, l Leg, s Settlement) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failing {
		return fmt.Errorf("the origin's disk is full")
	}
	if m.onMoved != nil {
		m.onMoved(l, s)
	}
	c := m.legs[l]
	copies := uint64(0)
	for _, o := range s.Outcomes {
		if o.Outcome == record.OutcomeParked {
			copies += o.Through - o.First + 1
		}
	}
	if copies > settleStep {
		return fmt.Errorf("%d copies in one settlement", copies)
	}
	for _, o := range s.Outcomes {
		for n := o.First; n <= o.Through; n++ {
			if n > c.settled && o.Outcome == record.OutcomeParked {
				c.parked[n]++
			}
		}
	}
	if s.Through <= c.settled {
		return nil
	}
	c.settled = s.Through
	if len(s.Outcomes) > 0 || m.rng.IntN(4) == 0 {
		c.durable = c.settled
		c.at = m.flows[l.Flow].fingerprint(c.settled)
	}
	return nil
}

// parked returns the dead letters made, by number.
func (m *memSource) parked(l Leg) map[uint64]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.legs[l].parked)
}

func (m *memSource) settled(l Leg) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.legs[l].settled
}
