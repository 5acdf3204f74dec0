package consumer

import (
	"slices"
	"testing"
	"time"
)

// restart returns the dispatcher of the next process on the same store.
func restart(t *testing.T, p *Progress, wall time.Time, end uint64) *Dispatcher {
	t.Helper()
	again, err := ParseSnapshot(p.AppendSnapshot(nil))
	if err != nil {
		t.Fatal(err)
	}
	d := NewDispatcher(Options{Group: "g", Topic: "t", MaxAttempts: 3, FirstDelivery: 2 << 40}, again.State("g", "t"), 0, wall)
	d.Advance(0, end)
	return d
}

// TestOrderlyStopRepeatsNothing is fault D2: what is in hands at a stop is not
// delivered again before its time is over.
func TestOrderlyStopRepeatsNothing(t *testing.T) {
	p := NewProgress()
	d := fresh(Options{}, 1, 10)
	got := take(d, 0, 6)
	d.Ack(0, 0, got[1].Offset, got[1].Delivery)
	d.ChangeInvisible(0, 0, got[2].Offset, got[2].Delivery, 10*time.Minute)
	g, ok := d.Held(30*second, wall0)
	if !ok {
		t.Fatal("nothing to tell")
	}
	p.Apply(Delta{Groups: []GroupDelta{g}})

	d = restart(t, p, wall0.Add(5*time.Second), 10)
	var news []uint64
	for _, m := range take(d, 0, 99) {
		if m.Attempt != 1 {
			t.Errorf("delivered again: %+v", m)
		}
		news = append(news, m.Offset)
	}
	if !slices.Equal(news, []uint64{6, 7, 8, 9}) {
		t.Fatalf("delivered %v", news)
	}
	// Handles of the process before count, since nobody else has the message.
	if err := d.Ack(0, 0, got[3].Offset, got[3].Delivery); err != nil {
		t.Error(err)
	}
	if err := d.Ack(0, 0, got[1].Offset, got[1].Delivery); err != nil {
		t.Errorf("ack repeated over the restart: %v", err)
	}
	if early := take(d, 25*second-1, 99); len(early) != 0 {
		t.Errorf("early: %v", early)
	}
	var back []uint64
	for _, m := range take(d, 25*second, 99) {
		if m.Attempt != 2 {
			t.Errorf("attempts were forgotten: %+v", m)
		}
		back = append(back, m.Offset)
	}
	if !slices.Equal(back, []uint64{0, 4, 5}) {
		t.Errorf("back: %v", back)
	}
	if got := reason(t, d.Ack(25*second, 0, 0, got[0].Delivery)); got != ReasonExpired {
		t.Errorf("ack after the message was delivered again: %v", got)
	}
}

// TestCrashRepeatsWhatWasNotLogged loses the changes since the last delta: they
// are delivered again, and late handles still count.
func TestCrashRepeatsWhatWasNotLogged(t *testing.T) {
	p := NewProgress()
	d := fresh(Options{}, 1, 10)
	got := take(d, 0, 6)
	d.Ack(0, 0, 0, got[0].Delivery)
	d.Ack(0, 0, 4, got[4].Delivery)
	g, _ := d.Collect(0, wall0)
	p.Apply(Delta{Groups: []GroupDelta{g}})
	d.Ack(0, 0, 1, got[1].Delivery) // not logged

	d = restart(t, p, wall0, 10)
	if err := d.Ack(0, 0, 2, got[2].Delivery); err != nil { // never looked at: behind the cursor
		t.Error(err)
	}
	n, err := d.ChangeInvisible(0, 0, 5, got[5].Delivery, time.Minute)
	if err != nil || n <= 2<<40 {
		t.Errorf("change: %d, %v", n, err)
	}
	if _, err := d.ChangeInvisible(0, 0, 4, got[4].Delivery, 0); reason(t, err) != ReasonSettled {
		t.Errorf("change of a settled one: %v", err)
	}
	var back []uint64
	for _, m := range take(d, 0, 99) {
		back = append(back, m.Offset)
	}
	if !slices.Equal(back, []uint64{1, 3, 6, 7, 8, 9}) {
		t.Errorf("delivered %v", back)
	}
	if got := take(d, minute, 1); len(got) != 1 || got[0].Offset != 5 || got[0].Attempt != 2 {
		t.Errorf("after the delay: %v", got)
	}
	if got := reason(t, d.Ack(0, 0, 1, got[1].Delivery)); got != ReasonExpired {
		t.Errorf("ack of what was delivered again: %v", got)
	}
}

