package wire

import "github.com/mqrouter/mqrouter/replication/record"

// Seal asks the destination to refuse everything above its settled prefix of
// the flow for ever.
//
//	flow (flow id)
type Seal struct{ Flow record.FlowID }

// Append appends the payload to dst.
func (s *Seal) Append(dst []byte) []byte { return appendFlow(dst, &s.Flow) }

// ParseSeal parses a payload. It keeps no reference to b.
func ParseSeal(b []byte) (Seal, error) {
	r := reader{typ: TypeSeal, b: b}
	var s Seal
	r.flow(&s.Flow)
	return s, r.done()
}

// Sealed answers Seal: durably settled through a number, everything above
// refused for ever.
//
//	through (8)
type Sealed struct{ Through uint64 }

// Append appends the payload to dst.
func (s *Sealed) Append(dst []byte) []byte { return le.AppendUint64(dst, s.Through) }

// ParseSealed parses a payload.
func ParseSealed(b []byte) (Sealed, error) {
	r := reader{typ: TypeSealed, b: b}
	s := Sealed{Through: r.u64("through")}
	return s, r.done()
}
