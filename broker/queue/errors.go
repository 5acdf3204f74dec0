package queue

import (
	"errors"
	"fmt"

	"github.com/mqrouter/mqrouter/replication/record"
)

// ErrClosed is returned by an index that was closed or deleted.
var ErrClosed = errors.New("queue: index is closed")

// ErrNotRecovered is returned by the writing calls of an index that was found
// on disk and neither truncated nor reset since: what a crash left in it is
// not known yet.
var ErrNotRecovered = errors.New("queue: index was neither truncated nor reset since it was opened")

// CorruptError reports files that do not hold what they should. The index can
// be derived from the log again.
type CorruptError struct {
	Name   string // of the index
	Path   string // of the file; empty when one is missing
	Number uint64 // the number at which it was found
	Reason string // constant text
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("queue: index %q is corrupt at number %d (file %q): %s", e.Name, e.Number, e.Path, e.Reason)
}

// RangeError reports a number that the index does not hold.
type RangeError struct {
	Name        string
	Number      uint64
	First, Next uint64
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("queue: index %q holds the numbers from %d and below %d, not %d", e.Name, e.First, e.Next, e.Number)
}

// OrderError reports an append that would break the order of an index.
type OrderError struct {
	Name string
	Last record.Position // position of the last entry
	Got  Entry
}

func (e *OrderError) Error() string {
	return fmt.Sprintf("queue: index %q: entry of %d bytes at position %d does not follow position %d", e.Name, e.Got.Size, e.Got.Position, e.Last)
}

// NameError reports a name that no index can have.
type NameError struct{ Name string }

func (e *NameError) Error() string {
	return fmt.Sprintf("queue: index name of %d bytes; 1 to %d are allowed", len(e.Name), maxName)
}

// SyncError reports a sync that failed. The operating system may have dropped
// what was written before, so that the store refuses every later sync with
// the same error; what is in the files is checked at the next start.
type SyncError struct {
	Path string
	Err  error
}

func (e *SyncError) Error() string { return "queue: sync " + e.Path + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *SyncError) Unwrap() error { return e.Err }
