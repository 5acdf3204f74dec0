package commitlog

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
)

// following is what a log needs besides its writer's fields to follow. Until
// Promote these are its, under mu.
type following struct {
	mu      sync.Mutex
	started bool // guarded by mu
	over    bool // guarded by mu; promoted or closed
	calm    int  // guarded by mu; stretches in a row that were not ahead; see loosen
}

const (
	// looseAhead is how far Loose is moved at once, in bytes: one write of META for
	// so much of a log that is caught up with.
	looseAhead = 64 << 20
	// calmAfter is how many stretches must not be ahead before Loose is taken back:
	// a replica at the edge would write META with each of them.
	calmAfter = 64
)

// follow locks what a follower's call uses; unlock it with l.following.mu.
func (l *Log) follow() error {
	l.following.mu.Lock()
	err := ErrNotStarted
	if l.gated && !l.following.over { // else the fields are the writer's
		if err = l.writer.failed; err == nil {
			err = l.gate.failure() // what is committed cannot be read: it is of no use
		}
	}
	if err != nil {
		l.following.mu.Unlock()
	}
	return err
}

// AppendRaw writes what a master has written, at the end. Every length, position,
// checksum, lineage and identity is checked before anything is written. The bytes
// are the caller's again when it returns; they are not durable then.
//
// Errors: a *RawError (ship.ErrRefused) when they are not what follows; ErrFull;
// ErrStopped; ErrNotStarted when the log does not follow. After an error End has
// not moved.
func (l *Log) AppendRaw(_ context.Context, s ship.Stretch) error {
	if err := l.follow(); err != nil {
		return err
	}
	defer l.following.mu.Unlock()
	w := &l.writer
	row, ok := l.lastRow()
	switch {
	case l.blank.Load() || !ok:
		return refused("append", s.From, "the log has no lineage yet")
	case s.From != published(w.segment, w.end):
		return refused("append", s.From, "the log ends elsewhere")
	case len(s.Frames) == 0:
		return refused("append", s.From, "no frames")
	}
	at := s.From
	if s.Base {
		at += headerLen
	}
	mark, end, err := checkStretch(s.Frames, at, row, l.inc)
	switch {
	case err != nil:
		return err
	case end != s.Next:
		return refused("append", end, "the frames end elsewhere")
	}
	if err := l.loosen(mark, end); err != nil {
		return err
	}
	err = w.turn(&s)
	if err == nil {
		err = w.writeRaw(s.Frames)
	}
	switch {
	case errors.Is(err, ship.ErrRefused):
		return err
	case err != nil:
		return w.fault(err)
	case l.queue.refusing() != nil && l.queue.refuse(nil):
		l.options.Logger.Info("commit log takes what its master writes again")
	}
	l.gate.end.Store(uint64(w.end))
	l.gate.tell()
	return nil
}

// loosen sees to it that recovery does not take a position that the master has
// committed for one that was durable here. Where it is ahead of what is durable META
// says so, until it no longer is: a sync before each stretch would cost a replica that
// catches up more than the bytes do. mu is held.
func (l *Log) loosen(mark, end record.Position) error {
	w := &l.writer
	if mark > w.synced {
		l.following.calm = 0
		if end <= l.loose {
			return nil
		}
		return l.setLoose(end + looseAhead)
	}
	if l.following.calm++; l.loose <= w.end || l.following.calm < calmAfter {
		return nil
	}
	if err := w.syncRaw(); err != nil {
		return err
	}
	return l.setLoose(w.end)
}

func (l *Log) setLoose(p record.Position) error {
	if err := l.changeMeta(func(m *meta) { m.Loose = p }); err != nil {
		return l.writer.fault(err)
	}
	l.loose = p
	return nil
}

// changeMeta makes a change of META durable, once. After an error the old or the
// new content counts.
func (l *Log) changeMeta(change func(*meta)) error {
	return l.rewriteMeta(change, (*metaFile).writeOnce)
}

