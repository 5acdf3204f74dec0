package wire

import (
	"encoding/binary"
	"hash/crc32"
	"io"

	"github.com/mqrouter/mqrouter/zone"
)

// Limits and layout of the header; the format owns them.
const (
	// Version is the version of the header that this package writes and reads.
	Version = 1
	// HeaderSize is the length of the header in bytes.
	HeaderSize = 28
	// MaxPayload is the largest payload in bytes: 8 MiB of records and room for
	// the fields around them.
	MaxPayload = 8<<20 + 64<<10
	// MaxHello bounds the payload of the first frame of a connection, in bytes:
	// a stranger's first frame must not cost memory.
	MaxHello = 4 << 10
	// FlagsRequired masks the flags that a reader must know.
	FlagsRequired = 0xff00

	knownFlags = 0 // of the required ones none is defined yet
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header is the parsed form of a frame's header.
type Header struct {
	Type       Type
	Flags      uint16
	Length     uint32 // of the payload, bytes
	Session    uint64
	Class      zone.Class
	Hops       uint8
	PayloadCRC uint32
}

// AppendHeader appends the header of f to dst. The payload is not appended. It
// fails when the payload is larger than MaxPayload.
func AppendHeader(dst []byte, f *Frame) ([]byte, error) {
	if len(f.Payload) > MaxPayload {
		return dst, &FrameError{Type: f.Type, Code: CodeMalformed, Field: "payload length", Err: errTooLarge}
	}
	start := len(dst)
	dst = append(dst, Version, byte(f.Type))
	dst = binary.LittleEndian.AppendUint16(dst, f.Flags)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(f.Payload)))
	dst = binary.LittleEndian.AppendUint64(dst, f.Session)
	dst = append(dst, byte(f.Class), f.Hops, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, crc32.Checksum(f.Payload, castagnoli))
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli)), nil
}

// AppendFrame appends header and payload of f to dst. It fails when the
// payload is larger than MaxPayload.
func AppendFrame(dst []byte, f *Frame) ([]byte, error) {
	dst, err := AppendHeader(dst, f)
	if err != nil {
		return dst, err
	}
	return append(dst, f.Payload...), nil
}

// ParseHeader parses the first HeaderSize bytes of b. It fails with a
// *FrameError when b is shorter, the checksum differs, the version or a
// required flag is unknown, or the payload is larger than MaxPayload. The type
// may be unknown. It does not allocate unless it fails.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, &FrameError{Code: CodeMalformed, Field: "header", Err: io.ErrUnexpectedEOF}
	}
	h := Header{
		Type:       Type(b[1]),
		Flags:      binary.LittleEndian.Uint16(b[2:]),
		Length:     binary.LittleEndian.Uint32(b[4:]),
		Session:    binary.LittleEndian.Uint64(b[8:]),
		Class:      zone.Class(b[16]),
		Hops:       b[17],
		PayloadCRC: binary.LittleEndian.Uint32(b[20:]),
	}
	// The checksum first: without it no other field means anything.
	switch {
	case crc32.Checksum(b[:24], castagnoli) != binary.LittleEndian.Uint32(b[24:]):
		return Header{}, &FrameError{Code: CodeMalformed, Field: "header", Err: errChecksum}
	case b[0] != Version:
		return Header{}, &FrameError{Type: h.Type, Code: CodeUnsupported, Field: "version", Err: errUnknown}
	case h.Flags&FlagsRequired&^knownFlags != 0:
		return Header{}, &FrameError{Type: h.Type, Code: CodeUnsupported, Field: "flags", Err: errUnknown}
	case h.Length > MaxPayload:
		return Header{}, &FrameError{Type: h.Type, Code: CodeMalformed, Field: "payload length", Err: errTooLarge}
	}
	return h, nil
}

// Check compares the payload with the header's length and checksum.
func (h *Header) Check(payload []byte) error {
	if uint64(len(payload)) != uint64(h.Length) {
		return &FrameError{Type: h.Type, Code: CodeMalformed, Field: "payload length", Err: io.ErrUnexpectedEOF}
	}
	if crc32.Checksum(payload, castagnoli) != h.PayloadCRC {
		return &FrameError{Type: h.Type, Code: CodeMalformed, Field: "payload", Err: errChecksum}
	}
	return nil
}

// Frame returns the frame of the header with the payload.
func (h *Header) Frame(payload []byte) Frame {
	return Frame{Type: h.Type, Flags: h.Flags, Session: h.Session, Class: h.Class, Hops: h.Hops, Payload: payload}
}

// ReadFrame reads one frame from r whose payload has at most limit bytes. The
// payload is newly allocated and belongs to the caller. It returns io.EOF when
// r ends between two frames, *FrameError for malformed bytes, and r's errors.
// After an error r is not at a frame's start any more.
func ReadFrame(r io.Reader, limit uint32) (Frame, error) {
	var b [HeaderSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Frame{}, err
	}
	h, err := ParseHeader(b[:])
	if err != nil {
		return Frame{}, err
	}
	if h.Length > limit {
		return Frame{}, &FrameError{Type: h.Type, Code: CodeMalformed, Field: "payload length", Err: errTooLarge}
	}
	if h.Length == 0 {
		return h.Frame(nil), h.Check(nil)
	}
	payload := make([]byte, h.Length)
	if _, err := io.ReadFull(r, payload); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	if err := h.Check(payload); err != nil {
		return Frame{}, err
	}
	return h.Frame(payload), nil
}
