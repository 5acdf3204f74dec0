package broker

import (
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
)

func TestDamageIsToldButNotForEverAtOnce(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	now, passed := time.Now(), 0
	for range 10_000 {
		if _, ok := s.damage.Allow(now); ok {
			passed++
		}
	}
	if passed != damageLines {
		t.Errorf("%d lines passed in one window, want %d", passed, damageLines)
	}
	if missed, ok := s.damage.Allow(now.Add(damageWindow)); !ok || missed != 10_000-damageLines {
		t.Errorf("in the next window: %d, %v", missed, ok)
	}
}
