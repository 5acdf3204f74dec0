package commitlog

import (
	"bytes"
	"context"
	"hash/crc32"
	"slices"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

// recoverChunk is how many bytes recovery reads at once.
const recoverChunk = 1 << 20

// tailState is what recovery found in the last segment.
type tailState struct {
	end    record.Position // behind the last valid frame
	synced record.Position // mark of the last valid frame that proves something: what is before was durable
	known  record.Position // mark of the last valid frame: what is before was committed; 0 = there is none
	cut    int64           // bytes of a torn write behind end; 0 = none
}

// scanTail walks the frames of the last segment to the end of what is valid.
// It changes nothing. Errors: *CorruptError when something proves that more was
// durable once; *OpError; the context's.
func scanTail(ctx context.Context, s *segment, m *meta) (tailState, error) {
	t := tailState{end: s.first(), synced: s.first()}
	size, err := s.file.Size()
	if err != nil {
		return t, &OpError{Op: "size", Segment: s.name, Err: err}
	}
	w := &window{seg: s, chunk: int(min(size, recoverChunk))}
	for {
		if err := ctx.Err(); err != nil {
			return t, err
		}
		f, err := validFrame(w, t.end, m.Lineage)
		if err != nil {
			return t, err
		}
		if f == nil {
			break
		}
		t.end += record.Position(f.size())
		t.known = max(t.known, f.synced)
		if f.pos >= m.Loose {
			t.synced = max(f.synced, s.first())
		}
	}
	durable, what, err := proof(ctx, w, t.end, m)
	if err != nil {
		return t, err
	}
	if what != "" {
		return t, &CorruptError{Position: t.end, Segment: s.name, What: what}
	}
	t.cut = durable
	return t, nil
}

// validFrame returns the frame at pos, or nil when what stands there is not a
// whole and intact frame of the lineage that pos belongs to.
func validFrame(w *window, pos record.Position, rows []LineageStart) (*frame, error) {
	b, err := w.at(pos, frameLen)
	if err != nil {
		return nil, err
	}
	f, ok := parseFrame(b, pos)
	if !ok || !lineageMatches(rows, &f) {
		return nil, nil
	}
	b, err = w.at(pos, f.size())
	if err != nil {
		return nil, err
	}
	if len(b) < f.size() || crc32.Checksum(b[frameLen:frameLen+f.payload], castagnoli) != f.sum {
		return nil, nil
	}
	return &f, nil
}

func lineageMatches(rows []LineageStart, f *frame) bool {
	row, ok := lineageAt(rows, f.pos)
	return !ok || uint32(row.ID) == f.lineage
}

// proof looks for evidence that bytes at end were durable once. what is empty
// when there is none; torn is then the distance from end behind the last byte
// that is not zero.
func proof(ctx context.Context, w *window, end record.Position, m *meta) (torn int64, what string, err error) {
	if m.CleanEnd > end {
		return 0, "the log ended behind this at its last close", nil
	}
	if n := len(m.Lineage); n > 0 && m.Lineage[n-1].First > end {
		return 0, "a lineage began behind this", nil
	}
	for pos := end; ; {
		if err := ctx.Err(); err != nil {
			return 0, "", err
		}
		b, err := w.at(pos, w.chunk)
		if err != nil {
			return 0, "", err
		}
		if last := trimZeros(b); last > 0 {
			torn = int64(pos-end) + int64(last)
			for off := 0; off < last && off+frameLen <= len(b); off += alignment {
				f, ok := parseFrame(b[off:], pos+record.Position(off))
				switch {
				case ok && !lineageMatches(m.Lineage, &f):
					// A lineage is durable before its first entry is written.
					return 0, "an entry behind this is of a lineage that META does not know: META is damaged or older than the log", nil
				case ok && f.synced > end && f.pos >= m.Loose:
					return 0, "a later entry shows that this was durable", nil
				}
			}
		}
		if len(b) < w.chunk || w.chunk <= frameLen {
			return torn, "", nil
		}
		// Overlap, so that a header across two chunks is seen whole.
		pos += record.Position(w.chunk - frameLen)
	}
}

// recoverCommitted learns from the marks what is surely committed. When the last
// segment has none, the last one of the segment before tells.
func (st *store) recoverCommitted(t tailState) error {
	known, last := t.known, len(st.segments)-1
	for i := last - 1; known == 0 && i >= 0; i-- {
		s := st.segments[i]
		if s.damage != nil {
			break
		}
		w, pos, stop := &window{seg: s, chunk: recoverChunk}, s.first(), st.segments[i+1].base
		for pos < stop {
			b, err := w.at(pos, frameLen)
			if err != nil {
				return err
			}
			f, ok := parseFrame(b, pos)
			if !ok {
				break // damage, which Open has logged: what is known before it holds
			}
			known = max(known, f.synced)
			pos += record.Position(f.size())
		}
	}
	end := published(st.segments[last], st.end)
	st.committed = min(max(known, st.meta.Committed, st.meta.Begin), end)
	if i := slices.IndexFunc(st.segments, func(s *segment) bool { return s.first() == st.committed }); i >= 0 {
		st.committed = st.segments[i].base // see published
	}
	return nil
}

// trimZeros returns the length of b without the zeros at its end. Most of what
// it sees is the unused rest of a segment, so it looks at whole blocks first.
func trimZeros(b []byte) int {
	var zeros [4 << 10]byte
	n := len(b)
	for n >= len(zeros) && bytes.Equal(b[n-len(zeros):n], zeros[:]) {
		n -= len(zeros)
	}
	return len(bytes.TrimRight(b[:n], "\x00"))
}

// repairTail makes the end of the log safe to write behind: a torn write is cut
// off, and what may never have reached the disk is written again. full reports
// that the space could not be allocated again.
func repairTail(ctx context.Context, s *segment, t tailState, size int64) (full bool, err error) {
	fail := func(op string, err error) (bool, error) {
		return false, &OpError{Op: op, Segment: s.name, Err: err}
	}
	if t.cut > 0 {
		// Everything behind the end must read as zero before anything is
		// written there, or a later recovery would find leftovers.
		if err := s.file.Truncate(int64(t.end - s.base)); err != nil {
			return fail("truncate", err)
		}
	}
	w := &window{seg: s, chunk: int(min(recoverChunk, t.end-t.synced))}
	for pos := t.synced; pos < t.end; {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		b, err := w.at(pos, int(min(recoverChunk, t.end-pos)))
		if err != nil {
			return false, err
		}
		if _, err := s.file.WriteAt(b, int64(pos-s.base)); err != nil {
			return fail("write", err)
		}
		pos += record.Position(len(b))
	}
	if err := s.file.Preallocate(size); err != nil {
		if !disk.IsFull(err) {
			return fail("allocate", err)
		}
		full = true
	}
	if err := s.file.Sync(); err != nil {
		return fail("sync", err)
	}
	return full, nil
}
