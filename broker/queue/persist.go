package queue

import (
	"context"
	"errors"
	"io"
	"slices"
	"sort"
	"sync"
)

// readFile reads entries that are in a segment, at least one.
func (x *Index) readFile(v *view, from uint64, dst []Entry) (int, error) {
	i := sort.Search(len(v.segs), func(i int) bool { return v.segs[i].first > from }) - 1
	g, end := v.segs[i], v.start
	if i+1 < len(v.segs) {
		end = v.segs[i+1].first
	}
	dst = dst[:min(uint64(len(dst)), end-from)]
	h, err := x.store.files.acquire(g.path)
	if err != nil {
		return 0, err
	}
	n, err := readEntries(h, g, from, dst)
	if err == nil && n < len(dst) {
		err = &CorruptError{Name: x.name, Path: g.path, Number: from + uint64(n), Reason: "entry is empty, missing or damaged"}
	}
	return n, errors.Join(err, x.store.files.release(h))
}

// readBuffer is what one read of a file takes at most.
type readBuffer [chunkEntries * entrySize]byte

var readBuffers = sync.Pool{New: func() any { return new(readBuffer) }}

// readEntries reads entries of a file into dst, up to the first one that is
// missing, empty or damaged.
func readEntries(f io.ReaderAt, g *segment, from uint64, dst []Entry) (int, error) {
	buf := readBuffers.Get().(*readBuffer)
	defer readBuffers.Put(buf)
	done := 0
	for done < len(dst) {
		b := buf[:min(len(buf), entrySize*(len(dst)-done))]
		n, err := f.ReadAt(b, g.offset(from+uint64(done)))
		if err != nil && !errors.Is(err, io.EOF) {
			return done, err
		}
		for i := range n / entrySize {
			e, ok := getEntry(b[i*entrySize:], from+uint64(done))
			if !ok {
				return done, nil
			}
			dst[done] = e
			done++
		}
		if n < len(b) {
			break
		}
	}
	return done, nil
}

// header reads the header of a file, or less when the file is shorter.
func (s *Store) header(path string) ([]byte, error) {
	h, err := s.files.acquire(path)
	if err != nil {
		return nil, err
	}
	b := make([]byte, headerSize)
	n, err := h.ReadAt(b, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], errors.Join(err, s.files.release(h))
}

// load looks at the segments with the given first numbers, ascending. What
// they hold without a hole can be read; the rest waits for Truncate or Reset.
func (x *Index) load(firsts []uint64) error {
	v := &view{}
	x.recovered = len(firsts) == 0
	if !x.recovered {
		v.first, v.start = firsts[0], firsts[0]
	}
	for _, first := range firsts {
		v.segs = append(v.segs, &segment{owner: x, first: first, path: x.store.path(baseName(x.name), first)})
	}
	for i, g := range v.segs {
		if g.first != v.start {
			break
		}
		count, err := x.count(g)
		if err != nil {
			return err
		}
		if i+1 < len(v.segs) {
			count = min(count, v.segs[i+1].first-g.first)
		}
		v.start += count
	}
	x.flushed = v.start
	x.view.Store(v)
	x.next.Store(v.start)
	return nil
}

// count returns how many entries a segment has room for by its length; none
// when its header is not what it should be.
func (x *Index) count(g *segment) (uint64, error) {
	b, err := x.store.header(g.path)
	if err != nil {
		return 0, err
	}
	if name, first, reason := parseHeader(b); reason != "" || name != x.name || first != g.first {
		return 0, nil
	}
	h, err := x.store.files.acquire(g.path)
	if err != nil {
		return 0, err
	}
	size, err := h.Size()
	if err = errors.Join(err, x.store.files.release(h)); err != nil {
		return 0, err
	}
	return uint64(max(size-headerSize, 0)) / entrySize, nil
}

// Flush hands the entries in memory to the operating system. After an error
// nothing is lost and a later Flush tries again. Writer only.
func (x *Index) Flush() error {
	if !x.recovered {
		return nil // as it was found; nothing was appended
	}
	next := x.next.Load()
	if next > 0 && len(x.view.Load().segs) == 0 {
		// Also when it is empty: that it begins at next must be known.
		if err := x.roll(); err != nil {
			return err
		}
	}
	for x.flushed < next {
		v := x.view.Load()
		g := v.segs[len(v.segs)-1]
		room := uint64(x.store.opts.SegmentEntries) - min(x.flushed-g.first, uint64(x.store.opts.SegmentEntries))
		if room == 0 {
			if err := x.roll(); err != nil {
				return err
			}
			continue
		}
		b := x.store.buf[:0]
		n := min(room, next-x.flushed, chunkEntries*4)
		for i := range n {
			at := x.flushed + i - v.start
			b = append(b, make([]byte, entrySize)...)
			putEntry(b[i*entrySize:], x.flushed+i, v.tail[at/chunkEntries][at%chunkEntries])
		}
		x.store.buf = b
		if err := x.write(g, b, g.offset(x.flushed)); err != nil {
			return err
		}
		x.flushed += n
	}
	return nil
}

func (x *Index) write(g *segment, b []byte, at int64) error {
	h, err := x.store.files.acquire(g.path)
	if err != nil {
		return err
	}
	x.store.mark(g, false)
	_, err = h.WriteAt(b, at)
	return errors.Join(err, x.store.files.release(h))
}

