package consumer

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

const (
	second = Instant(time.Second)
	minute = Instant(time.Minute)
)

var wall0 = time.UnixMilli(1_790_000_000_000)

// fresh returns a dispatcher with n messages in each of the queues 0 to queues-1.
func fresh(o Options, queues int, n uint64) *Dispatcher {
	o.Group, o.Topic = "g", "t"
	if o.MaxAttempts == 0 {
		o.MaxAttempts = 3
	}
	o.FirstDelivery = 1 << 40
	d := NewDispatcher(o, nil, 0, wall0)
	for q := range queues {
		d.Advance(uint16(q), n)
	}
	return d
}

// take takes up to n messages for a minute.
func take(d *Dispatcher, now Instant, n int) []Taken {
	got, _ := d.Take(TakeRequest{Now: now, Max: n, Invisible: time.Minute}, nil)
	return got
}

// reason returns why a call refused a handle; 0 when it did not.
func reason(t *testing.T, err error) Reason {
	t.Helper()
	if err == nil {
		return 0
	}
	var h *HandleError
	if !errors.As(err, &h) {
		t.Fatalf("not a handle error: %v", err)
	}
	return h.Reason
}

// settled returns the offsets that a delta settles in queue 0.
func settled(d *Dispatcher) (out []uint64) {
	g, _ := d.Collect(0, wall0)
	for _, q := range g.Queues {
		for _, r := range q.Acked {
			for o := r.From; o < r.To; o++ {
				out = append(out, o)
			}
		}
	}
	return out
}

func TestTakeGoesRoundTheQueues(t *testing.T) {
	d := fresh(Options{}, 4, 100)
	for range 12 {
		count := make(map[uint16]int)
		for _, m := range take(d, 0, 32) {
			count[m.Queue]++
		}
		for q := range uint16(4) {
			if count[q] != 8 {
				t.Fatalf("shares are %v", count)
			}
		}
	}
	if got := take(d, 0, 100); len(got) != 16 {
		t.Fatalf("%d are left, want 16", len(got))
	}
	if got, more := d.Take(TakeRequest{Max: 1}, nil); len(got) != 0 || more {
		t.Fatalf("there is something left: %v, %v", got, more)
	}
	// A lone message is found wherever it is.
	for q := range uint16(4) {
		d.Advance(q, 101)
		if got := take(d, 0, 32); len(got) != 1 || got[0].Queue != q || got[0].Offset != 100 {
			t.Fatalf("got %v", got)
		}
	}
}

func TestUnackedMessagesComeBackBeforeNewOnes(t *testing.T) {
	d := fresh(Options{MaxAttempts: 100}, 1, 1000)
	var acked []uint64
	now := Instant(0)
	for round := range 10 {
		got := take(d, now, 32)
		var left []uint64
		for i, m := range got {
			if i%2 == 0 {
				acked = append(acked, m.Offset)
				if err := d.Ack(now, m.Queue, m.Offset, m.Delivery); err != nil {
					t.Fatal(err)
				}
			} else {
				left = append(left, m.Offset)
			}
		}
		if n := len(take(d, now+minute-1, 0)); n != 0 || d.Stats().Ready != 0 {
			t.Fatalf("round %d: something came back early", round)
		}
		now += minute
		back := take(d, now, len(left))
		for i, m := range back {
			if m.Offset != left[i] || m.Attempt < 2 {
				t.Fatalf("round %d: %+v came back, want offset %d", round, m, left[i])
			}
		}
		if len(back) != len(left) {
			t.Fatalf("round %d: %d came back, want %d", round, len(back), len(left))
		}
		now += minute
	}
	slices.Sort(acked)
	if got := settled(d); !slices.Equal(got, acked) {
		t.Errorf("delta settles %v, want %v", got, acked)
	}
}

