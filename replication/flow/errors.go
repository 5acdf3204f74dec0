package flow

import (
	"context"
	"errors"
	"fmt"

	"github.com/mqrouter/mqrouter/replication/wire"
)

// ErrTrimmed is returned (wrapped) by Source.Read when the number is below the
// oldest one that the origin can still read.
var ErrTrimmed = errors.New("flow: number is trimmed")

// ErrHeld matches every *HeldError: the destination cannot take a landing now
// and settled nothing of it.
var ErrHeld = errors.New("flow: destination is held")

// HeldError says why a Sink cannot take a landing now. errors.Is(err, ErrHeld)
// is true for it.
type HeldError struct {
	Code wire.Code // told to the origin in a ProbeReply; CodeOK stands for CodeHeld
	Err  error     // the cause; its text is told as well
}

// Error implements error.
func (e *HeldError) Error() string { return fmt.Sprintf("flow: held: %s: %v", e.code(), e.Err) }

// Unwrap returns the cause.
func (e *HeldError) Unwrap() error { return e.Err }

// Is reports whether target is ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

func (e *HeldError) code() wire.Code {
	if e.Code == wire.CodeOK {
		return wire.CodeHeld
	}
	return e.Code
}

// heldReason returns code and text of a reason to hold.
func heldReason(err error) (wire.Code, string) {
	var h *HeldError
	if errors.As(err, &h) {
		return h.code(), h.Error()
	}
	return wire.CodeHeld, err.Error()
}

// RefusedError says that one side of a session refused the other. The session
// is over; Code says whether the same may succeed later.
type RefusedError struct {
	Code  wire.Code
	Text  string
	Local bool // this side refused
}

// Error implements error.
func (e *RefusedError) Error() string {
	side := "peer"
	if e.Local {
		side = "this side"
	}
	return fmt.Sprintf("flow: session refused by %s: %s: %s", side, e.Code, e.Text)
}

// refused returns an error of this side.
func refused(code wire.Code, format string, args ...any) *RefusedError {
	return &RefusedError{Code: code, Text: fmt.Sprintf(format, args...), Local: true}
}

// codeOf returns what to tell the peer when a session ends with err.
func codeOf(err error) wire.Code {
	var r *RefusedError
	var f *wire.FrameError
	var c *wire.ClosedError
	var w interface{ WireCode() wire.Code } // a Dialer's own errors
	switch {
	case err == nil:
		return wire.CodeOK
	case errors.As(err, &r):
		return r.Code
	case errors.As(err, &f):
		return f.Code
	case errors.As(err, &c):
		return c.Code
	case errors.As(err, &w):
		return w.WireCode()
	case errors.Is(err, context.DeadlineExceeded):
		return wire.CodeTimeout
	case errors.Is(err, errNothing):
		return wire.CodeOK
	}
	return wire.CodeInternal
}
