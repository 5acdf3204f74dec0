package consumer

import (
	"bytes"
	"slices"
	"testing"
	"time"
)

// reset sets a queue to some offset, with a delta in flight that was collected
// before. The broker refuses the handles of before, so the model forgets them.
func (m *model) reset() {
	q := uint16(m.rng.IntN(len(m.ends)))
	offset := m.rng.Uint64N(m.ends[q] + 1)
	late, some := m.d.Collect(m.now, m.wall)
	before, _ := m.p.QueueState("g", "t", q)
	m.p.Reset("g", "t", q, offset, before.Mark+1)
	s, _ := m.p.QueueState("g", "t", q)
	m.d.Reset(&s, m.now, m.wall)
	if some {
		if m.rng.IntN(2) == 0 {
			m.d.Restore(late)
		} else {
			m.p.Apply(Delta{Groups: []GroupDelta{late}})
		}
	}
	for p, x := range m.messages {
		if p.queue == q {
			*x = modelMessage{settled: p.offset < offset}
		}
	}
	m.note("reset queue %d to %d", q, offset)
}

// TestResetRefusesWhatWasInHands: a message that a consumer has in hands is
// delivered again to whoever comes, and only that delivery can settle it.
func TestResetRefusesWhatWasInHands(t *testing.T) {
	p := NewProgress()
	p.Create("g", "t", 0, 0)
	d := NewDispatcher(Options{Group: "g", Topic: "t", MaxAttempts: 3, FirstDelivery: 1 << 40}, p.State("g", "t"), 0, wall0)
	d.Advance(0, 10)
	first, _ := d.Take(TakeRequest{Max: 6, Invisible: time.Minute}, nil)
	if err := d.Ack(0, 0, 5, first[5].Delivery); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Condemn(0, 0, 4, first[4].Delivery); err != nil {
		t.Fatal(err)
	}
	late, _ := d.Collect(0, wall0)
	p.Reset("g", "t", 0, 2, 77)
	s, _ := p.QueueState("g", "t", 0)
	d.Reset(&s, 0, wall0)
	if void := p.Apply(Delta{Groups: []GroupDelta{late}}); void != 1 {
		t.Errorf("%d queues of the delta of before are void, want 1", void)
	}
	for _, g := range first[2:4] {
		if err := d.Ack(0, 0, g.Offset, g.Delivery); reason(t, err) != ReasonForeign {
			t.Errorf("acknowledgement of %d from before the reset: %v", g.Offset, err)
		}
	}
	if err := d.Ack(0, 0, 1, first[1].Delivery); err != nil {
		t.Errorf("acknowledgement of what the reset skips: %v", err)
	}
	again, _ := d.Take(TakeRequest{Max: 20, Invisible: time.Minute}, nil)
	var offsets []uint64
	for _, g := range again {
		offsets = append(offsets, g.Offset)
		if g.Attempt != 1 {
			t.Errorf("attempt of %d is %d, want 1", g.Offset, g.Attempt)
		}
		if err := d.Ack(0, 0, g.Offset, g.Delivery); err != nil {
			t.Error(err)
		}
	}
	if want := []uint64{2, 3, 4, 5, 6, 7, 8, 9}; !slices.Equal(offsets, want) {
		t.Errorf("delivered %v after the reset, want %v", offsets, want)
	}
	d.DeadLettered(0, 4) // the copy that was being written: nothing is left to do
	if g, ok := d.Collect(0, wall0); !ok || g.Queues[0].Mark != 77 || p.Apply(Delta{Groups: []GroupDelta{g}}) != 0 {
		t.Errorf("the delta behind the reset is %+v", g)
	}
	if st := d.Stats(); st != (Stats{}) || p.Lag("g", "t", 0, 10) != 0 {
		t.Errorf("left over: %+v, lag %d", st, p.Lag("g", "t", 0, 10))
	}
}

