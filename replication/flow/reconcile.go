package flow

import (
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// resumption is where a session begins, as the destination sees it.
type resumption struct {
	next    uint64           // the number that is expected
	last    wire.Fingerprint // of the last common number that came with a record; zero when not known any more
	orphans wire.Range       // settled here beyond the last common number
}

// reconcile compares the origin's lineage table with what the destination has
// of the flow and finds the last number that both agree on.
//
// The newest lineage of the table of which the destination has anything
// decides: the tables agree up to that row, since a row is made once, and
// behind its end the origin went on in a lineage that the destination has never
// seen. What the destination settled beyond are orphans, of a history that the
// origin lost.
//
// ahead says that more may have settled here than the Open's head tells: a
// holder may have less of the flow than is here, and what holders brought may
// have been numbered after the origin wrote its Open. The origin then judges
// Accept by the head that it has when that arrives.
func reconcile(o *wire.Open, have *SinkState, ahead bool) (resumption, *RefusedError) {
	table := o.Lineage
	if v := checkTable(o); v != nil {
		return resumption{}, v
	}
	common := uint64(0)
	found := false
	for i := len(table) - 1; i >= 0 && !found; i-- {
		h, ok := findHave(have.History, table[i].ID)
		if !ok {
			continue
		}
		end := o.Head
		if i+1 < len(table) {
			end = table[i+1].First - 1
		} else if ahead {
			end = max(end, h.Last)
		} else if h.Last > o.Head {
			// The lineage is still being written, so the origin cannot have
			// numbered less in it than the destination has.
			return resumption{}, refused(wire.CodeDiverged, "number %d settled in a lineage whose head is %d", h.Last, o.Head)
		}
		common, found = min(h.Last, end), true
	}
	if !found && have.Known && have.Settled > 0 && len(table) > 0 && table[0].First > 1 {
		return resumption{}, refused(wire.CodeDiverged, "no lineage in common with a shortened table")
	}
	r := resumption{next: common + 1}
	if have.Settled > common {
		r.orphans = wire.Range{First: common + 1, Through: have.Settled}
	}
	if l := have.Last; l.Number > 0 && l.Number <= common {
		if m, ok := markAt(table, l.Number); ok && m.ID == l.Lineage {
			r.last = wire.Fingerprint(l)
		}
	}
	return r, nil
}

// checkTable refuses a table or numbers that no origin can have.
func checkTable(o *wire.Open) *RefusedError {
	for i, m := range o.Lineage {
		if m.ID == 0 || m.First == 0 {
			return refused(wire.CodeMalformed, "lineage row %d is empty", i)
		}
		if i > 0 && (m.First < o.Lineage[i-1].First || m.Epoch <= o.Lineage[i-1].Epoch) {
			return refused(wire.CodeMalformed, "lineage row %d does not ascend", i)
		}
	}
	switch {
	case o.Head > 0 && len(o.Lineage) == 0:
		return refused(wire.CodeMalformed, "head %d without a lineage", o.Head)
	case o.Oldest > o.Head+1, o.Cursor > o.Head:
		return refused(wire.CodeMalformed, "oldest %d or cursor %d beyond head %d", o.Oldest, o.Cursor, o.Head)
	case len(o.Lineage) > 0 && o.Lineage[len(o.Lineage)-1].First > o.Head+1:
		return refused(wire.CodeMalformed, "lineage begins beyond head %d", o.Head)
	}
	return nil
}

func findHave(history []Have, id record.LineageID) (Have, bool) {
	for i := len(history) - 1; i >= 0; i-- {
		if history[i].Lineage == id {
			return history[i], true
		}
	}
	return Have{}, false
}

// markAt returns the row of the table to which the number belongs. Numbers below
// the first row count as that row's: their own was forgotten, which only a
// destination that has nothing of the flow can meet.
func markAt[M ~struct {
	Epoch uint64
	ID    record.LineageID
	First uint64
}](table []M, number uint64) (wire.Mark, bool) {
	for i := len(table) - 1; i >= 0; i-- {
		if m := wire.Mark(table[i]); m.First <= number {
			return m, true
		}
	}
	if len(table) == 0 {
		return wire.Mark{}, false
	}
	return wire.Mark(table[0]), true
}

// rowEnd returns the last number of the row that the number belongs to, at
// most limit.
func rowEnd(table []Mark, number, limit uint64) uint64 {
	for _, m := range table {
		if m.First > number {
			return min(m.First-1, limit)
		}
	}
	return limit
}

// origin is what the sender compares an Accept with.
type origin struct {
	state  OriginState
	cursor uint64
	at     Fingerprint                             // the origin's own, of the cursor
	lookup func(number uint64) (Fingerprint, bool) // the origin's own, of any number it still knows
}

// verify checks what a destination claims against the origin's own knowledge.
// nil means that the numbers below a.Next are the same records on both sides,
// as far as either still knows.
func (o *origin) verify(a *wire.Accept) *RefusedError {
	last := a.Last
	switch {
	case a.Next == 0:
		return refused(wire.CodeMalformed, "the destination expects number 0")
	case a.Next > o.state.Head+1 && !o.state.Landed:
		return refused(wire.CodeDiverged, "the destination expects %d beyond head %d", a.Next, o.state.Head)
	case last == (wire.Fingerprint{}):
		return nil
	case last.Number == 0 || last.Number >= a.Next:
		return refused(wire.CodeMalformed, "fingerprint of %d, but %d is expected next", last.Number, a.Next)
	case len(o.state.Lineage) > 0 && last.Number < o.state.Lineage[0].First:
		return nil // which lineage it had is forgotten here
	}
	if m, ok := markAt(o.state.Lineage, last.Number); !ok || m.ID != last.Lineage {
		return refused(wire.CodeDiverged, "number %d is of lineage %x there, of %x here", last.Number, last.Lineage, m.ID)
	}
	own, ok := o.lookup(last.Number)
	if !ok && o.at.Number == last.Number {
		own, ok = o.at, true
	}
	if ok && wire.Fingerprint(own) != last {
		return refused(wire.CodeDiverged, "number %d is record %08x there, %08x here", last.Number, last.Checksum, own.Checksum)
	}
	return nil
}
