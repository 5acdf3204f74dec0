package queue

import "context"

// Options configures a store.
type Options struct {
	FS             FS
	Dir            string
	SegmentEntries int // entries in a segment; 0 means 1 << 18 (4 MiB)
	TailEntries    int // entries of an index kept in memory before they are flushed; 0 means 4096 (64 KiB)
	MaxOpenFiles   int // file descriptors kept open; 0 means 512
}

// Store owns the indexes of a broker.
type Store struct{}

// Open opens the store, creating its directory if need be. It opens no index.
func Open(o Options) (*Store, error) { return &Store{}, nil }

// Index returns the index with the name (1 to 400 bytes, any characters),
// opening or creating it. Errors: *NameError, *CorruptError, ErrClosed, those
// of the disk. The same value is returned until Delete. Safe for concurrent use.
func (s *Store) Index(name string) (*Index, error) { return &Index{name: name}, nil }

// List returns the names of the indexes that have something on disk or are
// open, sorted.
func (s *Store) List() ([]string, error) { return nil, nil }

// Flush flushes every index with unflushed entries; the first error is
// returned after all were tried. Writer only.
func (s *Store) Flush() error { return nil }

// Sync makes durable what was flushed before the call, in every index. A
// snapshot takes Next of each index after Flush, and is written after Sync
// returned nil. Safe for concurrent use with everything but Close.
func (s *Store) Sync(ctx context.Context) error { return nil }

// Delete removes the index and its files. Readers of it get ErrClosed. Writer only.
func (s *Store) Delete(name string) error { return nil }

// Close flushes, syncs and closes everything. A second Close returns nil.
func (s *Store) Close() error { return nil }
