package record

import (
	"fmt"
	"hash/crc32"
)

// Limits of the format, in bytes. They bound what a peer or a file can make a
// reader hold; brokers apply lower limits of their own (see package zone).
const (
	MaxRecord   = 32 << 20  // a whole record
	MaxHeader   = 256 << 10 // the header of a record: fixed part and fields
	MaxEnvelope = 64 << 10  // a landing envelope
)

// Version is the version of the record and envelope encodings that this
// package writes, and the only one that it reads.
const Version = 1

// FormatError reports bytes that are not a record or an envelope.
type FormatError struct {
	Offset int    // where in the record or envelope, in bytes
	What   string // constant text
}

// Error implements error.
func (e *FormatError) Error() string {
	return fmt.Sprintf("record: malformed at byte %d: %s", e.Offset, e.What)
}

// UnsupportedError reports a well formed record that needs a newer reader.
type UnsupportedError struct {
	What  string // "version", "flags", "field" or "codec"
	Value uint32
}

// Error implements error.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("record: unsupported %s %#x: written by a newer version", e.What, e.Value)
}

// ChecksumError reports bytes that changed since they were encoded.
type ChecksumError struct {
	Part      string // "header", "body" or "envelope"
	Want, Got uint32
}

// Error implements error.
func (e *ChecksumError) Error() string {
	return fmt.Sprintf("record: %s checksum is %#08x, content has %#08x", e.Part, e.Want, e.Got)
}

// LimitError reports a value that is too large or out of range to be encoded.
type LimitError struct {
	Field       string
	Size, Limit int // bytes
}

// Error implements error.
func (e *LimitError) Error() string {
	return fmt.Sprintf("record: %s has %d bytes, limit %d", e.Field, e.Size, e.Limit)
}

// castagnoli is read-only after package initialization; hash/crc32 uses the
// processor's CRC32C instruction for it where there is one.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// requiredFlags is the mask of flags that a reader must know.
const requiredFlags Flags = 0xFF00

// knownFlags are the flags of this version.
const knownFlags = FlagMaybeDuplicate | FlagLate | FlagShadow | FlagCanary
