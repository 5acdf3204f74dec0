package wire

import (
	"math"

	"github.com/mqrouter/mqrouter/replication/record"
)

// Bounds of what a replica is seeded with.
const (
	MaxSeedFiles = 16
	MaxSeedName  = 128 // bytes
)

// Seed is the master's answer to Follow of a replica that cannot go on from its
// own log: it becomes a copy that begins at a position, with the files that come
// in Part frames. The session ends behind the last of them.
//
//	incarnation (8), epoch (8), lanes (1), begin (8),
//	lineage (list as in Follow, up to begin),
//	files (list: size (8), name (text))
type Seed struct {
	Incarnation record.Incarnation
	Epoch       uint64
	Lanes       uint8
	Begin       record.Position
	Lineage     []record.LineageStart
	Files       []SeedFile // at most MaxSeedFiles
}

// SeedFile is a file of a seed.
type SeedFile struct {
	Size uint64
	Name string // letters, digits, '-', '_' and '.', not beginning with '.'; at most MaxSeedName bytes
}

// Append appends the payload to dst.
func (x *Seed) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, uint64(x.Incarnation))
	dst = le.AppendUint64(dst, x.Epoch)
	dst = append(dst, x.Lanes)
	dst = le.AppendUint64(dst, uint64(x.Begin))
	dst = appendLineage(dst, x.Lineage)
	dst = le.AppendUint16(dst, uint16(len(x.Files)))
	for _, f := range x.Files {
		dst = le.AppendUint64(dst, f.Size)
		dst = appendText(dst, f.Name)
	}
	return dst
}

// ParseSeed parses a payload. It keeps no reference to b.
func ParseSeed(b []byte) (Seed, error) {
	r := reader{typ: TypeSeed, b: b}
	x := Seed{Incarnation: record.Incarnation(r.u64("incarnation")), Epoch: r.u64("epoch")}
	x.Lanes = r.u8("lanes")
	x.Begin = r.position("begin")
	if r.err == nil && (x.Incarnation == 0 || x.Lanes == 0) {
		r.fail("incarnation", errRange)
	}
	x.Lineage = r.lineage("lineage")
	if n := r.count("files", MaxSeedFiles, 8+2); n > 0 {
		x.Files = make([]SeedFile, n)
	}
	for i := range x.Files {
		x.Files[i] = SeedFile{Size: r.u64("file size"), Name: r.text("file name", MaxSeedName, "")}
		if r.err == nil && (x.Files[i].Size > math.MaxInt64 || !seedName(x.Files[i].Name)) {
			r.fail("file name", errRange)
		}
	}
	return x, r.done()
}

// seedName reports whether a name is that of a plain file in one folder.
func seedName(name string) bool {
	if name == "" || name[0] == '.' {
		return false
	}
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}

// Part carries a part of a seed's file. The files come in order, and their parts.
//
//	file (2), offset (8), data (blob)
type Part struct {
	File   uint16 // index in the seed's list
	Offset uint64
	Data   []byte
}

// PartHead is the length of a Part's payload besides its data.
const PartHead = 2 + 8 + 4

// Append appends the payload to dst.
func (x *Part) Append(dst []byte) []byte {
	dst = le.AppendUint16(dst, x.File)
	dst = le.AppendUint64(dst, x.Offset)
	return appendBlob(dst, x.Data)
}

// ParsePart parses a payload. Data is a part of b, not a copy.
func ParsePart(b []byte) (Part, error) {
	r := reader{typ: TypePart, b: b}
	x := Part{File: r.u16("file"), Offset: r.u64("offset")}
	x.Data = r.blob("data", MaxPayload)
	if r.err == nil && (len(x.Data) == 0 || x.File >= MaxSeedFiles || x.Offset > math.MaxInt64) {
		r.fail("offset", errRange)
	}
	return x, r.done()
}
