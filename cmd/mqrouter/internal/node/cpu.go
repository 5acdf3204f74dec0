package node

import (
	"runtime"
	"sync"
	"time"
)

// cpuEvery is the least time between two readings of the processors' use.
const cpuEvery = 250 * time.Millisecond

// cpuShare tells which part of the processors this process uses. Its method is
// safe for concurrent use.
type cpuShare struct {
	mu    sync.Mutex
	at    time.Time     // guarded by mu; of the last reading
	used  time.Duration // guarded by mu; by the last reading
	share float64       // guarded by mu
}

// of returns the part that was used between the last two readings, 0 to 1; 0 where
// the system does not tell.
func (c *cpuShare) of() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	over := now.Sub(c.at)
	if over < cpuEvery {
		return c.share
	}
	used := cpuTime()
	if !c.at.IsZero() {
		c.share = min(float64(used-c.used)/float64(over)/float64(runtime.GOMAXPROCS(0)), 1)
	}
	c.at, c.used = now, used
	return c.share
}

// cpu returns what tells the links how busy the processors are; nil in a
// simulated network, whose time is not the processors'.
func (b *base) cpu() func() float64 {
	if _, real := b.net.(sockets); !real {
		return nil
	}
	return new(cpuShare).of
}
