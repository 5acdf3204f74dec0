package record

import (
	"encoding/binary"
	"hash/crc32"
	"slices"

	"github.com/mqrouter/mqrouter/zone"
)

// Offsets and tags of the envelope; see the package comment.
const (
	envLength      = 0
	envSum         = 4
	envVersion     = 8
	envOutcome     = 9
	envFlags       = 10
	envReason      = 12
	envHops        = 14
	envClass       = 15
	envLane        = 16
	envChannel     = 17
	envIncarnation = 24
	envLineage     = 32
	envEpoch       = 40
	envNumber      = 48
	envThrough     = 56
	envCursor      = 64
	envLanded      = 72
	envFixedLen    = 80

	envTagOrigin = 1
	envTagTarget = 2
	envTagPath   = 3
	envTagMarks  = 4
	envTagEnd    = 5

	envMarkLen = 24
)

// EnvelopeLen returns the number of bytes that AppendEnvelope appends for e.
func EnvelopeLen(e *Envelope) int {
	return envFixedLen + fieldLen(len(e.Flow.Origin)) + fieldLen(len(e.Flow.Target)) + fieldLen(listLen(e.Path)) + fieldLen(len(e.Lineages)*envMarkLen)
}

// AppendEnvelope appends the encoded envelope to dst and returns the longer
// slice. It does not keep e and does not allocate when dst has room.
//
// Errors: *LimitError when the envelope is longer than MaxEnvelope,
// *FormatError when Outcome is 0 or Through is below Number; dst is returned
// unchanged then.
func AppendEnvelope(dst []byte, e *Envelope) ([]byte, error) {
	n := EnvelopeLen(e)
	switch {
	case n > MaxEnvelope:
		return dst, &LimitError{Field: "envelope", Size: n, Limit: MaxEnvelope}
	case e.Outcome == 0:
		return dst, &FormatError{Offset: envOutcome, What: "outcome 0"}
	case e.Through < e.Number:
		return dst, &FormatError{Offset: envThrough, What: "through is below number"}
	}
	if err := checkShort("path city", e.Path); err != nil {
		return dst, err
	}
	start := len(dst)
	dst = slices.Grow(dst, n)[:start+envFixedLen]
	b, le := dst[start:], binary.LittleEndian
	clear(b)
	le.PutUint32(b[envLength:], uint32(n))
	b[envVersion] = Version
	b[envOutcome] = byte(e.Outcome)
	le.PutUint16(b[envReason:], uint16(e.Reason))
	b[envHops] = e.Hops
	b[envClass] = byte(e.Flow.Class)
	b[envLane] = e.Flow.Lane
	if e.Flow.Channel {
		b[envChannel] = 1
	}
	le.PutUint64(b[envIncarnation:], uint64(e.Flow.Incarnation))
	le.PutUint64(b[envLineage:], uint64(e.Lineage))
	le.PutUint64(b[envEpoch:], e.LineageEpoch)
	le.PutUint64(b[envNumber:], e.Number)
	le.PutUint64(b[envThrough:], e.Through)
	le.PutUint64(b[envCursor:], e.OriginCursor)
	le.PutUint64(b[envLanded:], putTime(e.Landed))

	dst = appendField(dst, envTagOrigin, e.Flow.Origin)
	dst = appendField(dst, envTagTarget, e.Flow.Target)
	dst = appendList(dst, envTagPath, e.Path)
	dst = appendMarks(dst, e.Lineages)
	b = dst[start:]
	le.PutUint32(b[envSum:], envelopeSum(b))
	return dst, nil
}

func envelopeSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:envSum], castagnoli), castagnoli, b[envVersion:])
}