// TestLateAck is the rule of the package comment (fault Q9).
func TestLateAck(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(d *Dispatcher, m Taken) Instant // returns the instant of the ack
		want Reason
	}{
		{"in time", func(*Dispatcher, Taken) Instant { return minute - 1 }, 0},
		{"expired, nobody has it", func(d *Dispatcher, _ Taken) Instant { d.Expire(minute); return 2 * minute }, 0},
		{"delivered again", func(d *Dispatcher, _ Taken) Instant { take(d, minute, 1); return minute }, ReasonExpired},
		{"delivered again and expired", func(d *Dispatcher, _ Taken) Instant { take(d, minute, 1); d.Expire(9 * minute); return 9 * minute }, ReasonExpired},
		{"settled before", func(d *Dispatcher, m Taken) Instant { d.Ack(1, 0, m.Offset, m.Delivery); return 2 }, 0},
		{"settled by a later delivery", func(d *Dispatcher, m Taken) Instant {
			again := take(d, minute, 1)[0]
			d.Ack(minute, 0, m.Offset, again.Delivery)
			return minute
		}, 0},
		{"new handle", func(d *Dispatcher, m Taken) Instant {
			d.ChangeInvisible(1, 0, m.Offset, m.Delivery, time.Hour)
			return 2
		}, ReasonReplaced},
		{"condemned", func(d *Dispatcher, m Taken) Instant { d.Condemn(1, 0, m.Offset, m.Delivery); return 2 }, ReasonDeadLettered},
		{"condemned, copy failed", func(d *Dispatcher, m Taken) Instant {
			d.Condemn(1, 0, m.Offset, m.Delivery)
			d.DeadLetterFailed(2, 0, m.Offset)
			return 3
		}, ReasonDeadLettered},
		{"in the dead-letter topic", func(d *Dispatcher, m Taken) Instant {
			d.Condemn(1, 0, m.Offset, m.Delivery)
			d.DeadLettered(0, m.Offset)
			return 2
		}, ReasonDeadLettered},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := fresh(Options{}, 1, 1)
			m := take(d, 0, 1)[0]
			now := c.do(d, m)
			if got := reason(t, d.Ack(now, 0, m.Offset, m.Delivery)); got != c.want {
				t.Fatalf("ack: %v, want %v", got, c.want)
			}
			if c.want != 0 {
				return
			}
			if got := reason(t, d.Ack(now, 0, m.Offset, m.Delivery)); got != 0 {
				t.Fatalf("repeated ack: %v", got)
			}
			if got := take(d, now+99*minute, 9); len(got) != 0 {
				t.Fatalf("delivered after the ack: %v", got)
			}
		})
	}
}

func TestHandlesThatWereNeverGivenAreRefused(t *testing.T) {
	d := fresh(Options{}, 1, 10)
	m := take(d, 0, 1)[0]
	for _, c := range []struct {
		queue            uint16
		offset, delivery uint64
		want             Reason
	}{
		{9, 0, m.Delivery, ReasonForeign},
		{0, 10, m.Delivery, ReasonForeign},
		{0, 5, m.Delivery + 5, ReasonForeign},
		{0, 0, m.Delivery - 1, ReasonExpired},
		{0, 0, m.Delivery + 9, ReasonReplaced},
	} {
		if got := reason(t, d.Ack(0, c.queue, c.offset, c.delivery)); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
		if _, err := d.ChangeInvisible(0, c.queue, c.offset, c.delivery, 0); reason(t, err) != c.want {
			t.Errorf("%+v: change: %v", c, err)
		}
		if _, err := d.Condemn(0, c.queue, c.offset, c.delivery); reason(t, err) != c.want {
			t.Errorf("%+v: condemn: %v", c, err)
		}
	}
}

func TestMaxAttemptsEndsInTheDeadLetterTopic(t *testing.T) {
	d := fresh(Options{MaxAttempts: 2}, 1, 1)
	var last Taken
	for attempt := range uint32(2) {
		got := take(d, Instant(attempt)*minute, 1)
		if len(got) != 1 || got[0].Attempt != attempt+1 {
			t.Fatalf("attempt %d: %v", attempt+1, got)
		}
		if dead := d.TakeDead(Instant(attempt)*minute, 9, nil); len(dead) != 0 {
			t.Fatalf("dead too early: %v", dead)
		}
		last = got[0]
	}
	now := 2 * minute
	if got := take(d, now, 1); len(got) != 0 {
		t.Fatalf("delivered once more: %v", got)
	}
	if at, ok := d.NextWake(); !ok || at > now {
		t.Fatalf("the dead do not wake anybody: %v, %v", at, ok)
	}
	for range 3 { // each copy that fails is tried again after a second
		dead := d.TakeDead(now, 9, nil)
		if len(dead) != 1 || dead[0] != (Dead{Queue: 0, Offset: 0, Attempts: 2}) {
			t.Fatalf("dead: %v", dead)
		}
		d.DeadLetterFailed(now, 0, 0)
		if got := d.TakeDead(now+second-1, 9, nil); len(got) != 0 {
			t.Fatalf("offered early: %v", got)
		}
		now += second
		if got := take(d, now, 1); len(got) != 0 {
			t.Fatalf("delivered: %v", got)
		}
	}
	d.TakeDead(now, 9, nil)
	d.DeadLettered(0, 0)
	d.DeadLettered(0, 0)
	if got := reason(t, d.Ack(now, 0, 0, last.Delivery)); got != ReasonDeadLettered {
		t.Errorf("late ack: %v", got)
	}
	if got := settled(d); len(got) != 0 {
		t.Errorf("the delta settles %v, which is the dead-letter record's task", got)
	}
	if s := d.Stats(); s.InFlight != 0 || s.Dead != 0 {
		t.Errorf("left: %+v", s)
	}
}

