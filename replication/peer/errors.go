package peer

import (
	"errors"
	"fmt"
	"net"

	"github.com/mqrouter/mqrouter/replication/wire"
)

// Errors of the package.
var (
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("peer: closed")
	// ErrSession says that a session number is 0 or in use.
	ErrSession = errors.New("peer: session number is 0 or in use")
)

// Step is a part of connecting.
type Step string

// The steps.
const (
	StepConnect Step = "connect"
	StepTLS     Step = "tls"
	StepGreet   Step = "greet"
)

// DialError says at which step connecting to a peer failed. Err is an
// *IdentityError when this side refused the other's identity, and a
// *wire.ClosedError with a code when the other side refused the greeting.
type DialError struct {
	Link string   // node and address dialled
	As   Identity // the identity that was offered
	Step Step
	Err  error
}

// Error implements error.
func (e *DialError) Error() string {
	return fmt.Sprintf("peer: link %s as %s: %s: %v", e.Link, e.As, e.Step, e.Err)
}

// Unwrap returns the cause.
func (e *DialError) Unwrap() error { return e.Err }

// codeOf maps what ended a connection to what its sessions are told.
func codeOf(err error) wire.Code {
	var closed *wire.ClosedError
	var frame *wire.FrameError
	var ne net.Error
	switch {
	case errors.As(err, &closed):
		return closed.Code
	case errors.As(err, &frame):
		return frame.Code
	case errors.As(err, &ne) && ne.Timeout():
		return wire.CodeTimeout
	}
	return wire.CodeShutdown
}
