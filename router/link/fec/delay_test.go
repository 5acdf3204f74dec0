package fec

import (
	"math/rand/v2"
	"testing"
	"time"
)

// delayPath is a path of which a crowd measures the delay.
type delayPath struct {
	c      crowd
	rng    *rand.Rand
	since  time.Duration
	every  time.Duration // a packet
	jitter time.Duration
	loss   float64
	number uint32
	fulls  int // packets at which the crowd was full
}

func newDelayPath(t *testing.T, every, jitter time.Duration, loss float64) *delayPath {
	return &delayPath{c: crowd{bound: 15 * time.Millisecond}, rng: random(t), every: every, jitter: jitter, loss: loss}
}

// run sends for a time over a path whose delay goes evenly from one to another.
func (p *delayPath) run(d, from, to time.Duration) {
	p.fulls = 0
	for t := time.Duration(0); t < d; t += p.every {
		delay := from + time.Duration(float64(to-from)*float64(t)/float64(d))
		if p.jitter > 0 {
			delay += time.Duration(p.rng.Int64N(int64(p.jitter)))
		}
		if p.number++; p.rng.Float64() >= p.loss {
			at := p.since + delay
			p.c.add(time.Unix(1, 0).Add(at), p.number, uint16(at/tick), uint16(p.since/tick))
			if p.c.full {
				p.fulls++
			}
		}
		p.since += p.every
	}
}

// TestLongerRouteIsNoQueue: a delay that jumps and stands still is that of the path.
func TestLongerRouteIsNoQueue(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name          string
		every, jitter time.Duration
		loss          float64
		by            time.Duration
		before        time.Duration
	}{
		{"no jitter", ms / 5, 0, 0, 20 * ms, 10 * time.Second},
		{"jitter", ms / 5, 8 * ms, 0, 20 * ms, 10 * time.Second},
		{"loss", ms / 5, 3 * ms, 0.01, 20 * ms, 10 * time.Second},
		{"5 % of loss", ms / 5, 3 * ms, 0.05, 20 * ms, 10 * time.Second},
		{"a second", ms / 5, 3 * ms, 0.01, time.Second, 10 * time.Second},
		{"at the end of an interval", ms / 5, 3 * ms, 0.01, 20 * ms, calm - 50*ms},
		{"10 packets a second", 100 * ms, 0, 0, 20 * ms, 10 * time.Second},
		{"33 packets a second", 30 * ms, 0, 0, 20 * ms, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newDelayPath(t, c.every, c.jitter, c.loss)
			delay := 15 * ms
			p.run(c.before, delay, delay)
			for i := range 2 {
				delay += c.by
				if p.run(10*time.Second, delay, delay); p.fulls > 0 || p.c.queue > 5*ms {
					t.Errorf("%d packets of a full path after route %d, queue %v", p.fulls, i+2, p.c.queue)
				}
			}
			p.run(time.Second, 15*ms, 15*ms)
			if p.run(1500*ms, 15*ms, 115*ms); !p.c.full {
				t.Errorf("a ramp of 100 ms after a step back is a queue of %v", p.c.queue)
			}
		})
	}
}

// TestQueueIsToldFromARoute: what grows, moves after a jump or drops is a queue.
func TestQueueIsToldFromARoute(t *testing.T) {
	const ms = time.Millisecond
	at := func() *delayPath {
		p := newDelayPath(t, ms/5, ms, 0.01)
		p.run(10*time.Second, 15*ms, 15*ms)
		return p
	}
	p := at()
	if p.run(100*ms, 15*ms, 55*ms); !p.c.full {
		t.Errorf("a ramp of 40 ms in 100 is a queue of %v", p.c.queue)
	}
	p = at()
	p.run(10*ms, 15*ms, 45*ms)
	if p.run(60*ms, 45*ms, 65*ms); !p.c.full {
		t.Errorf("a jump of 30 ms that goes on is a queue of %v", p.c.queue)
	}
	p = at()
	p.run(60*ms, 45*ms, 45*ms)
	if p.run(60*ms, 45*ms, 36*ms); !p.c.full {
		t.Errorf("a jump of 30 ms that goes down is a queue of %v", p.c.queue)
	}
	p = at()
	p.loss = 0.2
	p.run(100*ms, 45*ms, 45*ms)
	if p.run(time.Second, 45*ms, 45*ms); !p.c.full {
		t.Errorf("a jump of 30 ms under 20 %% of loss is a queue of %v", p.c.queue)
	}
	p = newDelayPath(t, ms/5, 0, 0)
	p.run(300*ms, 15*ms, 15*ms)
	if p.run(50*ms, 45*ms, 45*ms); !p.c.full {
		t.Errorf("a jump of 30 ms in slow start is a queue of %v", p.c.queue)
	}
	p = at()
	p.loss, p.every = 0, 1200*time.Microsecond
	if p.run(64*p.every, 15*ms, 15*ms+64*p.every); !p.c.full {
		t.Errorf("64 packets into 10 Mbit/s are a queue of %v", p.c.queue)
	}
}
