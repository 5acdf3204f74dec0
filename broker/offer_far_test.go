package broker

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// stamped is a landing of messages at positions of their origin's log.
func stamped(t *testing.T, lineage record.LineageID, first uint64, records ...*record.Record) flow.Landing {
	t.Helper()
	l := landing(t, first, records...)
	l.Lineage, l.LineageEpoch = lineage, uint64(lineage)
	for i, r := range records {
		record.Stamp(l.Records[i], r.Identity.Incarnation, r.Identity.Epoch, r.Identity.Position)
	}
	return l
}

func at(p record.Position, a record.Again) func(*record.Record) {
	return func(r *record.Record) { r.Identity.Position, r.Again = p, a }
}

// TestWhatLandedInAnOldLineageDoesNotLandAgain: the destination knows what of a lineage
// that its origin has lost is here, also after a restart, and what is not.
func TestWhatLandedInAnOldLineageDoesNotLandAgain(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	none := record.Again{}
	err := land(t, s, stamped(t, 7, 1, incoming("one", at(100, none)), incoming("two", at(200, none)),
		incoming("parked", at(300, none), func(r *record.Record) { r.Topic = "nothing" }), incoming("three", at(400, none))))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.restart()
	sent := func(p record.Position) record.Again {
		return record.Again{Lineage: 7, Epoch: 7, Position: p, After: p, Sent: p}
	}
	apart := sent(200) // waited, and its copy did not leave: the number is another record's
	apart.Sent = 0
	of8 := sent(200)
	of8.Lineage = 8
	err = land(t, s, stamped(t, 9, 2,
		incoming("two", at(150, sent(200))), incoming("parked", at(250, sent(300))), incoming("three", at(350, sent(400))),
		incoming("four", at(450, sent(500))), incoming("five", at(550, apart)), incoming("six", at(650, of8))))
	if err != nil {
		t.Fatal(err)
	}
	st := s.Sink().Resume(landing(t, 1).Flow)
	if st.Settled != 7 || len(st.Outcomes) != 2 || st.Outcomes[0].Outcome != record.OutcomeSkipped || st.Outcomes[0].Reason != record.ReasonKnown ||
		st.Outcomes[0].First != 2 || st.Outcomes[1].First != 4 || st.Outcomes[1].Through != 4 {
		t.Errorf("settled: %+v", st)
	}
	got := s.drain("transfer-credit", "transfer")
	if want := map[string]int{"one": 1, "two": 1, "three": 1, "parked": 1, "four": 1, "five": 1, "six": 1}; !maps.Equal(got, want) {
		t.Errorf("landed: %v", got)
	}
}

// TestRunsAreBounded: a flow whose origin loses its log again and again, and whose records
// are parked, takes a bounded memory.
func TestRunsAreBounded(t *testing.T) {
	var f inFlow
	for i := range 10 * maxRuns {
		f.ran(record.LineageID(i/2+1), record.Position(i+1))
		f.broken = i%2 == 0
	}
	if len(f.runs) != maxRuns {
		t.Errorf("%d runs", len(f.runs))
	}
}

// TestRangesAreThoseOfAModel holds the ranges of positions against a set.
func TestRangesAreThoseOfAModel(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 23))
		var g again
		model := map[record.Position]bool{}
		for range 60 {
			p := record.Position(1 + rng.IntN(80))
			a := record.Again{Lineage: 5, Epoch: 2, Position: p, After: p - min(p, record.Position(rng.IntN(4)))}
			if g.has(&a) != model[p] {
				t.Fatalf("seed %d: at %d: %v", seed, p, !model[p])
			}
			g.add(&a)
			for q := a.After; q <= p; q++ {
				model[q] = true
			}
			var e encoder
			e.again(&g)
			var back again
			if d := (&decoder{b: e.b}); true {
				if d.again(&back); !d.ok() || !reflect.DeepEqual(back, g) {
					t.Fatalf("seed %d: decoded %+v, was %+v", seed, back, g)
				}
			}
		}
		n := 0
		for q := range record.Position(100) {
			if model[q] && !model[q+1] {
				n++
			}
		}
		if n != g.ranges || n != len(g.lineages[5].done) {
			t.Fatalf("seed %d: %d ranges, counted as %d; the model has %d", seed, len(g.lineages[5].done), g.ranges, n)
		}
	}
}

