package flow

import (
	"math/rand/v2"
	"time"
)

// backoff spreads attempts: full jitter under a bound that doubles from 10 ms
// to max with each failure. It never gives up.
type backoff struct {
	max   time.Duration
	bound time.Duration // of the last wait; 0 = the last attempt was good
}

// next returns how long to wait before the next attempt, at most max.
func (b *backoff) next(r *rand.Rand, atLeast time.Duration) time.Duration {
	b.bound = min(max(2*b.bound, 10*time.Millisecond), b.max)
	return max(time.Duration(r.Int64N(int64(b.bound)+1)), min(atLeast, b.max))
}

// good tells that an attempt made progress.
func (b *backoff) good() { b.bound = 0 }
