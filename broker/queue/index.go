package queue

import (
	"sync/atomic"

	"github.com/mqrouter/mqrouter/replication/record"
)

// Entry says where the record of one number is.
type Entry struct {
	Position record.Position // of the record's frame in the log
	Size     uint32          // bytes of that frame; never 0
	Hash     uint32          // hash of the tag; 0 when the record has none
	Label    uint8           // the owner's own; 0 = none
}

// MaxPosition is the highest position that an entry can name: in files its
// uppermost byte holds the label.
const MaxPosition = record.Position(1)<<labelShift - 1

// chunkEntries is how many entries are allocated at once: 6 KiB, so that one
// append in 256 allocates. The first chunk begins with firstEntries and doubles:
// most of thousands of queues have few entries, 192 bytes then.
const (
	chunkEntries = 256
	firstEntries = 8
)

// chunk has chunkEntries, or fewer when it is the only one and not full.
type chunk []Entry

// Index is the append-only sequence of one queue or flow.
type Index struct {
	name  string // the names of its files come from it
	store *Store

	// Readers load next, then view: the view that belongs to a number is
	// published before the number is.
	next   atomic.Uint64
	view   atomic.Pointer[view]
	closed atomic.Bool

	// What follows belongs to the writer.
	last      record.Position // of the entry before next; valid when next > first
	begun     bool            // last is valid
	flushed   uint64          // entries below are in files
	current   chunk           // that takes the next entry; nil = none yet
	fill      int             // entries in current
	waiting   bool            // in Store.unflushed
	looked    uint64          // next when Store.ShedIdle last looked
	recovered bool            // safe to append to
}

// view is what readers see besides next. It is immutable; entries of the last
// chunk are written before next is moved over them.
type view struct {
	first uint64     // lowest number that can be read
	segs  []*segment // ascending, without holes
	tail  []chunk    // the entries from start on
	start uint64     // entries below are in segs
}

// at returns the entry of a number from memory.
func (v *view) at(number uint64) (Entry, bool) {
	if number < v.first || number < v.start || (number-v.start)/chunkEntries >= uint64(len(v.tail)) {
		return Entry{}, false
	}
	i := number - v.start
	c := v.tail[i/chunkEntries]
	if i %= chunkEntries; i >= uint64(len(c)) {
		return Entry{}, false
	}
	return c[i], true
}

// Name returns the name under which the store opened the index.
func (x *Index) Name() string { return x.name }

// First returns the lowest number that can be read; it equals Next when the
// index is empty. Safe for concurrent use.
func (x *Index) First() uint64 { return x.view.Load().first }

// Next returns the number that the next Append gets. Safe for concurrent use.
func (x *Index) Next() uint64 { return x.next.Load() }

// Append gives e the next number and returns it. It does not wait for the
// disk: entries stay in memory until Flush, which Append calls itself when
// Options.TailEntries are unflushed. That a flush was refused (disk full) is
// no error of Append: memory then grows until a later Flush succeeds, at most
// by what the log accepts meanwhile. Errors: *OrderError when the position
// does not ascend or is above MaxPosition, or the size is 0, ErrNotRecovered, ErrClosed. Writer only.
func (x *Index) Append(e Entry) (uint64, error) {
	if e.Size == 0 || e.Position > MaxPosition || (x.begun && e.Position <= x.last) {
		return 0, &OrderError{Name: x.name, Last: x.last, Got: e}
	}
	if x.fill == len(x.current) || !x.waiting {
		if err := x.grow(); err != nil {
			return 0, err
		}
	}
	n := x.next.Load()
	x.current[x.fill] = e
	x.fill++
	x.last, x.begun = e.Position, true
	x.next.Store(n + 1)
	return n, nil
}

