package commitlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
)

// mendName is a segment that is being received. Open removes it.
const mendName = "mend.new"

// retireAfter is how long the file of a segment that was replaced stays open: a reader
// that has just found it reads on.
const retireAfter = time.Minute

// Wound is a sealed part of the log that is damaged on this disk: a segment, from its base
// to where the next one begins.
type Wound struct {
	From, To record.Position
	Damage   *CorruptError
}

// ErrNoWound: the part is not one that can be mended: it is not sealed, not committed, or
// was trimmed meanwhile.
var ErrNoWound = errors.New("commitlog: not a sealed part of this log")

// Source returns the stretch of another member's log that begins at a position: whole
// frames of one segment and lineage, as ReadRaw returns them there. It may return less
// than there is.
type Source func(ctx context.Context, from record.Position) (ship.Stretch, error)

// Mend replaces the segment that begins at from, of a log with replicas, by what the source
// returns. Every length, position, checksum, lineage and identity is checked. A lineage
// is written by one master, which gives each position once, so what passes is what stood
// here. The damaged file keeps its name until the whole new one is durable and was read
// again; then it is replaced in one step, so that a crash leaves the one or the other.
// What the segment should hold and a lost one behind it are mended together.
//
// Errors: ErrNoWound, a *RawError (ship.ErrRefused) when the source returns something else,
// those of the source, ErrFull, *OpError, ErrClosed, the context's. The log is as before
// then.
func (l *Log) Mend(ctx context.Context, from record.Position, source Source) error {
	select {
	case l.mending <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.mending }()
	list := *l.segments.Load()
	i := slices.IndexFunc(list, func(s *segment) bool { return s.base == from })
	if !l.gated || i < 0 || i+1 == len(list) || list[i+1].base > l.Committed() {
		return ErrNoWound
	}
	for stop := list[i+1].base; from < stop; {
		next, err := l.mendSegment(ctx, from, stop, source)
		if err != nil {
			return err
		}
		from = next
	}
	return nil
}

// mendSegment makes one segment anew and returns where it ends.
func (l *Log) mendSegment(ctx context.Context, base, stop record.Position, source Source) (end record.Position, err error) {
	o := &l.options
	name := path.Join(o.Dir, mendName)
	f, err := o.FS.Create(name)
	if err != nil {
		return 0, full(&OpError{Op: "create", Segment: mendName, Err: err})
	}
	installed := false
	defer func() {
		if !installed {
			f.Close()
			_ = o.FS.Remove(name) // Open removes it, too
		}
	}()
	var head [headerLen]byte
	putSegmentHeader(head[:], l.inc, base, time.Now())
	if _, err := f.WriteAt(head[:], 0); err != nil {
		return 0, full(&OpError{Op: "write", Segment: mendName, Err: err})
	}
	if end, err = l.receive(ctx, f, base, stop, source); err != nil {
		return 0, err
	}
	s := &segment{base: base, name: segmentName(base), file: f}
	if err := l.readAll(ctx, s, end); err != nil {
		return 0, fmt.Errorf("what was received for %s does not read well: %w", s.name, err)
	}
	if installed, err = l.install(s); err != nil {
		return 0, err
	}
	if err := o.FS.SyncDir(o.Dir); err != nil { // the one or the other is there after a crash
		return 0, &OpError{Op: "mend", Segment: s.name, Err: err}
	}
	return end, nil
}

// full marks an error of a disk without room.
func full(err error) error {
	if disk.IsFull(err) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

// receive writes what the source returns behind the header, up to stop or to where the
// other log begins another segment, and makes it durable.
func (l *Log) receive(ctx context.Context, f disk.File, base, stop record.Position, source Source) (record.Position, error) {
	at := base
	for at < stop {
		st, err := source(ctx, at)
		if err != nil {
			return 0, err
		}
		if st.Base && at > base {
			break
		}
		first := at
		if at == base {
			first += headerLen
		}
		switch {
		case st.From != at || st.Base != (at == base) || len(st.Frames) == 0 || st.Next > stop:
			return 0, refused("mend", at, "not the part that was asked for")
		}
		row, ok := lineageAt(*l.table.Load(), first)
		if !ok {
			return 0, refused("mend", at, "it is of a lineage that is not known any more")
		}
		_, end, err := checkStretch(st.Frames, first, row, l.inc)
		switch {
		case err != nil:
			return 0, err
		case end != st.Next:
			return 0, refused("mend", end, "the frames end elsewhere")
		}
		if _, err := f.WriteAt(st.Frames, int64(first-base)); err != nil {
			return 0, full(&OpError{Op: "write", Segment: mendName, Err: err})
		}
		at = end
	}
	if err := f.Sync(); err != nil {
		return 0, full(&OpError{Op: "sync", Segment: mendName, Err: err})
	}
	return at, nil
}

// readAll reads a segment that is not in use yet.
func (l *Log) readAll(ctx context.Context, s *segment, end record.Position) error {
	var buf []byte
	for at := s.first(); at < end; {
		if err := ctx.Err(); err != nil {
			return err
		}
		frames, next, err := l.readFrames(s, buf[:0], at, end, scanChunk)
		if err != nil {
			return err
		}
		buf, at = frames, next
	}
	return nil
}

// install puts a whole and durable segment in the place of the one with its base, or where
// one was lost.
func (l *Log) install(s *segment) (installed bool, err error) {
	o := &l.options
	l.following.mu.Lock() // a truncation works on the list, too
	defer l.following.mu.Unlock()
	l.segmentMu.Lock()
	defer l.segmentMu.Unlock()
	list := slices.Clone(*l.segments.Load())
	switch {
	case l.queue.isClosed():
		return false, ErrClosed
	case s.base < list[0].base || s.base >= list[len(list)-1].base:
		return false, ErrNoWound // trimmed, or cut off
	}
	if err := o.FS.Rename(path.Join(o.Dir, mendName), path.Join(o.Dir, s.name)); err != nil {
		return false, &OpError{Op: "mend", Segment: s.name, Err: err}
	}
	i, found := slices.BinarySearchFunc(list, s.base, func(x *segment, base record.Position) int { return cmp.Compare(x.base, base) })
	if found {
		if list[i].file != nil {
			l.retire(list[i].file)
		}
		list[i] = s
	} else {
		list = slices.Insert(list, i, s)
	}
	l.segments.Store(&list)
	return true, nil
}

// retired is a file that was replaced.
type retired struct {
	file disk.File
	at   time.Time
}

// retire closes a file later on, and those that were retired long ago now. The caller
// holds segmentMu.
func (l *Log) retire(f disk.File) {
	l.retired = append(l.retired, retired{f, time.Now()})
	for len(l.retired) > 0 && time.Since(l.retired[0].at) > retireAfter {
		l.retired[0].file.Close()
		l.retired = l.retired[1:]
	}
}

// closeRetired closes what is left, after the last reader.
func (l *Log) closeRetired() {
	l.segmentMu.Lock()
	defer l.segmentMu.Unlock()
	for _, r := range l.retired {
		r.file.Close()
	}
	l.retired = nil
}
