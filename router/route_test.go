package router

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// scene drives a route by what is seen, with a look every 100 ms.
type scene struct {
	t   *testing.T
	r   *route
	now time.Time
}

func newScene(t *testing.T) *scene {
	now := simStart
	return &scene{t: t, r: newRoute(PathTiming{}.withDefaults(), now), now: now}
}

// see takes looks for d and returns after how long the reason became want;
// negative = it never did.
func (s *scene) see(d time.Duration, what sight, want PathReason) time.Duration {
	took := time.Duration(-1)
	for passed := time.Duration(0); passed < d; passed += 100 * time.Millisecond {
		s.r.step(s.now, what)
		if took < 0 && s.r.reason == want {
			took = passed
		}
		s.now = s.now.Add(100 * time.Millisecond)
	}
	return took
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func round(direct int, detours ...detour) sight {
	return sight{up: direct > 0, rtt: ms(direct), detours: detours}
}

func TestRouteLeavesADeadLinkSoonAndReturnsLate(t *testing.T) {
	s := newScene(t)
	way := detour{"third", ms(80)}
	s.see(time.Minute, round(40, way), PathDirect)
	if s.r.changes != 0 {
		t.Fatalf("%d changes on a good link", s.r.changes)
	}
	if took := s.see(ms(400), round(0, way), PathDown); took >= 0 {
		t.Fatalf("left after %v: a connection that is dialled anew moves nobody", took)
	}
	s.see(ms(100), round(40, way), PathDown)
	if took := s.see(time.Second, round(0, way), PathDown); took != ms(500) {
		t.Fatalf("left after %v, want 500ms", took)
	}
	if took := s.see(9*time.Second, round(40, way), PathDirect); took >= 0 {
		t.Fatalf("back after %v, want 10s", took)
	}
	s.see(ms(100), round(0, way), PathDirect) // a break begins the wait anew
	if took := s.see(20*time.Second, round(40, way), PathDirect); took != 10*time.Second {
		t.Fatalf("back after %v, want 10s", took)
	}
}

func TestRouteLeavesASlowLinkOnlyWhenItIsClearlySlow(t *testing.T) {
	s := newScene(t)
	way := detour{"third", ms(80)}
	if took := s.see(time.Hour, round(179, way), PathWorse); took >= 0 {
		t.Fatalf("179ms against 80ms: left after %v", took)
	}
	if took := s.see(time.Minute, round(181, way), PathWorse); took != 10*time.Second {
		t.Fatalf("181ms against 80ms: left after %v, want 10s", took)
	}
	if took := s.see(time.Hour, round(150, way), PathDirect); took >= 0 {
		t.Fatalf("150ms against 80ms: back after %v", took)
	}
	if took := s.see(time.Minute, round(139, way), PathDirect); took != 10*time.Second {
		t.Fatalf("139ms against 80ms: back after %v, want 10s", took)
	}
	if took := s.see(time.Hour, round(500, detour{"third", 0}), PathWorse); took >= 0 {
		t.Fatalf("left for a way that is not measured after %v", took)
	}
}

func TestRouteOfAFlappingLinkMovesEverMoreRarely(t *testing.T) {
	s := newScene(t)
	way := detour{"third", ms(80)}
	last := uint64(0)
	for hour := range 3 {
		// Down for two seconds in every twenty.
		for range 180 {
			s.see(2*time.Second, round(0, way), PathDown)
			s.see(18*time.Second, round(40, way), PathDirect)
		}
		changes := s.r.changes - last
		last = s.r.changes
		if most := []uint64{8, 2, 2}[hour]; changes > most {
			t.Errorf("hour %d: %d changes of a link that flaps 180 times, want at most %d", hour, changes, most)
		}
	}
	// When it is well again, so is the patience.
	if took := s.see(time.Hour, round(40, way), PathDirect); took > 5*time.Minute {
		t.Errorf("back after %v of a good link, want at most 5m", took)
	}
	s.see(time.Hour, round(40, way), PathDirect)
	s.see(time.Second, round(0, way), PathDown)
	if took := s.see(time.Minute, round(40, way), PathDirect); took != 10*time.Second {
		t.Errorf("a good hour later: back after %v, want 10s", took)
	}
}

func TestRouteWithoutADetourStaysDirect(t *testing.T) {
	s := newScene(t)
	s.see(time.Hour, round(0), PathDown)
	if s.r.reason != PathDirect || s.r.changes != 0 {
		t.Fatalf("reason %v after %d changes", s.r.reason, s.r.changes)
	}
	// One that appears is taken at once; when it goes, there is nothing to wait for.
	way := detour{"third", ms(80)}
	if took := s.see(time.Second, round(0, way), PathDown); took != 0 {
		t.Fatalf("taken after %v", took)
	}
	if took := s.see(time.Second, round(0), PathDirect); took != 0 {
		t.Fatalf("given up after %v", took)
	}
}

func TestRouteKeepsItsDetour(t *testing.T) {
	s := newScene(t)
	a, b := detour{"a", ms(80)}, detour{"b", ms(70)}
	s.see(time.Second, round(0, a), PathDown)
	s.see(time.Hour, round(0, b, a), PathDown)
	if s.r.best != "a" {
		t.Fatalf("left a for %s, which is a little faster", s.r.best)
	}
	s.see(9*time.Second, round(0, b, detour{"a", ms(300)}), PathDown)
	if s.r.best != "a" {
		t.Fatalf("left a before it was slow for 10s")
	}
	s.see(2*time.Second, round(0, b, detour{"a", ms(300)}), PathDown)
	if s.r.best != "b" {
		t.Fatalf("stays on a, which is four times as slow")
	}
	s.see(ms(100), round(0, a), PathDown)
	if s.r.best != "a" || s.r.changes != 1 {
		t.Fatalf("best %s after %d changes; want a at once when b is gone", s.r.best, s.r.changes)
	}
	order := s.r.order([]detour{{"d", 0}, {"c", ms(9)}, b, a})
	if order[0].city != "a" || order[1].city != "c" || order[2].city != "b" || order[3].city != "d" {
		t.Errorf("order %v; want the preferred one, then the fastest, then what is not measured", order)
	}
}

// TestRouteKeepsItsPromises takes random looks. Whatever is seen: a detour is
// taken only when there is one, a good link is never left, changes are as rare as
// the waits between them, and when all is well the direct link is taken again.
func TestRouteKeepsItsPromises(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := newScene(t)
		var left time.Time
		for range 500 {
			var v sight
			if v.up = rng.IntN(3) > 0; v.up && rng.IntN(4) > 0 {
				v.rtt = ms(rng.IntN(400))
			}
			for _, c := range []zone.City{"a", "b", "c"}[:rng.IntN(4)] {
				v.detours = append(v.detours, detour{c, ms(rng.IntN(300))})
			}
			for range 1 + rng.IntN(200) {
				was, changes, down := s.r.reason, s.r.changes, s.r.down
				s.r.step(s.now, v)
				switch {
				case s.r.reason != PathDirect && len(v.detours) == 0:
					t.Fatalf("seed %d: a detour without a city", seed)
				case was == PathDirect && s.r.reason == PathDown && (v.up || s.now.Sub(down) < s.r.timing.Down):
					t.Fatalf("seed %d: a link was left as down that was not for long", seed)
				case was == PathDirect && s.r.reason == PathWorse && !v.up:
					t.Fatalf("seed %d: a dead link was left as slow", seed)
				case was != PathDirect && s.r.reason == PathDirect && len(v.detours) > 0 && s.now.Sub(left) < s.r.timing.Return:
					t.Fatalf("seed %d: back after %v", seed, s.now.Sub(left))
				}
				if changes != s.r.changes && s.r.reason != PathDirect {
					left = s.now
				}
				if i := len(v.detours); i > 0 && s.r.best == "" || s.r.hold > s.r.timing.ReturnMost || s.r.hold < s.r.timing.Return {
					t.Fatalf("seed %d: best %q of %d, hold %v", seed, s.r.best, i, s.r.hold)
				}
				s.now = s.now.Add(ms(100))
			}
		}
		s.see(6*time.Minute, round(40, detour{"a", ms(80)}), PathDirect)
		if s.r.reason != PathDirect {
			t.Fatalf("seed %d: %v after six good minutes", seed, s.r.reason)
		}
	}
}
