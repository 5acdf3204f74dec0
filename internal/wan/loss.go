package wan

import (
	"math/rand/v2"
	"time"
)

// Loss decides which packets of a direction are lost. It is called once for each,
// in order.
type Loss interface {
	Lost(now time.Time) bool
}

// Losses makes the loss of one direction from a seed.
type Losses func(seed uint64) Loss

// Random loses each packet with the same probability, 0 to 1.
func Random(share float64) Losses {
	return func(seed uint64) Loss { return &random{rand.New(rand.NewPCG(seed, 1)), share} }
}

type random struct {
	rng   *rand.Rand
	share float64
}

func (r *random) Lost(time.Time) bool { return r.rng.Float64() < r.share }

// GilbertElliott loses packets in bursts (E. O. Elliott, Estimates of error rates
// for codes on burst-noise channels, 1963): the path turns bad with probability
// enter at each packet, and good again with leave; while it is bad it loses the
// share of packets. The mean burst is 1/leave packets, of which share are lost.
func GilbertElliott(enter, leave, share float64) Losses {
	return func(seed uint64) Loss {
		return &gilbertElliott{rng: rand.New(rand.NewPCG(seed, 2)), enter: enter, leave: leave, share: share}
	}
}

type gilbertElliott struct {
	rng                 *rand.Rand
	enter, leave, share float64
	bad                 bool
}

func (g *gilbertElliott) Lost(time.Time) bool {
	if g.bad {
		g.bad = g.rng.Float64() >= g.leave
	} else {
		g.bad = g.rng.Float64() < g.enter
	}
	return g.bad && g.rng.Float64() < g.share
}

// Bursts loses n packets in a row each time, counted from the first packet on.
func Bursts(n int, every time.Duration) Losses {
	return func(uint64) Loss { return &bursts{n: n, every: every} }
}

type bursts struct {
	n     int
	every time.Duration
	next  time.Time // the next burst begins with the first packet from then on; zero = none was sent
	left  int
}

func (b *bursts) Lost(now time.Time) bool {
	if b.next.IsZero() {
		b.next = now.Add(b.every)
	}
	if !now.Before(b.next) {
		b.left = b.n
		b.next = b.next.Add(b.every)
		if !now.Before(b.next) { // nothing was sent for longer than that
			b.next = now.Add(b.every)
		}
	}
	if b.left == 0 {
		return false
	}
	b.left--
	return true
}
