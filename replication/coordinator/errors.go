package coordinator

import (
	"fmt"

	"github.com/mqrouter/mqrouter/zone"
)

// Kind says why a coordinator did not do what was asked. It is itself an error, so
// that errors.Is(err, KindStaleEpoch) works on any error that wraps an *Error.
type Kind uint8

// The kinds. Their numbers are part of the wire format.
const (
	// KindStaleEpoch: the caller does not lead the epoch that it named, or no more. A
	// master stops at once.
	KindStaleEpoch Kind = iota + 1
	// KindStaleVersion: the term changed meanwhile. Read it and decide anew.
	KindStaleVersion
	// KindNoQuorum: the coordinator cannot decide now: it has no leader, no quorum, no
	// disk, or cannot be reached. Ask again later. What was asked may have been done.
	KindNoQuorum
	// KindNotFound: no such group, or the node is not one of it.
	KindNotFound
	// KindNoCandidate: nobody can be master without losing what was acknowledged.
	KindNoCandidate
	// KindRefused: what was asked breaks a rule of the coordinator, now and later.
	KindRefused
)

// Error returns the kind's words.
func (k Kind) Error() string {
	switch k {
	case KindStaleEpoch:
		return "not master of this epoch"
	case KindStaleVersion:
		return "the term has changed"
	case KindNoQuorum:
		return "the coordinator cannot decide now"
	case KindNotFound:
		return "no such member of a broker group"
	case KindNoCandidate:
		return "no candidate"
	case KindRefused:
		return "against the rules"
	}
	return fmt.Sprintf("coordinator error %d", uint8(k))
}

// Retriable says whether the same request may succeed later.
func (k Kind) Retriable() bool { return k == KindNoQuorum || k == KindNoCandidate }

// Error says what a coordinator did not do, and why.
type Error struct {
	Op    string     // the method, in lower case: "renew"
	Group zone.Group // "" for Terms
	Kind  Kind
	Text  string // more for people; may be empty
	Err   error  // the cause; may be nil
}

// Error names operation, group, kind and what else is known.
func (e *Error) Error() string {
	s := "coordinator: " + e.Op
	if e.Group != "" {
		s += " group " + string(e.Group)
	}
	s += ": " + e.Kind.Error()
	if e.Text != "" {
		s += ": " + e.Text
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}
