package consumer

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestHeapGivesTheEarliest runs random holds and removals and looks at the
// whole order after each.
func TestHeapGivesTheEarliest(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 7))
		d := fresh(Options{}, 1, 0)
		for n := range uint64(300) {
			if rng.IntN(3) > 0 || len(d.heap) == 0 {
				d.hold(d.insert(place{offset: n}), Instant(rng.Int64N(50)))
			} else {
				d.drop(d.heap[rng.IntN(len(d.heap))])
			}
			for i := 1; i < len(d.heap); i++ {
				if d.less(i, (i-1)/2) {
					t.Fatalf("seed %d: %d is before its parent", seed, i)
				}
			}
			for i, slot := range d.heap {
				if d.entries[slot].at != int32(i) {
					t.Fatalf("seed %d: slot %d believes to be at %d, not %d", seed, slot, d.entries[slot].at, i)
				}
			}
		}
	}
}

// TestHandleDiesWhileItsMessageIsMatched acknowledges with old handles in the
// middle of the Take that delivers the messages again.
func TestHandleDiesWhileItsMessageIsMatched(t *testing.T) {
	d := fresh(Options{}, 1, 2)
	m := take(d, 0, 1)[0] // 0 has a handle of this process, 1 one of an earlier process
	got, _ := d.Take(TakeRequest{Now: minute, Max: 9, Invisible: time.Minute, Match: func(q uint16, o uint64) Verdict {
		delivery := uint64(7)
		if o == m.Offset {
			delivery = m.Delivery
		}
		if got := reason(t, d.Ack(minute, q, o, delivery)); got != ReasonExpired {
			t.Errorf("ack of %d: %v", o, got)
		}
		return Deliver
	}}, nil)
	if len(got) != 2 || got[0].Attempt != 2 || got[1].Attempt != 1 {
		t.Fatalf("took %v", got)
	}
	for _, m := range got {
		if err := d.Ack(minute, m.Queue, m.Offset, m.Delivery); err != nil {
			t.Error(err)
		}
	}
	if s := d.Stats(); s != (Stats{}) {
		t.Errorf("left: %+v", s)
	}
}
