package policy

// Budget bounds what one destination may hold back at the origin.
type Budget struct {
	Limit int64 // bytes; 0 or less means no bound
}

// Admits reports whether one more record may be added to a backlog of so many
// bytes. The last record may pass the limit: its size is bounded by itself, and
// a backlog that never reaches the limit would refuse large records for ever.
func (b Budget) Admits(backlog int64) bool { return b.Limit <= 0 || backlog < b.Limit }
