package loglimit

import (
	"testing"
	"time"
)

func TestLimitCountsWhatItHoldsBack(t *testing.T) {
	l := Limit{Lines: 3, Window: time.Second}
	now := time.Unix(1000, 0)
	passed := 0
	for range 10 {
		if missed, ok := l.Allow(now); ok {
			passed++
			if missed != 0 {
				t.Errorf("line %d tells of %d missed ones", passed, missed)
			}
		}
	}
	if passed != 3 {
		t.Errorf("%d lines passed, want 3", passed)
	}
	if _, ok := l.Allow(now.Add(time.Second - 1)); ok {
		t.Error("a line passed before the window's end")
	}
	if missed, ok := l.Allow(now.Add(time.Second)); !ok || missed != 8 {
		t.Errorf("in the next window: %d missed, passed %v; want 8, true", missed, ok)
	}
	if missed, ok := l.Allow(now.Add(time.Second)); !ok || missed != 0 {
		t.Errorf("the missed ones are told twice: %d, %v", missed, ok)
	}
}
