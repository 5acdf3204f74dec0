package wire

import (
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// lineageStartSize is the length of a row of a log's lineage table.
const lineageStartSize = 24

// LogFingerprint names a frame of a log by its position and header checksum.
type LogFingerprint struct {
	Position record.Position
	Checksum uint32
}

// Follow asks the master of a broker group for its log. It begins a session
// between members of one group; the opener is the replica.
//
//	group, node (texts), incarnation (8), epoch (8), begin, end, synced,
//	committed (8 each), lineage (list: epoch (8), id (8), first (8))
type Follow struct {
	Group       zone.Group
	Node        zone.Node          // the replica; must be who its certificate names
	Incarnation record.Incarnation // of its store; 0 = it is empty
	Epoch       uint64             // highest epoch that the replica knows of
	Begin       record.Position    // oldest kept
	End         record.Position    // end of what is written
	Synced      record.Position    // end of what is durable
	Committed   record.Position    // below this nothing may differ
	Lineage     []record.LineageStart
}

// Append appends the payload to dst.
func (x *Follow) Append(dst []byte) []byte {
	dst = appendText(dst, string(x.Group))
	dst = appendText(dst, string(x.Node))
	for _, n := range []uint64{uint64(x.Incarnation), x.Epoch, uint64(x.Begin), uint64(x.End), uint64(x.Synced), uint64(x.Committed)} {
		dst = le.AppendUint64(dst, n)
	}
	return appendLineage(dst, x.Lineage)
}

// ParseFollow parses a payload. It keeps no reference to b.
func ParseFollow(b []byte) (Follow, error) {
	r := reader{typ: TypeFollow, b: b}
	x := Follow{Group: zone.Group(r.name("group", "")), Node: zone.Node(r.name("node", ""))}
	x.Incarnation = record.Incarnation(r.u64("incarnation"))
	x.Epoch = r.u64("epoch")
	x.Begin, x.End = r.position("begin"), r.position("end")
	x.Synced, x.Committed = r.position("synced"), r.position("committed")
	if r.err == nil && (x.Begin > x.Committed || x.Committed > x.Synced || x.Synced > x.End) {
		r.fail("committed", errRange)
	}
	x.Lineage = r.lineage("lineage")
	return x, r.done()
}

// Lead is the master's yes to Follow: bytes of the log from a position on follow
// in Ship frames. The replica drops what it has beyond that position first.
//
//	incarnation (8), epoch (8), from, begin, committed (8 each),
//	has fingerprint (1), position (8), checksum (4),
//	lineage (list as in Follow)
type Lead struct {
	Incarnation record.Incarnation
	Epoch       uint64
	From        record.Position // end of what both logs have in common
	Begin       record.Position // oldest that the master keeps
	Committed   record.Position
	HasLast     bool
	Last        LogFingerprint // the last frame below From, if the master keeps one
	Lineage     []record.LineageStart
}

// Append appends the payload to dst.
func (x *Lead) Append(dst []byte) []byte {
	for _, n := range []uint64{uint64(x.Incarnation), x.Epoch, uint64(x.From), uint64(x.Begin), uint64(x.Committed)} {
		dst = le.AppendUint64(dst, n)
	}
	dst = append(dst, bit(x.HasLast, 1))
	dst = le.AppendUint64(dst, uint64(x.Last.Position))
	dst = le.AppendUint32(dst, x.Last.Checksum)
	return appendLineage(dst, x.Lineage)
}

// ParseLead parses a payload. It keeps no reference to b.
func ParseLead(b []byte) (Lead, error) {
	r := reader{typ: TypeLead, b: b}
	x := Lead{Incarnation: record.Incarnation(r.u64("incarnation")), Epoch: r.u64("epoch")}
	x.From, x.Begin, x.Committed = r.position("from"), r.position("begin"), r.position("committed")
	if r.err == nil && (x.Incarnation == 0 || x.Begin > x.From) {
		r.fail("from", errRange)
	}
	x.HasLast = r.u8("fingerprint")&1 != 0
	x.Last = LogFingerprint{Position: r.position("fingerprint"), Checksum: r.u32("fingerprint")}
	x.Lineage = r.lineage("lineage")
	return x, r.done()
}

func bit(on bool, value byte) byte {
	if on {
		return value
	}
	return 0
}

// appendLineage appends the newest MaxMarks rows of a table.
func appendLineage(dst []byte, rows []record.LineageStart) []byte {
	rows = rows[max(0, len(rows)-MaxMarks):]
	dst = le.AppendUint16(dst, uint16(len(rows)))
	for _, m := range rows {
		dst = le.AppendUint64(dst, m.Epoch)
		dst = le.AppendUint64(dst, uint64(m.ID))
		dst = le.AppendUint64(dst, uint64(m.First))
	}
	return dst
}

// lineage reads a table and refuses one that does not ascend.
func (r *reader) lineage(field string) []record.LineageStart {
	n := r.count(field, MaxMarks, lineageStartSize)
	if n == 0 {
		return nil
	}
	rows := make([]record.LineageStart, n)
	for i := range rows {
		rows[i] = record.LineageStart{Epoch: r.u64(field), ID: record.LineageID(r.u64(field)), First: r.position(field)}
		if i > 0 && (rows[i].Epoch <= rows[i-1].Epoch || rows[i].First < rows[i-1].First) {
			r.fail(field, errRange)
		}
	}
	return rows
}

func (r *reader) position(field string) record.Position { return record.Position(r.u64(field)) }