func TestUsedUpAttemptsSurviveARestart(t *testing.T) {
	p := NewProgress()
	d := fresh(Options{MaxAttempts: 3}, 1, 1)
	for i := range Instant(3) {
		take(d, i*minute, 1)
	}
	d.Expire(3 * minute)
	if got := d.TakeDead(3*minute, 1, nil); len(got) != 1 {
		t.Fatalf("dead: %v", got)
	}
	g, _ := d.Collect(3*minute, wall0) // the process ends before the copy is written
	p.Apply(Delta{Groups: []GroupDelta{g}})
	d = restart(t, p, wall0, 1)
	if got := take(d, 0, 1); len(got) != 0 {
		t.Errorf("delivered: %v", got)
	}
	if got := d.TakeDead(0, 1, nil); len(got) != 1 || got[0].Attempts != 3 {
		t.Errorf("dead: %v", got)
	}
}

// Only a restart looks at the wall clock, and what it finds there is bounded.
func TestC1_WallClockSteps(t *testing.T) {
	for _, step := range []time.Duration{-1000 * time.Hour, -time.Hour, 0, time.Hour, 1000 * time.Hour} {
		d := fresh(Options{}, 1, 1)
		m := take(d, 0, 1)[0]
		d.ChangeInvisible(0, 0, 0, m.Delivery, 10*time.Minute)
		g, _ := d.Collect(0, wall0)
		d.Collect(minute, wall0.Add(step)) // no later look at the wall clock counts
		if got := take(d, 10*minute-1, 1); len(got) != 0 {
			t.Errorf("step %v: early", step)
		}
		if got := take(d, 10*minute, 1); len(got) != 1 {
			t.Errorf("step %v: late", step)
		}
		p := NewProgress()
		p.Apply(Delta{Groups: []GroupDelta{g}})
		d = restart(t, p, wall0.Add(step), 1)
		at, ok := d.NextWake()
		want := min(max(Instant(10*time.Minute-step), 0), Instant(maxHold))
		if !ok || at != want {
			t.Errorf("step %v: wakes after %v, want %v", step, time.Duration(at), time.Duration(want))
		}
	}
}

// What could not be logged is not forgotten, and the message is not taken for
// settled.
func TestL9_RestoredDeltaIsToldAgain(t *testing.T) {
	d := fresh(Options{}, 1, 10)
	got := take(d, 0, 5)
	d.Ack(0, 0, 1, got[1].Delivery)
	n, _ := d.ChangeInvisible(0, 0, 2, got[2].Delivery, time.Minute)
	d.ChangeInvisible(0, 0, 3, got[3].Delivery, time.Minute)
	g, _ := d.Collect(0, wall0)
	d.Ack(0, 0, 2, n) // newer than the retry that comes back
	d.Ack(0, 0, 4, got[4].Delivery)
	d.Restore(g)
	again, ok := d.Collect(0, wall0)
	if !ok || len(again.Queues) != 1 {
		t.Fatalf("told %+v", again)
	}
	q := again.Queues[0]
	var offsets []uint64
	for _, r := range q.Retries {
		offsets = append(offsets, r.Offset)
	}
	if !slices.Equal(q.Acked, []Range{{1, 3}, {4, 5}}) || !slices.Equal(offsets, []uint64{3}) {
		t.Errorf("settles %v, retries %v", q.Acked, offsets)
	}
	if _, ok := d.Collect(0, wall0); ok {
		t.Error("told twice")
	}
}
