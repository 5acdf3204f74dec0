package link

import (
	"math/rand/v2"
	"testing"
	"time"
)

// pathModel is what a link of n connections carries over some path, and what is seen.
type pathModel func(n int) load

// follow feeds a demand with what the path shows for d, two samples a second.
func follow(d *demand, now *time.Time, over time.Duration, most int, p pathModel) {
	for end := now.Add(over); now.Before(end); *now = now.Add(500 * time.Millisecond) {
		s := p(d.want)
		s.over = 500 * time.Millisecond
		d.sample(*now, s, most)
	}
}

// lossyPath is a path on which each connection carries as much as it can.
func lossyPath(n int) load {
	return load{busy: 16, waited: time.Second, rate: float64(n) * 1e6, loss: 0.01, rtt: 31 * time.Millisecond, minRTT: 30 * time.Millisecond}
}

// fullPath is a path that one connection fills, and that more of them overflow.
func fullPath(n int) load {
	return load{busy: 16, waited: time.Second, rate: 12e6, loss: 0.004, rtt: 110 * time.Millisecond, minRTT: 30 * time.Millisecond}
}

// idlePath is a path on which nobody has to wait.
func idlePath(rate float64, busy int) pathModel {
	return func(int) load {
		return load{busy: busy, rate: rate, rtt: 30 * time.Millisecond, minRTT: 30 * time.Millisecond}
	}
}

func TestDemandGrowsWhereConnectionsAddUp(t *testing.T) {
	d, now := newDemand(), epoch
	follow(&d, &now, 8*time.Second, 8, lossyPath)
	if d.want != 8 {
		t.Errorf("%d connections after 8 s of backlog, want 8", d.want)
	}
	follow(&d, &now, time.Hour, 8, lossyPath)
	if d.want != 8 {
		t.Errorf("%d connections after an hour, want them to stay", d.want)
	}
}

func TestDemandFollowsLimitSessionsAndProcessor(t *testing.T) {
	for _, c := range []struct {
		name string
		most int
		path pathModel
		want int
	}{
		{"the limit", 3, lossyPath, 3},
		{"a limit between", 5, lossyPath, 5},
		{"no extra ones taken", 1, lossyPath, 1},
		{"fewer sessions", 8, func(n int) load { s := lossyPath(n); s.busy = 2; return s }, 2},
		{"one session", 8, func(n int) load { s := lossyPath(n); s.busy = 1; return s }, 1},
		{"no processor left", 8, func(n int) load { s := lossyPath(n); s.cpu = true; return s }, 1},
		{"nobody waits", 8, idlePath(50e6, 16), 1},
		{"a full queue", 8, fullPath, 1},
	} {
		d, now := newDemand(), epoch
		follow(&d, &now, time.Minute, c.most, c.path)
		if d.want != c.want {
			t.Errorf("%s: %d connections, want %d", c.name, d.want, c.want)
		}
	}
}

// TestDemandTakesBackWhatDidNotPay: a path whose bandwidth is the limit, without
// a sign of it, gets more connections for a moment, ever more rarely.
func TestDemandTakesBackWhatDidNotPay(t *testing.T) {
	d, now := newDemand(), epoch
	grown := 0
	p := func(n int) load {
		if n > 1 {
			grown++
		}
		s := lossyPath(1)
		return s
	}
	follow(&d, &now, time.Hour, 8, p)
	if share := float64(grown) / 7200; share > 0.03 {
		t.Errorf("more connections than pay for %.1f %% of an hour, want at most 3 %%", 100*share)
	}
	// The path becomes lossy: what did not pay before does now, after the rest.
	follow(&d, &now, longestRest+20*time.Second, 8, lossyPath)
	if d.want != 8 {
		t.Errorf("%d connections once they pay, want 8", d.want)
	}
}

func TestDemandFallsWhenThePathIsFull(t *testing.T) {
	d, now := newDemand(), epoch
	follow(&d, &now, 10*time.Second, 8, lossyPath)
	follow(&d, &now, 10*time.Second, 8, fullPath)
	if d.want > 1 {
		t.Errorf("%d connections 10 s after the path began to overflow, want 1", d.want)
	}
}

