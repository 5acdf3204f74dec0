package wire

import "github.com/mqrouter/mqrouter/replication/record"

// Skip settles numbers that are not for this destination.
//
//	first (8), through (8), reason (2), lineage (8), lineage epoch (8), cursor (8)
type Skip struct {
	First, Through uint64
	Reason         record.Reason
	Lineage        record.LineageID
	LineageEpoch   uint64
	Cursor         uint64 // the origin's cursor: what its outcomes up to here ask for is durable there
}

// Gap settles numbers whose records are lost. Its payload is that of Skip.
type Gap struct {
	First, Through uint64
	Reason         record.Reason
	Lineage        record.LineageID
	LineageEpoch   uint64
	Cursor         uint64 // the origin's cursor: what its outcomes up to here ask for is durable there
}

// Append appends the payload to dst.
func (s *Skip) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, s.First)
	dst = le.AppendUint64(dst, s.Through)
	dst = le.AppendUint16(dst, uint16(s.Reason))
	dst = le.AppendUint64(dst, uint64(s.Lineage))
	dst = le.AppendUint64(dst, s.LineageEpoch)
	return le.AppendUint64(dst, s.Cursor)
}

// Append appends the payload to dst.
func (g *Gap) Append(dst []byte) []byte { return (*Skip)(g).Append(dst) }

// ParseSkip parses a payload.
func ParseSkip(b []byte) (Skip, error) { return parseSkip(TypeSkip, b) }

// ParseGap parses a payload.
func ParseGap(b []byte) (Gap, error) {
	s, err := parseSkip(TypeGap, b)
	return Gap(s), err
}

func parseSkip(typ Type, b []byte) (Skip, error) {
	r := reader{typ: typ, b: b}
	s := Skip{
		First: r.u64("first"), Through: r.u64("through"), Reason: record.Reason(r.u16("reason")),
		Lineage: record.LineageID(r.u64("lineage")), LineageEpoch: r.u64("lineage epoch"), Cursor: r.u64("cursor"),
	}
	r.orderly("range", s.First, s.Through)
	return s, r.done()
}
