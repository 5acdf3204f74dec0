package broker

import (
	"math/rand/v2"
	"reflect"
	"testing"
)

// TestNumberSetAgreesWithAModel runs random operations against a map.
func TestNumberSetAgreesWithAModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 8 {
		var s numberSet
		model := map[uint64]bool{}
		const most = 3 * chunkNumbers
		floor := uint64(0)
		for range 40 {
			n := 1 + rng.Uint64N(most)
			switch rng.IntN(5) {
			case 0, 1:
				if n > floor && s.add(n) == model[n] {
					t.Fatalf("add %d says it was in: %v", n, model[n])
				}
				if n > floor {
					model[n] = true
				}
			case 2:
				r := numberRange{max(n, floor+1), min(max(n, floor+1)+rng.Uint64N(most/2), most)}
				s.addRange(r)
				for i := r.first; i <= r.through; i++ {
					model[i] = true
				}
			case 3:
				s.absorb(floor)
			case 4:
				if n > floor && n < floor+chunkNumbers {
					floor = n
					s.dropThrough(n)
				}
			}
			for i := floor + 1; i <= most; i++ {
				if s.has(i) != model[i] {
					t.Fatalf("%d is in: %v, want %v (floor %d, full %d)", i, s.has(i), model[i], floor, s.full)
				}
			}
			at := floor + 1 + rng.Uint64N(most-floor)
			in, through := s.run(at, most)
			for i := at; i <= through; i++ {
				if model[i] != in {
					t.Fatalf("run from %d says %v up to %d, but not of %d", at, in, through, i)
				}
			}
			if through < most && model[through+1] == in {
				t.Fatalf("run from %d ends early at %d", at, through)
			}
		}
		e := encoder{}
		e.ranges(s.ranges())
		d := decoder{b: e.b}
		if got := d.ranges(); !d.ok() || !reflect.DeepEqual(append([]numberRange{}, got...), append([]numberRange{}, s.ranges()...)) {
			t.Fatalf("ranges are not read back: %v", got)
		}
	}
}
