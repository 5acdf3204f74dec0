package wire

import (
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Codec says how a frame's data is compressed.
type Codec uint8

// The codecs.
const (
	CodecNone Codec = iota
	CodecZstd
	codecEnd
)

// Batch carries records of a flow, one a number, in order and without holes.
//
//	first (8), count (4), cursor (8), lineage (8), lineage epoch (8),
//	path, residency (lists of texts),
//	codec (1), dictionary (4), raw size (4), data (blob)
type Batch struct {
	First        uint64
	Count        uint32 // 1 to MaxCount
	Cursor       uint64 // the origin's cursor: what its outcomes up to here ask for is durable there
	Lineage      record.LineageID
	LineageEpoch uint64
	Path         []zone.City // cities passed, origin first
	Residency    []zone.City // cities that the records may enter; empty = all
	Codec        Codec
	Dictionary   uint32 // of the session's Dictionary frames, with CodecZstd only; 0 = none
	RawSize      uint32 // bytes of the data once decompressed
	// Data is a series of items (see AppendItem), each a record, compressed as
	// a whole.
	Data []byte
}

// Append appends the payload to dst.
func (x *Batch) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, x.First)
	dst = le.AppendUint32(dst, x.Count)
	dst = le.AppendUint64(dst, x.Cursor)
	dst = le.AppendUint64(dst, uint64(x.Lineage))
	dst = le.AppendUint64(dst, x.LineageEpoch)
	dst = appendCities(dst, x.Path)
	dst = appendCities(dst, x.Residency)
	dst = append(dst, byte(x.Codec))
	dst = le.AppendUint32(dst, x.Dictionary)
	dst = le.AppendUint32(dst, x.RawSize)
	return appendBlob(dst, x.Data)
}

// ParseBatch parses a payload. Data is a part of b, not a copy.
func ParseBatch(b []byte) (Batch, error) {
	var x Batch
	err := x.Decode(b)
	return x, err
}

// Decode is ParseBatch into x, whose slices and texts it uses again: a batch
// with the path and residency of the one before costs no allocation. After an
// error x has no meaning.
func (x *Batch) Decode(b []byte) error {
	r := reader{typ: TypeBatch, b: b}
	x.First = r.u64("first")
	x.Count = r.u32("count")
	if x.Count == 0 || x.Count > MaxCount || x.First == 0 || x.First+uint64(x.Count) < x.First {
		r.fail("count", errRange)
	}
	x.Cursor = r.u64("cursor")
	x.Lineage = record.LineageID(r.u64("lineage"))
	x.LineageEpoch = r.u64("lineage epoch")
	x.Path = r.cities("path", MaxPath, x.Path)
	x.Residency = r.cities("residency", MaxCities, x.Residency)
	x.Codec, x.Dictionary, x.RawSize, x.Data = r.data()
	return r.done()
}

// data reads the compressed part of a frame.
func (r *reader) data() (codec Codec, dictionary, raw uint32, data []byte) {
	codec = Codec(r.u8("codec"))
	dictionary = r.u32("dictionary")
	raw = r.u32("raw size")
	data = r.blob("data", MaxPayload)
	switch {
	case r.err != nil:
	case codec >= codecEnd || dictionary != 0 && codec != CodecZstd:
		r.fail("codec", errUnknown)
		r.err.Code = CodeUnsupported
	case raw > MaxRawSize:
		r.fail("raw size", errTooLarge)
	case codec == CodecNone && uint64(raw) != uint64(len(data)):
		r.fail("raw size", errRange)
	}
	return codec, dictionary, raw, data
}
