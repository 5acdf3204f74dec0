package policy

import "github.com/mqrouter/mqrouter/zone"

// Budget bounds what the records of one topic may hold back at their origin for
// one destination.
type Budget struct {
	Limit int64          // bytes; 0 or less means no bound
	End   zone.BudgetEnd // what happens at the limit; 0 = BudgetRefuse
}

// Admits reports whether one more record may be added to a backlog of so many
// bytes. The last record may pass the limit: its size is bounded by itself, and
// a backlog that never reaches the limit would refuse large records for ever.
//
// With BudgetGap the oldest records make room; until that is decided a quarter
// more is let in, so that publishers do not wait for it.
func (b Budget) Admits(backlog int64) bool {
	switch {
	case b.Limit <= 0:
		return true
	case b.End == zone.BudgetGap:
		return backlog < b.Limit+b.Limit/4
	}
	return backlog < b.Limit
}

// Excess returns how many bytes of a backlog are to be given up now; 0 = none.
// A decision makes room for a quarter of the limit, so that there is one for
// many records.
func (b Budget) Excess(backlog int64) int64 {
	if b.Limit <= 0 || b.End != zone.BudgetGap || backlog <= b.Limit {
		return 0
	}
	return backlog - b.low()
}

// Compacts reports whether a backlog that has grown by so many bytes since it
// was last looked through is to be looked through for records that newer ones
// make needless. It begins before the limit is reached, so that publishes are
// refused only when that does not help.
func (b Budget) Compacts(backlog, grown int64) bool {
	return b.Limit > 0 && b.End == zone.BudgetCompact && backlog >= b.low() && grown >= b.Limit/16
}

func (b Budget) low() int64 { return b.Limit - b.Limit/4 }
