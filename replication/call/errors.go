package call

import (
	"fmt"

	"github.com/mqrouter/mqrouter/zone"
)

// Fault says that a call was looked at and not done. It travels from the answerer
// to the caller as it is.
type Fault struct {
	Kind uint16 // not 0; in the terms of package broker
	Text string // for people; cut at wire.MaxText bytes on its way
}

// Error returns the text.
func (e *Fault) Error() string { return e.Text }

// Error says that a call was not answered. The same call may succeed later.
type Error struct {
	Group zone.Group
	Sent  bool // it was sent: it may have been done all the same
	Err   error
}

// Error names the group and says whether the call may have been done.
func (e *Error) Error() string {
	if e.Sent {
		return fmt.Sprintf("group %s did not answer, and may have done what was asked: %v", e.Group, e.Err)
	}
	return fmt.Sprintf("group %s cannot be asked: %v", e.Group, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
