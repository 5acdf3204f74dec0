package commitlog

import (
	"hash/crc32"

	"github.com/mqrouter/mqrouter/replication/record"
)

// EachEntry calls fn for the entries of whole frames as ReadRaw returns them, the
// first of which stands at a position. Marks are passed over; lengths, positions and
// checksums are verified, lineages are not. The entry's bytes are those of frames. An
// error of fn ends it and is returned as it is.
//
// Errors: *CorruptError.
func EachEntry(frames []byte, at record.Position, fn func(Entry) error) error {
	corrupt := func(what string) error { return &CorruptError{Position: at, What: what} }
	for len(frames) > 0 {
		f, ok := parseFrame(frames, at)
		switch {
		case !ok:
			return corrupt(noFrameHere)
		case len(frames) < f.size():
			return corrupt("the frame is cut short")
		}
		payload := frames[frameLen : frameLen+f.payload : frameLen+f.payload]
		if crc32.Checksum(payload, castagnoli) != f.sum {
			return corrupt("payload has a bad checksum")
		}
		if f.kind != kindMark {
			if err := fn(f.entry(payload)); err != nil {
				return err
			}
		}
		frames, at = frames[f.size():], at+record.Position(f.size())
	}
	return nil
}

// StretchStart returns where the first frame of a stretch stands: behind the header of
// the segment that begins there, if it does.
func StretchStart(from record.Position, base bool) record.Position {
	if base {
		return from + headerLen
	}
	return from
}