// roll begins a segment at what is flushed.
func (x *Index) roll() error {
	g := &segment{owner: x, first: x.flushed, path: x.store.path(baseName(x.name), x.flushed)}
	h, err := x.store.files.create(g.path)
	if err != nil {
		return err
	}
	x.store.mark(g, true)
	_, err = h.WriteAt(appendHeader(nil, x.name, g.first), 0)
	if err = errors.Join(err, x.store.files.release(h)); err != nil {
		return err
	}
	v := *x.view.Load()
	v.segs = append(slices.Clip(v.segs), g)
	x.view.Store(&v)
	return nil
}

// Sync makes durable what was flushed before the call. Errors are those of
// Store.Sync. Safe for concurrent use.
func (x *Index) Sync(ctx context.Context) error {
	return x.store.sync(ctx, func(g *segment) bool { return g.owner == x })
}

// Truncate cuts the index back so that Next is next: what follows is
// discarded, as is what a crash left torn. It is called after a restart with
// what the snapshot says, before anyone reads. *CorruptError when the files do
// not hold every number from First to next; the index then stays as it is, and
// the caller may Reset it and append from the log again. Writer only.
func (x *Index) Truncate(next uint64) error {
	if x.closed.Load() {
		return ErrClosed
	}
	if err := x.Flush(); err != nil {
		return err
	}
	last, err := x.holds(next)
	if err != nil {
		return err
	}
	v := *x.view.Load()
	if len(v.segs) == 0 {
		return x.Reset(0)
	}
	if next == v.segs[0].first {
		return x.Reset(next) // even the header may be torn
	}
	if err := x.discard(&v, next); err != nil {
		return err
	}
	g := v.segs[len(v.segs)-1]
	if err := x.shorten(g, g.offset(next)); err != nil {
		return err
	}
	x.restart(&view{first: min(v.first, next), segs: slices.Clip(v.segs), start: next}, last)
	return nil
}

// holds returns the entry before next, or *CorruptError when the files cannot be
// cut back to next. It changes nothing.
func (x *Index) holds(next uint64) (last Entry, err error) {
	v := *x.view.Load()
	if next == 0 && len(v.segs) == 0 {
		return last, nil
	}
	if reason := v.lacks(next, x.flushed); reason != "" {
		return last, &CorruptError{Name: x.name, Number: min(next, x.flushed), Reason: reason}
	}
	if next == v.segs[0].first {
		return last, nil
	}
	var one [1]Entry
	v.start = x.flushed
	_, err = x.readFile(&v, next-1, one[:])
	return one[0], err
}

// lacks says why the files cannot be cut back to next; empty when they can.
func (v *view) lacks(next, flushed uint64) string {
	switch {
	case len(v.segs) == 0:
		return "there is no file"
	case next < v.segs[0].first:
		return "the files begin behind it"
	case next > flushed:
		return "the files end before it"
	}
	return ""
}

func (x *Index) shorten(g *segment, size int64) error {
	h, err := x.store.files.acquire(g.path)
	if err != nil {
		return err
	}
	x.store.mark(g, false)
	return errors.Join(h.Truncate(size), x.store.files.release(h))
}

// restart begins again behind what the view has in files.
func (x *Index) restart(v *view, last Entry) {
	x.last, x.begun = last.Position, last.Size != 0
	x.flushed, x.current, x.fill, x.recovered = v.start, nil, 0, true
	x.next.Store(v.start)
	x.view.Store(v)
}

// discard removes the segments that begin at from or behind it; newest first,
// so that a crash in between leaves no hole. After an error the index is not
// to be appended to before another Truncate or Reset.
func (x *Index) discard(v *view, from uint64) error {
	for n := len(v.segs); n > 0 && v.segs[n-1].first >= from; n-- {
		if err := x.store.remove(v.segs[n-1].path); err != nil {
			x.recovered = false
			return err
		}
		v.segs = v.segs[:n-1]
	}
	return nil
}

// Reset discards everything; the next Append gets the number next. Writer only.
func (x *Index) Reset(next uint64) error {
	if x.closed.Load() {
		return ErrClosed
	}
	v := *x.view.Load()
	if err := x.discard(&v, 0); err != nil {
		return err
	}
	x.restart(&view{first: next, start: next}, Entry{})
	if next > 0 && !x.waiting {
		x.waiting = true
		x.store.unflushed = append(x.store.unflushed, x)
	}
	return nil
}

// TrimBefore makes number the first one (Next when it is beyond that) and
// removes the segments that lie wholly below it, but never the last. First
// falls back to the beginning of a segment when the store is opened again.
// Writer only.
func (x *Index) TrimBefore(number uint64) error {
	if !x.recovered {
		return ErrNotRecovered
	}
	v := *x.view.Load()
	v.first = max(v.first, min(number, x.next.Load()))
	drop := 0
	for drop+1 < len(v.segs) && v.segs[drop+1].first <= v.first {
		drop++
	}
	gone := v.segs[:drop]
	v.segs = slices.Clip(v.segs[drop:])
	x.view.Store(&v)
	var errs []error
	for _, g := range gone {
		errs = append(errs, x.store.remove(g.path))
	}
	return errors.Join(errs...)
}