// changeMetaTwice is changeMeta for what must not be undone by damage to a slot.
func (l *Log) changeMetaTwice(change func(*meta)) error {
	return l.rewriteMeta(change, (*metaFile).writeTwice)
}

func (l *Log) rewriteMeta(change func(*meta), write func(*metaFile, *meta) error) error {
	l.metaUse <- struct{}{}
	defer func() { <-l.metaUse }()
	m := l.store.meta
	change(&m)
	if err := write(l.store.metaFile, &m); err != nil {
		return err
	}
	l.store.meta = m
	return nil
}

// turn makes the segment in use the one that the stretch is for.
func (w *writer) turn(s *ship.Stretch) error {
	empty := w.end == w.segment.first()
	switch {
	case s.Base && !empty:
		return w.rollRaw()
	case !s.Base && empty:
		return w.unroll()
	}
	return nil
}

// rollRaw ends the segment and begins one at its end, as the master did.
func (w *writer) rollRaw() error {
	if err := w.syncRaw(); err != nil {
		return err
	}
	l := w.log
	f, err := newSpare(l.options.FS, l.options.Dir, l.options.SegmentBytes)
	if err != nil {
		return err
	}
	return w.shift(f, l.options.SegmentBytes)
}

// unroll goes back to the segment before an empty one: the master that began the
// empty one is gone, and the next has gone on in the old one.
func (w *writer) unroll() error {
	l := w.log
	list := *l.segments.Load()
	if len(list) < 2 || list[len(list)-2].damage != nil {
		return refused("append", w.segment.base, "a segment must begin here")
	}
	return l.cutTo(w.segment.base, *l.table.Load())
}

// writeRaw writes frames at the end and keeps them for readers.
func (w *writer) writeRaw(frames []byte) error {
	if err := w.reserveRaw(int64(len(frames))); err != nil {
		return err
	}
	buf := append(make([]byte, 0, len(frames)), frames...)
	if _, err := w.segment.file.WriteAt(buf, int64(w.end-w.segment.base)); err != nil {
		w.repair = true
		return &OpError{Op: "write", Segment: w.segment.name, Err: err}
	}
	start := w.end
	w.end += record.Position(len(buf))
	w.log.tail.add(start, w.end, buf)
	return nil
}

// reserveRaw makes room at the end of the segment: the master's may be larger.
func (w *writer) reserveRaw(size int64) error {
	used := int64(w.end - w.segment.base)
	if w.repair {
		if err := w.repairEnd(used); err != nil {
			return &OpError{Op: "repair", Segment: w.segment.name, Err: err}
		}
		w.synced = w.end
		w.log.gate.synced.Store(uint64(published(w.segment, w.end)))
	}
	if used+size <= w.size {
		return nil
	}
	if err := w.segment.file.Preallocate(used + size); err != nil {
		return &OpError{Op: "allocate", Segment: w.segment.name, Err: err}
	}
	w.size = used + size
	return nil
}

// syncRaw makes everything that is written durable. An error stops the log.
func (w *writer) syncRaw() error {
	if w.synced == w.end {
		return nil
	}
	if err := w.segment.file.Sync(); err != nil {
		w.stop(&OpError{Op: "sync", Segment: w.segment.name, Err: err})
		return w.failed
	}
	w.synced = w.end
	w.log.gate.synced.Store(uint64(published(w.segment, w.end)))
	w.log.gate.tell()
	return nil
}

// Sync makes everything that was appended durable and returns Synced.
//
// Errors: ErrStopped, which is final; ErrNotStarted.
func (l *Log) Sync(context.Context) (record.Position, error) {
	if err := l.follow(); err != nil {
		return l.Synced(), err
	}
	defer l.following.mu.Unlock()
	err := l.writer.syncRaw()
	return l.Synced(), err
}

func (l *Log) lastRow() (LineageStart, bool) {
	table := *l.table.Load()
	if len(table) == 0 {
		return LineageStart{}, false
	}
	return table[len(table)-1], true
}

