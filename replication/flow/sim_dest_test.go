package flow

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// landed is one settled number in a destination's log.
type landed struct {
	flow    record.FlowID
	lineage record.LineageID
	number  uint64
	id      string // client message id; empty without a record
	outcome record.Outcome
	path    []zone.City
}

type sinkFlow struct {
	state SinkState
	log   []landed
}

// memSink is a destination in memory: a landing becomes committed after a
// while, and what is not is lost in a crash.
type memSink struct {
	group zone.Group
	limit int64 // bytes that may be with the sink; 0 = any

	mu          sync.Mutex
	rng         *rand.Rand
	incarnation record.Incarnation
	epoch       uint64
	flows       map[record.FlowID]*sinkFlow
	queue       []queued
	wake        chan struct{}
	delay       time.Duration // of a commit
	held        error
	failNext    bool  // the next landing fails after it was taken
	bytes, most int64 // with the sink, now and at most
	faults      []string
	ever        map[everKey]bool // everything that was ever committed
	seen        func(l *Landing) // is told what commits; may be nil. Called with mu held
}

type queued struct {
	l    Landing
	done func(error)
}

var _ Sink = (*memSink)(nil)

func newMemSink(rng *rand.Rand, group zone.Group) *memSink {
	return &memSink{group: group, rng: rng, incarnation: record.Incarnation(rng.Uint64() | 1), epoch: 1,
		flows: map[record.FlowID]*sinkFlow{}, wake: make(chan struct{}, 1), delay: time.Millisecond, ever: map[everKey]bool{}}
}

func (m *memSink) Group() zone.Group        { return m.group }
func (m *memSink) Topology() *zone.Topology { return nil }
func (m *memSink) Incarnation() record.Incarnation {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.incarnation
}
func (m *memSink) Epoch() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch
}
func (m *memSink) Writable() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held
}

func (m *memSink) Resume(id record.FlowID) SinkState {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.flows[id]
	if f == nil {
		return SinkState{}
	}
	s := f.state
	s.History, s.Outcomes = slices.Clone(s.History), slices.Clone(s.Outcomes)
	return s
}

func (m *memSink) Land(l Landing, done func(error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held != nil {
		return m.held
	}
	for _, r := range l.Records {
		m.bytes += int64(wire.ItemSize(len(r)))
	}
	m.most = max(m.most, m.bytes)
	if m.limit > 0 && m.bytes > m.limit {
		m.faults = append(m.faults, fmt.Sprintf("%d bytes with the sink, limit %d", m.bytes, m.limit))
	}
	m.queue = append(m.queue, queued{l, done})
	signal(m.wake)
	return nil
}

func (m *memSink) Seal(_ context.Context, id record.FlowID) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.flow(id)
	f.state.Sealed, f.state.Known = true, true
	return f.state.Settled, nil
}

func (m *memSink) flow(id record.FlowID) *sinkFlow {
	f := m.flows[id]
	if f == nil {
		f = &sinkFlow{}
		m.flows[id] = f
	}
	return f
}

// run commits what is queued, one group at a time, until ctx ends: a crash.
func (m *memSink) run(ctx context.Context) {
	for {
		m.mu.Lock()
		batch, delay := m.queue, m.delay
		m.queue = nil
		m.mu.Unlock()
		if len(batch) == 0 {
			select {
			case <-m.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		if !sleep(ctx, delay) {
			return
		}
		for _, q := range batch {
			m.mu.Lock()
			err := m.fold(&q.l)
			for _, r := range q.l.Records {
				m.bytes -= int64(wire.ItemSize(len(r)))
			}
			m.mu.Unlock()
			q.done(err)
		}
	}
}

var errLanding = errors.New("the landing was not written")

// fold settles a landing by the rule that Landing states.
func (m *memSink) fold(l *Landing) error {
	if m.failNext {
		m.failNext = false
		return errLanding
	}
	if l.Records != nil && uint64(len(l.Records)) != l.Through-l.First+1 {
		m.faults = append(m.faults, fmt.Sprintf("%d records for %d to %d", len(l.Records), l.First, l.Through))
	}
	if m.seen != nil {
		m.seen(l)
	}
	f := m.flow(l.Flow)
	s := &f.state
	if s.Sealed {
		return errors.New("sealed")
	}
	i := slices.IndexFunc(s.History, func(h Have) bool { return h.Lineage == l.Lineage })
	if i >= 0 && s.History[i].Last+1 != l.First {
		return fmt.Errorf("landing of %d after %d", l.First, s.History[i].Last)
	}
	if i < 0 {
		s.History = append(s.History, Have{Lineage: l.Lineage, Epoch: l.LineageEpoch})
		slices.SortFunc(s.History, func(a, b Have) int { return int(a.Epoch) - int(b.Epoch) })
		i = slices.IndexFunc(s.History, func(h Have) bool { return h.Lineage == l.Lineage })
	}
	s.History[i].Last = l.Through
	for j := range s.Outcomes {
		s.Outcomes[j].Through = min(s.Outcomes[j].Through, max(l.First-1, s.Outcomes[j].First))
	}
	s.Outcomes = slices.DeleteFunc(s.Outcomes, func(o Outcome) bool { return o.Through <= l.OriginCursor || o.First >= l.First })
	s.Known, s.Settled = true, l.Through
	for n := l.First; n <= l.Through; n++ {
		e := landed{flow: l.Flow, lineage: l.Lineage, number: n, outcome: l.Outcome, path: l.Path}
		reason := l.Reason
		if l.Records != nil {
			v, err := record.Parse(l.Records[n-l.First])
			if err != nil {
				m.faults = append(m.faults, err.Error())
				return err
			}
			e.id = string(v.MessageID())
			s.Last = Fingerprint{Lineage: l.Lineage, Number: n, Checksum: v.HeaderChecksum()}
			if string(v.Tag()) == "bad" {
				e.outcome, reason = record.OutcomeParked, record.ReasonDenied
			}
		}
		if e.outcome != record.OutcomeLanded {
			s.Outcomes = appendOutcome(s.Outcomes, Outcome{First: n, Through: n, Outcome: e.outcome, Reason: reason})
		}
		f.log = append(f.log, e)
		m.ever[everKey{l.Flow, l.Lineage, n}] = true
	}
	return nil
}

// everKey names a number's content for good.
type everKey struct {
	flow    record.FlowID
	lineage record.LineageID
	number  uint64
}

// crash forgets what is not committed. The dying process calls nobody back.
func (m *memSink) crash() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue, m.bytes, m.held, m.failNext = nil, 0, nil, false
	m.epoch++
}

// wipe makes a new, empty store.
func (m *memSink) wipe() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.incarnation, m.epoch = record.Incarnation(m.rng.Uint64()|1), 1
	m.flows = map[record.FlowID]*sinkFlow{}
}

// snapshot returns a function that puts the committed state back.
func (m *memSink) snapshot() (restore func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	flows := map[record.FlowID]*sinkFlow{}
	for id, f := range m.flows {
		c := *f
		c.log = slices.Clone(f.log)
		c.state.History, c.state.Outcomes = slices.Clone(f.state.History), slices.Clone(f.state.Outcomes)
		flows[id] = &c
	}
	inc := m.incarnation
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if inc == m.incarnation {
			m.flows = flows
		}
	}
}

// logOf returns what has settled of a flow, and the faults so far.
func (m *memSink) logOf(id record.FlowID) (log []landed, faults []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.flows[id]; f != nil {
		log = slices.Clone(f.log)
	}
	return log, slices.Clone(m.faults)
}

func (m *memSink) set(fn func(m *memSink)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fn(m)
}
