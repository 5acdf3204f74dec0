package commitlog

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sort"
	"sync"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

// maxFound bounds the segments that a Scrubber remembers as damaged: a disk that has
// more of them is lost, and says enough.
const maxFound = 64

// Scrubber reads the sealed segments of a log from the disk, one after the other, and
// checks every frame, so that a byte that has rotten is found before somebody needs it
// or the last good copy goes. Steps are made by one goroutine; Found is safe for
// concurrent use.
type Scrubber struct {
	log *Log
	at  record.Position // where the next step begins; only the stepper's
	buf []byte          // only the stepper's

	mu    sync.Mutex
	found map[record.Position]*CorruptError // by the base of the segment; guarded by mu
}

// NewScrubber returns a scrubber that begins at the oldest segment.
func NewScrubber(l *Log) *Scrubber {
	return &Scrubber{log: l, found: map[record.Position]*CorruptError{}}
}

// Step checks about limit bytes, at least a frame, and returns how many it read. Damage
// that was not known is returned as fresh; the rest of its segment is not looked at. done
// says that everything that is sealed was checked: the next step begins a new round.
//
// Errors: the context's, ErrClosed.
func (s *Scrubber) Step(ctx context.Context, limit int) (n int, fresh *CorruptError, done bool, err error) {
	if err := ctx.Err(); err != nil {
		return 0, nil, false, err
	}
	list := *s.log.segments.Load()
	s.forget(list[0].base)
	s.at = max(s.at, s.log.Begin())
	i := sort.Search(len(list), func(i int) bool { return list[i].base > s.at }) - 1
	if i < 0 || i+1 >= len(list) {
		s.at = 0
		return 0, nil, true, nil
	}
	seg, stop := list[i], list[i+1].base
	from := max(s.at, seg.first())
	var next record.Position
	if seg.damage != nil {
		err = seg.damage
	} else {
		// What is checked is the disk, not the system's copy of it in memory; and nobody
		// else's copies are to make room for what is read here.
		off := int64(from - seg.base)
		disk.Forget(seg.file, off, int64(limit))
		s.buf, next, err = s.log.readFrames(seg, s.buf[:0], from, stop, limit)
		n = len(s.buf)
		disk.Forget(seg.file, off, int64(max(limit, n)))
		if err == nil && next == from {
			err = &CorruptError{Position: from, Segment: seg.name, What: "an entry goes on behind the segment's end"}
		}
	}
	switch {
	case errors.Is(err, ErrClosed):
		return n, nil, false, err
	case errors.Is(err, ErrTrimmed):
		return n, nil, false, nil // on from Begin
	case err != nil:
		s.at = stop
		return n, s.note(seg, next, err), false, nil
	}
	if s.at = next; next >= stop {
		s.mend(seg)
	}
	return n, nil, false, nil
}

// note remembers damage of a segment and returns it if it was not known.
func (s *Scrubber) note(seg *segment, pos record.Position, err error) *CorruptError {
	var bad *CorruptError
	if !errors.As(err, &bad) {
		bad = &CorruptError{Position: pos, Segment: seg.name, What: "it cannot be read", Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.found[seg.base]
	if known || len(s.found) < maxFound {
		s.found[seg.base] = bad
	}
	if known {
		return nil
	}
	return bad
}

// mend forgets what was wrong with a segment that is whole: a read may fail once.
func (s *Scrubber) mend(seg *segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.found, seg.base)
}

// forget drops what was found in segments that are trimmed.
func (s *Scrubber) forget(below record.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.found, func(base record.Position, _ *CorruptError) bool { return base < below })
}

// Wounds returns the parts of the log that are known to be damaged, oldest first.
func (s *Scrubber) Wounds() []Wound {
	list := *s.log.segments.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Wound
	for i := range len(list) - 1 {
		if bad := s.found[list[i].base]; bad != nil {
			all = append(all, Wound{From: list[i].base, To: list[i+1].base, Damage: bad})
		}
	}
	return all
}

// Mended forgets a wound that was mended.
func (s *Scrubber) Mended(w Wound) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.found, w.From)
}

// Found returns the damage that is known, oldest segment first, at most one of each.
func (s *Scrubber) Found() []*CorruptError {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.found), func(a, b *CorruptError) int { return cmp.Compare(a.Position, b.Position) })
}