// AddLineage appends a row to the lineage table of a log that follows. At nil it
// and everything before it are durable.
//
// Errors: a *RawError when it does not begin at End (or behind the header of a
// segment that would begin there), with an epoch above the last one's; ErrStopped;
// ErrNotStarted.
func (l *Log) AddLineage(_ context.Context, row record.LineageStart) error {
	if err := l.follow(); err != nil {
		return err
	}
	defer l.following.mu.Unlock()
	last, _ := l.lastRow()
	if row.First == l.End()+headerLen {
		row.First -= headerLen // behind the header of a segment that would begin there
	}
	switch {
	case l.blank.Load():
		return refused("lineage", row.First, "the log is of no store yet")
	case row.First != l.End():
		return refused("lineage", row.First, "the log ends elsewhere")
	case row.Epoch <= last.Epoch || row.ID == 0:
		return refused("lineage", row.First, "it does not follow the last lineage")
	}
	if err := l.writer.syncRaw(); err != nil {
		return err
	}
	return l.beginLineage(row)
}

// beginLineage makes a row durable and adds it to the table.
func (l *Log) beginLineage(row LineageStart) error {
	err := l.changeMetaTwice(func(m *meta) {
		m.Lineage = append([]LineageStart(nil), m.Lineage...)
		m.addLineage(row)
		m.Blank = false
	})
	if err != nil {
		// One slot or both may have it: no other row may begin here now.
		return l.writer.fault(errors.Join(errUnknown, err))
	}
	l.blank.Store(false)
	l.setTable(l.store.meta.Lineage)
	return nil
}

func (l *Log) setTable(rows []LineageStart) {
	rows = append([]LineageStart(nil), rows...)
	l.table.Store(&rows)
}

// Truncate drops what stands at or above to, where a frame begins or ends, and the
// lineages that begin there or above. At nil that is durable; a crash before leaves
// at least what is below.
//
// Errors: a *RawError, which is ship.ErrCommitted when to is below Committed;
// ErrStopped; ErrNotStarted; *CorruptError; those of Options.Keep.
func (l *Log) Truncate(ctx context.Context, to record.Position) error {
	if err := l.follow(); err != nil {
		return err
	}
	defer l.following.mu.Unlock()
	switch {
	case to < l.Committed():
		return &RawError{Op: "truncate", Position: to, What: "what is committed stays", Err: ship.ErrCommitted}
	case to > l.End():
		return refused("truncate", to, "the log ends before")
	}
	last, ok := l.lastRow()
	if to == l.End() && (!ok || last.First < to) {
		return nil
	}
	if _, _, err := l.LastFrame(ctx, to); err != nil {
		return err
	}
	if err := l.keep(ctx, to); err != nil {
		return err
	}
	if err := l.cutTo(to, cutRows(*l.table.Load(), to)); err != nil {
		return l.writer.fault(err)
	}
	return nil
}

// Keep saves what stands at or above a position, before the store is replaced by
// another one; see Options.Keep.
//
// Errors: ErrStopped; ErrNotStarted; those of Options.Keep.
func (l *Log) Keep(ctx context.Context, from record.Position) error {
	if err := l.follow(); err != nil {
		return err
	}
	defer l.following.mu.Unlock()
	return l.keep(ctx, max(from, l.Begin()))
}

// keep is Keep with mu held.
func (l *Log) keep(ctx context.Context, from record.Position) error {
	if l.options.Keep == nil || from >= l.End() {
		return nil
	}
	return l.options.Keep(ctx, from, l.End())
}

