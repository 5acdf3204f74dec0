package broker

import (
	"errors"
	"strings"

	"github.com/mqrouter/mqrouter/zone"
)

// Kind says what is wrong, so that a front end can choose its status.
type Kind uint8

// The kinds of errors. Their values travel in calls between brokers: new ones come
// at the end.
const (
	KindTopicUnknown      Kind = iota + 1 // the topology does not declare the topic
	KindGroupUnknown                      // the consumer group is not declared, or not for this topic
	KindUnroutable                        // the destination cannot be resolved
	KindResidency                         // residency forbids the origin or the destination
	KindTooLarge                          // a message or a field is too large
	KindUnsupported                       // this build does not do that
	KindDiskFull                          // no space; reads go on; try again later
	KindBudget                            // the destination's backlog has reached the topic's budget
	KindStopped                           // the log has stopped after a failed fsync
	KindClosed                            // the broker is closing or closed
	KindHandle                            // the receipt handle is malformed, foreign or no longer valid
	KindBusy                              // a bound was reached; try again
	KindInvalid                           // the request itself is wrong
	KindCorrupt                           // stored bytes are damaged
	KindInternal                          // anything else, such as a failed read
	KindUnavailable                       // the broker group of this zone that must do it does not answer; try again
	KindOffset                            // the queue does not hold the offset; the cause is an *OffsetError
	KindNoOffset                          // the consumer group has no offset there yet
	KindDeliveryTime                      // the delivery time is further ahead than the topic allows
	KindRecallHandle                      // the recall handle is malformed or foreign
	KindSettled                           // too late: the message is no longer waiting
	KindTransaction                       // the transaction id is malformed, foreign or no longer known
	KindDecided                           // the transaction was decided otherwise before
	KindConflict                          // the message id was sent before with other content
	KindNotMaster                         // another member of the broker group decides for it; what was asked may have been done
	KindInSync                            // fewer members of the broker group are in sync than the topic asks for; try again later
	KindLiteName                          // no name of a lite topic
	KindLiteTopics                        // as many lite topics live as the topic may have
	KindLiteSubscriptions                 // a client has named as many lite topics as it may
	KindUnconfirmed                       // stored, while fewer members came to be in sync than the topic asks for; send it again
)

var kindWords = [...]string{
	KindTopicUnknown: "unknown topic", KindGroupUnknown: "unknown consumer group",
	KindUnroutable: "no destination", KindResidency: "residency", KindTooLarge: "too large",
	KindUnsupported: "unsupported", KindDiskFull: "disk full", KindBudget: "backlog budget reached",
	KindStopped: "log stopped", KindClosed: "closed", KindHandle: "receipt handle",
	KindBusy: "busy", KindInvalid: "invalid", KindCorrupt: "corrupt", KindInternal: "internal",
	KindUnavailable: "unavailable",
	KindOffset:      "illegal offset", KindNoOffset: "no offset",
	KindDeliveryTime: "delivery time", KindRecallHandle: "recall handle", KindSettled: "settled",
	KindTransaction: "transaction id", KindDecided: "decided before", KindConflict: "conflict",
	KindNotMaster: "not the master", KindInSync: "too few members in sync",
	KindLiteName: "lite topic", KindLiteTopics: "too many lite topics", KindLiteSubscriptions: "too many lite subscriptions",
	KindUnconfirmed: "stored at too few members",
}

// String returns the kind in words.
func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindWords) {
		return "unknown kind"
	}
	return kindWords[k]
}

// Error is the error of every call of this package that a client causes.
type Error struct {
	Op    string // publish, receive, ack, ...
	Kind  Kind
	Topic zone.Topic         // empty when there is none
	Group zone.ConsumerGroup // empty when there is none
	Text  string             // what is wrong, when Err does not say it
	Err   error              // the cause, or nil

	// Of KindNotMaster: who is master, and since which epoch; empty when that is
	// not known.
	Master      zone.Node
	MasterEpoch uint64
}

// Error puts operation, place, kind and cause on one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Topic != "" {
		b.WriteString(" topic " + string(e.Topic))
	}
	if e.Group != "" {
		b.WriteString(" group " + string(e.Group))
	}
	b.WriteString(": " + e.Kind.String())
	if e.Text != "" {
		b.WriteString(": " + e.Text)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Retryable reports whether the same call may succeed later.
func (e *Error) Retryable() bool {
	switch e.Kind {
	case KindDiskFull, KindBudget, KindBusy, KindUnavailable, KindNotMaster, KindInSync, KindUnconfirmed:
		return true
	}
	return false
}

// KindOf returns the kind of an error of this package, or 0.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return 0
}
