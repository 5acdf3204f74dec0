package consumer

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// woken reports whether the waiter was woken.
func woken(w *Waiter) bool {
	select {
	case <-w.C():
		return true
	default:
		return false
	}
}

func TestOneMessageWakesOneWaiter(t *testing.T) {
	d := fresh(Options{}, 1, 0)
	var line []*Waiter
	for range 5 {
		line = append(line, d.Wait())
	}
	count := func() (n int) {
		for _, w := range line {
			if woken(w) {
				n++
			}
		}
		return n
	}
	d.Advance(0, 1)
	if n := count(); n != 1 {
		t.Fatalf("%d were woken", n)
	}
	take(d, 0, 1)
	if n := count(); n != 0 {
		t.Fatalf("%d were woken for nothing", n)
	}
	d.Advance(0, 5)
	for i := range 3 { // each take leaves something for the next
		if n := count(); n != 1 {
			t.Fatalf("take %d: %d were woken", i, n)
		}
		take(d, 0, 1)
	}
	if n := count(); n != 1 {
		t.Fatalf("the last message woke %d", n)
	}
	if s := d.Stats(); s.Waiters != 0 {
		t.Fatalf("%d are left in the line", s.Waiters)
	}
	for _, w := range line {
		w.Stop()
		w.Stop()
	}
}

func TestStoppedWaiterPassesTheWakeUpOn(t *testing.T) {
	d := fresh(Options{}, 1, 0)
	a, b, c := d.Wait(), d.Wait(), d.Wait()
	d.Advance(0, 1)
	b.Stop()
	if woken(c) {
		t.Fatal("two are awake")
	}
	a.Stop()
	if !woken(c) {
		t.Fatal("the wake-up is lost")
	}
	c.Stop()
	if e := d.Wait(); !woken(e) {
		t.Fatal("who comes when there is something is woken at once")
	}
}

func TestExpiryWakes(t *testing.T) {
	d := fresh(Options{}, 1, 1)
	take(d, 0, 1)
	w := d.Wait()
	defer w.Stop()
	d.Expire(minute - 1)
	if woken(w) {
		t.Fatal("woken early")
	}
	d.Expire(minute)
	if !woken(w) {
		t.Fatal("not woken")
	}
}

func TestKickTellsOfAnEarlierWake(t *testing.T) {
	kick := make(chan struct{}, 1)
	kicked := func() bool {
		select {
		case <-kick:
			return true
		default:
			return false
		}
	}
	d := fresh(Options{Kick: kick, MaxAttempts: 2}, 1, 3)
	if _, ok := d.NextWake(); ok || kicked() {
		t.Fatal("an idle dispatcher wakes")
	}
	a := take(d, 0, 1)[0]
	if !kicked() {
		t.Fatal("the first delivery is not told")
	}
	if at, ok := d.NextWake(); !ok || at != minute {
		t.Fatalf("wakes at %v, %v", at, ok)
	}
	take(d, second, 1)
	if kicked() {
		t.Fatal("told of a later instant")
	}
	d.ChangeInvisible(second, 0, a.Offset, a.Delivery, time.Second)
	if !kicked() {
		t.Fatal("an earlier instant is not told")
	}
	if at, _ := d.NextWake(); at != 2*second {
		t.Fatalf("wakes at %v", at)
	}
	again := take(d, 2*second, 1)[0]
	d.NextWake()
	d.ChangeInvisible(2*second, 0, again.Offset, again.Delivery, 0)
	if !kicked() {
		t.Fatal("a dead letter is not told")
	}
}

// TestNobodySleepsBesideWork lets consumers poll in a bubble while messages
// come; all must be consumed, by waiting alone.
func TestNobodySleepsBesideWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		now := func() Instant { return Instant(time.Since(start)) }
		d := fresh(Options{}, 3, 0)
		ctx, cancel := context.WithCancel(t.Context())
		var consumed atomic.Int64
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for ctx.Err() == nil {
					got, _ := d.Take(TakeRequest{Now: now(), Max: 4, Invisible: time.Hour}, nil)
					for _, m := range got {
						if d.Ack(now(), m.Queue, m.Offset, m.Delivery) == nil {
							consumed.Add(1)
						}
					}
					if len(got) > 0 {
						time.Sleep(time.Duration(i) * time.Millisecond)
						continue
					}
					w := d.Wait()
					timer := time.NewTimer(time.Duration(20+i) * time.Second)
					select {
					case <-w.C():
					case <-timer.C:
					case <-ctx.Done():
					}
					timer.Stop()
					w.Stop()
				}
			})
		}
		for n := range uint64(300) {
			d.Advance(uint16(n%3), n/3+1)
			if n%50 == 0 {
				time.Sleep(21 * time.Second)
			}
		}
		time.Sleep(15 * time.Second) // shorter than any poll: only wake-ups help
		synctest.Wait()
		if n := consumed.Load(); n != 300 {
			t.Errorf("consumed %d of 300", n)
		}
		cancel()
		wg.Wait()
	})
}
