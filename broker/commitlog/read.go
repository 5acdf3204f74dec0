package commitlog

import (
	"context"
	"errors"
	"hash/crc32"
	"io/fs"
	"math"
	"sort"

	"github.com/mqrouter/mqrouter/replication/record"
)

const (
	readChunk   = 4 << 10   // bytes that ReadAt reads when it has no hint
	scanChunk   = 512 << 10 // bytes that Scan reads at once
	noFrameHere = "no entry begins here"
)

// ReadAt returns the committed entry at a position. sizeHint is its Size if the
// caller knows it, else 0; with it a read of the disk is one system call. The
// entry's bytes must not be changed; they stay valid as long as they are held
// (see Committed for what recent ones hold with them).
//
// Errors: ErrTrimmed, ErrBeyondEnd, *CorruptError (also when no entry begins at
// the position), *OpError, ErrClosed.
func (l *Log) ReadAt(pos record.Position, sizeHint int) (Entry, error) {
	s, end, err := l.find(pos)
	if err != nil {
		return Entry{}, err
	}
	if b := l.tail.at(pos); b != nil {
		f, ok := parseFrame(b, pos)
		if !ok || f.kind == kindMark {
			return Entry{}, &CorruptError{Position: pos, Segment: s.name, What: noFrameHere}
		}
		return f.entry(b[frameLen:]), nil
	}
	if sizeHint < frameLen || sizeHint > maxFrameSize {
		sizeHint = readChunk
	}
	w := &window{seg: s, chunk: sizeHint, limit: end}
	f, payload, err := l.readFrame(w, pos)
	switch {
	case err != nil:
		return Entry{}, err
	case f.kind == kindMark:
		return Entry{}, &CorruptError{Position: pos, Segment: s.name, What: noFrameHere}
	}
	return f.entry(payload), nil
}

// find returns the segment that holds a committed position and where that
// segment ends.
func (l *Log) find(pos record.Position) (*segment, record.Position, error) {
	end := l.Committed() // before the list: a segment is listed before its entries are committed
	switch {
	case pos < l.Begin():
		return nil, 0, ErrTrimmed
	case pos >= end:
		return nil, 0, ErrBeyondEnd
	}
	list := *l.segments.Load()
	i := sort.Search(len(list), func(i int) bool { return list[i].base > pos }) - 1
	if i < 0 {
		if pos < l.Begin() { // trimmed since
			return nil, 0, ErrTrimmed
		}
		return nil, 0, &CorruptError{Position: pos, Segment: segmentName(pos), What: "segment is missing"}
	}
	if i+1 < len(list) {
		end = min(end, list[i+1].base)
	}
	if list[i].damage != nil {
		return nil, 0, &CorruptError{Position: pos, Segment: list[i].name, What: list[i].damage.What, Err: list[i].damage.Err}
	}
	return list[i], end, nil
}

// readFrame reads and checks the frame at pos. The payload is in the window's
// buffer.
func (l *Log) readFrame(w *window, pos record.Position) (frame, []byte, error) {
	b, err := w.at(pos, frameLen)
	if err != nil {
		return frame{}, nil, l.readError(pos, err)
	}
	f, ok := parseFrame(b, pos)
	switch {
	case len(b) < frameLen:
		return frame{}, nil, &CorruptError{Position: pos, Segment: w.seg.name, What: "segment is too short"}
	case !ok || !lineageMatches(*l.table.Load(), &f):
		return frame{}, nil, &CorruptError{Position: pos, Segment: w.seg.name, What: noFrameHere}
	}
	if b, err = w.at(pos, f.size()); err != nil {
		return frame{}, nil, l.readError(pos, err)
	}
	if len(b) < frameLen+f.payload {
		return frame{}, nil, &CorruptError{Position: pos, Segment: w.seg.name, What: "segment is too short"}
	}
	payload := b[frameLen : frameLen+f.payload : frameLen+f.payload]
	if crc32.Checksum(payload, castagnoli) != f.sum {
		return frame{}, nil, &CorruptError{Position: pos, Segment: w.seg.name, What: "payload has a bad checksum"}
	}
	return f, payload, nil
}

// readError explains a failed read: the file may have been trimmed or closed
// meanwhile.
func (l *Log) readError(pos record.Position, err error) error {
	if !errors.Is(err, fs.ErrClosed) {
		return err
	}
	if pos < l.Begin() {
		return ErrTrimmed
	}
	return ErrClosed
}

// Scan calls fn for each committed entry from a position on, in order, up to but
// not including to, or to what is committed when Scan gets there. from is an
// entry's position, the end behind one, or 0 for Begin. The entry's bytes are
// valid until fn returns. An error of fn ends the scan and is returned as it is.
//
// Errors: as of ReadAt, the context's; ErrBeyondEnd when from is above the
// committed end (at it, there is nothing to scan).
func (l *Log) Scan(ctx context.Context, from, to record.Position, fn func(Entry) error) error {
	if from == 0 {
		from = l.Begin()
	}
	if end := l.Committed(); from > end {
		return ErrBeyondEnd
	}
	w := &window{chunk: scanChunk}
	for from < to && from < l.Committed() {
		if err := ctx.Err(); err != nil {
			return err
		}
		s, end, err := l.find(from)
		if err != nil {
			return err
		}
		from, end = max(from, s.first()), min(end, to)
		if w.seg != s {
			w.seg, w.buf = s, w.buf[:0]
		}
		w.limit = end
		if from, err = l.scanPart(w, from, end, fn); err != nil {
			return err
		}
	}
	return nil
}

// scanPart scans inside one segment and returns where the scan stands. It stops
// now and then, so that the caller sees the context and what else happened.
func (l *Log) scanPart(w *window, from, end record.Position, fn func(Entry) error) (record.Position, error) {
	if b := l.tail.at(from); b != nil {
		for len(b) > 0 && from < end {
			f, ok := parseFrame(b, from)
			if !ok {
				return from, &CorruptError{Position: from, Segment: w.seg.name, What: noFrameHere}
			}
			if f.kind != kindMark {
				if err := fn(f.entry(b[frameLen:])); err != nil {
					return from, err
				}
			}
			b, from = b[f.size():], from+record.Position(f.size())
		}
		return from, nil
	}
	for stop := from + scanChunk; from < end && from < stop; {
		f, payload, err := l.readFrame(w, from)
		if err != nil {
			return from, err
		}
		if f.kind != kindMark {
			if err := fn(f.entry(payload)); err != nil {
				return from, err
			}
		}
		from += record.Position(f.size())
	}
	return from, nil
}

// Replay calls fn for everything committed from a position on (0 = Begin), as
// Scan does. It is for the time between Open and Start: ErrNotStarted after it.
// ErrBeyondEnd means that the caller's snapshot names a position that this log
// lost or never had. Deliver goes on where Replay ended.
func (l *Log) Replay(ctx context.Context, from record.Position, fn func(Entry) error) error {
	if l.hasStarted() {
		return ErrNotStarted
	}
	to := record.Position(math.MaxUint64)
	if l.gated { // others may commit meanwhile
		to = l.Committed()
	}
	if err := l.Scan(ctx, from, to, fn); err != nil {
		return err
	}
	l.from = max(l.from, min(to, l.Committed()))
	return nil
}

func (l *Log) hasStarted() bool {
	if !l.gated {
		return l.queue.isStarted()
	}
	l.following.mu.Lock()
	defer l.following.mu.Unlock()
	return l.following.started
}