func TestLoweredMaxAttemptsAppliesToWhatWaits(t *testing.T) {
	d := fresh(Options{MaxAttempts: 9}, 1, 1)
	take(d, 0, 1)
	d.Expire(minute)
	d.SetMaxAttempts(1)
	if got := take(d, minute, 1); len(got) != 0 {
		t.Errorf("delivered: %v", got)
	}
	if got := d.TakeDead(minute, 1, nil); len(got) != 1 {
		t.Errorf("dead: %v", got)
	}
}

func TestNegativeAckDelaysAndCounts(t *testing.T) {
	for _, delay := range []time.Duration{-1, 0, 1, time.Second, time.Hour} {
		d := fresh(Options{}, 1, 1)
		m := take(d, 0, 1)[0]
		n, err := d.ChangeInvisible(0, 0, 0, m.Delivery, delay)
		if err != nil || n == m.Delivery {
			t.Fatalf("delay %v: %d, %v", delay, n, err)
		}
		g, ok := d.Collect(0, wall0)
		if !ok || len(g.Queues[0].Retries) != 1 {
			t.Fatalf("delay %v: the delta is %+v", delay, g)
		}
		r := g.Queues[0].Retries[0]
		if r.Attempts != 1 || delay >= time.Millisecond && !r.Visible.Equal(wall0.Add(delay)) {
			t.Errorf("delay %v: retry %+v", delay, r)
		}
		if delay > 0 {
			if got := take(d, Instant(delay)-1, 1); len(got) != 0 {
				t.Errorf("delay %v: early: %v", delay, got)
			}
		}
		got := take(d, Instant(max(delay, 0)), 1)
		if len(got) != 1 || got[0].Attempt != 2 {
			t.Errorf("delay %v: %v", delay, got)
		}
	}
	// The last attempt: nothing is left to deliver.
	d := fresh(Options{MaxAttempts: 1}, 1, 1)
	m := take(d, 0, 1)[0]
	if _, err := d.ChangeInvisible(0, 0, 0, m.Delivery, 0); err != nil {
		t.Fatal(err)
	}
	if got := d.TakeDead(0, 1, nil); len(got) != 1 {
		t.Errorf("dead: %v", got)
	}
}

func TestExtendedDeliveryStaysWithItsOwner(t *testing.T) {
	d := fresh(Options{}, 1, 1)
	m := take(d, 0, 1)[0]
	n := m.Delivery
	for i := range 5 {
		next, err := d.ChangeInvisible(Instant(i)*30*second, 0, 0, n, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			if _, err := d.ChangeInvisible(Instant(i)*30*second, 0, 0, n, time.Minute); reason(t, err) != ReasonReplaced {
				t.Errorf("old handle: %v", err)
			}
		}
		n = next
	}
	if got := take(d, 170*second, 1); len(got) != 0 {
		t.Errorf("delivered: %v", got)
	}
	if err := d.Ack(170*second, 0, 0, n); err != nil {
		t.Error(err)
	}
}

func TestRenewalFollowsTheClient(t *testing.T) {
	alive := true
	d := fresh(Options{Alive: func(c string, _ uint64) bool { return alive && c == "c1" }}, 1, 2)
	got, _ := d.Take(TakeRequest{Max: 1, Invisible: time.Minute, Renew: true, Client: "c1"}, nil)
	first := got[0]
	// The steps of the protocol facts: 1, 3, 5, 10, 30, 60 minutes, three hours in all.
	now := Instant(0)
	for _, m := range []Instant{1, 2, 5, 10, 20, 50, 110, 170} {
		now = m * minute
		if at, ok := d.NextWake(); !ok || at != now {
			t.Fatalf("wakes at %v, want %v", at, now)
		}
		d.Expire(now)
	}
	if at, _ := d.NextWake(); at != 180*minute {
		t.Fatalf("the last renewal ends at %v", at)
	}
	d.Expire(180 * minute)
	again := take(d, 180*minute, 1)
	if len(again) != 1 || again[0].Offset != first.Offset || again[0].Attempt != 2 {
		t.Fatalf("after three hours: %v", again)
	}

	// Gone at expiry: back after one second.
	got, _ = d.Take(TakeRequest{Now: 180 * minute, Max: 1, Invisible: time.Minute, Renew: true, Client: "c1"}, nil)
	alive = false
	d.Expire(181 * minute)
	if got := take(d, 181*minute+second-1, 9); len(got) != 1 { // only the one taken for a minute above
		t.Fatalf("early: %v", got)
	}
	if got := take(d, 181*minute+second, 9); len(got) != 1 || got[0].Offset != 1 {
		t.Fatalf("after the client went: %v", got)
	}
	_ = got
}

