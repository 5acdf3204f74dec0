package queue

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"sync"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// Options configures a store.
type Options struct {
	FS             disk.FS
	Dir            string // made when it does not exist; nobody else writes there
	SegmentEntries int    // entries in a segment; 0 means 1 << 18 (4 MiB)
	TailEntries    int    // unflushed entries at which an index flushes itself, and about what it keeps in memory; 0 means 1024 (24 KiB)
	MaxOpenFiles   int    // descriptors kept open; 0 means 512
}

const (
	defaultSegmentEntries = 1 << 18
	defaultTailEntries    = 1024
	defaultMaxOpenFiles   = 512
)

// Store owns the indexes of a broker.
type Store struct {
	opts       Options
	tailChunks int // chunks that an index keeps in memory
	files      *files

	mu      sync.Mutex
	indexes map[string]*Index   // open ones by name; guarded by mu, as is all below
	found   map[string][]uint64 // first numbers of segments on disk by base name, of indexes not open
	closed  bool

	dirtyMu  sync.Mutex
	dirty    []*segment // written since their last sync; guarded by dirtyMu, as is all below
	names    bool       // the folder changed since its last sync
	broken   error      // a sync failed
	flushErr error      // of the last flush that an Append tried; nil after a good one

	syncing sync.Mutex // one Sync at a time; guards nothing else

	// What follows belongs to the writer.
	unflushed []*Index
	buf       []byte
}

// Open opens the store. It lists the folder once and opens no index.
func Open(o Options) (*Store, error) {
	if o.SegmentEntries <= 0 {
		o.SegmentEntries = defaultSegmentEntries
	}
	if o.TailEntries <= 0 {
		o.TailEntries = defaultTailEntries
	}
	if o.MaxOpenFiles <= 0 {
		o.MaxOpenFiles = defaultMaxOpenFiles
	}
	if err := o.FS.MkdirAll(o.Dir); err != nil {
		return nil, err
	}
	names, err := o.FS.List(o.Dir)
	if err != nil {
		return nil, err
	}
	s := &Store{
		opts:       o,
		tailChunks: max(1, (o.TailEntries+chunkEntries-1)/chunkEntries),
		files:      newFiles(o.FS, o.MaxOpenFiles),
		indexes:    make(map[string]*Index),
		found:      make(map[string][]uint64),
	}
	for _, n := range names {
		if base, first, ok := parseFileName(n); ok {
			s.found[base] = append(s.found[base], first)
		}
	}
	return s, nil
}

