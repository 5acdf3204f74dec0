package ship

import (
	"context"
	"sync"
	"time"
)

// pace bounds a rate of bytes, for all who take from it together. It lends a tenth
// of a second's bytes at once.
type pace struct {
	rate float64 // bytes a second

	mu    sync.Mutex
	debt  float64   // bytes taken beyond what time has allowed; guarded by mu
	since time.Time // of debt; guarded by mu
}

func newPace(rate int64) *pace { return &pace{rate: float64(rate), since: time.Now()} }

// take takes n bytes, and waits until they may be used.
func (p *pace) take(ctx context.Context, n int) error {
	now := time.Now()
	p.mu.Lock()
	p.debt = max(0, p.debt-p.rate*now.Sub(p.since).Seconds()) + float64(n)
	p.since = now
	wait := time.Duration((p.debt/p.rate - 0.1) * float64(time.Second))
	p.mu.Unlock()
	if wait <= 0 {
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
