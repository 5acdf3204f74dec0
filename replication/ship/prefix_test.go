package ship

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// history is a log as a list of what stands at each position from 64 on: the lineage
// that wrote it.
type history struct {
	rows  []record.LineageStart
	marks []record.LineageID
}

func (h history) end() record.Position { return record.Position(64 + len(h.marks)) }

func (h history) extent() extent {
	return extent{lineage: h.rows, begin: 64, end: h.end()}
}

// cut returns what is left of a history up to a length, rows that begin there or
// above dropped, as Truncate does.
func (h history) cut(n int) history {
	c := history{rows: slices.Clone(h.rows), marks: slices.Clone(h.marks[:n])}
	if i := slices.IndexFunc(c.rows, func(r record.LineageStart) bool { return r.First >= c.end() }); i >= 0 {
		c.rows = c.rows[:i]
	}
	return c
}

// TestCommonEndIsWhereLogsPart compares it with the logs themselves, for histories
// that grow from each other as masters change and replicas are cut.
func TestCommonEndIsWhereLogsPart(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	compared, parted := 0, 0
	for range 300 {
		logs := []history{{}}
		for epoch := uint64(1); epoch < 8; epoch++ {
			h := logs[rng.IntN(len(logs))]
			h = h.cut(len(h.marks) - rng.IntN(min(len(h.marks), 4)+1))
			row := record.LineageStart{Epoch: epoch, ID: record.LineageID(epoch * 100), First: h.end()}
			h.rows = append(h.rows, row)
			for range 1 + rng.IntN(6) { // the first entry of a lineage follows at once
				h.marks = append(h.marks, row.ID)
				if rng.IntN(2) == 0 {
					logs = append(logs, history{rows: slices.Clone(h.rows), marks: slices.Clone(h.marks)})
				}
			}
			logs = append(logs, h)
		}
		for range 50 {
			a, b := logs[rng.IntN(len(logs))], logs[rng.IntN(len(logs))]
			want := 0
			for want < min(len(a.marks), len(b.marks)) && a.marks[want] == b.marks[want] {
				want++
			}
			got, ok := commonEnd(a.extent(), b.extent())
			if want == 0 && !ok {
				continue // nothing shows that they have anything in common, and they do not
			}
			if !ok || got != record.Position(64+want) {
				t.Fatalf("%v and %v part at %d, not at %d (%v)", a, b, 64+want, got, ok)
			}
			compared++
			if want < min(len(a.marks), len(b.marks)) {
				parted++
			}
		}
	}
	if compared < 5000 || parted < 500 {
		t.Errorf("%d pairs compared, %d of them parted", compared, parted)
	}
}

func TestPlanLosesNothing(t *testing.T) {
	table := []record.LineageStart{{Epoch: 1, ID: 10, First: 64}, {Epoch: 2, ID: 20, First: 500}}
	mine := extent{lineage: table, begin: 200, end: 900}
	cases := []struct {
		name string
		f    wire.Follow
		from record.Position
		how  plan
	}{
		{"an empty store", wire.Follow{}, 0, planSeed},
		{"another store", wire.Follow{Incarnation: 6}, 0, planRefuse},
		{"one that is behind", wire.Follow{Incarnation: 5, Begin: 64, Committed: 300, End: 400, Lineage: table[:1]}, 400, planShip},
		{"one with an uncommitted tail", wire.Follow{Incarnation: 5, Begin: 64, Committed: 480, End: 700, Lineage: table[:1]}, 500, planShip},
		{"one with a committed tail", wire.Follow{Incarnation: 5, Begin: 64, Committed: 600, End: 700, Lineage: table[:1]}, 500, planRefuse},
		{"one that ends before the master begins", wire.Follow{Incarnation: 5, Begin: 64, Committed: 100, End: 150, Lineage: table[:1]}, 150, planSeed},
		{"one of no common lineage", wire.Follow{Incarnation: 5, Begin: 64, Committed: 100, End: 150, Lineage: []record.LineageStart{{Epoch: 1, ID: 11, First: 64}}}, 0, planRefuse},
		{"one of no common lineage that has nothing", wire.Follow{Incarnation: 5, Begin: 64, Committed: 64, End: 150, Lineage: []record.LineageStart{{Epoch: 1, ID: 11, First: 64}}}, 0, planSeed},
		{"a copy that has just been made", wire.Follow{Incarnation: 5, Begin: 200, Committed: 200, End: 200, Lineage: table[:1]}, 200, planShip},
	}
	for _, c := range cases {
		if from, how, what := planFor(5, mine, &c.f); from != c.from || how != c.how {
			t.Errorf("%s: from %d, plan %d (%s), want %d and %d", c.name, from, how, what, c.from, c.how)
		}
	}
}
