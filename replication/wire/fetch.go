package wire

import (
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Fetch asks a member of a broker group, master or replica, for the stretch of its log that
// begins at a position, of what is sealed and committed. It may be sent again and again in
// a session, each after the answer to the one before: Ship frames with the parts of one
// stretch.
//
//	group (text), incarnation (8), from, to (8 each), limit (4)
type Fetch struct {
	Group       zone.Group
	Incarnation record.Incarnation // of the store of both; not 0
	From        record.Position    // the base of a segment, or where a frame begins
	To          record.Position    // where the asker's segment ends: above From
	Limit       uint32             // about how many bytes, at least an entry; not 0
}

// Append appends the payload to dst.
func (x *Fetch) Append(dst []byte) []byte {
	dst = appendText(dst, string(x.Group))
	dst = le.AppendUint64(dst, uint64(x.Incarnation))
	dst = le.AppendUint64(dst, uint64(x.From))
	dst = le.AppendUint64(dst, uint64(x.To))
	return le.AppendUint32(dst, x.Limit)
}

// ParseFetch parses a payload. It keeps no reference to b.
func ParseFetch(b []byte) (Fetch, error) {
	r := reader{typ: TypeFetch, b: b}
	x := Fetch{Group: zone.Group(r.name("group", "")), Incarnation: record.Incarnation(r.u64("incarnation"))}
	x.From, x.To, x.Limit = r.position("from"), r.position("to"), r.u32("limit")
	switch {
	case r.err != nil:
	case x.Incarnation == 0:
		r.fail("incarnation", errRange)
	case x.To <= x.From:
		r.fail("to", errRange)
	case x.Limit == 0 || x.Limit > MaxStretch:
		r.fail("limit", errRange)
	}
	return x, r.done()
}
