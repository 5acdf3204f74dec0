package datagram

import (
	"testing"
	"time"
)

func TestOnlyAQueueThatStandsIsMarked(t *testing.T) {
	for _, c := range []struct {
		name  string
		every time.Duration // between two readings
		lag   func(n int) time.Duration
		marks bool
	}{
		{"nothing waits", time.Millisecond, func(int) time.Duration { return 0 }, false},
		{"all wait", time.Millisecond, func(int) time.Duration { return 12 * time.Millisecond }, true},
		{"all wait a little", time.Millisecond, func(int) time.Duration { return 9 * time.Millisecond }, false},
		{"the processor is away now and then", time.Millisecond, func(n int) time.Duration { return time.Duration(n%20) * 2 * time.Millisecond }, false},
		{"few come, and all are late", 20 * time.Millisecond, func(int) time.Duration { return 50 * time.Millisecond }, false},
		{"one comes now and then", time.Second, func(int) time.Duration { return 50 * time.Millisecond }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s standing
			marked := false
			for n, now := 0, time.Unix(1, 0); n < 1000; n, now = n+1, now.Add(c.every) {
				s.add(now, c.lag(n))
				marked = marked || s.marks(now)
			}
			if marked != c.marks {
				t.Errorf("marked: %v", marked)
			}
		})
	}
}

// TestMarksEnd: each connection is to slow down once, and again only if that was not
// enough.
func TestMarksEnd(t *testing.T) {
	var s standing
	now := time.Unix(1, 0)
	var marked, begun int
	was := false
	for range 1000 { // a second
		s.add(now, 20*time.Millisecond)
		is := s.marks(now)
		if is {
			marked++
		}
		if is && !was {
			begun++
		}
		was = is
		now = now.Add(time.Millisecond)
	}
	if begun != 9 || marked != begun*int(markFor/time.Millisecond) {
		t.Errorf("%d of 1000 ms marked, %d times, want 9 times 10 ms", marked, begun)
	}
}
