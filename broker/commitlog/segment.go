package commitlog

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

const (
	segmentSuffix = ".log"
	spareName     = "spare.new"
	lockName      = "LOCK"
)

// segment is one file of the log. Its fields but began do not change after it is
// in the list of segments.
type segment struct {
	base   record.Position
	name   string
	file   disk.File     // nil when damage is set
	damage *CorruptError // what Open found wrong; every read fails with it

	began atomic.Pointer[time.Time] // of the first entry; nil before somebody asked
}

// first is where the first frame stands.
func (s *segment) first() record.Position { return s.base + headerLen }

func segmentName(base record.Position) string {
	return fmt.Sprintf("%016x%s", uint64(base), segmentSuffix)
}

// listSegments returns the segments of a folder, ascending, not yet opened.
func listSegments(fsys disk.FS, dir string) ([]*segment, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	var list []*segment
	for _, name := range names {
		digits, ok := strings.CutSuffix(name, segmentSuffix)
		if !ok || len(digits) != 16 {
			continue
		}
		base, err := strconv.ParseUint(digits, 16, 64)
		if err != nil {
			continue
		}
		list = append(list, &segment{base: record.Position(base), name: name})
	}
	slices.SortFunc(list, func(a, b *segment) int { return cmp.Compare(a.base, b.base) })
	return list, nil
}

// open opens the file and checks its header. A fault is kept in damage.
func (s *segment) open(fsys disk.FS, dir string, inc record.Incarnation) {
	f, err := fsys.Open(path.Join(dir, s.name))
	if err != nil {
		s.damage = &CorruptError{Position: s.base, Segment: s.name, What: "cannot open segment", Err: err}
		return
	}
	var head [headerLen]byte
	what := "segment header cannot be read"
	if _, err = f.ReadAt(head[:], 0); err == nil {
		what = checkSegmentHeader(head[:], inc, s.base)
	}
	if what != "" {
		f.Close()
		s.damage = &CorruptError{Position: s.base, Segment: s.name, What: what, Err: err}
		return
	}
	s.file = f
}

// newSegment turns the prepared file into the segment with the base: it is
// durable, with its name, when this returns nil. It closes the file on error.
func newSegment(fsys disk.FS, dir string, f disk.File, inc record.Incarnation, base record.Position) (*segment, error) {
	s := &segment{base: base, name: segmentName(base), file: f}
	var head [headerLen]byte
	putSegmentHeader(head[:], inc, base, time.Now())
	_, err := f.WriteAt(head[:], 0)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = fsys.Rename(path.Join(dir, spareName), path.Join(dir, s.name))
		if err == nil {
			err = fsys.SyncDir(dir)
		}
		if err != nil { // the name may or may not be there after a crash
			err = errors.Join(errUnknown, err)
		}
	}
	if err != nil {
		f.Close()
		return nil, &OpError{Op: "roll", Segment: s.name, Err: err}
	}
	return s, nil
}

// newSpare creates and allocates the file that becomes the next segment.
func newSpare(fsys disk.FS, dir string, size int64) (disk.File, error) {
	f, err := fsys.Create(path.Join(dir, spareName))
	if err != nil {
		return nil, &OpError{Op: "create", Segment: spareName, Err: err}
	}
	if err = f.Preallocate(size); err == nil {
		err = f.Sync()
	}
	if err != nil {
		f.Close()
		// Give the space back; Create empties the file when this fails.
		_ = fsys.Remove(path.Join(dir, spareName))
		return nil, &OpError{Op: "allocate", Segment: spareName, Err: err}
	}
	return f, nil
}

// window reads a file through one buffer.
type window struct {
	seg   *segment
	chunk int // bytes to read at once, at least
	// limit is where reading ahead stops; 0 = nowhere. Bytes behind what is
	// committed may change: they must not stay in the buffer.
	limit record.Position
	buf   []byte
	start record.Position // of buf[0]
}

// at returns n bytes from pos on, fewer at the end of the file. The slice is
// valid until the next call. An error is an *OpError.
func (w *window) at(pos record.Position, n int) ([]byte, error) {
	if pos >= w.start && pos+record.Position(n) <= w.start+record.Position(len(w.buf)) {
		off := int(pos - w.start)
		return w.buf[off : off+n], nil
	}
	want := w.chunk
	if w.limit > pos {
		want = int(min(record.Position(want), w.limit-pos))
	}
	want = max(n, want)
	if cap(w.buf) < want {
		w.buf = make([]byte, want)
	}
	w.buf = w.buf[:want]
	got, err := w.seg.file.ReadAt(w.buf, int64(pos-w.seg.base))
	w.buf, w.start = w.buf[:got], pos
	if err != nil && !errors.Is(err, io.EOF) {
		w.buf = w.buf[:0]
		return nil, &OpError{Op: "read", Segment: w.seg.name, Err: err}
	}
	return w.buf[:min(n, got)], nil
}