// TestClientsGoneAsksWhetherTheyLive: of three clients that are said to be gone one is
// back; the renewable deliveries of the others come again, though there are many.
func TestClientsGoneAsksWhetherTheyLive(t *testing.T) {
	var d *Dispatcher
	d = fresh(Options{Alive: func(client string, _ uint64) bool {
		if client == "c3" {
			t.Error("a client was asked about that nobody missed")
		}
		d.Stats() // the mutex is free
		return client == "c1"
	}}, 1, 3*goneRun)
	for i := range 3 * goneRun {
		d.Take(TakeRequest{Max: 1, Invisible: time.Hour, Renew: i%8 < 4, Client: fmt.Sprint("c", i%4)}, nil)
	}
	d.ClientsGone(minute, map[string]struct{}{"c0": {}, "c1": {}, "c2": {}})
	if got := take(d, minute+second-1, 9); len(got) != 0 {
		t.Fatalf("early: %v", got)
	}
	got := take(d, minute+2*second-1, 3*goneRun)
	if len(got) != 3*goneRun/4 {
		t.Fatalf("%d messages came back, want %d", len(got), 3*goneRun/4)
	}
	for _, g := range got {
		if i := g.Offset % 8; i != 0 && i != 2 || g.Attempt != 2 {
			t.Fatalf("back: %v", g)
		}
	}
}