// cutTo cuts the log and leaves it the lineages. META first says that it will be
// cut, so that Open finishes what a crash leaves half done.
func (l *Log) cutTo(to record.Position, rows []LineageStart) error {
	w := &l.writer
	err := l.changeMeta(func(m *meta) {
		m.Lineage, m.Cut, m.CleanEnd, m.Loose = rows, to, 0, min(m.Loose, to)
	})
	if err != nil {
		return errors.Join(errUnknown, err)
	}
	l.loose = min(l.loose, to)
	l.setTable(rows)
	l.tail.cut(to)
	list := *l.segments.Load()
	kept, err := cutSegments(&l.options, list, to)
	if err != nil {
		return errors.Join(errUnknown, err)
	}
	l.segmentMu.Lock()
	list = append([]*segment(nil), kept...)
	l.segments.Store(&list)
	l.segmentMu.Unlock()
	w.segment = list[len(list)-1]
	w.end = max(to, w.segment.first())
	w.synced, w.size, w.repair = w.end, max(l.options.SegmentBytes, int64(w.end-w.segment.base)), false
	l.gate.end.Store(uint64(published(w.segment, w.end)))
	l.gate.synced.Store(l.gate.end.Load())
	l.gate.tell()
	if err := l.changeMetaTwice(func(m *meta) { m.Cut = 0 }); err != nil {
		return errors.Join(errUnknown, err)
	}
	return nil
}

// cutSegments removes everything at and above to from the files and returns the
// segments that are left, at least one. It may be repeated.
func cutSegments(o *Options, list []*segment, to record.Position) (kept []*segment, err error) {
	n := len(list)
	for ; n > 1 && list[n-1].base >= to; n-- {
		s := list[n-1]
		if s.file != nil {
			s.file.Close()
		}
		if err := o.FS.Remove(path.Join(o.Dir, s.name)); err != nil && !isNotExist(err) {
			return nil, &OpError{Op: "remove", Segment: s.name, Err: err}
		}
	}
	if err := o.FS.SyncDir(o.Dir); err != nil {
		return nil, &OpError{Op: "truncate", Segment: list[n-1].name, Err: err}
	}
	s := list[n-1]
	if s.damage != nil {
		return nil, s.damage
	}
	size := max(int64(to)-int64(s.base), headerLen)
	if have, err := s.file.Size(); err != nil || have < size {
		return nil, &CorruptError{Position: s.base, Segment: s.name, What: "segment is too short", Err: err}
	}
	for _, step := range []func() error{
		func() error { return s.file.Truncate(size) },
		func() error {
			if err := s.file.Preallocate(max(o.SegmentBytes, size)); !disk.IsFull(err) {
				return err
			}
			return nil // the next write asks for its room
		},
		s.file.Sync,
	} {
		if err := step(); err != nil {
			return nil, &OpError{Op: "truncate", Segment: s.name, Err: err}
		}
	}
	return list[:n], nil
}

// Promote makes a log that follows that of a master: everything in it becomes
// durable, the lineage begins at its end, and it takes appends. The lineage's
// record comes first. What was not committed before stays so until Commit.
//
// Errors: ErrEpoch when the epoch is not above the last one; ErrStopped;
// ErrNotStarted before Start, after an earlier Promote and after Close.
func (l *Log) Promote(_ context.Context, epoch uint64, id record.LineageID) error {
	if err := l.follow(); err != nil {
		return err
	}
	defer l.following.mu.Unlock()
	last, _ := l.lastRow()
	switch {
	case !l.following.started:
		return ErrNotStarted
	case epoch <= last.Epoch || id == 0:
		return fmt.Errorf("%w: %d after %d", ErrEpoch, epoch, last.Epoch)
	}
	w := &l.writer
	if err := w.syncRaw(); err != nil {
		return err
	}
	if l.loose > 0 {
		if err := l.setLoose(0); err != nil {
			return err
		}
	}
	row := LineageStart{Epoch: epoch, ID: id, First: l.End()}
	if err := l.beginLineage(row); err != nil {
		return err
	}
	l.lineage, l.following.over = row, true
	l.promoted = true
	w.marked = true
	l.queue.start()
	signal(l.needed)
	l.running.Go(func() { l.writer.run() })
	l.preparing.Go(l.prepare)
	return nil
}
