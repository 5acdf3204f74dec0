package flow

import (
	"sync"
	"time"
)

// budget is the memory that all sessions of a destination share. What a
// session has promised (credit not yet used) and what it holds (taken, not yet
// committed) is reserved here, so that used never exceeds total.
//
// A session starts with a small window and grows while it uses it. Growing
// leaves a quarter of the total to sessions that are yet to come, and no window
// grows above a fair share of the rest.
type budget struct {
	total, least, most int64 // bytes; set at creation

	mu    sync.Mutex
	used  int64     // guarded by mu
	large int       // windows above least; guarded by mu
	short time.Time // when a session was last turned away; zero = never. Guarded by mu
	full  uint64    // sessions turned away; guarded by mu
}

func newBudget(l *Limits) *budget {
	return &budget{total: l.MemoryBytes, least: l.MinWindow, most: l.MaxWindow}
}

// open reserves the first window of a session, at least need bytes.
func (b *budget) open(now time.Time, need int64) (window int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	window = max(b.least, need)
	if b.used+window > b.total {
		b.short = now
		b.full++
		return 0, false
	}
	b.used += window
	if window > b.least {
		b.large++
	}
	return window, true
}

// share is the largest window that n large sessions may have each.
func (b *budget) share(n int) int64 {
	return max(b.least, min(b.most, b.total/4*3/int64(max(n, 1))))
}

// fair returns the largest window that a session may have now.
func (b *budget) fair() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.share(b.large)
}

// grow reserves up to as much again as the window has and returns the new one.
func (b *budget) grow(window int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.large
	if window <= b.least {
		n++
	}
	to := min(2*window, b.share(n), window+b.total/4*3-b.used)
	if to <= window {
		return window
	}
	b.used += to - window
	b.large = n
	return to
}

// shrunk tells that a window fell; the bytes are released on their own.
func (b *budget) shrunk(from, to int64) {
	if from > b.least && to <= b.least {
		b.mu.Lock()
		b.large--
		b.mu.Unlock()
	}
}

// release gives bytes back.
func (b *budget) release(n int64) {
	b.mu.Lock()
	b.used -= n
	b.mu.Unlock()
}

// scarce reports whether a session was turned away a short while ago.
func (b *budget) scarce(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.short.IsZero() && now.Sub(b.short) < 2*time.Second
}

// inUse returns the reserved bytes.
func (b *budget) inUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}
