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
