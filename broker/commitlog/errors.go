package commitlog

import (
	"errors"
	"fmt"

	"github.com/mqrouter/mqrouter/replication/record"
)

// The errors that callers match with errors.Is.
var (
	// ErrFull: no space can be allocated, as a rule because the disk is full (the
	// cause is wrapped with it). Appends are refused, reads work, and the log
	// recovers by itself when there is space again.
	ErrFull = errors.New("commitlog: no space can be allocated")
	// ErrStopped: a write or fsync failed, so nobody can tell what is durable.
	// The log takes no append until the store is opened again.
	ErrStopped = errors.New("commitlog: stopped by a failed write")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("commitlog: closed")
	// ErrNotStarted: Append before Start, or Replay after it.
	ErrNotStarted = errors.New("commitlog: wrong state for this call")
	// ErrTooLarge: the batch exceeds what the log can store in one write.
	ErrTooLarge = errors.New("commitlog: batch is too large")
	// ErrInvalid: the batch has no entries, or an entry lacks its bytes.
	ErrInvalid = errors.New("commitlog: malformed batch")
	// ErrTrimmed: the position is below the oldest that is kept.
	ErrTrimmed = errors.New("commitlog: position is trimmed")
	// ErrBeyondEnd: the position is not below the committed end.
	ErrBeyondEnd = errors.New("commitlog: position is beyond the committed end")
)

// CorruptError reports bytes of the log that are not what was once durable
// there. It is never used for a torn tail.
type CorruptError struct {
	Position record.Position // of the frame that is bad, or where one was expected
	Segment  string          // file name
	What     string          // constant text
	Err      error           // cause; may be nil
}

// Error implements error.
func (e *CorruptError) Error() string {
	s := fmt.Sprintf("commitlog: corrupt at position %d in %s: %s", e.Position, e.Segment, e.What)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Err }

// StoreError reports that a folder cannot be opened as this log's store.
type StoreError struct {
	Dir  string
	What string // constant text
	Err  error  // cause; may be nil
}

// Error implements error.
func (e *StoreError) Error() string {
	s := fmt.Sprintf("commitlog: open store %s: %s", e.Dir, e.What)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *StoreError) Unwrap() error { return e.Err }

// OpError reports a failed operation on a file of the store.
type OpError struct {
	Op      string // "read", "write", "sync", "roll", "trim"
	Segment string // file name
	Err     error
}

// Error implements error.
func (e *OpError) Error() string {
	return fmt.Sprintf("commitlog: %s %s: %v", e.Op, e.Segment, e.Err)
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }
