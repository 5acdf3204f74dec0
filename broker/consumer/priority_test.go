package consumer

import (
	"slices"
	"testing"
	"time"
)

// levels returns the queues of what was taken, in order.
func levels(got []Taken) (out []uint16) {
	for _, m := range got {
		out = append(out, m.Queue)
	}
	return out
}

func TestHigherPriorityGoesFirst(t *testing.T) {
	d := fresh(Options{Priority: true}, 4, 2)
	got := take(d, 0, 5)
	if !slices.Equal(levels(got), []uint16{3, 3, 2, 2, 1}) || got[0].Offset != 0 || got[1].Offset != 1 {
		t.Fatalf("got %v", got)
	}
	// What is published meanwhile overtakes what waits below.
	d.Advance(2, 3)
	if got := take(d, 0, 9); !slices.Equal(levels(got), []uint16{2, 1, 0, 0}) {
		t.Fatalf("got %v", got)
	}
	if s := d.Stats(); s.InFlight != 9 || s.Fresh != 0 {
		t.Fatalf("%+v", s)
	}
}

// TestRetryKeepsItsPriority has messages of two levels come back: each before new
// ones of its level, and behind everything above.
func TestRetryKeepsItsPriority(t *testing.T) {
	d := fresh(Options{Priority: true}, 2, 1)
	low := take(d, 0, 2)[1]
	if low.Queue != 0 {
		t.Fatalf("got %v", low)
	}
	d.Advance(0, 2)
	d.Advance(1, 3)
	if _, err := d.ChangeInvisible(0, 0, low.Offset, low.Delivery, 0); err != nil {
		t.Fatal(err)
	}
	got := take(d, minute, 9) // the delivery of level 1 runs out, too
	want := []Taken{{Queue: 1, Offset: 0, Attempt: 2}, {Queue: 1, Offset: 1, Attempt: 1}, {Queue: 1, Offset: 2, Attempt: 1},
		{Queue: 0, Offset: 0, Attempt: 2}, {Queue: 0, Offset: 1, Attempt: 1}}
	for i := range got {
		got[i].Delivery = 0
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

// TestNobodyStarves keeps the highest level full: each level below gets one of
// patience+1 in turn, whatever the size of the batches.
func TestNobodyStarves(t *testing.T) {
	for _, batch := range []int{1, 7, 32} {
		d := fresh(Options{Priority: true, MaxInFlight: 1 << 20}, 4, 1<<20)
		count, last := map[uint16]int{}, map[uint16]int{}
		for n := 0; n < 6000; {
			for _, m := range take(d, 0, batch) {
				if wait := n - last[m.Queue]; m.Queue < 3 && wait > 3*(patience+1) {
					t.Fatalf("batches of %d: level %d waited for %d messages", batch, m.Queue, wait)
				}
				last[m.Queue] = n
				count[m.Queue]++
				n++
				if err := d.Ack(0, m.Queue, m.Offset, m.Delivery); err != nil {
					t.Fatal(err)
				}
			}
		}
		for level := range uint16(3) {
			if n := count[level]; n < 6000/(patience+1)/3-2 || n > 6000/(patience+1)/3+2 {
				t.Errorf("batches of %d: %d of level %d", batch, n, level)
			}
		}
	}
}

// TestPriorityCostsNoAllocation is TestTakeAndAckDoNotAllocate by priority.
func TestPriorityCostsNoAllocation(t *testing.T) {
	d := fresh(Options{Priority: true}, 8, 0)
	end := uint64(0)
	var got []Taken
	round := func() {
		end += 4
		for q := range uint16(8) {
			d.Advance(q, end)
		}
		got, _ = d.Take(TakeRequest{Max: 32, Invisible: time.Minute}, got[:0])
		for _, m := range got {
			if err := d.Ack(0, m.Queue, m.Offset, m.Delivery); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(100, round); n > 0 {
		t.Errorf("%v allocations a round of 32 messages", n)
	}
}
