package router

import (
	"cmp"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// PathTiming holds the durations of the path choice. The zero value of a field
// takes the default.
type PathTiming struct {
	Look       time.Duration // between two looks at the links; default 100 ms
	Down       time.Duration // without any direct link for so long: take a detour; default 500 ms, about one dial
	Worse      time.Duration // a path that is clearly worse for so long gives way; default 10 s
	Return     time.Duration // the direct link works for so long: back to it; default 10 s
	ReturnMost time.Duration // what Return grows to, doubling, while the direct link fails again soon; default 5 min
}

func (t PathTiming) withDefaults() PathTiming {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&t.Look, 100*time.Millisecond)
	set(&t.Down, 500*time.Millisecond)
	set(&t.Worse, 10*time.Second)
	set(&t.Return, 10*time.Second)
	set(&t.ReturnMost, 5*time.Minute)
	t.ReturnMost = max(t.ReturnMost, t.Return)
	return t
}

// PathReason is why sessions to a city take a detour.
type PathReason uint8

// The reasons. The zero value stands for the direct link.
const (
	PathDirect PathReason = iota
	PathDown              // there is no direct link
	PathWorse             // the direct link is clearly slower
)

// String returns the word that status and metrics use.
func (p PathReason) String() string {
	switch p {
	case PathDirect:
		return "direct"
	case PathDown:
		return "direct link down"
	case PathWorse:
		return "direct link slow"
	}
	return "unknown"
}

// detour is a third city that reaches the destination.
type detour struct {
	city zone.City
	rtt  time.Duration // of both links together; 0 = not measured
}

// sight is what a router sees of the ways to a city at one time.
type sight struct {
	up      bool          // a direct link takes sessions
	rtt     time.Duration // least of the direct links; 0 = not measured
	detours []detour      // those that work now
}

// slowness is what "clearly slower" means: one path against the other.
//
// A round trip that includes a lost probe's repetition is slow as well, so this
// sees loss, too. Leaving needs twice the round trip and staying away ends at
// one and a half, so that one measurement cannot do both.
const slowMargin = 20 * time.Millisecond

func clearlyWorse(a, b time.Duration) bool { return a > 0 && b > 0 && a > 2*b+slowMargin }

func stillWorse(a, b time.Duration) bool { return a > 0 && b > 0 && a > b+b/2+slowMargin }

// route decides between the direct link to a city and a detour, for one class.
// It is pure: what is seen and the time in, the path out. Only the path loop
// uses it.
//
// The direct link is left at once when it is gone (after Down, so that a
// connection that is dialled anew moves nobody), and slowly when it is slow
// (after Worse). It is taken again after it has worked for Return without a
// break, and that grows when it fails again soon: a link that flaps moves its
// sessions ever more rarely.
type route struct {
	timing PathTiming
	reason PathReason // PathDirect: no detour
	since  time.Time  // of reason

	down     time.Time     // since when there is no direct link; zero = there is one
	slow     time.Time     // since when the direct link is clearly slower; zero = it is not
	good     time.Time     // since when the direct link works again; zero = it does not, or is in use
	hold     time.Duration // the present Return
	returned time.Time     // when the direct link was last taken again

	best    zone.City // the detour in use or to be used; empty = none works
	better  time.Time // since when another detour is clearly better than best
	changes uint64    // of reason
}

func newRoute(t PathTiming, now time.Time) *route {
	return &route{timing: t, since: now, hold: t.Return}
}

// step takes a look.
func (r *route) step(now time.Time, s sight) {
	r.prefer(now, s.detours)
	best := r.cost(s.detours)
	mark(&r.down, !s.up, now)
	mark(&r.slow, s.up && clearlyWorse(s.rtt, best), now)
	switch r.reason {
	case PathDirect:
		switch {
		case r.best == "":
		case !r.down.IsZero() && now.Sub(r.down) >= r.timing.Down:
			r.leave(now, PathDown)
		case !r.slow.IsZero() && now.Sub(r.slow) >= r.timing.Worse:
			r.leave(now, PathWorse)
		}
	case PathDown, PathWorse:
		worse := !r.slow.IsZero()
		if r.reason == PathWorse {
			worse = stillWorse(s.rtt, best)
		}
		mark(&r.good, s.up && !worse, now)
		if r.best == "" || !r.good.IsZero() && now.Sub(r.good) >= r.hold {
			// Without a detour the direct link is what is left, up or not.
			r.change(now, PathDirect)
			r.good, r.returned = time.Time{}, now
		}
	}
}

// leave begins a detour. One that follows soon on the return from another shows
// that the return was too early.
func (r *route) leave(now time.Time, why PathReason) {
	switch {
	case r.returned.IsZero():
	case now.Sub(r.returned) < 4*r.hold:
		r.hold = min(2*r.hold, r.timing.ReturnMost)
	default:
		r.hold = r.timing.Return
	}
	r.change(now, why)
	r.good = time.Time{}
}

func (r *route) change(now time.Time, to PathReason) {
	r.reason, r.since = to, now
	r.changes++
}

// prefer keeps the detour unless it is gone, or clearly worse than another for
// Worse.
func (r *route) prefer(now time.Time, detours []detour) {
	if len(detours) == 0 {
		r.best, r.better = "", time.Time{}
		return
	}
	least := slices.MinFunc(detours, byCost)
	if i := slices.IndexFunc(detours, func(d detour) bool { return d.city == r.best }); i >= 0 {
		mark(&r.better, clearlyWorse(detours[i].rtt, least.rtt), now)
		if r.better.IsZero() || now.Sub(r.better) < r.timing.Worse {
			return
		}
	}
	r.best, r.better = least.city, time.Time{}
}

// cost returns the round trip of the preferred detour; 0 = there is none, or it
// is not measured.
func (r *route) cost(detours []detour) time.Duration {
	for _, d := range detours {
		if d.city == r.best {
			return d.rtt
		}
	}
	return 0
}

// order sorts the detours: the preferred one first, then by round trip.
func (r *route) order(detours []detour) []detour {
	out := slices.Clone(detours)
	slices.SortFunc(out, func(a, b detour) int {
		switch {
		case a.city == b.city:
			return 0
		case a.city == r.best:
			return -1
		case b.city == r.best:
			return 1
		}
		return byCost(a, b)
	})
	return out
}

// byCost orders by round trip, those without one last, then by name.
func byCost(a, b detour) int {
	if (a.rtt == 0) != (b.rtt == 0) {
		return cmp.Compare(b.rtt, a.rtt)
	}
	return cmp.Or(cmp.Compare(a.rtt, b.rtt), cmp.Compare(a.city, b.city))
}

// mark keeps the time since which a condition holds.
func mark(since *time.Time, holds bool, now time.Time) {
	switch {
	case !holds:
		*since = time.Time{}
	case since.IsZero():
		*since = now
	}
}
