package consumer

import (
	"errors"
	"testing"
	"time"
)

// TestIdleMessageGroupsCostNothing goes through a million message groups of a few
// messages each: only those with a message in flight, and of the run that was
// looked at, are remembered, and in the long run nothing is allocated.
func TestIdleMessageGroupsCostNothing(t *testing.T) {
	const groups, each = 1_000_000, 2
	d := fresh(Options{InOrder: true}, 1, 0)
	d.Advance(0, groups*each)
	key := func(_ uint16, o uint64) (uint64, Verdict) { return o % groups, Deliver }
	var got []Taken
	most := 0
	round := func() {
		got, _ = d.Take(TakeRequest{Max: 32, Invisible: time.Minute, Key: key}, got[:0])
		most = max(most, d.Stats().Groups)
		for _, m := range got {
			if err := d.Ack(0, m.Queue, m.Offset, m.Delivery); err != nil {
				t.Fatal(err)
			}
		}
		d.Collect(0, wall0)
	}
	for range 1000 {
		round()
	}
	if n := testing.AllocsPerRun(1000, round); n > 8 { // the delta that Collect gives away
		t.Errorf("%v allocations a round of 32 messages", n)
	}
	for s := d.Stats(); s.Fresh > 0 || s.InFlight > 0; s = d.Stats() {
		round()
	}
	if s := d.Stats(); most > 32+scanRun || s.Groups != 0 || s.InFlight != 0 || len(d.order.spare) > maxSpareGroups {
		t.Errorf("at most %d message groups were remembered; at the end: %+v", most, s)
	}
}

// TestWaitingIsBounded has one message group with more behind it than is remembered:
// the other one comes when there is room.
func TestWaitingIsBounded(t *testing.T) {
	d := fresh(Options{InOrder: true, MaxWaiting: 100}, 1, 0)
	key := func(_ uint16, o uint64) (uint64, Verdict) { return o / 150, Deliver } // 0 to 149, then others
	d.Advance(0, 151)
	for n := range uint64(50) {
		got, more := d.Take(TakeRequest{Max: 32, Invisible: time.Minute, Key: key}, nil)
		if len(got) != 1 || got[0].Offset != n || more {
			t.Fatalf("round %d: %v, more %v", n, got, more)
		}
		if s := d.Stats(); s.Waiting > 100 || s.Groups != 1 {
			t.Fatalf("round %d: %+v", n, s)
		}
		if err := d.Ack(0, 0, n, got[0].Delivery); err != nil {
			t.Fatal(err)
		}
	}
	got, _ := d.Take(TakeRequest{Max: 32, Invisible: time.Minute, Key: key}, nil)
	if len(got) != 2 || got[0].Offset != 50 || got[1].Offset != 150 {
		t.Fatalf("with room: %v", got)
	}
}

func BenchmarkTakeAndAckInOrder(b *testing.B) {
	d := fresh(Options{InOrder: true}, 1, 0)
	key := func(_ uint16, o uint64) (uint64, Verdict) { return o % 1000, Deliver }
	end, n := uint64(0), 0
	var got []Taken
	b.ReportAllocs()
	for b.Loop() {
		end += 32
		d.Advance(0, end)
		got, _ = d.Take(TakeRequest{Now: 1, Max: 32, Invisible: time.Minute, Key: key}, got[:0])
		for _, m := range got {
			if err := d.Ack(1, m.Queue, m.Offset, m.Delivery); err != nil {
				b.Fatal(err)
			}
		}
		if n += len(got); n%4096 == 0 {
			d.Collect(1, wall0)
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "msg/s")
}

// A handle of an earlier process decides nothing about a message that waits behind
// another of its message group: it is delivered anew, and is not settled.
func TestOldHandleOfAWaitingMessageIsExpired(t *testing.T) {
	const old = 7 // delivery of an earlier process
	d := fresh(Options{InOrder: true}, 1, 0)
	d.Advance(0, 3)
	key := func(uint16, uint64) (uint64, Verdict) { return 1, Deliver }
	if got, _ := d.Take(TakeRequest{Max: 32, Invisible: time.Minute, Key: key}, nil); len(got) != 1 || got[0].Offset != 0 {
		t.Fatalf("taken %v", got)
	}
	var refused *HandleError
	if _, err := d.Condemn(0, 0, 2, old); !errors.As(err, &refused) || refused.Reason != ReasonExpired {
		t.Errorf("dead letter: %v, want expired", err)
	}
	if _, err := d.ChangeInvisible(0, 0, 2, old, time.Minute); !errors.As(err, &refused) || refused.Reason != ReasonExpired {
		t.Errorf("change: %v, want expired", err)
	}
	if err := d.Ack(0, 0, 2, old); err != nil {
		t.Errorf("acknowledgement: %v", err)
	}
	if _, err := d.Condemn(0, 0, 2, old); !errors.As(err, &refused) || refused.Reason != ReasonSettled {
		t.Errorf("dead letter of what is settled: %v", err)
	}
}