// TestDemandFallsWhereCorrectionSeesAFullPath: a queue that overflows once in a few
// seconds shows in no sample as a loss or a longer round trip, but for what the
// correction layer tells.
func TestDemandFallsWhereCorrectionSeesAFullPath(t *testing.T) {
	d, now := newDemand(), epoch
	samples, grown := 0, 0
	shared := func(n int) load {
		samples++
		if n > 1 {
			grown++
		}
		return load{busy: 16, waited: time.Second, rate: 3e6 * float64(n), crowded: samples%7 == 0}
	}
	follow(&d, &now, 10*time.Second, 8, lossyPath)
	follow(&d, &now, 40*time.Second, 8, shared)
	if d.want != 1 {
		t.Errorf("%d connections 40 s after the path began to overflow, want 1", d.want)
	}
	samples, grown = 0, 0
	follow(&d, &now, time.Hour, 8, shared)
	if grown > samples/10 {
		t.Errorf("more connections than one for %d of %d samples of a full path", grown, samples)
	}
	follow(&d, &now, longestRest+20*time.Second, 8, lossyPath)
	if d.want != 8 {
		t.Errorf("%d connections once the path has room, want 8", d.want)
	}
}

// overflows is a path with a queue that stands, or none, and overflows each time.
func overflows(every time.Duration, queued bool) pathModel {
	sample := 0
	return func(n int) load {
		sample++
		return load{busy: 16, waited: time.Second, rate: 1e6 * float64(n), queued: queued, crowded: sample%int(every/(500*time.Millisecond)) == 0}
	}
}

// TestDemandDoesNotGrowIntoAQueue: that a path is full shows in its queue long
// before it overflows, and growing would pay, with what it takes from others.
func TestDemandDoesNotGrowIntoAQueue(t *testing.T) {
	d, now := newDemand(), epoch
	follow(&d, &now, time.Hour, 8, overflows(2*time.Hour, true))
	if d.want != 1 {
		t.Errorf("%d connections on a path with a queue, want 1", d.want)
	}
	follow(&d, &now, 20*time.Second, 8, overflows(2*time.Hour, false))
	if d.want != 8 {
		t.Errorf("%d connections 20 s after the queue went, want 8", d.want)
	}
}

func TestDemandFallsWhereAQueueStandsAndOverflows(t *testing.T) {
	for _, c := range []struct {
		every  time.Duration
		queued bool
		want   int
		what   string
	}{
		{15 * time.Second, true, 1, "a full path that one connection would fill as well"},
		{3 * time.Minute, true, 8, "a path so large that one would take minutes to fill it"},
		{15 * time.Second, false, 8, "losses here and there while something else was late"},
	} {
		d, now := newDemand(), epoch
		follow(&d, &now, 10*time.Second, 8, lossyPath)
		follow(&d, &now, 4*time.Minute, 8, overflows(c.every, c.queued))
		if d.want != c.want {
			t.Errorf("%s: %d connections after 4 minutes, want %d", c.what, d.want, c.want)
		}
	}
}

// TestDemandKeepsTheLastConnectionWhileItIsNeeded: when one suffices for a full path
// it is one whose window has grown, not the link's own, which begins anew.
func TestDemandKeepsTheLastConnectionWhileItIsNeeded(t *testing.T) {
	d, now := newDemand(), epoch
	follow(&d, &now, time.Minute, 8, overflows(15*time.Second, true))
	if n := d.extra(); n != 0 {
		t.Errorf("%d extra connections of a link that never grew", n)
	}
	follow(&d, &now, longestRest+20*time.Second, 8, lossyPath)
	follow(&d, &now, 10*time.Minute, 8, overflows(15*time.Second, true))
	if n := d.extra(); d.want != 1 || n != 1 {
		t.Errorf("%d connections, %d of them extra, on a full path; want one", d.want, n)
	}
	narrow := d
	if follow(&narrow, &now, time.Second, 1, fullPath); narrow.extra() != 0 {
		t.Error("an extra connection to a peer that takes none")
	}
	follow(&d, &now, 15*time.Second, 8, idlePath(0.1e6, 16))
	if n := d.extra(); n != 0 {
		t.Errorf("%d extra connections for a trickle", n)
	}
}

