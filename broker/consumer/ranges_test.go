package consumer

import (
	"math/rand/v2"
	"testing"
)

// TestRangeSetIsASet runs random operations against a plain set.
func TestRangeSetIsASet(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var s rangeSet
		model := make(map[uint64]bool)
		const size = 200
		for range 400 {
			o := rng.Uint64N(size)
			switch rng.IntN(4) {
			case 0, 1:
				r := Range{From: o, To: o + rng.Uint64N(8)}
				s.add(r)
				for ; r.From < r.To; r.From++ {
					model[r.From] = true
				}
			case 2:
				if s.remove(o) != model[o] {
					t.Fatalf("seed %d: remove of %d", seed, o)
				}
				delete(model, o)
			case 3:
				r := s.take(rng.Uint64N(4))
				for o := range model {
					if o < r.From && r.From < r.To {
						t.Fatalf("seed %d: took %v before %d", seed, r, o)
					}
				}
				for ; r.From < r.To; r.From++ {
					if !model[r.From] {
						t.Fatalf("seed %d: took %d", seed, r.From)
					}
					delete(model, r.From)
				}
			}
			for o := range uint64(size + 10) {
				if s.contains(o) != model[o] {
					t.Fatalf("seed %d: contains %d is %v in %v", seed, o, !model[o], s)
				}
			}
			if s.count() != uint64(len(model)) {
				t.Fatalf("seed %d: count %d, want %d", seed, s.count(), len(model))
			}
			for i, r := range s {
				if r.From >= r.To || i > 0 && s[i-1].To >= r.From {
					t.Fatalf("seed %d: not in normal form: %v", seed, s)
				}
			}
		}
	}
}

// Taking a long set range by range, as a dispatcher does after a restart, must not move
// what is left each time.
func TestTakingFromTheFrontMovesNothing(t *testing.T) {
	var s rangeSet
	for o := range uint64(4) {
		s.add(Range{2 * o, 2*o + 1})
	}
	last := &s[3]
	s.take(1)
	if &s[2] != last {
		t.Error("take moved the ranges behind the first")
	}
	q := &queueProgress{}
	for o := range uint64(4) {
		q.acked.add(Range{2*o + 1, 2*o + 2})
	}
	last = &q.acked[3]
	q.settle(Range{0, 1})
	if q.floor != 2 || len(q.acked) != 3 || &q.acked[2] != last {
		t.Errorf("settling up to a range moved the others: floor %d, %d ranges", q.floor, len(q.acked))
	}
}
