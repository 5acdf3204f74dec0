package commitlog

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
)

// Sizes of the format in bytes; see the package comment.
const (
	frameLen     = 32
	headerLen    = 64 // segment header
	alignment    = 8
	maxPayload   = record.MaxRecord + record.MaxEnvelope
	maxFrameSize = frameLen + maxPayload + alignment
)

// kindMark is a frame without content: its synced mark proves that what stands
// before it was durable.
const kindMark EntryKind = 3

// segmentMagic ends with the version of the segment format.
var segmentMagic = [8]byte{'M', 'Q', 'R', 'L', 'O', 'G', 0, 1}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frame is a decoded frame header.
type frame struct {
	pos      record.Position
	payload  int // bytes
	envelope int // bytes of payload
	kind     EntryKind
	sum      uint32 // of the payload
	lineage  uint32
	synced   record.Position
}

// size is the length of the frame with payload and padding.
func (f *frame) size() int { return frameSize(f.payload) }

func frameSize(payload int) int {
	return (frameLen + payload + alignment - 1) &^ (alignment - 1)
}

// FrameSize returns the bytes that an entry takes in a log once it is appended: its Size.
func (e *Entry) FrameSize() int { return frameSize(len(e.Envelope) + len(e.Record)) }

// put writes the header into b, which has at least frameLen bytes.
func (f *frame) put(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b, uint64(f.pos))
	le.PutUint32(b[8:], uint32(f.payload))
	le.PutUint32(b[12:], uint32(f.kind)|uint32(f.envelope)<<8)
	le.PutUint32(b[16:], f.sum)
	le.PutUint32(b[20:], f.lineage)
	le.PutUint32(b[24:], uint32(min(f.pos-f.synced, math.MaxUint32)))
	le.PutUint32(b[28:], crc32.Checksum(b[:28], castagnoli))
}

// headerSum returns the checksum of an encoded header, which covers that of the
// payload.
func headerSum(b []byte) uint32 { return binary.LittleEndian.Uint32(b[28:]) }

// parseFrame decodes the header at the start of b. ok is false when b is short
// or is no frame of that position.
func parseFrame(b []byte, pos record.Position) (f frame, ok bool) {
	le := binary.LittleEndian
	if len(b) < frameLen || le.Uint64(b) != uint64(pos) ||
		le.Uint32(b[28:]) != crc32.Checksum(b[:28], castagnoli) {
		return frame{}, false
	}
	kind, back := le.Uint32(b[12:]), record.Position(le.Uint32(b[24:]))
	f = frame{
		pos:      pos,
		payload:  int(le.Uint32(b[8:])),
		envelope: int(kind >> 8),
		kind:     EntryKind(kind),
		sum:      le.Uint32(b[16:]),
		lineage:  le.Uint32(b[20:]),
		synced:   pos - back,
	}
	valid := f.kind >= KindOwn && f.kind <= kindMark && f.payload <= maxPayload &&
		f.envelope <= f.payload && back <= pos
	return f, valid
}

// entry builds the entry of a frame whose payload is given.
func (f *frame) entry(payload []byte) Entry {
	e := Entry{Kind: f.kind, Position: f.pos, Size: f.size()}
	if f.envelope > 0 {
		e.Envelope = payload[:f.envelope:f.envelope]
	}
	if f.envelope < f.payload {
		e.Record = payload[f.envelope:f.payload:f.payload]
	}
	return e
}

func putSegmentHeader(b []byte, inc record.Incarnation, base record.Position, now time.Time) {
	le := binary.LittleEndian
	clear(b[:headerLen])
	copy(b, segmentMagic[:])
	le.PutUint64(b[8:], uint64(inc))
	le.PutUint64(b[16:], uint64(base))
	le.PutUint64(b[24:], uint64(now.UnixMicro()))
	le.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
}

// checkSegmentHeader returns what is wrong with the header, or "".
func checkSegmentHeader(b []byte, inc record.Incarnation, base record.Position) string {
	le := binary.LittleEndian
	switch {
	case [8]byte(b[:8]) != segmentMagic:
		return "segment header is not of this format"
	case le.Uint32(b[60:]) != crc32.Checksum(b[:60], castagnoli):
		return "segment header has a bad checksum"
	case le.Uint64(b[8:]) != uint64(inc):
		return "segment belongs to another incarnation"
	case le.Uint64(b[16:]) != uint64(base):
		return "segment header names another position than the file name"
	}
	return ""
}