// TestNoOfferLosesOrDoublesThroughCrashes offers a tail in parts that a seed draws, to a
// master that is killed at moments that it draws as well, also while an offer is being
// stored. Then each message is there once, and the fold of the whole log is that of
// snapshot and rest.
func TestNoOfferLosesOrDoublesThroughCrashes(t *testing.T) {
	p := partWays(t, zone.DurabilityAllInSync, true, 2, func(a *memberNode) { a.publishN("orders", "more", 40) })
	if err := p.c.SetTailAside(t.Context(), p.common); err != nil {
		t.Fatal(err)
	}
	list, _ := offers(t, p.store)
	l := newLink(p.b)
	p.b.Depose()
	l.close()
	if err := p.b.Close(); err != nil {
		t.Fatal(err)
	}
	start := p.b.fs.(*disk.Mem)
	for seed := range uint64(25) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 5))
			mem := start.Crash(rng)
			for epoch := uint64(3); ; epoch++ {
				b := openMember(t, mem, p.b.topo, testLimits())
				b.promote(epoch)
				l := newLink(b)
				b.answers()
				last := rng.IntN(6) == 0
				b.offerDrawn(list, rng, last)
				if rng.IntN(2) == 0 {
					if err := b.snapshot(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				var crashed *disk.Mem
				if !last {
					crashed = b.killedInOffer(mem, list, rng)
				}
				if crashed == nil {
					crashed = mem.Crash(rng)
				}
				if last {
					b.isWhole(list)
				}
				b.Depose()
				l.close()
				b.Close()
				if last {
					foldsAlike(t, mem, p.b.topo)
					return
				}
				mem = crashed
			}
		})
	}
}

// killedInOffer offers parts of the list and returns the disk as a power cut leaves it after
// some change that this made.
func (m *memberNode) killedInOffer(mem *disk.Mem, list []Offered, rng *rand.Rand) (crashed *disk.Mem) {
	m.t.Helper()
	var mu sync.Mutex // the log changes the disk on its own goroutine
	at, cut := rng.IntN(12), rand.New(rand.NewPCG(rng.Uint64(), 1))
	mem.AfterOp(func(int) {
		mu.Lock()
		defer mu.Unlock()
		if at == 0 {
			crashed = mem.Crash(cut)
		}
		at--
	})
	m.offerDrawn(list, rng, false)
	mem.AfterOp(nil)
	mu.Lock()
	defer mu.Unlock()
	return crashed
}

// foldsAlike checks that a store folds to the same with its snapshots and without.
func foldsAlike(t *testing.T, mem *disk.Mem, topo *zone.Topology) {
	t.Helper()
	whole := mem.Crash(rand.New(rand.NewPCG(1, 1)))
	removeSnapshots(t, whole)
	a, b := openMember(t, mem, topo, testLimits()), openMember(t, whole, topo, testLimits())
	for _, m := range []*memberNode{a, b} {
		m.caughtUp(m.Log().Committed())
		defer m.Close()
	}
	if !bytes.Equal(a.folded(), b.folded()) {
		t.Error("the fold from scratch differs from that of snapshot and rest")
	}
}

// offerDrawn offers parts of the list that rng draws; all of it when whole.
func (m *memberNode) offerDrawn(list []Offered, rng *rand.Rand, whole bool) {
	m.t.Helper()
	for range 1 + rng.IntN(3) {
		from := rng.IntN(len(list))
		m.offer(list[from:from+1+rng.IntN(len(list)-from)], OfferOptions{})
	}
	if whole {
		m.offer(list, OfferOptions{})
	}
}

// isWhole checks that each message of the list is in its queue once, and that the fold of
// the log from its beginning is the same.
func (m *memberNode) isWhole(list []Offered) {
	m.t.Helper()
	got := m.arrived("orders")
	for _, x := range list {
		if id := string(x.Record.MessageID()); got[id].count != 1 {
			m.t.Errorf("%s is there %d times", id, got[id].count)
		}
	}
	m.mu.RLock()
	again := m.state.again
	counts := m.state.counts
	m.mu.RUnlock()
	if again.ranges != 1 || counts.Again != uint64(len(list)) {
		m.t.Errorf("the fold remembers %+v; %d were stored", again.lineages, counts.Again)
	}
	var ids []record.LineageID
	for id := range again.lineages {
		ids = append(ids, id)
	}
	if !slices.Equal(ids, again.sorted()) {
		m.t.Errorf("lineages: %v", ids)
	}
}
