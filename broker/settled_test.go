package broker

import (
	"testing"

	"github.com/mqrouter/mqrouter/replication/flow"
)

// TestSettlementOfAForkMovesNoCursor: a zone had settled up to 100 when the origin
// came back as an older copy, whose numbers from 80 on are others.
func TestSettlementOfAForkMovesNoCursor(t *testing.T) {
	key := legKey{"sh", "rz01-a"}
	r := &relay{
		settled: 85, table: []flow.Mark{{Epoch: 1, ID: 11, First: 1}, {Epoch: 2, ID: 22, First: 80}},
		legs: []*leg{{key: key, cursor: 79}},
	}
	for _, c := range []struct {
		name string
		to   settled
		want uint64
	}{
		{"of the branch that is gone", settled{100, 11}, 79},
		{"of it, below the present head", settled{84, 11}, 79},
		{"of the present branch", settled{85, 22}, 85},
	} {
		if err := r.settle(key, c.to); err != nil {
			t.Fatal(err)
		}
		if got := r.legs[0].cursor; got != c.want {
			t.Errorf("a settlement %s: the cursor is %d, want %d", c.name, got, c.want)
		}
	}
}

func TestSettledThen(t *testing.T) {
	for _, c := range []struct{ a, b, want settled }{
		{settled{}, settled{5, 1}, settled{5, 1}},
		{settled{5, 1}, settled{3, 1}, settled{5, 1}},
		{settled{5, 1}, settled{7, 1}, settled{7, 1}},
		{settled{5, 1}, settled{3, 2}, settled{3, 2}}, // the origin came back
		{settled{5, 1}, settled{}, settled{5, 1}},
	} {
		if got := c.a.then(c.b); got != c.want {
			t.Errorf("%v then %v is %v, want %v", c.a, c.b, got, c.want)
		}
	}
}
