package fec

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// wave is a delay in milliseconds at a time in seconds.
type wave func(at float64) float64

// chance lets a receiver see packets of a path that loses by chance, for so long. gap
// is the time between packets in seconds, at a time. It returns whether losses ever
// fell together with delay.
func chance(rng *rand.Rand, lasts time.Duration, loss float64, gap, delay wave) bool {
	var c coincidence
	start := time.Unix(1, 0)
	after, ever := false, false
	number := rng.Uint32()
	for at := 0.0; at < lasts.Seconds(); at += gap(at) {
		number++
		if rng.Float64() < loss {
			after = true
			continue
		}
		now := start.Add(time.Duration(at * float64(time.Second)))
		c.add(now, number, uint16(int(delay(at)*float64(time.Millisecond/tick))), after)
		after = false
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
	for name, p := range map[string]path{
		"no jitter":        {even, func(float64) float64 { return 40 }},
		"jitter":           {even, func(float64) float64 { return 40 + 8*rng.Float64() }},
		"rare long ones":   {even, func(float64) float64 { return 40 + 0.1*rng.Float64() + 30*math.Floor(rng.Float64()*1.01) }},
		"clocks drift":     {even, func(at float64) float64 { return 40 + 0.5*at }},
		"a short saw":      {even, saw(0.3, 8)},
		"a saw":            {even, saw(2, 10)},
		"a long saw":       {even, saw(11, 10)},
		"queues of bursts": bursts(0.8),
		"of seldom ones":   bursts(2.3),
	} {
		for _, loss := range []float64{0.002, 0.01, 0.1} {
			if chance(rng, 5*time.Minute, loss, p.gap, p.delay) {
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
		after := false
		for queue += rng.NormFloat64(); queue > 80; queue -= 2 * rng.Float64() {
			after = drops
			number++
		}
		queue = max(queue, 70)
		number++
		now = now.Add(2 * time.Millisecond)
		c.add(now, number, uint16(int((40+queue)*float64(time.Millisecond/tick))), after)
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
	for range 6_000 {
		step(false)
	}
	if c.holds(now) {
		t.Error("an overflow counts 12 s after its last loss")
	}
}
