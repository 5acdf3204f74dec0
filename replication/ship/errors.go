package ship

import (
	"errors"
	"fmt"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

var (
	// ErrReplaced: the store was replaced by the master's. Its owner closes it, opens
	// it again and follows on.
	ErrReplaced = errors.New("ship: the store was replaced by the master's")
	// ErrOver: the leader does not lead any more. Sessions end with it.
	ErrOver = errors.New("ship: not master any more")
)

// StepDownReason says why a master stopped being one.
type StepDownReason uint8

// The reasons.
const (
	StepDownSuperseded StepDownReason = iota + 1 // the coordinator named another epoch or nobody
	StepDownLease                                // the lease ended
	StepDownLog                                  // the log takes no writes any more
)

// String returns the form used in logs and metrics.
func (r StepDownReason) String() string {
	switch r {
	case StepDownSuperseded:
		return "superseded"
	case StepDownLease:
		return "lease-ended"
	case StepDownLog:
		return "log-failed"
	}
	return "unknown"
}

// StepDownError says that a master must answer nothing any more.
type StepDownError struct {
	Group  zone.Group
	Epoch  uint64 // that ended
	Reason StepDownReason
	Err    error // cause; may be nil
}

// Error implements error.
func (e *StepDownError) Error() string {
	s := fmt.Sprintf("ship: group %s epoch %d: master steps down: %s", e.Group, e.Epoch, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns ErrOver and the cause.
func (e *StepDownError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrOver}
	}
	return []error{ErrOver, e.Err}
}

// DivergedError says that a replica holds what its group committed and the master
// does not, or another store altogether: going on would lose it. The replica stops;
// an operator decides.
type DivergedError struct {
	Group     zone.Group
	Master    zone.Node
	Epoch     uint64
	What      string          // constant text
	Common    record.Position // end of what both logs have in common, if it is known
	Verified  bool            // Common is where the logs part: their lineages say so, and nothing that was compared differs
	LogEpoch  uint64          // of the replica's last lineage
	Committed record.Position // of the replica
	End       record.Position // of the replica
}

// Error implements error.
func (e *DivergedError) Error() string {
	return fmt.Sprintf("ship: group %s: this copy and that of %s in epoch %d have diverged: %s (common up to %d, committed here up to %d, end %d)",
		e.Group, e.Master, e.Epoch, e.What, e.Common, e.Committed, e.End)
}

// RefusedError says that a master did not take a replica's session.
type RefusedError struct {
	Master zone.Node
	Code   wire.Code
	Text   string
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("ship: %s refuses: %s: %s", e.Master, e.Code, e.Text)
}

// LogError says that a replica's log failed in a way after which it is of no use
// until it is opened again.
type LogError struct {
	Op  string // "append", "sync", "truncate", "lineage", "install"
	Err error
}

// Error implements error.
func (e *LogError) Error() string { return "ship: replica's log: " + e.Op + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *LogError) Unwrap() error { return e.Err }

// protocolError says that the other side broke the protocol.
type protocolError struct {
	what string
	code wire.Code
}

// Error implements error.
func (e *protocolError) Error() string { return "ship: " + e.what }

func breach(what string) error { return &protocolError{what: what, code: wire.CodeMalformed} }