func TestDemandGivesBackWhatIsNotNeededAndKeepsWhatIs(t *testing.T) {
	d, now := newDemand(), epoch
	follow(&d, &now, 10*time.Second, 8, lossyPath)
	// Six of eight million bytes a second: nobody waits, but four would not do.
	follow(&d, &now, time.Hour, 8, idlePath(6e6, 16))
	if d.want != 8 {
		t.Errorf("%d connections although half of them did not suffice for this rate, want 8", d.want)
	}
	follow(&d, &now, 45*time.Second, 8, idlePath(0.1e6, 16))
	if d.want != 1 {
		t.Errorf("%d connections after 45 s of a trickle, want 1", d.want)
	}
	d, now = newDemand(), epoch
	follow(&d, &now, 10*time.Second, 8, lossyPath)
	follow(&d, &now, 35*time.Second, 8, idlePath(6e6, 1))
	if d.want != 1 {
		t.Errorf("%d connections for one session, want 1", d.want)
	}
}

// TestDemandStaysInBounds feeds anything.
func TestDemandStaysInBounds(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 11))
		d, now := newDemand(), epoch
		for range 400 {
			now = now.Add(time.Duration(r.Int64N(int64(time.Second))))
			most := r.IntN(20)
			d.sample(now, load{
				over: time.Duration(r.Int64N(int64(time.Second))), busy: r.IntN(40), waited: time.Duration(r.Int64N(int64(2 * time.Second))),
				rate: r.Float64() * 1e9, loss: r.Float64(), rtt: time.Duration(r.Int64N(int64(time.Second))),
				minRTT: time.Duration(r.Int64N(int64(time.Second))), cpu: r.IntN(5) == 0,
				crowded: r.IntN(20) == 0, queued: r.IntN(2) == 0,
			}, most)
			if d.want < 1 || d.want > max(most, 1) || d.extra() > 0 && most < 2 {
				t.Fatalf("seed %d: %d connections of at most %d", seed, d.want, most)
			}
		}
	}
}

// TestASingleOverflowIsForgottenSoon: a young connection shoots over, and a processor
// that is away leaves a socket full, on a path that has room.
func TestASingleOverflowIsForgottenSoon(t *testing.T) {
	d, now := newDemand(), epoch
	first := true
	follow(&d, &now, 6*time.Second, 8, func(n int) load {
		l := lossyPath(n)
		l.crowded, first = first, false
		return l
	})
	if d.want < 2 {
		t.Errorf("%d connections 6 s after one overflow, want more", d.want)
	}
	d = newDemand()
	samples := 0
	follow(&d, &now, 9*time.Second, 8, func(n int) load {
		l := lossyPath(n)
		l.crowded = samples < 2
		samples++
		return l
	})
	if d.want != 1 {
		t.Errorf("%d connections 9 s after two overflows, want 1", d.want)
	}
}

// TestConnectionsThatPaidAreTakenBack: what one connection carries while it is young is
// more than it can hold, so that growing seems not to pay; without the others much less
// goes, and they come back before the rest is over.
func TestConnectionsThatPaidAreTakenBack(t *testing.T) {
	d, now := newDemand(), epoch
	sample := 0
	young := func(n int) load {
		sample++
		l := load{busy: 16, waited: time.Second, rate: 12e6 * float64(n)}
		if sample <= 4 {
			l.rate = 30e6
		}
		return l
	}
	fell := false
	for range 28 { // 14 s, which firstRest is longer than
		follow(&d, &now, 500*time.Millisecond, 2, young)
		fell = fell || d.more > 0
	}
	if !fell || d.want != 2 {
		t.Errorf("%d connections, given back before: %v; want 2 again", d.want, fell)
	}
	// One that carries as much alone stays alone.
	d, sample = newDemand(), 0
	follow(&d, &now, 14*time.Second, 2, func(int) load { return load{busy: 16, waited: time.Second, rate: 12e6} })
	if d.want != 1 || d.more == 0 {
		t.Errorf("%d connections where more carry no more, want 1", d.want)
	}
}
