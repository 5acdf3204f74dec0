package policy

import (
	"testing"

	"github.com/mqrouter/mqrouter/zone"
)

func TestCrossingsAreJudgedByHopsAndResidency(t *testing.T) {
	east, both := []zone.City{"east"}, []zone.City{"east", "west"}
	for _, c := range []struct {
		name string
		in   Crossing
		want Verdict
	}{
		{"everywhere, first crossing", Crossing{Into: "west"}, Allowed},
		{"last hop within the limit", Crossing{Hops: HopLimit - 1, Into: "west"}, Allowed},
		{"at the limit", Crossing{Hops: HopLimit, Into: "west"}, OverHopLimit},
		{"far over the limit", Crossing{Hops: 255, Into: "west"}, OverHopLimit},
		{"resident", Crossing{Residency: both, Into: "west"}, Allowed},
		{"not resident", Crossing{Residency: east, Into: "west"}, NotResident},
		{"a loop is told before residency", Crossing{Hops: HopLimit, Residency: east, Into: "west"}, OverHopLimit},
	} {
		if got := c.in.Judge(); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

func TestBudgetAdmitsUntilItsLimit(t *testing.T) {
	for _, c := range []struct {
		limit, backlog int64
		want           bool
	}{{0, 1 << 60, true}, {-1, 5, true}, {100, 0, true}, {100, 99, true}, {100, 100, false}, {100, 1 << 60, false}} {
		if got := (Budget{Limit: c.limit}).Admits(c.backlog); got != c.want {
			t.Errorf("limit %d, backlog %d: got %v", c.limit, c.backlog, got)
		}
	}
}

func TestDecidersDoNotAllocate(t *testing.T) {
	c := Crossing{Residency: []zone.City{"east", "west"}, Into: "west"}
	if n := testing.AllocsPerRun(100, func() { _ = c.Judge() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
