package timer

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestC1_StepsOfTheWallClockAreBelievedWhenTheyLast: nothing is early by either
// clock, and a step that lasts is followed.
func TestC1_StepsOfTheWallClockAreBelievedWhenTheyLast(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour, 5 * time.Second, -100 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			var offset time.Duration
			c := NewClock(func() time.Time { return time.Now().Add(offset).Round(0) })
			begin := time.Now()
			wants := func(off time.Duration) {
				t.Helper()
				if got, want := c.Now(), time.Now().Add(off); !got.Equal(want) {
					t.Fatalf("step %s, after %s: the clock is %s off", step, time.Since(begin), got.Sub(want))
				}
			}
			wants(0)
			offset = step
			for range int(Proof / time.Second) {
				wants(min(step, 0))
				time.Sleep(time.Second)
			}
			wants(step)
			if trial, n := c.Trial(); trial != 0 || n != 1 {
				t.Fatalf("trial %s, %d steps; want none and 1", trial, n)
			}
			// One that is taken back is forgotten.
			offset = 2 * step
			wants(step + min(step, 0))
			time.Sleep(Proof / 2)
			wants(step + min(step, 0))
			offset = step
			wants(step)
			time.Sleep(Proof)
			wants(step)
			// A second step begins a new trial.
			offset = 2 * step
			wants(step + min(step, 0))
			time.Sleep(Proof - time.Second)
			offset = 3 * step
			wants(step + min(2*step, 0))
			time.Sleep(Proof - time.Second)
			wants(step + min(2*step, 0))
			time.Sleep(time.Second)
			wants(3 * step)
		})
	}
}

// A clock that is adjusted while it runs is followed at once.
func TestClockFollowsSlewing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var offset time.Duration
		c := NewClock(func() time.Time { return time.Now().Add(offset).Round(0) })
		for range 1000 {
			offset += 500 * time.Microsecond // 500 ppm
			time.Sleep(time.Second)
			if got := c.Now(); !got.Equal(time.Now().Add(offset)) {
				t.Fatalf("the clock is %s off", got.Sub(time.Now().Add(offset)))
			}
		}
		if _, n := c.Trial(); n != 0 {
			t.Fatalf("%d steps, want none", n)
		}
	})
}

func TestSetAgreesWithAMap(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var s Set
		model := map[uint64]bool{}
		limit := uint64(1 + rng.IntN(5*chunkNumbers))
		for range 4 * limit {
			switch n := rng.Uint64N(limit); rng.IntN(20) {
			case 0:
				if s.Remove(n) != model[n] {
					t.Fatalf("seed %d: remove %d", seed, n)
				}
				delete(model, n)
			default:
				if s.Add(n) == model[n] {
					t.Fatalf("seed %d: add %d", seed, n)
				}
				model[n] = true
			}
		}
		if s.Count() != uint64(len(model)) || s.End() < limit/chunkNumbers*chunkNumbers {
			t.Fatalf("seed %d: %d numbers below %d, want %d", seed, s.Count(), s.End(), len(model))
		}
		b := s.Append([]byte("x"))[1:]
		back, rest, ok := ParseSet(append(b, 7), limit)
		if !ok || len(rest) != 1 || back.Count() != s.Count() {
			t.Fatalf("seed %d: the set is not read back", seed)
		}
		for _, set := range []*Set{&s, &back} {
			in, out := limit, limit
			for n := limit; n > 0; n-- {
				if i := n - 1; model[i] {
					in = i
				} else {
					out = i
				}
				if got := set.NextIn(n-1, limit); got != in {
					t.Fatalf("seed %d: next in from %d is %d, want %d", seed, n-1, got, in)
				}
				if got := set.NextOut(n-1, limit); got != out {
					t.Fatalf("seed %d: next out from %d is %d, want %d", seed, n-1, got, out)
				}
			}
		}
		for cut := range len(b) {
			if _, rest, ok := ParseSet(b[:cut], limit); ok && len(rest) == 0 {
				t.Fatalf("seed %d: %d of %d bytes are a set", seed, cut, len(b))
			}
		}
		if top := s.NextIn(0, limit); top < limit {
			if _, _, ok := ParseSet(b, top); ok {
				t.Fatalf("seed %d: a set with numbers beyond its end is taken", seed)
			}
		}
	}
}

func FuzzParseSet(f *testing.F) {
	var s Set
	for n := range uint64(5000) {
		s.Add(n)
	}
	f.Add(s.Append(nil), uint64(5000))
	f.Fuzz(func(t *testing.T, b []byte, end uint64) {
		end %= 1 << 24
		s, rest, ok := ParseSet(b, end)
		if !ok {
			return
		}
		if s.NextIn(end, s.End()) < s.End() {
			t.Fatal("a number beyond the end")
		}
		if again, _, ok := ParseSet(s.Append(nil), end); !ok || again.Count() != s.Count() || len(rest) > len(b) {
			t.Fatal("not read back")
		}
	})
}

// TestWindowGivesTheFirstInOrder: whatever is pushed and popped, what comes out is
// the least of all that is left, until the window says that it is to be filled anew.
func TestWindowGivesTheFirstInOrder(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 2))
		w := NewWindow(1 + rng.IntN(50))
		var all []Ref
		fill := func() {
			w.Reset(1000)
			for _, r := range all {
				w.Push(r)
			}
		}
		fill()
		for range 2000 {
			if rng.IntN(2) == 0 {
				r := Ref{Due: rng.Int64N(40), Bucket: rng.Uint64N(2), Number: rng.Uint64()}
				all = append(all, r)
				w.Push(r)
				continue
			}
			if w.Low() {
				fill()
			}
			first, ok := w.First()
			if ok != (len(all) > 0) {
				t.Fatalf("seed %d: the window has %d of %d", seed, w.Len(), len(all))
			}
			if !ok {
				continue
			}
			slices.SortFunc(all, Ref.compare)
			if got := w.Pop(); got != all[0] || got != first {
				t.Fatalf("seed %d: %+v, want %+v", seed, got, all[0])
			}
			all = all[1:]
			if w.Len() > 2*w.max {
				t.Fatalf("seed %d: the window has %d", seed, w.Len())
			}
		}
		w.Push(Ref{Due: 1000})
		if w.Len() > len(all) {
			t.Fatalf("seed %d: a message behind the end was taken", seed)
		}
	}
}
