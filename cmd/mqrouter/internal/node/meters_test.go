package node

import (
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
)

func TestAFlowIsStalledSinceItsLastProgressOrItsBacklog(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name string
		flow admin.Flow
		want time.Duration
	}{
		{"no backlog", admin.Flow{Progress: now.Add(-time.Hour)}, 0},
		{"never any progress", admin.Flow{Backlog: 3, OldestAge: time.Minute}, time.Minute},
		{"a new record after a quiet hour", admin.Flow{Backlog: 1, OldestAge: time.Second, Progress: now.Add(-time.Hour)}, time.Second},
		{"an old record in a flow that drains", admin.Flow{Backlog: 9, OldestAge: time.Hour, Progress: now.Add(-time.Second)}, time.Second},
		{"a clock that went back", admin.Flow{Backlog: 9, OldestAge: time.Hour, Progress: now.Add(time.Second)}, 0},
	} {
		if got := stalledFor(&c.flow, now); got != c.want {
			t.Errorf("%s: stalled for %v, want %v", c.name, got, c.want)
		}
	}
}

func TestLanesAreSummedByTheWorst(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	flows := []admin.Flow{
		{Target: "b", City: "x", Class: "bulk", Lane: 0, State: "streaming", Backlog: 1, OldestAge: time.Second},
		{Target: "b", City: "x", Class: "bulk", Lane: 1, State: "held", Backlog: 1, OldestAge: time.Minute},
		{Target: "b", City: "y", Class: "bulk", Lane: 0, State: "idle"},
	}
	sums := sumFlows(flows, now)
	s := sums[flowKey{target: "b", city: "x", class: "bulk"}]
	if len(sums) != 2 || s == nil || s.age != time.Minute || s.stalled != time.Minute || s.lanes["held"] != 1 || s.lanes["streaming"] != 1 {
		t.Errorf("got %d sums, %+v", len(sums), s)
	}
}

func TestABudgetIsThatOfTheTopicNearestToIt(t *testing.T) {
	sums := sumFlows([]admin.Flow{
		{Target: "b", City: "x", Class: "bulk", Lane: 0, Lost: 3, Compacted: 1, Budgets: []admin.Budget{{Topic: "wide", Held: 90, Limit: 900}, {Topic: "narrow", Held: 50, Limit: 100}}},
		{Target: "b", City: "x", Class: "bulk", Lane: 1, Lost: 4, Removed: true, Budgets: []admin.Budget{{Topic: "gone", Held: 1 << 40}}},
		{Target: "b", City: "y", Class: "bulk", Lane: 1, Removed: true, Backlog: 1},
	}, time.Now())
	x, y := sums[flowKey{target: "b", city: "x", class: "bulk"}], sums[flowKey{target: "b", city: "y", class: "bulk"}]
	if x.used != 0.5 || x.lost != 7 || x.compacted != 1 || x.removed {
		t.Errorf("x is %+v", x)
	}
	if !y.removed || y.used != 0 {
		t.Errorf("y is %+v: a removed destination with a backlog is told", y)
	}
}
