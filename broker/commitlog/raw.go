package commitlog

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sort"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
)

var (
	_ ship.LeaderLog   = (*Log)(nil)
	_ ship.FollowerLog = (*Log)(nil)
)

// ReadRaw reads whole frames from a position on, as they stand on the disk, marks
// included, into dst from its beginning, and returns them as a stretch: about limit
// bytes of one segment and lineage, at least one frame if there is one. It reads up
// to End, committed or not, and checks what it returns. from is where a frame
// begins, the base of a segment, or the end of the log.
//
// Errors: ship.ErrTrimmed, ErrBeyondEnd, *CorruptError, *OpError, the context's.
func (l *Log) ReadRaw(ctx context.Context, from record.Position, limit int, dst []byte) (ship.Stretch, error) {
	return l.readRaw(ctx, from, l.End(), limit, dst)
}

// readRaw is ReadRaw up to an end of the log.
func (l *Log) readRaw(ctx context.Context, from, to record.Position, limit int, dst []byte) (ship.Stretch, error) {
	none := ship.Stretch{From: from, Next: from, Frames: dst[:0]}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	switch {
	case from > to:
		return none, ErrBeyondEnd
	case from < l.Begin():
		return none, trimmed(from)
	case from >= to:
		return none, nil
	}
	s, at, stop, err := l.findRaw(from)
	if err != nil {
		return none, err
	}
	stop = min(stop, to)
	table := *l.table.Load()
	if next := slices.IndexFunc(table, func(row LineageStart) bool { return row.First > at }); next >= 0 {
		stop = min(stop, table[next].First)
	}
	st := ship.Stretch{From: from, Base: at != from, Next: from}
	if b := l.tail.at(at); b != nil {
		st.Frames, st.Next, err = l.appendTail(dst[:0], b, at, stop, limit)
	} else {
		st.Frames, st.Next, err = l.readFrames(s, dst[:0], at, stop, limit)
	}
	if err != nil {
		return none, l.rawError(from, err)
	}
	if len(st.Frames) == 0 {
		return none, nil
	}
	return st, nil
}

func trimmed(pos record.Position) error {
	return fmt.Errorf("%w: %w", ErrTrimmed, &RawError{Op: "read", Position: pos, What: "it is no longer kept", Err: ship.ErrTrimmed})
}

// rawError explains a failed read; see readError.
func (l *Log) rawError(pos record.Position, err error) error {
	if err = l.readError(pos, err); errors.Is(err, ErrTrimmed) {
		return trimmed(pos)
	}
	return err
}

// findRaw returns the segment in which the frame at or behind from stands, that
// frame's position, and where the segment ends.
func (l *Log) findRaw(from record.Position) (s *segment, at, stop record.Position, err error) {
	list := *l.segments.Load()
	i := sort.Search(len(list), func(i int) bool { return list[i].base > from }) - 1
	if i < 0 {
		if from < l.Begin() {
			return nil, 0, 0, trimmed(from)
		}
		return nil, 0, 0, &CorruptError{Position: from, Segment: segmentName(from), What: "segment is missing"}
	}
	s, at, stop = list[i], from, ^record.Position(0)
	if from == s.base {
		at = s.first()
	}
	if i+1 < len(list) {
		stop = list[i+1].base
	}
	if s.damage != nil {
		return nil, 0, 0, &CorruptError{Position: from, Segment: s.name, What: s.damage.What, Err: s.damage.Err}
	}
	return s, at, stop, nil
}

// appendTail appends what the tail holds from a frame on, whose write has b left of
// it, and goes on with the writes behind: one of a few messages would make a stretch
// that costs a replica more than its bytes.
func (l *Log) appendTail(dst, b []byte, pos, stop record.Position, limit int) ([]byte, record.Position, error) {
	for b != nil {
		var err error
		before := pos
		if dst, pos, err = appendFrames(dst, b, pos, stop, limit); err != nil {
			return dst, pos, err
		}
		if pos != before+record.Position(len(b)) || len(dst) >= limit || pos >= stop {
			break
		}
		b = l.tail.at(pos)
	}
	return dst, pos, nil
}

// appendFrames appends the whole frames of b, which begin at pos, that end at or
// before stop, as long as dst stays within limit or had nothing. They were checked
// before.
func appendFrames(dst, b []byte, pos, stop record.Position, limit int) ([]byte, record.Position, error) {
	n := 0
	for len(b) > n {
		f, ok := parseFrame(b[n:], pos)
		if !ok || len(b)-n < f.size() {
			return dst, pos, &CorruptError{Position: pos, What: noFrameHere}
		}
		if have := len(dst) + n; pos+record.Position(f.size()) > stop || (have > 0 && have+f.size() > limit) {
			break
		}
		n, pos = n+f.size(), pos+record.Position(f.size())
	}
	return append(dst, b[:n]...), pos, nil
}

