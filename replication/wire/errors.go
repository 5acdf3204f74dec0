package wire

import (
	"errors"
	"fmt"
)

// Causes of a FrameError.
var (
	errTooLarge = errors.New("above its bound")
	errChecksum = errors.New("checksum differs")
	errUnknown  = errors.New("unknown")
	errRange    = errors.New("out of range")
	errShort    = errors.New("cut off")
)

// FrameError says that bytes are no frame, or one that this version cannot
// handle. Code is CodeMalformed or CodeUnsupported: what to tell the peer.
type FrameError struct {
	Type  Type // 0 when the header itself is at fault
	Code  Code
	Field string
	Err   error
}

// Error implements error.
func (e *FrameError) Error() string {
	return fmt.Sprintf("wire: %s frame: %s: %v", e.Type, e.Field, e.Err)
}

// Unwrap returns the cause.
func (e *FrameError) Unwrap() error { return e.Err }

// ClosedError says that the stream has ended, with the code that the side that
// ended it gave.
type ClosedError struct {
	Code  Code
	Text  string // detail for people; may be empty
	Local bool   // this side ended it
}

// Error implements error.
func (e *ClosedError) Error() string {
	side := "peer"
	if e.Local {
		side = "this side"
	}
	if e.Text == "" {
		return fmt.Sprintf("wire: stream ended by %s: %s", side, e.Code)
	}
	return fmt.Sprintf("wire: stream ended by %s: %s: %s", side, e.Code, e.Text)
}
