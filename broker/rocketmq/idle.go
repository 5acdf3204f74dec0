package rocketmq

import (
	"context"
	"slices"
	"time"
)

// Connections cost little, but their number is bounded. When it is reached, those that
// nobody uses are ended, so that whoever opens many keeps no client out that calls.
// Clients call at once after they have connected, and have heartbeats every 10 s, Rust
// every 30 s. With access control a call counts that is from somebody who is known.
const (
	idleFirst = 2 * time.Second // without a call, since it was opened
	idleAfter = 2 * time.Minute // since its last call began, and without a Telemetry stream
	// endIdleEvery and maxIdle bound what looking for them costs.
	endIdleEvery = 50 * time.Millisecond
	maxIdle      = 256 // ended at a time
)

// used notes that somebody who may uses the call's connection.
func used(ctx context.Context) {
	if l, ok := linkFrom(ctx); ok {
		l.called.Store(int64(time.Since(l.opened)))
	}
}

// idle returns for how long the connection was not used, 0 when it is in use. first
// says that it never was.
func (l *link) idle(now time.Time) (d time.Duration, first bool) {
	l.mu.Lock()
	streams := l.streams
	l.mu.Unlock()
	called := time.Duration(l.called.Load())
	if d = now.Sub(l.opened) - called; streams > 0 || d < time.Duration(l.all.young.Load()) || called > 0 && d < idleAfter {
		return 0, false
	}
	return d, called == 0
}

// endIdle ends connections that nobody uses, those first that never were, and returns
// how many.
func (a *answers) endIdle(now time.Time) int {
	a.mu.Lock()
	if now.Sub(a.ended) < endIdleEvery {
		a.mu.Unlock()
		return 0
	}
	a.ended = now
	links := make([]*link, 0, len(a.links))
	for _, l := range a.links {
		links = append(links, l)
	}
	a.mu.Unlock()
	type unused struct {
		*link
		d     time.Duration
		first bool
	}
	var found []unused
	for _, l := range links {
		if d, first := l.idle(now); d > 0 {
			found = append(found, unused{l, d, first})
		}
	}
	slices.SortFunc(found, func(x, y unused) int {
		if x.first != y.first {
			if x.first {
				return -1
			}
			return 1
		}
		return int(min(max(y.d-x.d, -1), 1))
	})
	found = found[:min(len(found), maxIdle)]
	for _, l := range found {
		l.shut()
	}
	return len(found)
}
