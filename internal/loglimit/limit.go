package loglimit

import (
	"sync"
	"time"
)

// Limit lets so many lines pass in a window and counts the others. It is safe
// for concurrent use and must not be copied after its first use; the zero value
// lets nothing pass.
type Limit struct {
	Lines  int           // that pass in a window
	Window time.Duration // begins with the first line after the last one has ended

	mu     sync.Mutex
	began  time.Time // of the window; guarded by mu
	passed int       // in the window; guarded by mu
	missed int       // since the last that passed; guarded by mu
}

// Allow reports whether a line may be written at now, and how many since the
// last one that passed were not.
func (l *Limit) Allow(now time.Time) (missed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.began) >= l.Window {
		l.began, l.passed = now, 0
	}
	if l.passed >= l.Lines {
		l.missed++
		return 0, false
	}
	l.passed++
	missed, l.missed = l.missed, 0
	return missed, true
}