// Index returns the index with the name (1 to 400 bytes, any characters),
// opening or creating it. Errors: *NameError, ErrClosed, those of the disk.
// The same value is returned until Delete. Safe for concurrent use; opening
// one that is on disk reads its headers, and other calls of Index wait for it.
func (s *Store) Index(name string) (*Index, error) {
	if name == "" || len(name) > maxName {
		return nil, &NameError{Name: name}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if x := s.indexes[name]; x != nil {
		return x, nil
	}
	x, base := &Index{name: name, store: s}, baseName(name)
	firsts := s.found[base]
	slices.Sort(firsts)
	if err := x.load(firsts); err != nil {
		return nil, err
	}
	delete(s.found, base)
	s.indexes[name] = x
	return x, nil
}

// List returns the names of all indexes, open or on disk, sorted. Files whose
// header cannot be read are left out.
func (s *Store) List() ([]string, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	names := make([]string, 0, len(s.indexes)+len(s.found))
	for n := range s.indexes {
		names = append(names, n)
	}
	var paths []string
	for base, firsts := range s.found {
		paths = append(paths, s.path(base, slices.Min(firsts)))
	}
	s.mu.Unlock()
	for _, p := range paths {
		h, err := s.header(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue // opened, cut or deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		if name, _, reason := parseHeader(h); reason == "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func (s *Store) path(base string, first uint64) string {
	return path.Join(s.opts.Dir, fileName(base, first))
}

// Recover cuts each index in next back to the number given, and removes every
// other index. It is called once after Open, with what the snapshot says, or
// with nil when there is none. *CorruptError (joined, one an index) when the
// files hold less; nothing is changed then, so that an older snapshot may do.
// Writer only.
func (s *Store) Recover(next map[string]uint64) error {
	if err := s.holds(next); err != nil {
		return err
	}
	keep := make(map[string]bool, len(next))
	for name := range next {
		keep[baseName(name)] = true
	}
	s.mu.Lock()
	var drop []*Index
	for name, x := range s.indexes {
		if _, ok := next[name]; !ok {
			drop = append(drop, x)
		}
	}
	var paths []string
	for base, firsts := range s.found {
		if !keep[base] {
			for _, first := range firsts {
				paths = append(paths, s.path(base, first))
			}
			delete(s.found, base)
		}
	}
	s.mu.Unlock()
	var errs []error
	for _, x := range drop {
		errs = append(errs, x.Reset(0))
	}
	for _, p := range paths {
		errs = append(errs, s.remove(p))
	}
	for _, name := range slices.Sorted(maps.Keys(next)) {
		x, err := s.Index(name)
		if err == nil {
			err = x.Truncate(next[name])
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Damaged returns which of the indexes in next cannot be cut back to the number
// given, sorted. As Recover, it looks at headers, lengths and last entries
// only. It changes nothing. Errors are those of the disk.
func (s *Store) Damaged(next map[string]uint64) ([]string, error) {
	var damaged []string
	for _, name := range slices.Sorted(maps.Keys(next)) {
		x, err := s.Index(name)
		if err == nil {
			_, err = x.holds(next[name])
		}
		var corrupt *CorruptError
		switch {
		case errors.As(err, &corrupt):
			damaged = append(damaged, name)
		case err != nil:
			return nil, err
		}
	}
	return damaged, nil
}

// holds returns what the files lack of the indexes in next.
func (s *Store) holds(next map[string]uint64) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(next)) {
		x, err := s.Index(name)
		if err == nil {
			_, err = x.holds(next[name])
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Flush flushes every index with unflushed entries; all are tried, the errors
// are joined. Writer only.
func (s *Store) Flush() error {
	var errs []error
	left := s.unflushed[:0]
	for _, x := range s.unflushed {
		if err := x.Flush(); err != nil {
			errs = append(errs, err)
			left = append(left, x)
			continue
		}
		x.waiting = false
	}
	clear(s.unflushed[len(left):])
	s.unflushed = left
	err := errors.Join(errs...)
	s.noteFlush(err)
	return err
}

// FlushError returns why entries that should be in files are still in memory;
// nil when the last flush was good. Safe for concurrent use.
func (s *Store) FlushError() error {
	s.dirtyMu.Lock()
	defer s.dirtyMu.Unlock()
	return s.flushErr
}

func (s *Store) noteFlush(err error) {
	s.dirtyMu.Lock()
	defer s.dirtyMu.Unlock()
	s.flushErr = err
}

// mark notes a segment for the next Sync.
func (s *Store) mark(g *segment, created bool) {
	s.dirtyMu.Lock()
	defer s.dirtyMu.Unlock()
	s.names = s.names || created
	if !g.dirty {
		g.dirty = true
		s.dirty = append(s.dirty, g)
	}
}

// Sync makes durable what was flushed before the call, in every index. Errors:
// *SyncError (also of an earlier Sync); the context's, or those of opening a
// file, after which a later call does the rest. Safe for concurrent use
// with everything but Close.
func (s *Store) Sync(ctx context.Context) error {
	return s.sync(ctx, func(*segment) bool { return true })
}

func (s *Store) sync(ctx context.Context, which func(*segment) bool) error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	s.dirtyMu.Lock()
	if s.broken != nil {
		defer s.dirtyMu.Unlock()
		return s.broken
	}
	var todo, rest []*segment
	for _, g := range s.dirty {
		if which(g) {
			todo = append(todo, g)
			g.dirty = false
		} else {
			rest = append(rest, g)
		}
	}
	names := s.names
	s.dirty, s.names = rest, false
	s.dirtyMu.Unlock()
	for i, g := range todo {
		h, err := (*handle)(nil), ctx.Err()
		if err == nil {
			h, err = s.files.acquire(g.path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // trimmed or deleted meanwhile
		}
		if err != nil { // nothing is lost: a later call does it
			for _, g := range todo[i:] {
				s.mark(g, names)
			}
			return err
		}
		if err := errors.Join(h.Sync(), s.files.release(h)); err != nil {
			return s.fail(g.path, err)
		}
	}
	if names {
		if err := s.opts.FS.SyncDir(s.opts.Dir); err != nil {
			return s.fail(s.opts.Dir, err)
		}
	}
	return nil
}

func (s *Store) fail(path string, err error) error {
	s.dirtyMu.Lock()
	defer s.dirtyMu.Unlock()
	s.broken = &SyncError{Path: path, Err: err}
	return s.broken
}

// remove removes a file; one that does not exist is no error.
func (s *Store) remove(path string) error {
	err := s.files.forget(path)
	if e := s.opts.FS.Remove(path); !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	s.dirtyMu.Lock()
	defer s.dirtyMu.Unlock()
	s.names = true
	return err
}

// Delete removes the index and its files; its readers get ErrClosed from then
// on. Deleting one that does not exist is no error. Writer only.
func (s *Store) Delete(name string) error {
	x, err := s.Index(name)
	if err != nil {
		return err
	}
	err = x.Reset(0)
	x.closed.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.indexes, name)
	return err
}

// Close flushes, syncs and closes everything; readers get ErrClosed from then
// on. A second Close returns nil.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	indexes := s.indexes
	s.mu.Unlock()
	err := errors.Join(s.Flush(), s.Sync(context.Background()))
	for _, x := range indexes {
		x.closed.Store(true)
	}
	return errors.Join(err, s.files.close())
}