// TestResetDuringATake has a reset come while a Take matches: what it has matched is
// delivered under dead handles, and comes again.
func TestResetDuringATake(t *testing.T) {
	for _, verdict := range []Verdict{Deliver, Skip, Later, Stop} {
		p := NewProgress()
		p.Create("g", "t", 0, 0)
		d := NewDispatcher(Options{Group: "g", Topic: "t", MaxAttempts: 9, FirstDelivery: 1 << 40}, p.State("g", "t"), 0, wall0)
		d.Advance(0, 8)
		held, _ := d.Take(TakeRequest{Max: 2, Invisible: time.Minute}, nil)
		for _, g := range held { // two redeliveries besides fresh ones
			if _, err := d.ChangeInvisible(0, 0, g.Offset, g.Delivery, 0); err != nil {
				t.Fatal(err)
			}
		}
		calls := 0
		got, _ := d.Take(TakeRequest{Max: 6, Invisible: time.Minute, Match: func(uint16, uint64) Verdict {
			if calls++; calls == 1 {
				p.Reset("g", "t", 0, 1, 5)
				s, _ := p.QueueState("g", "t", 0)
				d.Reset(&s, 0, wall0)
			}
			if calls > 6 { // no claim of before
				return Stop
			}
			return verdict
		}}, nil)
		for _, g := range got {
			if err := d.Ack(0, 0, g.Offset, g.Delivery); err == nil && g.Offset > 0 {
				t.Errorf("verdict %d: %d was acknowledged from before the reset", verdict, g.Offset)
			}
		}
		again, _ := d.Take(TakeRequest{Max: 20, Now: Instant(time.Hour), Invisible: time.Minute}, nil)
		if len(again) != 7 {
			t.Errorf("verdict %d: %d messages came after the reset, want 7", verdict, len(again))
		}
		for _, g := range again {
			if err := d.Ack(Instant(time.Hour), 0, g.Offset, g.Delivery); err != nil {
				t.Errorf("verdict %d: %v", verdict, err)
			}
		}
		if st := d.Stats(); st != (Stats{}) {
			t.Errorf("verdict %d: left over %+v", verdict, st)
		}
	}
}

func TestMarksAreInDeltasAndSnapshots(t *testing.T) {
	p := NewProgress()
	p.Create("g", "t", 0, 0)
	p.Reset("g", "t", 0, 4, 99)
	b := p.AppendSnapshot(nil)
	again, err := ParseSnapshot(b)
	if err != nil || !bytes.Equal(again.AppendSnapshot(nil), b) {
		t.Fatalf("%v", err)
	}
	d := Delta{Groups: []GroupDelta{{Group: "g", Topic: "t", Queues: []QueueDelta{{Mark: 99, Acked: []Range{{4, 6}}}}}}}
	back, err := ParseDelta(d.Append(nil))
	if err != nil || back.Groups[0].Queues[0].Mark != 99 {
		t.Fatalf("%+v, %v", back, err)
	}
	if again.Apply(back); again.Lag("g", "t", 0, 6) != 0 {
		t.Error("a delta with the mark is void")
	}
	back.Groups[0].Queues[0].Mark, back.Groups[0].Queues[0].Acked = 98, []Range{{6, 9}}
	if void := again.Apply(back); void != 1 || again.Lag("g", "t", 0, 9) != 3 {
		t.Error("a delta with another mark counts")
	}
}

// BenchmarkResetBesideManyInHands resets a queue of which one message is in hands,
// beside another that has as many as may be.
func BenchmarkResetBesideManyInHands(b *testing.B) {
	p := NewProgress()
	p.Create("g", "t", 0, 0)
	p.Create("g", "t", 1, 0)
	d := NewDispatcher(Options{Group: "g", Topic: "t"}, p.State("g", "t"), 0, wall0)
	d.Advance(0, 1)
	d.Advance(1, defaultMaxInFlight)
	d.Take(TakeRequest{Max: defaultMaxInFlight, Invisible: time.Hour}, nil)
	for n := uint64(1); b.Loop(); n++ {
		p.Reset("g", "t", 0, 0, n)
		s, _ := p.QueueState("g", "t", 0)
		d.Reset(&s, 0, wall0)
		d.Take(TakeRequest{Max: 1, Invisible: time.Hour}, nil)
	}
}