// ParseEnvelope decodes the envelope at the start of b into e and returns its
// length. Strings and the path that e already holds are kept when they are
// equal to the new ones, so that decoding many envelopes of one flow into one
// variable does not allocate; a path that differs gets a slice of its own.
// Nothing in e points into b. When it fails e is unchanged.
//
// Errors: *FormatError, *ChecksumError, *UnsupportedError.
func ParseEnvelope(b []byte, e *Envelope) (n int, err error) {
	if len(b) < envFixedLen {
		return 0, &FormatError{Offset: len(b), What: "shorter than the fixed envelope"}
	}
	le := binary.LittleEndian
	if b[envVersion] != Version {
		return 0, &UnsupportedError{What: "version", Value: uint32(b[envVersion])}
	}
	length := le.Uint32(b[envLength:])
	if length < envFixedLen || length > MaxEnvelope || uint64(length) > uint64(len(b)) {
		return 0, &FormatError{Offset: envLength, What: "envelope length out of range"}
	}
	b = b[:length]
	if want, got := le.Uint32(b[envSum:]), envelopeSum(b); want != got {
		return 0, &ChecksumError{Part: "envelope", Want: want, Got: got}
	}
	number, through := le.Uint64(b[envNumber:]), le.Uint64(b[envThrough:])
	switch flags := Flags(le.Uint16(b[envFlags:])); {
	case flags&requiredFlags != 0:
		return 0, &UnsupportedError{What: "flags", Value: uint32(flags & requiredFlags)}
	case b[envOutcome] == 0:
		return 0, &FormatError{Offset: envOutcome, What: "outcome 0"}
	case b[envChannel] > 1:
		return 0, &FormatError{Offset: envChannel, What: "channel is neither 0 nor 1"}
	case through < number:
		return 0, &FormatError{Offset: envThrough, What: "through is below number"}
	}
	var fields [envTagEnd]span
	if err := parseFields(b, envFixedLen, len(b), fields[:]); err != nil {
		return 0, err
	}
	if err := checkList(b, fields[envTagPath]); err != nil {
		return 0, err
	}
	if fields[envTagMarks].len%envMarkLen != 0 {
		return 0, &FormatError{Offset: int(fields[envTagMarks].off), What: "lineage row cut short"}
	}
	e.Flow.Origin = keep(e.Flow.Origin, fields[envTagOrigin].of(b))
	e.Flow.Target = keep(e.Flow.Target, fields[envTagTarget].of(b))
	e.Path = keepPath(e.Path, fields[envTagPath].of(b))
	e.Lineages = parseMarks(fields[envTagMarks].of(b))
	e.Flow.Incarnation = Incarnation(le.Uint64(b[envIncarnation:]))
	e.Flow.Channel = b[envChannel] == 1
	e.Flow.Class = zone.Class(b[envClass])
	e.Flow.Lane = b[envLane]
	e.Lineage = LineageID(le.Uint64(b[envLineage:]))
	e.LineageEpoch = le.Uint64(b[envEpoch:])
	e.Number, e.Through = number, through
	e.Outcome = Outcome(b[envOutcome])
	e.Reason = Reason(le.Uint16(b[envReason:]))
	e.Hops = b[envHops]
	e.OriginCursor = le.Uint64(b[envCursor:])
	e.Landed = getTime(b[envLanded:])
	return len(b), nil
}

func appendMarks(dst []byte, marks []LineageMark) []byte {
	if len(marks) == 0 {
		return dst
	}
	le := binary.LittleEndian
	dst = appendFieldHead(dst, envTagMarks, len(marks)*envMarkLen)
	for _, m := range marks {
		dst = le.AppendUint64(dst, m.Epoch)
		dst = le.AppendUint64(dst, uint64(m.ID))
		dst = le.AppendUint64(dst, m.First)
	}
	return dst
}

func parseMarks(b []byte) []LineageMark {
	if len(b) == 0 {
		return nil
	}
	le := binary.LittleEndian
	marks := make([]LineageMark, 0, len(b)/envMarkLen)
	for ; len(b) > 0; b = b[envMarkLen:] {
		marks = append(marks, LineageMark{Epoch: le.Uint64(b), ID: LineageID(le.Uint64(b[8:])), First: le.Uint64(b[16:])})
	}
	return marks
}

func keep[S ~string](old S, b []byte) S {
	if string(old) == string(b) {
		return old
	}
	return S(b)
}

func keepPath(old []zone.City, field []byte) []zone.City {
	at, same := 0, true
	eachShort(field, func(item []byte) bool {
		same = at < len(old) && string(old[at]) == string(item)
		at++
		return same
	})
	if same && at == len(old) {
		return old
	}
	return shortStrings[zone.City](field)
}