// readFrames is appendFrames from the disk.
func (l *Log) readFrames(s *segment, dst []byte, pos, stop record.Position, limit int) ([]byte, record.Position, error) {
	w := &window{seg: s, chunk: max(min(limit, int(min(stop-pos, 1<<30))), frameLen), limit: stop}
	n := 0
	for pos < stop {
		f, _, err := l.readFrame(w, pos)
		if err != nil {
			return dst, pos, err
		}
		size := f.size()
		if pos+record.Position(size) > stop || (n > 0 && n+size > limit) {
			break
		}
		b, err := w.at(pos, size)
		if err != nil {
			return dst, pos, err
		}
		if len(b) < size {
			return dst, pos, &CorruptError{Position: pos, Segment: s.name, What: "segment is too short"}
		}
		dst = append(dst, b...)
		n, pos = n+size, pos+record.Position(size)
	}
	return dst, pos, nil
}

// LastFrame returns the last frame that ends at or before end, which is where a
// frame or a segment ends; ok is false when none is kept. It reads the headers of a
// segment up to there.
//
// Errors: a *RawError when no frame ends there; *CorruptError, *OpError.
func (l *Log) LastFrame(ctx context.Context, end record.Position) (fp ship.Fingerprint, ok bool, err error) {
	if end > l.End() {
		return fp, false, ErrBeyondEnd
	}
	list := *l.segments.Load()
	i := sort.Search(len(list), func(i int) bool { return list[i].base >= end }) - 1
	if i < 0 {
		return fp, false, nil
	}
	s := list[i]
	if s.damage != nil {
		return fp, false, s.damage
	}
	w, pos := &window{seg: s, chunk: scanChunk, limit: end}, s.first()
	for pos < end {
		if err := ctx.Err(); err != nil {
			return fp, false, err
		}
		b, err := w.at(pos, frameLen)
		if err != nil {
			return fp, false, l.rawError(pos, err)
		}
		f, valid := parseFrame(b, pos)
		if !valid {
			return fp, false, &CorruptError{Position: pos, Segment: s.name, What: noFrameHere}
		}
		fp, ok = ship.Fingerprint{Position: pos, Checksum: headerSum(b)}, true
		pos += record.Position(f.size())
	}
	if pos != end && end != s.first() {
		return ship.Fingerprint{}, false, refused("read", end, "no frame ends here")
	}
	return fp, ok, nil
}

// stretch returns what the tail holds of the log from a frame on, up to to. Its
// Frames are nil when it holds nothing.
func (t *tail) stretch(from, to record.Position) ship.Stretch {
	st := ship.Stretch{From: from, Next: from}
	b := t.at(from)
	n := 0
	for n < len(b) && st.Next < to {
		f, ok := parseFrame(b[n:], st.Next)
		if !ok || st.Next+record.Position(f.size()) > to {
			break
		}
		n, st.Next = n+f.size(), st.Next+record.Position(f.size())
	}
	if n > 0 {
		st.Frames = b[:n:n]
	}
	return st
}

// checkStretch verifies frames that must follow at pos, in the lineage, in the
// store: every length, position, checksum and identity. It returns the greatest
// position that one of them says to be committed, and where they end.
func checkStretch(b []byte, pos record.Position, row LineageStart, inc record.Incarnation) (mark, end record.Position, err error) {
	for len(b) > 0 {
		f, ok := parseFrame(b, pos)
		switch {
		case !ok:
			return 0, 0, refused("append", pos, "no frame of this position")
		case len(b) < f.size():
			return 0, 0, refused("append", pos, "the frame is cut short")
		case f.lineage != uint32(row.ID):
			return 0, 0, refused("append", pos, "the frame is of another lineage")
		case crc32.Checksum(b[frameLen:frameLen+f.payload], castagnoli) != f.sum:
			return 0, 0, refused("append", pos, "payload has a bad checksum")
		case slices.ContainsFunc(b[frameLen+f.payload:f.size()], func(c byte) bool { return c != 0 }):
			return 0, 0, refused("append", pos, "the padding is not zero")
		}
		if what := checkPayload(&f, b[frameLen:frameLen+f.payload], row.Epoch, inc); what != "" {
			return 0, 0, refused("append", pos, what)
		}
		mark = max(mark, f.synced)
		b, pos = b[f.size():], pos+record.Position(f.size())
	}
	return mark, pos, nil
}

// checkPayload returns what is wrong with the payload of a whole frame, or "".
func checkPayload(f *frame, payload []byte, epoch uint64, inc record.Incarnation) string {
	switch f.kind {
	case kindMark:
		if f.payload > 0 {
			return "a mark with a payload"
		}
	case KindLanding:
		if f.envelope == 0 {
			return "a landing without an envelope"
		}
	case KindOwn:
		v, err := record.Parse(payload[f.envelope:])
		switch {
		case err != nil || f.envelope > 0:
			return "an own entry is no record"
		case v.Position() != f.pos || v.Incarnation() != inc || v.Epoch() != epoch:
			return "a record is stamped for another place"
		}
	}
	return ""
}
