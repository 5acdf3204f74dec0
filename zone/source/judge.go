package source

import (
	"fmt"
	"strings"

	"github.com/mqrouter/mqrouter/zone"
)

// RefusalKind says why a topology was not applied.
type RefusalKind uint8

// The reasons why a topology is not applied.
const (
	Unreadable      RefusalKind = iota + 1 // the file could not be read
	Invalid                                // the file has faults; Cause is a *zone.ProblemsError
	OlderEpoch                             // a lower epoch than the running one
	OtherDigest                            // the running epoch with other values: two files claim one epoch
	OtherDeployment                        // the file of another deployment
	MuchSmaller                            // so much is missing that it is likelier a mistake; needs Confirm
	Moves                                  // shards, slots or the active GZone would change their owner, which this build does not do
)

// The reasons as targets for errors.Is.
var (
	ErrUnreadable      = &RefusedError{Kind: Unreadable}
	ErrInvalid         = &RefusedError{Kind: Invalid}
	ErrOlderEpoch      = &RefusedError{Kind: OlderEpoch}
	ErrOtherDigest     = &RefusedError{Kind: OtherDigest}
	ErrOtherDeployment = &RefusedError{Kind: OtherDeployment}
	ErrMuchSmaller     = &RefusedError{Kind: MuchSmaller}
	ErrMoves           = &RefusedError{Kind: Moves}
)

// RefusedError tells why a topology was not applied. The running one stays.
type RefusedError struct {
	Kind    RefusalKind
	Epoch   zone.Epoch  // of the refused topology; zero when it has none
	Digest  zone.Digest // of the refused topology; zero when it has none
	Running zone.Epoch  // of the topology that stays; zero at the start
	Detail  string      // what is missing or different; may be empty
	Cause   error       // for Unreadable and Invalid
}

// Error says what was refused, why, and what to do.
func (e *RefusedError) Error() string {
	switch e.Kind {
	case Unreadable:
		return fmt.Sprintf("topology not read: %v", e.Cause)
	case Invalid:
		return fmt.Sprintf("topology not valid:\n%v", e.Cause)
	case OlderEpoch:
		return fmt.Sprintf("topology refused: its epoch %s is lower than the running %s; raise the epoch", e.Epoch, e.Running)
	case OtherDigest:
		return fmt.Sprintf("topology refused: it has the running epoch %s and other values (digest %x); raise the epoch",
			e.Epoch, e.Digest[:6])
	case OtherDeployment:
		return fmt.Sprintf("topology refused: %s; a node belongs to one deployment", e.Detail)
	case MuchSmaller:
		return fmt.Sprintf("topology of epoch %s not applied by itself: %s; its digest is %x", e.Epoch, e.Detail, e.Digest[:6])
	}
	if e.Kind == Moves {
		return fmt.Sprintf("topology of epoch %s refused: moves are not supported: %s; keep the owners as they are", e.Epoch, e.Detail)
	}
	return fmt.Sprintf("topology refused: reason %d", uint8(e.Kind))
}

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Cause }

// Is reports whether target is a *RefusedError of the same kind.
func (e *RefusedError) Is(target error) bool {
	o, ok := target.(*RefusedError)
	return ok && o.Kind == e.Kind
}

// Judge decides whether next may take the place of running: nil when it may,
// else a *RefusedError. A topology equal to the running one may. Judge is
// pure, so that a preview and a node come to the same answer. running is nil
// at the start, when every valid topology may.
func Judge(running, next *zone.Topology) error {
	if running == nil || running == next {
		return nil
	}
	refuse := func(kind RefusalKind, detail string) error {
		return &RefusedError{Kind: kind, Epoch: next.Epoch, Digest: next.Digest, Running: running.Epoch, Detail: detail}
	}
	if next.Deployment != running.Deployment {
		return refuse(OtherDeployment, fmt.Sprintf("it describes deployment %q, and this is %q", next.Deployment, running.Deployment))
	}
	switch next.Epoch.Compare(running.Epoch) {
	case -1:
		return refuse(OlderEpoch, "")
	case 0:
		if next.Digest != running.Digest {
			return refuse(OtherDigest, "")
		}
		return nil
	}
	if moves := zone.Moves(running, next); len(moves) > 0 {
		return refuse(Moves, strings.Join(moves, "; "))
	}
	if lost := shrunk(running, next); lost != "" {
		return refuse(MuchSmaller, lost)
	}
	return nil
}

// shrunk names the first kind of thing of which fewer than half remain, or
// returns "".
func shrunk(running, next *zone.Topology) string {
	for _, c := range []struct {
		what     string
		old, now int
	}{
		{"cities", len(running.Cities), len(next.Cities)},
		{"zones", len(running.Zones()), len(next.Zones())},
		{"topics", len(running.Topics), len(next.Topics)},
		{"consumer groups", len(running.Groups), len(next.Groups)},
	} {
		if c.now*2 < c.old {
			return fmt.Sprintf("only %d of %d %s remain", c.now, c.old, c.what)
		}
	}
	return ""
}
