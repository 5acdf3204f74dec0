package broker

import (
	"slices"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
)

// maxExtent is how many numbers one extent spans at most: its index keeps the
// lower 32 bits of a number.
const maxExtent = 1 << 31

// relay is what a group keeps of a channel's flow that ends here and goes onward
// from here: where each number landed, what the origin's lineages are as far as
// the landings prove them, and a cursor for each destination. Its settled prefix
// is that of the flow's inFlow.
//
// The index has an entry for each landing in log order; a landing that settles a
// range without records is one entry. Entry.Hash is the lower half of its (first)
// number; extents say the rest.
type relay struct {
	id      record.FlowID
	index   *queue.Index
	ixID    uint64
	since   record.Position // landings before are not in the index
	settled uint64
	table   []flow.Mark // ascending; at most wire.MaxMarks rows
	extents []extent    // in log order
	legs    []*leg

	dirty    bool          // volatile: listed in state.dirtyRelays
	advanced chan struct{} // volatile: closed when the settled prefix moves; nil when nobody waits
}

// extent is a piece of the index: numbers of one lineage without a hole.
type extent struct {
	lineage        record.LineageID
	first, through uint64
	at             uint64 // entry of first
}

func (r *relay) leg(key legKey) *leg {
	for _, l := range r.legs {
		if l.key == key {
			return l
		}
	}
	return nil
}

// end returns the entry behind the last one of extent i.
func (r *relay) end(i int) uint64 {
	if i+1 < len(r.extents) {
		return r.extents[i+1].at
	}
	return r.index.Next()
}

// row returns the lineage of a number and the last number, settled or not yet, that
// the table says of it.
func (r *relay) row(number uint64) (m flow.Mark, through uint64) {
	through = r.settled
	for i := len(r.table) - 1; i >= 0; i-- {
		if m = r.table[i]; m.First <= number || i == 0 {
			return m, through
		}
		through = m.First - 1
	}
	return flow.Mark{}, through
}

// find returns the extent of a number in a lineage, the newest that has it.
func (r *relay) find(id record.LineageID, number uint64) (int, bool) {
	for i := len(r.extents) - 1; i >= 0; i-- {
		if e := &r.extents[i]; e.lineage == id && e.first <= number && number <= e.through {
			return i, true
		}
	}
	return 0, false
}

// numberOf returns the first number of an entry of an extent.
func (e *extent) numberOf(x queue.Entry) uint64 { return e.first + uint64(x.Hash-uint32(e.first)) }

// locate returns the entry that settles a number of an extent: the last one whose
// first number is not above it. Entries that the index no longer holds count as
// above.
func (r *relay) locate(i int, number uint64) (entry uint64, err error) {
	e := &r.extents[i]
	lo, hi := max(e.at, r.index.First()), r.end(i) // entries from hi on begin above number
	if lo >= hi {
		return lo, flow.ErrTrimmed
	}
	for lo+1 < hi {
		mid := lo + (hi-lo)/2
		x, err := r.index.Get(mid)
		if err != nil {
			return 0, err
		}
		if e.numberOf(x) <= number {
			lo = mid
		} else {
			hi = mid
		}
	}
	x, err := r.index.Get(lo)
	if err == nil && e.numberOf(x) > number {
		err = flow.ErrTrimmed
	}
	return lo, err
}

// entryOf returns the entry that settles a number on the branch that the table
// names; ErrTrimmed when there is none.
func (r *relay) entryOf(number uint64) (uint64, error) {
	row, _ := r.row(number)
	i, ok := r.find(row.ID, number)
	if !ok {
		return 0, flow.ErrTrimmed
	}
	return r.locate(i, number)
}

// oldest returns the lowest number from which on everything settled can still be
// read, given where the log begins.
func (r *relay) oldest(begin record.Position) uint64 {
	n := r.settled
	for n > 0 {
		row, _ := r.row(n)
		i, ok := r.find(row.ID, n)
		if !ok {
			return n + 1
		}
		e := &r.extents[i]
		first := e.first
		if row.First <= n { // else numbers below the first row, which count as its own
			first = max(first, row.First)
		}
		if at := r.readable(i, begin); at > e.at {
			if at >= r.end(i) {
				return n + 1
			}
			x, err := r.index.Get(at)
			if err != nil {
				return n + 1
			}
			if number := e.numberOf(x); number > first {
				return min(number, n+1)
			}
		}
		n = first - 1
	}
	return 1
}

// readable returns the first entry of an extent whose landing the log still has.
func (r *relay) readable(i int, begin record.Position) uint64 {
	at := max(r.extents[i].at, r.index.First())
	if at >= r.end(i) {
		return at
	}
	if x, err := r.index.Get(at); err == nil && x.Position >= begin {
		return at
	}
	k, _, err := r.index.Search(begin)
	if err != nil {
		return r.end(i)
	}
	return max(k, at)
}

