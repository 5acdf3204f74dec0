package node

import (
	"errors"
	"testing"
	"time"
)

// Each reign that ends before it served costs a row of the log's lineage table, which
// keeps some five hundred. A member that is elected again and again in vain may not fill
// it before people look: the rows of before are what a member that is away is judged by.
func TestReignsInVainDoNotFillTheLineageTable(t *testing.T) {
	var p pauses
	var all time.Duration
	lives := 0
	for all < 4*time.Hour {
		wait := p.after(300*time.Millisecond, false, errors.New("cannot lead"))
		if wait > reopenMost {
			t.Fatalf("a pause of %v", wait)
		}
		all += 300*time.Millisecond + wait
		lives++
	}
	if lives > 500 {
		t.Errorf("%d lives in four hours", lives)
	}
}

func TestPausesBetweenLives(t *testing.T) {
	failed := errors.New("test")
	for _, c := range []struct {
		lasted time.Duration
		served bool
		err    error
		want   time.Duration // after three lives in vain
	}{
		{100 * time.Millisecond, false, nil, reopenAfter - 100*time.Millisecond}, // a copy took the store's place
		{time.Minute, true, failed, reopenAfter},                                 // another one is elected meanwhile
		{100 * time.Millisecond, true, failed, reopenAfter},
		{steadyAfter, false, failed, reopenAfter - steadyAfter}, // not at all
		{100 * time.Millisecond, false, failed, 8 * reopenAfter},
	} {
		var p pauses
		for range 3 {
			p.after(0, false, failed)
		}
		if got := p.after(c.lasted, c.served, c.err); got != c.want {
			t.Errorf("after a life of %v, served %v, %v: %v, want %v", c.lasted, c.served, c.err, got, c.want)
		}
		if next := p.after(0, false, failed); c.want < 8*reopenAfter && next != reopenAfter {
			t.Errorf("a life in vain after one of use is followed by %v", next)
		}
	}
}
