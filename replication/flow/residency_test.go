package flow

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// TestOpenTellsWhereItsNextRecordMayGo: routers choose a session's way by the
// residency of the first record to come, so that one record that may not take a
// detour holds up its lane only while it is the next.
func TestOpenTellsWhereItsNextRecordMayGo(t *testing.T) {
	src := newMemSource(rand.New(rand.NewPCG(1, 1)))
	leg := Leg{Flow: record.FlowID{Origin: "o", Incarnation: 1, Target: "g"}, City: "B", Group: "g"}
	src.addFlow(leg.Flow, leg)
	src.restart()
	src.publish(leg.Flow, "ok", 10)                // 1: everywhere
	src.publish(leg.Flow, "ok", 10, "A", "B")      // 2
	src.publish(leg.Flow, "ok", 10, "A", "B", "C") // 3
	src.publish(leg.Flow, "ok", 10, "A", "C")      // 4: not even to its destination
	state, _ := src.Origin(leg.Flow)
	l := &lane{leg: leg, src: src, state: state}
	for cursor, want := range [][]zone.City{nil, {"A", "B"}, {"A", "B", "C"}, nil, nil, nil} {
		if got := l.nextResidency(uint64(cursor)); !slices.Equal(got, want) {
			t.Errorf("after %d: %v, want %v", cursor, got, want)
		}
	}
	l.state.Oldest = 3
	if got := l.nextResidency(1); got != nil {
		t.Errorf("of a trimmed number: %v", got)
	}
	l.near = true
	if got := l.nextResidency(2); got != nil {
		t.Errorf("within the city: %v, and no router asks", got)
	}
}
