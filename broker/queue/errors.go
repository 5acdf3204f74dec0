package queue

import (
	"errors"
	"fmt"

	"github.com/mqrouter/mqrouter/replication/record"
)

// ErrClosed is returned by an index that was closed or deleted.
var ErrClosed = errors.New("queue: index is closed")

// CorruptError reports files that do not hold what they should. The index can
// be derived from the log again.
type CorruptError struct {
	Name   string // of the index; empty when it could not be read
	Path   string // of the file or directory
	Number uint64 // the number at which it was found
	Reason string // constant text
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("queue: index %q is corrupt at number %d (%s): %s", e.Name, e.Number, e.Path, e.Reason)
}

// RangeError reports a number that the index does not hold.
type RangeError struct {
	Name        string
	Number      uint64
	First, Next uint64
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("queue: index %q holds numbers %d to %d (exclusive), not %d", e.Name, e.First, e.Next, e.Number)
}

// OrderError reports an append that would break the order of an index.
type OrderError struct {
	Name string
	Last record.Position // position of the last entry
	Got  Entry
}

func (e *OrderError) Error() string {
	return fmt.Sprintf("queue: index %q: entry at position %d of %d bytes does not follow position %d", e.Name, e.Got.Position, e.Got.Size, e.Last)
}

// NameError reports a name that no index can have.
type NameError struct{ Name string }

func (e *NameError) Error() string {
	return fmt.Sprintf("queue: index name of %d bytes; 1 to %d are allowed", len(e.Name), maxName)
}

// maxName is the longest name of an index in bytes; it has its place in the
// header of every segment.
const maxName = 400
