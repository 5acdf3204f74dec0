package queue

import "github.com/mqrouter/mqrouter/replication/record"

// Entry says where the record of one number is.
type Entry struct {
	Position record.Position // of the record's frame in the log
	Size     uint32          // bytes of that frame; never 0
	Hash     uint32          // hash of the tag; 0 when the record has none
}

// Index is the append-only sequence of one queue or flow.
type Index struct {
	name string
}

// Name returns the name under which the store opened the index.
func (x *Index) Name() string { return x.name }

// First returns the lowest number that can be read; it equals Next when the
// index is empty. Safe for concurrent use.
func (x *Index) First() uint64 { return 0 }

// Next returns the number that the next Append gets. Safe for concurrent use.
func (x *Index) Next() uint64 { return 0 }

// Append gives e the next number and returns it. It does not wait for the
// disk: entries stay in memory until Flush, which Append calls itself when the
// tail in memory has reached its bound. Its errors are programming faults or
// corruption: *OrderError when the position does not ascend or the size is 0,
// ErrClosed. A refused write of the tail (disk full) is not an error of
// Append: the tail then grows until a later Flush succeeds. Writer only.
func (x *Index) Append(e Entry) (uint64, error) { return 0, nil }

// Get returns the entry of number i: *RangeError when i is below First or not
// below Next, *CorruptError, ErrClosed or the error of the disk. Safe for
// concurrent use; takes no lock while i is in memory.
func (x *Index) Get(i uint64) (Entry, error) { return Entry{}, nil }

// Read fills dst with consecutive entries from the number on and returns how
// many it filled: less than len(dst) only at the end of the index, 0 when from
// equals Next. Errors are those of Get; entries before the fault are counted.
// Safe for concurrent use.
func (x *Index) Read(from uint64, dst []Entry) (int, error) { return 0, nil }

// Search returns the number of the record at pos and true, or the number of
// the first record behind pos (Next when there is none) and false. Safe for
// concurrent use.
func (x *Index) Search(pos record.Position) (i uint64, found bool, err error) { return 0, false, nil }

// Truncate cuts the index back so that Next is next: what follows is
// discarded, as is what a crash left torn. It is called after a restart with
// what the snapshot says, before anyone reads. *CorruptError when the files do
// not hold every number from First to next; the index then stays as it is, and
// the caller may Reset it and append from the log again. Writer only.
func (x *Index) Truncate(next uint64) error { return nil }

// Reset discards everything; the next Append gets the number next. Writer only.
func (x *Index) Reset(next uint64) error { return nil }

// Flush hands the entries in memory to the operating system. After an error
// nothing is lost and a later Flush tries again. Writer only.
func (x *Index) Flush() error { return nil }

// Sync makes durable what was flushed before the call. After an error the
// index refuses further syncs with it, since the operating system may have
// dropped the bytes. Safe for concurrent use.
func (x *Index) Sync() error { return nil }

// TrimBefore makes i the first number (Next when i is beyond it) and removes
// the segments that lie wholly below. First falls back to the bound of a
// segment when the store is opened again. Writer only.
func (x *Index) TrimBefore(i uint64) error { return nil }
