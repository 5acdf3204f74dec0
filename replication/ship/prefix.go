package ship

import (
	"slices"

	"github.com/mqrouter/mqrouter/replication/record"
)

// extent is what decides how far two logs agree: a lineage is written by one master
// at a time, which gives each of its positions once, so that two logs with a
// lineage in common are equal up to where the shorter one leaves it.
type extent struct {
	lineage    []record.LineageStart
	begin, end record.Position
}

// commonEnd returns the end of what two logs of one incarnation have in common; ok
// is false when nothing shows that they have anything.
func commonEnd(a, b extent) (record.Position, bool) {
	for i := len(a.lineage) - 1; i >= 0; i-- {
		j := slices.Index(b.lineage, a.lineage[i])
		if j < 0 {
			continue
		}
		return min(a.leaves(i), b.leaves(j)), true
	}
	// An empty log agrees with any that still has what comes next.
	for _, e := range [][2]extent{{a, b}, {b, a}} {
		if empty, other := e[0], e[1]; empty.begin == empty.end && len(empty.lineage) == 0 && empty.end <= other.end {
			return empty.end, true
		}
	}
	return 0, false
}

// leaves returns where the log ends a lineage: where the next row begins, or at its
// end.
func (e extent) leaves(row int) record.Position {
	if row+1 < len(e.lineage) {
		return min(e.lineage[row+1].First, e.end)
	}
	return e.end
}

// missing returns how many rows at the end of the master's table are newer than what
// a log has.
func missing(master, have []record.LineageStart) int {
	last := uint64(0)
	if len(have) > 0 {
		last = have[len(have)-1].Epoch
	}
	for i, r := range master {
		if r.Epoch > last {
			return len(master) - i
		}
	}
	return 0
}