// grow makes room for an entry: it flushes a tail that is long enough, lets go
// of what is in files and appends a chunk.
func (x *Index) grow() error {
	if x.closed.Load() {
		return ErrClosed
	}
	if !x.recovered {
		return ErrNotRecovered
	}
	next := x.next.Load()
	switch {
	case x.fill < len(x.current):
	case 0 < x.fill && x.fill < chunkEntries: // the first one: it is replaced by a larger one
		v := *x.view.Load()
		x.current = append(make(chunk, 0, 2*x.fill), x.current...)[:2*x.fill]
		v.tail = []chunk{x.current}
		x.view.Store(&v)
	default:
		if next-x.flushed >= uint64(x.store.opts.TailEntries) {
			x.store.noteFlush(x.Flush())
		}
		v := *x.view.Load()
		for len(v.tail) >= x.store.tailChunks && v.start+chunkEntries <= x.flushed {
			v.tail = v.tail[1:]
			v.start += chunkEntries
		}
		size := chunkEntries
		if x.current == nil {
			size = firstEntries
		}
		x.current, x.fill = make(chunk, size), 0
		// A fresh slice: readers of the old view keep theirs.
		v.tail = append(append(make([]chunk, 0, len(v.tail)+1), v.tail...), x.current)
		x.view.Store(&v)
	}
	if !x.waiting {
		x.waiting = true
		x.store.unflushed = append(x.store.unflushed, x)
	}
	return nil
}

// Get returns the entry of a number: *RangeError when the index does not hold
// it, *CorruptError, ErrClosed or the error of the disk. Safe for concurrent
// use; takes no lock and does not allocate while the entry is in memory.
func (x *Index) Get(number uint64) (Entry, error) {
	if number < x.next.Load() {
		if e, ok := x.view.Load().at(number); ok {
			return e, nil
		}
	}
	var one [1]Entry
	n, err := x.Read(number, one[:])
	if n == 0 && err == nil {
		err = x.outside(number)
	}
	return one[0], err
}

// Read fills dst with consecutive entries from a number on and returns how
// many it filled: fewer than len(dst) only at the end of the index, 0 when
// from equals Next. Errors are those of Get; entries before the fault count.
// Safe for concurrent use.
func (x *Index) Read(from uint64, dst []Entry) (int, error) {
	next := x.next.Load()
	if from > next {
		return 0, x.outside(from)
	}
	dst = dst[:min(uint64(len(dst)), next-from)]
	done := 0
	for done < len(dst) {
		n, err := x.read(from+uint64(done), dst[done:])
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// read fills a part of dst, at least one entry. All of dst is below next.
func (x *Index) read(from uint64, dst []Entry) (int, error) {
	v := x.view.Load()
	switch {
	case x.closed.Load():
		return 0, ErrClosed
	case from < v.first:
		return 0, x.outside(from)
	case from >= v.start:
		i := from - v.start
		if i/chunkEntries >= uint64(len(v.tail)) || i%chunkEntries >= uint64(len(v.tail[i/chunkEntries])) {
			return 0, x.outside(from) // deleted or reset under our eyes
		}
		return copy(dst, v.tail[i/chunkEntries][i%chunkEntries:]), nil
	}
	n, err := x.readFile(v, from, dst)
	if err != nil && from < x.First() {
		return 0, x.outside(from) // trimmed under our eyes
	}
	return n, err
}

func (x *Index) outside(number uint64) error {
	if x.closed.Load() {
		return ErrClosed
	}
	return &RangeError{Name: x.name, Number: number, First: x.First(), Next: x.Next()}
}

// Search returns the number of the record at pos and true, or the number of
// the first record behind pos (Next when there is none) and false. Errors are
// those of Get. Safe for concurrent use.
func (x *Index) Search(pos record.Position) (number uint64, found bool, err error) {
	hi := x.next.Load()
	v := x.view.Load()
	lo := v.first
	if mid := max(lo, v.start); mid < hi { // decide between files and memory
		if e, ok := v.at(mid); ok && e.Position <= pos {
			lo = mid
		} else if ok {
			hi = mid
		}
	}
	// Entries below lo are before pos, those from hi on are not.
	for hi-lo > chunkEntries {
		mid := lo + (hi-lo)/2
		e, err := x.Get(mid)
		switch {
		case err != nil && mid < x.First():
			lo = x.First()
			hi = max(hi, lo)
		case err != nil:
			return 0, false, err
		case e.Position < pos:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	var block [chunkEntries + 1]Entry // with the one at hi, which may be it
	n := 0
	for {
		lo = max(lo, x.First())
		if n, err = x.Read(lo, block[:]); err == nil {
			break
		}
		if lo >= x.First() { // else trimmed under our eyes
			return 0, false, err
		}
	}
	for i, e := range block[:n] {
		if e.Position >= pos {
			return lo + uint64(i), e.Position == pos, nil
		}
	}
	return lo + uint64(n), false, nil
}
