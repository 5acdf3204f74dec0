package node

import (
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
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
		{Target: "b", City: "x", Class: "bulk", Lane: 0, State: "streaming", Backlog: 1, BacklogBytes: 10, OldestAge: time.Second},
		{Target: "b", City: "x", Class: "bulk", Lane: 1, State: "held", Backlog: 1, BacklogBytes: 30, OldestAge: time.Minute},
		{Target: "b", City: "y", Class: "bulk", Lane: 0, State: "idle"},
	}
	sums := sumFlows(flows, now)
	s := sums[flowKey{target: "b", city: "x", class: "bulk"}]
	if len(sums) != 2 || s == nil || s.age != time.Minute || s.stalled != time.Minute || s.backlog != 30 || s.lanes["held"] != 1 || s.lanes["streaming"] != 1 {
		t.Errorf("got %d sums, %+v", len(sums), s)
	}
}

func TestABudgetIsTheLeastOfTheTopicsThatUseTheFlow(t *testing.T) {
	channel := &zone.ChannelInfo{Name: "members"}
	top := &zone.Topology{Topics: []*zone.TopicInfo{
		{Name: "stays", Class: zone.ClassBulk, Budget: 1, Route: zone.Route{Kind: zone.RouteLocal}},
		{Name: "wide", Class: zone.ClassBulk, Budget: 900, Route: zone.Route{Kind: zone.RouteShard}},
		{Name: "narrow", Class: zone.ClassBulk, Budget: 500, Route: zone.Route{Kind: zone.RouteGlobal}},
		{Name: "members", Class: zone.ClassUrgent, Budget: 100, Channel: channel, Route: zone.Route{Kind: zone.RouteBroadcastCity}},
		{Name: "other", Class: zone.ClassUrgent, Budget: 7, Channel: &zone.ChannelInfo{Name: "other"}, Route: zone.Route{Kind: zone.RouteBroadcastCity}},
	}}
	for _, c := range []struct {
		key  flowKey
		want int64
	}{
		{flowKey{target: "b", class: "bulk"}, 500},
		{flowKey{target: "members", class: "urgent", channel: true}, 100},
		{flowKey{target: "b", class: "urgent"}, 0},
	} {
		if got := leastBudget(top, c.key); got != c.want {
			t.Errorf("%+v: budget %d, want %d", c.key, got, c.want)
		}
	}
}