// append notes a landing that the fold has accepted.
func (r *relay) append(e *commitlog.Entry, env *record.Envelope) error {
	if err := r.branch(env); err != nil {
		return err
	}
	at, err := r.index.Append(relayEntry(e, env))
	if err != nil {
		return err
	}
	n := len(r.extents)
	if n > 0 && r.extents[n-1].continues(env) {
		r.extents[n-1].through = env.Through
	} else {
		r.extents = append(r.extents, extent{lineage: env.Lineage, first: env.Number, through: env.Through, at: at})
		r.forgetExtents()
	}
	r.settled = env.Through
	for _, l := range r.legs {
		l.backlog += int64(e.Size)
	}
	return nil
}

// relayEntry is the entry of a landing in its relay.
func relayEntry(e *commitlog.Entry, env *record.Envelope) queue.Entry {
	return queue.Entry{Position: e.Position, Size: uint32(e.Size), Hash: uint32(env.Number)}
}

func (e *extent) continues(env *record.Envelope) bool {
	return e.lineage == env.Lineage && e.through+1 == env.Number && env.Number-e.first < maxExtent
}

// branch makes the table that of the landing. Where it parts from the one before,
// cursors go back to: what they had passed was of a history that the origin gave
// up.
func (r *relay) branch(env *record.Envelope) error {
	table := make([]flow.Mark, 0, len(env.Lineages)+1)
	for _, m := range env.Lineages {
		if m.First <= env.Number {
			table = append(table, flow.Mark(m))
		}
	}
	switch n := len(r.table); {
	case len(table) > 0:
	case n > 0 && r.table[n-1].ID == env.Lineage:
		return nil // the usual case
	default: // no table was told: all that is known is that the lineage is in force here
		table = append(table, r.table...)
		for len(table) > 0 && table[len(table)-1].First >= env.Number {
			table = table[:len(table)-1]
		}
		table = append(table, flow.Mark{Epoch: env.LineageEpoch, ID: env.Lineage, First: env.Number})
	}
	old := r.table
	r.table = table
	if slices.Equal(old, table) {
		return nil
	}
	parted := parting(old, table)
	r.settled = env.Number - 1
	for _, l := range r.legs {
		if parted <= l.cursor {
			l.cursor, l.at = parted-1, flow.Fingerprint{}
			l.parked = min(l.parked, l.cursor)
		}
		sum, err := r.bytesAbove(l.cursor)
		if err != nil {
			return err
		}
		l.backlog = sum
	}
	return nil
}

// parting returns the first number that two tables do not say the same of.
func parting(a, b []flow.Mark) uint64 {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	first := ^uint64(0)
	if i < len(a) {
		first = a[i].First
	}
	if i < len(b) {
		first = min(first, b[i].First)
	}
	return max(first, 1)
}

// forgetExtents drops the oldest extents when there are many, but for those with
// a number that a destination may still need.
func (r *relay) forgetExtents() {
	slowest := r.settled
	for _, l := range r.legs {
		slowest = min(slowest, l.cursor)
	}
	for n := len(r.extents); n > maxAllMarks || n > maxMarks && r.extents[0].through <= slowest; n-- {
		r.extents = slices.Delete(r.extents, 0, 1)
	}
}

// bytesAbove adds up the landings that settle the numbers above one.
func (r *relay) bytesAbove(number uint64) (int64, error) {
	return r.bytesBetween(number, r.settled)
}

// bytesBetween adds up the landings of the numbers above from, up to through.
// What the index no longer holds counts nothing.
func (r *relay) bytesBetween(from, through uint64) (int64, error) {
	var sum int64
	for n := through; n > from; {
		row, _ := r.row(n)
		i, ok := r.find(row.ID, n)
		if !ok {
			return sum, nil
		}
		low := max(r.extents[i].first, from+1)
		if row.First <= n {
			low = max(low, row.First)
		}
		last, err := r.locate(i, n)
		if err != nil {
			return sum, ignoreTrimmed(err)
		}
		first, err := r.locate(i, low)
		if err != nil {
			if err = ignoreTrimmed(err); err != nil {
				return sum, err
			}
		}
		size, err := sizes(r.index, max(first, r.index.First()), last+1)
		if err != nil {
			return sum, err
		}
		sum += size
		n = low - 1
	}
	return sum, nil
}

// settle moves a cursor. It never moves back or past the settled prefix.
func (r *relay) settle(key legKey, to settled) error {
	l := r.leg(key)
	if row, _ := r.row(to.through); to.lineage != 0 && to.lineage != row.ID {
		return nil // it was told of a branch that its origin has given up
	}
	through := min(to.through, r.settled)
	if l == nil || through <= l.cursor {
		return nil
	}
	if through == r.settled {
		l.backlog = 0
	} else {
		settled, err := r.bytesBetween(l.cursor, through)
		if err != nil {
			return err
		}
		l.backlog = max(l.backlog-settled, 0)
	}
	l.cursor = through
	return nil
}

// sizes adds up the sizes of the entries from..to-1.
func sizes(ix *queue.Index, from, to uint64) (int64, error) {
	var sum int64
	buf := make([]queue.Entry, min(max(to, from)-from, 512))
	for from < to {
		n, err := ix.Read(from, buf[:min(uint64(len(buf)), to-from)])
		if err != nil || n == 0 {
			return sum, err
		}
		for _, e := range buf[:n] {
			sum += int64(e.Size)
		}
		from += uint64(n)
	}
	return sum, nil
}
