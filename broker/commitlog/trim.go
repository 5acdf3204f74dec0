package commitlog

import (
	"context"
	"errors"
	"path"
	"sort"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
)

// errEnough ends a scan that has found what it looked for.
var errEnough = errors.New("enough")

func (l *Log) addSegment(s *segment) {
	l.segmentMu.Lock()
	defer l.segmentMu.Unlock()
	old := *l.segments.Load()
	list := append(append(make([]*segment, 0, len(old)+1), old...), s)
	l.segments.Store(&list)
}

// dropSegments takes the segments below begin out of the list.
func (l *Log) dropSegments(begin record.Position) (dropped []*segment) {
	l.segmentMu.Lock()
	defer l.segmentMu.Unlock()
	old := *l.segments.Load()
	n := sort.Search(len(old), func(i int) bool { return old[i].base >= begin })
	list := append([]*segment(nil), old[n:]...)
	l.segments.Store(&list)
	return old[:n]
}

// Trim removes the segments that lie wholly below before and returns the new
// Begin. The segment in use stays. When it returns nil, Begin is durable; a file
// that could not be removed is logged and removed by the next Open. Readers of
// trimmed positions get ErrTrimmed, also in the middle of a Scan. It blocks on
// the disk, not on appends.
//
// Errors: *OpError (nothing was trimmed), ErrClosed.
func (l *Log) Trim(before record.Position) (record.Position, error) {
	l.metaUse <- struct{}{}
	defer func() { <-l.metaUse }()
	if errors.Is(l.queue.writable(), ErrClosed) {
		return l.Begin(), ErrClosed
	}
	before = min(before, l.Committed())
	if l.gated {
		before = min(before, record.Position(l.gate.told.Load()))
		if !errors.Is(l.queue.refusing(), ErrFull) {
			before = min(before, l.gate.retained())
		}
	}
	list := *l.segments.Load()
	i := sort.Search(len(list), func(i int) bool { return list[i].base > before }) - 1
	if i <= 0 || list[i].base <= l.Begin() {
		return l.Begin(), nil
	}
	begin := list[i].base
	m := l.store.meta // fields that Trim changes are copied, not shared
	m.Begin = begin
	if err := l.store.metaFile.write(&m); err != nil {
		return l.Begin(), &OpError{Op: "trim", Segment: metaName, Err: err}
	}
	l.store.meta.Begin = begin
	l.begin.Store(uint64(begin))
	o := &l.options
	for _, s := range l.dropSegments(begin) {
		if s.file != nil {
			s.file.Close()
		}
		if err := o.FS.Remove(path.Join(o.Dir, s.name)); err != nil {
			o.Logger.Warn("a trimmed segment could not be removed", "segment", s.name, "err", err)
		}
	}
	if err := o.FS.SyncDir(o.Dir); err != nil {
		o.Logger.Warn("the removal of trimmed segments could not be synced", "err", err)
	}
	return begin, nil
}

// SegmentTime says what a segment holds.
type SegmentTime struct {
	Base, End record.Position
	// First is the stored (own records) or landed time of the first entry; zero
	// when there is none. Last is the First of the next segment with entries;
	// zero for the segment in use. Clocks may have been set back between.
	First, Last time.Time
}

// SegmentTimes returns the segments in ascending order with their times, so
// that a search by time knows where to scan. It reads the first entry of each
// segment from the disk, once.
func (l *Log) SegmentTimes(ctx context.Context) ([]SegmentTime, error) {
	list, end := *l.segments.Load(), l.Committed()
	times := make([]SegmentTime, len(list))
	for i, s := range list {
		times[i] = SegmentTime{Base: s.base, End: end}
		if i+1 < len(list) {
			times[i].End = list[i+1].base
		}
		if s.damage != nil || s.base >= end {
			continue
		}
		if first := s.began.Load(); first != nil {
			times[i].First = *first
			continue
		}
		err := l.Scan(ctx, s.base, times[i].End, func(e Entry) error {
			first := entryTime(e)
			times[i].First = first
			s.began.Store(&first)
			return errEnough
		})
		switch {
		case errors.Is(err, ErrTrimmed):
			continue
		case err != nil && !errors.Is(err, errEnough):
			return nil, err
		}
	}
	for i := len(times) - 2; i >= 0; i-- {
		if times[i].Last = times[i+1].First; times[i].Last.IsZero() {
			times[i].Last = times[i+1].Last
		}
	}
	return times, nil
}

// entryTime returns when the entry was stored here; zero when it cannot tell.
func entryTime(e Entry) time.Time {
	if e.Kind == KindLanding {
		var env record.Envelope
		if _, err := record.ParseEnvelope(e.Envelope, &env); err == nil {
			return env.Landed
		}
		return time.Time{}
	}
	if v, err := record.Parse(e.Record); err == nil {
		return v.Stored()
	}
	return time.Time{}
}
