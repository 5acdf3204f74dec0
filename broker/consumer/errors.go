package consumer

import "fmt"

// Reason says why a handle is refused.
type Reason uint8

// The reasons.
const (
	ReasonMalformed    Reason = iota + 1 // not a handle, or not sealed with this secret
	ReasonForeign                        // of another store, group or topic, or beyond the queue's end
	ReasonExpired                        // the message was delivered again meanwhile
	ReasonReplaced                       // a change of the invisible time gave a new handle
	ReasonDeadLettered                   // the message is on its way to, or in, the dead-letter topic
	ReasonSettled                        // the message is settled (never an answer of Ack)
	ReasonReset                          // the group was made to go on elsewhere in that queue since
)

var reasonTexts = [...]string{
	ReasonMalformed:    "malformed",
	ReasonForeign:      "of another queue",
	ReasonExpired:      "expired",
	ReasonReplaced:     "replaced",
	ReasonDeadLettered: "of a dead-lettered message",
	ReasonSettled:      "of a settled message",
	ReasonReset:        "of before a reset of the group's offset",
}

// String returns a constant text.
func (r Reason) String() string {
	if int(r) < len(reasonTexts) && reasonTexts[r] != "" {
		return reasonTexts[r]
	}
	return "invalid"
}

// HandleError reports a receipt handle that does not name a delivery which the
// call could act on.
type HandleError struct{ Reason Reason }

func (e *HandleError) Error() string { return "consumer: receipt handle is " + e.Reason.String() }

// FormatError reports bytes that are not a delta or a snapshot.
type FormatError struct {
	What   string // "delta" or "snapshot"
	Offset int    // byte at which it was found
	Reason string // constant text
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("consumer: malformed %s at byte %d: %s", e.What, e.Offset, e.Reason)
}