func TestSuspendsOfOneDeliveryTakeBackOneAttempt(t *testing.T) {
	d := fresh(Options{MaxAttempts: 9}, 1, 1)
	for n := range 3 { // failed before
		got := take(d, Instant(n)*minute, 1)
		if _, err := d.ChangeInvisible(Instant(n)*minute, 0, 0, got[0].Delivery, 0); err != nil {
			t.Fatal(err)
		}
	}
	got := take(d, 10*minute, 1)
	if got[0].Attempt != 4 {
		t.Fatalf("%+v, want the 4th attempt", got[0])
	}
	for handle, n := got[0].Delivery, 0; n < 3; n++ {
		var err error
		if handle, err = d.Suspend(10*minute, 0, 0, handle, 0); err != nil {
			t.Fatal(err)
		}
	}
	for attempt := range uint32(2) {
		if got = take(d, 11*minute+Instant(attempt)*minute, 1); len(got) != 1 || got[0].Attempt != 4+attempt {
			t.Fatalf("%+v, want attempt %d", got, 4+attempt)
		}
		if _, err := d.ChangeInvisible(11*minute+Instant(attempt)*minute, 0, 0, got[0].Delivery, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFirstHandleOfARenewableDeliveryStaysValid(t *testing.T) {
	d := fresh(Options{}, 1, 2)
	got, _ := d.Take(TakeRequest{Max: 2, Invisible: time.Minute, Renew: true, Client: "c"}, nil)
	d.Expire(minute) // renewed
	if err := d.Ack(minute, 0, 0, got[0].Delivery); err != nil {
		t.Error(err)
	}
	second, err := d.ChangeInvisible(minute, 0, 1, got[1].Delivery, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.ChangeInvisible(minute, 0, 1, second, time.Hour); err != nil {
		t.Error(err)
	}
	if got := reason(t, d.Ack(minute, 0, 1, second)); got != ReasonReplaced {
		t.Errorf("the handle between: %v", got)
	}
	if err := d.Ack(minute, 0, 1, got[1].Delivery); err != nil {
		t.Error(err)
	}
}

func TestAliveMayCallBack(t *testing.T) {
	var d *Dispatcher
	d = fresh(Options{Alive: func(string, uint64) bool {
		got := d.Stats() // the mutex is free
		d.ClientsGone(minute, map[string]struct{}{"c": {}})
		return got.InFlight > 0
	}}, 1, 1)
	m, _ := d.Take(TakeRequest{Max: 1, Invisible: time.Minute, Renew: true, Client: "c"}, nil)
	d.Expire(minute)
	if err := d.Ack(minute, 0, 0, m[0].Delivery); err != nil {
		t.Error(err)
	}
}

func TestFilterSettlesWhatDoesNotMatch(t *testing.T) {
	d := fresh(Options{}, 2, 50_000)
	match := func(_ uint16, o uint64) Verdict {
		if o%10_000 == 9_999 {
			return Deliver
		}
		return Skip
	}
	var got []Taken
	more := true
	for more {
		got, more = d.Take(TakeRequest{Max: 32, Invisible: time.Minute, Match: match}, got)
	}
	if len(got) != 10 {
		t.Fatalf("delivered %d: %v", len(got), got)
	}
	if n := len(settled(d)); n != 100_000-10 {
		t.Errorf("settled %d", n)
	}
	if s := d.Stats(); s.InFlight != 10 || s.Fresh != 0 {
		t.Errorf("left: %+v", s)
	}
}

func TestVerdicts(t *testing.T) {
	d := fresh(Options{}, 1, 6)
	verdicts := map[uint64]Verdict{0: Deliver, 1: Later, 2: Skip, 3: Deliver, 4: Stop, 5: Deliver}
	var asked []uint64
	match := func(_ uint16, o uint64) Verdict { asked = append(asked, o); return verdicts[o] }
	got, more := d.Take(TakeRequest{Max: 9, Invisible: time.Minute, Match: match}, nil)
	if len(got) != 2 || got[0].Offset != 0 || got[1].Offset != 3 || !more || len(asked) != 5 {
		t.Fatalf("took %v, %v after asking for %v", got, more, asked)
	}
	if s := settled(d); !slices.Equal(s, []uint64{2}) {
		t.Fatalf("settled %v", s)
	}
	got, more = d.Take(TakeRequest{Max: 9, Invisible: time.Minute}, nil)
	if len(got) != 2 || got[0].Offset != 4 || got[1].Offset != 5 || more {
		t.Fatalf("took %v, %v", got, more)
	}
	if got := take(d, second-1, 9); len(got) != 0 {
		t.Fatalf("early: %v", got)
	}
	if got := take(d, second, 9); len(got) != 1 || got[0].Offset != 1 || got[0].Attempt != 1 {
		t.Fatalf("later: %v", got)
	}
	// Redeliveries keep their order when there is no room for them.
	d.Expire(2 * minute)
	stop := func(_ uint16, o uint64) Verdict {
		if o == 3 {
			return Stop
		}
		return Deliver
	}
	got, more = d.Take(TakeRequest{Now: 2 * minute, Max: 9, Invisible: time.Minute, Match: stop}, nil)
	if len(got) != 1 || got[0].Offset != 0 || !more {
		t.Fatalf("took %v, %v", got, more)
	}
	if got := take(d, 2*minute, 2); len(got) != 2 || got[0].Offset != 3 || got[1].Offset != 4 {
		t.Fatalf("took %v", got)
	}
}

func TestInFlightIsBounded(t *testing.T) {
	d := fresh(Options{MaxInFlight: 10}, 3, 100)
	got := take(d, 0, 64)
	if len(got) != 10 {
		t.Fatalf("took %d", len(got))
	}
	w := d.Wait()
	defer w.Stop()
	if woken(w) {
		t.Fatal("woken although nothing may be taken")
	}
	if err := d.Ack(0, got[3].Queue, got[3].Offset, got[3].Delivery); err != nil {
		t.Fatal(err)
	}
	if !woken(w) {
		t.Fatal("an ack makes room and wakes nobody")
	}
	if got := take(d, 0, 64); len(got) != 1 {
		t.Fatalf("took %d", len(got))
	}
	if got := take(d, minute, 64); len(got) != 10 || got[0].Attempt != 2 {
		t.Fatalf("redeliveries need room: %v", got)
	}
}

// TestALostAnswerIsRenewedNoMore: the connection that was to bring a delivery broke
// before it is known to have arrived, or later. Its client lives on.
func TestALostAnswerIsRenewedNoMore(t *testing.T) {
	for _, tt := range []struct {
		breaks Instant
		back   bool
	}{{minute / 4, true}, {minute, true}, {2 * minute, false}} {
		var now Instant
		d := fresh(Options{Alive: func(_ string, link uint64) bool { return link == 0 || now < tt.breaks }}, 1, 1)
		d.Take(TakeRequest{Max: 1, Invisible: 30 * time.Second, Renew: true, Client: "c", Link: 7}, nil)
		came := false
		for now = 0; now < 30*minute && !came; now += second {
			came = len(take(d, now, 1)) > 0
		}
		if came != tt.back {
			t.Errorf("the connection broke after %v: came again %v, want %v", time.Duration(tt.breaks), came, tt.back)
		}
	}
}
