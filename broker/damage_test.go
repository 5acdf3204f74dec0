package broker

import (
	"testing"
	"time"
)

func TestDamageIsToldButNotForEverAtOnce(t *testing.T) {
	var d damageLog
	now := time.Unix(1, 0)
	passed := 0
	for range 10_000 {
		if _, ok := d.allow(now); ok {
			passed++
		}
	}
	if passed != damageLines {
		t.Errorf("%d lines passed in one window, want %d", passed, damageLines)
	}
	if missed, ok := d.allow(now.Add(damageWindow)); !ok || missed != 10_000-damageLines {
		t.Errorf("in the next window: %d, %v", missed, ok)
	}
}
