package fec

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// wave is what something is at a time in seconds.
type wave func(at float64) float64

// chance lets a receiver see packets of a path that loses by chance, for so long. gap
// is the time from a packet to the next in seconds, delay how long one takes in
// milliseconds. It returns whether losses ever fell together with delay.
func chance(rng *rand.Rand, lasts time.Duration, loss float64, gap, delay wave) bool {
	type packet struct {
		number     uint32
		sent, came float64 // seconds
	}
	var all []packet
	number := rng.Uint32()
	for at := 0.0; at < lasts.Seconds(); at += gap(at) {
		number++
		if late := delay(at) / 1000; rng.Float64() >= loss {
			all = append(all, packet{number, at, at + late})
		}
	}
	slices.SortStableFunc(all, func(a, b packet) int { return cmp.Compare(a.came, b.came) })
	var c coincidence
	ever := false
	ticks := func(at float64) uint16 { return uint16(int64(at * float64(time.Second/tick))) }
	for _, p := range all {
		now := time.Unix(1, 0).Add(time.Duration(p.came * float64(time.Second)))
		c.add(now, p.number, ticks(p.came)-ticks(p.sent))
		ever = ever || c.holds(now)
	}
	return ever
}

// TestChanceIsNoCoincidence: whatever delays do, losses that do not depend on them are
// not taken for those of a queue.
func TestChanceIsNoCoincidence(t *testing.T) {
	rng := random(t)
	even := func(float64) float64 { return 0.0004 }
	saw := func(period, height float64) wave {
		return func(at float64) float64 { return 40 + height*math.Mod(at, period)/period }
	}
	type path struct{ gap, delay wave }
	bursts := func(period float64) path {
		high := 0.0
		return path{func(at float64) float64 {
			if high = 0; math.Mod(at, period) < 0.1 {
				high = 5
				return 0.0001
			}
			return 0.02
		}, func(float64) float64 { return 40 + high + 3*rng.Float64() }}
	}
	// n packets at once each period, of which each takes extra(i) longer.
	train := func(n int, period float64, extra func(i int) float64) path {
		i := 0
		return path{func(at float64) float64 {
			if i = (i + 1) % n; i == 0 {
				return math.Ceil((at+1e-9)/period)*period - at
			}
			return 0.00001
		}, func(float64) float64 { return 40 + extra(i) }}
	}
	turn := 0.0
	for name, p := range map[string]path{
		"two paths in turn":                 {even, func(float64) float64 { turn = 3 - turn; return 40 + turn }},
		"late ones":                         {even, func(float64) float64 { return 40 + rng.ExpFloat64() }},
		"a train that its own queue delays": train(28, 0.05, func(i int) float64 { return 0.06 * float64(i) }),
		"a train whose head waits":          train(400, 0.1, func(i int) float64 { return max(5-0.05*float64(i), 0) }),
		"no jitter":                         {even, func(float64) float64 { return 40 }},
		"jitter":                            {even, func(float64) float64 { return 40 + 8*rng.Float64() }},
		"rare long ones":                    {even, func(float64) float64 { return 40 + 0.1*rng.Float64() + 30*math.Floor(rng.Float64()*1.01) }},
		"clocks drift":                      {even, func(at float64) float64 { return 40 + 0.5*at }},
		"a short saw":                       {even, saw(0.3, 8)},
		"a saw":                             {even, saw(2, 10)},
		"a long saw":                        {even, saw(11, 10)},
		"queues of bursts":                  bursts(0.8),
		"of seldom ones":                    bursts(2.3),
	} {
		for _, loss := range []float64{0, 0.002, 0.01, 0.1} {
			if chance(rng, 3*time.Minute, loss, p.gap, p.delay) {
				t.Errorf("%s: %v lost by chance fell together with delay", name, loss)
			}
		}
	}
}

// TestOverflowIsACoincidence: what a queue of many drops is seen as that, also when it
// moves by less than what would be measured, and no longer when the queue is gone.
func TestOverflowIsACoincidence(t *testing.T) {
	rng := random(t)
	var c coincidence
	now := time.Unix(1, 0)
	number, queue := uint32(0), 70.0 // of 80 ms
	step := func(drops bool) {
		// Others fill it by a random walk with a wall.
		for queue += rng.NormFloat64(); queue > 80; queue -= 2 * rng.Float64() {
			if drops {
				number++
			}
		}
		queue = max(queue, 70)
		number++
		now = now.Add(2 * time.Millisecond)
		c.add(now, number, uint16(int((40+queue)*float64(time.Millisecond/tick))))
	}
	took := 0
	for ; !c.holds(now) && took < 10_000; took++ {
		step(true)
	}
	if took > 5_000 {
		t.Errorf("an overflow was not seen for %d packets", took)
	}
	for range 10_000 {
		step(true)
	}
	if !c.holds(now) {
		t.Errorf("an overflow that goes on is not seen, score %v", c.score)
	}
	for range 5_100 {
		step(false)
	}
	if c.holds(now) {
		t.Error("an overflow counts 10.2 s after its last loss")
	}
}
