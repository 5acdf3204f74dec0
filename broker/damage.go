package broker

import (
	"sync"
	"time"
)

// Bounds of the lines about damage: each damaged message is tried again, and
// would be told again, every second.
const (
	damageWindow = 10 * time.Second
	damageLines  = 100
)

// damageLog lets a bounded number of lines pass in a window. It is safe for
// concurrent use.
type damageLog struct {
	mu     sync.Mutex
	began  time.Time // of the window; guarded by mu
	passed int       // in the window; guarded by mu
	missed int       // since the last that passed; guarded by mu
}

// allow reports whether a line may be written now, and how many before it were not.
func (d *damageLog) allow(now time.Time) (missed int, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Sub(d.began) >= damageWindow {
		d.began, d.passed = now, 0
	}
	if d.passed >= damageLines {
		d.missed++
		return 0, false
	}
	d.passed++
	missed, d.missed = d.missed, 0
	return missed, true
}
