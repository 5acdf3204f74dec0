package wire

import (
	"encoding/binary"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Bounds of the payloads' fields. A writer cuts nothing: a value above its
// bound is a fault of the caller, which the reader on the other side refuses.
const (
	MaxName     = 255      // bytes of a name or an address
	MaxText     = 1024     // bytes of a text for people; Append cuts longer ones
	MaxCities   = 256      // cities of a residency
	MaxPath     = 16       // cities of a path
	MaxMarks    = 4096     // rows of a lineage table; the newest count
	MaxOutcomes = 4096     // outcomes of one frame; more go with the next
	MaxCount    = 1 << 16  // records or landings of one frame
	MaxRawSize  = 64 << 20 // bytes of a frame's data once decompressed
	lenSize     = 4        // bytes before each item of a frame's data
)

var le = binary.LittleEndian

func appendText(dst []byte, s string) []byte {
	dst = le.AppendUint16(dst, uint16(len(s)))
	return append(dst, s...)
}

// appendProse appends a text for people, cut at MaxText.
func appendProse(dst []byte, s string) []byte {
	return appendText(dst, s[:min(len(s), MaxText)])
}

func appendBlob(dst, b []byte) []byte {
	dst = le.AppendUint32(dst, uint32(len(b)))
	return append(dst, b...)
}

func appendCities(dst []byte, cities []zone.City) []byte {
	dst = le.AppendUint16(dst, uint16(len(cities)))
	for _, c := range cities {
		dst = appendText(dst, string(c))
	}
	return dst
}

func appendEpoch(dst []byte, e zone.Epoch) []byte {
	dst = le.AppendUint64(dst, e.Term)
	return le.AppendUint64(dst, e.Number)
}

const flowIsChannel = 0x01

func appendFlow(dst []byte, f *record.FlowID) []byte {
	dst = appendText(dst, string(f.Origin))
	dst = le.AppendUint64(dst, uint64(f.Incarnation))
	dst = appendText(dst, f.Target)
	var flags byte
	if f.Channel {
		flags |= flowIsChannel
	}
	return append(dst, flags, byte(f.Class), f.Lane)
}

// reader takes a payload apart. The first fault sticks; later calls return
// zero values, so that a parser checks once, at its end.
type reader struct {
	typ Type
	b   []byte
	err *FrameError
}

func (r *reader) fail(field string, cause error) {
	if r.err == nil {
		r.err = &FrameError{Type: r.typ, Code: CodeMalformed, Field: field, Err: cause}
	}
	r.b = nil
}

// done returns the first fault. What is left of the payload is a later
// version's.
func (r *reader) done() error {
	if r.err != nil {
		return r.err
	}
	return nil
}

// take returns the next n bytes, or nil after a fault.
func (r *reader) take(field string, n int) []byte {
	if r.err != nil {
		return nil
	}
	if len(r.b) < n {
		r.fail(field, errShort)
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u8(field string) uint8 {
	if b := r.take(field, 1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16(field string) uint16 {
	if b := r.take(field, 2); b != nil {
		return le.Uint16(b)
	}
	return 0
}

func (r *reader) u32(field string) uint32 {
	if b := r.take(field, 4); b != nil {
		return le.Uint32(b)
	}
	return 0
}

func (r *reader) u64(field string) uint64 {
	if b := r.take(field, 8); b != nil {
		return le.Uint64(b)
	}
	return 0
}

// bounded returns a count or length that must not exceed limit.
func (r *reader) bounded(field string, n, limit uint32) int {
	if n > limit {
		r.fail(field, errTooLarge)
		return 0
	}
	return int(n)
}

func (r *reader) raw(field string, limit uint32) []byte {
	return r.take(field, r.bounded(field, uint32(r.u16(field)), limit))
}

// text returns a text, reusing old when it is the same, so that a decoder that
// is used again and again for one session does not allocate.
func (r *reader) text(field string, limit uint32, old string) string {
	b := r.raw(field, limit)
	if string(b) == old {
		return old
	}
	return string(b)
}

func (r *reader) name(field, old string) string { return r.text(field, MaxName, old) }

// blob returns a part of the payload, not a copy.
func (r *reader) blob(field string, limit uint32) []byte {
	return r.take(field, r.bounded(field, r.u32(field), limit))
}

// count reads a list's count: at most limit, and no more than the rest of the
// payload can hold with least bytes each, so that a lie allocates nothing.
func (r *reader) count(field string, limit uint32, least int) int {
	n := r.bounded(field, uint32(r.u16(field)), limit)
	if n*least > len(r.b) {
		r.fail(field, errShort)
		return 0
	}
	return n
}

// cities reads a list of cities into old's memory.
func (r *reader) cities(field string, limit uint32, old []zone.City) []zone.City {
	n := r.count(field, limit, 2)
	if n == 0 {
		return old[:0]
	}
	if cap(old) < n {
		old = append(make([]zone.City, 0, n), old...)
	}
	old = old[:n]
	for i := range old {
		old[i] = zone.City(r.name(field, string(old[i])))
	}
	return old
}

func (r *reader) epoch(field string) zone.Epoch {
	return zone.Epoch{Term: r.u64(field), Number: r.u64(field)}
}

func (r *reader) flow(f *record.FlowID) {
	f.Origin = zone.Group(r.name("flow origin", string(f.Origin)))
	f.Incarnation = record.Incarnation(r.u64("flow incarnation"))
	f.Target = r.name("flow target", f.Target)
	f.Channel = r.u8("flow flags")&flowIsChannel != 0
	f.Class = zone.Class(r.u8("flow class"))
	f.Lane = r.u8("flow lane")
}

// orderly fails unless first and through are a range of numbers.
func (r *reader) orderly(field string, first, through uint64) {
	if first == 0 || through < first {
		r.fail(field, errRange)
	}
}
