package consumer

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSetsOfOffsets compares intersections and differences with sets of numbers.
func TestSetsOfOffsets(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 2))
	const most = 40
	draw := func() (list rangeSet, in [most]bool) {
		for range rng.IntN(6) {
			from := rng.Uint64N(most)
			r := Range{from, min(most, from+1+rng.Uint64N(8))}
			list.add(r)
			for o := r.From; o < r.To; o++ {
				in[o] = true
			}
		}
		return list, in
	}
	for range 2000 {
		a, inA := draw()
		b, inB := draw()
		both, less := rangeSet(Intersect(a, b)), rangeSet(Subtract(a, b))
		p := NewProgress()
		p.SettleAll("g", "t", 0, a)
		settled := rangeSet(p.SettledRanges("g", "t", 0, 5, Range{0, most}))
		in, _ := draw()
		for o := range uint64(most) {
			if both.contains(o) != (inA[o] && inB[o]) || less.contains(o) != (inA[o] && !inB[o]) {
				t.Fatalf("%v and %v: both %v, less %v", a, b, both, less)
			}
			if settled.contains(o) != (inA[o] || o < 5) || p.Overlaps("g", "t", 0, Range{o, o + 1}) != inA[o] {
				t.Fatalf("%v is settled: %v", a, settled)
			}
		}
		for _, r := range in {
			if part, want := p.SettledRanges("g", "t", 0, 5, r), Intersect(settled, []Range{r}); !slices.Equal(part, want) {
				t.Fatalf("of %v in %v: %v, want %v", settled, r, part, want)
			}
		}
	}
}
