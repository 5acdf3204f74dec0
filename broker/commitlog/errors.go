package commitlog

import (
	"errors"
	"fmt"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
)

// The errors that callers match with errors.Is.
var (
	// ErrFull: no space can be allocated, as a rule because the disk is full (the
	// cause is wrapped with it). Appends are refused, reads work, and the log
	// recovers by itself when there is space again.
	ErrFull = fmt.Errorf("commitlog: %w", ship.ErrFull)
	// ErrStopped: a write or fsync failed, so nobody can tell what is durable.
	// The log takes no append until the store is opened again.
	ErrStopped = errors.New("commitlog: stopped by a failed write")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("commitlog: closed")
	// ErrNotStarted: Append before Start or while the log follows, Replay after
	// Start, or following after Promote.
	ErrNotStarted = errors.New("commitlog: wrong state for this call")
	// ErrTooLarge: the batch exceeds what the log can store in one write.
	ErrTooLarge = errors.New("commitlog: batch is too large")
	// ErrInvalid: the batch has no entries, or an entry lacks its bytes.
	ErrInvalid = errors.New("commitlog: malformed batch")
	// ErrTrimmed: the position is below the oldest that is kept.
	ErrTrimmed = errors.New("commitlog: position is trimmed")
	// ErrBeyondEnd: the position is not below the committed end.
	ErrBeyondEnd = errors.New("commitlog: position is beyond the committed end")
	// ErrEpoch: the log has a lineage of that epoch, or of a later one.
	ErrEpoch = errors.New("commitlog: epoch is not above that of the last lineage")
)

// RawError says why a log does not do what a master asks of it. Nothing was
// changed. It is one of shipping's errors (errors.Is).
type RawError struct {
	Op       string          // append, truncate, lineage, read
	Position record.Position // where it is wrong
	What     string          // constant text
	Err      error           // of package ship
}

// Error implements error.
func (e *RawError) Error() string {
	return fmt.Sprintf("commitlog: %s at position %d: %s", e.Op, e.Position, e.What)
}

// Unwrap returns the error of package ship.
func (e *RawError) Unwrap() error { return e.Err }

func refused(op string, pos record.Position, what string) error {
	return &RawError{Op: op, Position: pos, What: what, Err: ship.ErrRefused}
}

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
	// Damage says that files are lost or damaged, which only a copy mends.
	Damage bool
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

// Damaged reports whether an error says that the bytes of a store are not what was once
// durable: opening it again does not help, a copy does.
func Damaged(err error) bool {
	var corrupt *CorruptError
	var store *StoreError
	return errors.As(err, &corrupt) || errors.As(err, &store) && store.Damage
}

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
