package wire

import (
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Accept answers Open: what the destination has and what may be sent.
//
//	group (text), incarnation (8), epoch (8), next (8),
//	last (fingerprint: lineage (8), number (8), checksum (4)),
//	orphans (first (8), through (8)), outcomes, credit,
//	dictionaries (1; left out when it is 0)
type Accept struct {
	Group       zone.Group
	Incarnation record.Incarnation
	Epoch       uint64 // lineage epoch of the destination's store
	Next        uint64 // the number that it expects
	Last        Fingerprint
	Orphans     Range     // numbers landed beyond the last common one; kept and reported
	Outcomes    []Outcome // other than landed, after the origin's cursor
	Credit      Credit
	// Dictionaries is how many of them the destination keeps for this session; 0 =
	// it takes none. A reader that does not know the field sends none.
	Dictionaries uint8
}

// Append appends the payload to dst.
func (a *Accept) Append(dst []byte) []byte {
	dst = appendText(dst, string(a.Group))
	dst = le.AppendUint64(dst, uint64(a.Incarnation))
	dst = le.AppendUint64(dst, a.Epoch)
	dst = le.AppendUint64(dst, a.Next)
	dst = appendFingerprint(dst, &a.Last)
	dst = le.AppendUint64(dst, a.Orphans.First)
	dst = le.AppendUint64(dst, a.Orphans.Through)
	dst = appendOutcomes(dst, a.Outcomes)
	dst = appendCredit(dst, a.Credit)
	if a.Dictionaries > 0 {
		dst = append(dst, a.Dictionaries)
	}
	return dst
}

// ParseAccept parses a payload. It keeps no reference to b.
func ParseAccept(b []byte) (Accept, error) {
	r := reader{typ: TypeAccept, b: b}
	var a Accept
	a.Group = zone.Group(r.name("group", ""))
	a.Incarnation = record.Incarnation(r.u64("incarnation"))
	a.Epoch = r.u64("epoch")
	a.Next = r.u64("next")
	a.Last = r.fingerprint()
	a.Orphans = Range{First: r.u64("orphans"), Through: r.u64("orphans")}
	if a.Orphans != (Range{}) {
		r.orderly("orphans", a.Orphans.First, a.Orphans.Through)
	}
	a.Outcomes = r.outcomes(nil)
	a.Credit = r.credit()
	if len(r.b) > 0 {
		a.Dictionaries = r.u8("dictionaries")
	}
	return a, r.done()
}
