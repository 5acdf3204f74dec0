package broker

import (
	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// CauseKind says who gave a message up.
type CauseKind uint8

// The kinds of causes.
const (
	CauseConsumer CauseKind = iota + 1 // a consumer group: attempts used up, or moved by the client
	CauseLeg                           // a destination: it will never accept the record
)

// CauseDue is the Cause of a message (TypeMessage) whose delivery time has come: the
// copy that is delivered. Bucket and Offset name where it waited, and Original is
// the identity of the record that did. Bucket is 0 when the time was past at its
// publish.
const CauseDue CauseKind = 4

// CauseStranded is the Cause of a dead letter in ParkedTopic: a delayed message whose
// topic the topology did not have topicGrace after it was due, nor in all of the
// topicGrace before (Reason).
// Bucket and Offset name where it waited, and Original is its identity.
const CauseStranded CauseKind = 7

// Cause says why a message is in a dead-letter topic and holds what replaying
// it needs. It is the Cause of a TypeDeadLetter record, and of a TypeMessage
// record that brings one back (CauseReplay) or was delayed (CauseDue):
//
//	version u8 = 1 | kind u8 | topic str | queue uvarint | offset uvarint |
//	topic incarnation u64 | group str | attempts uvarint |            (consumer)
//	flow | city str | group str | number uvarint | outcome u8 | reason uvarint | (leg; number: the bucket of CauseDue and CauseStranded, 1 of a commit that is ordered)
//	origin group str, incarnation u64, epoch uvarint, position uvarint |
//	by str, why str                                                   (a commit that an operator ordered)
//
// where str is a uvarint length and bytes, and flow is origin str, incarnation
// u64, target str, channel u8, class u8, lane u8. Both halves are always there.
type Cause struct {
	Kind  CauseKind
	Topic zone.Topic // the topic that the message was published to

	// Of CauseConsumer.
	Queue            int
	Offset           uint64
	TopicIncarnation record.Position
	Group            zone.ConsumerGroup
	Attempts         int

	// Of CauseLeg.
	Flow        record.FlowID
	City        zone.City
	Destination zone.Group
	Number      uint64
	Outcome     record.Outcome
	Reason      record.Reason

	// Of CauseDue and CauseStranded; Offset is the number in the bucket.
	Bucket uint64

	Original record.Identity // of the message itself

	Offsets []consumer.Range // of CauseReceipt: what it is the receipt of
	Order   Order            // of CauseCommit, when an operator ordered it
}

// ordered reports whether an operator ordered a commit.
func (c *Cause) ordered() bool { return c.Kind == CauseCommit && c.Order.given() }

// ofTimer reports whether the cause names where a delayed message waited.
func (c *Cause) ofTimer() bool { return c.Kind == CauseDue || c.Kind == CauseStranded }

const causeVersion = 1

func appendCause(dst []byte, c *Cause) []byte {
	e := encoder{b: dst}
	e.byte(causeVersion)
	e.byte(byte(c.Kind))
	e.str(string(c.Topic))
	e.uint(uint64(c.Queue))
	e.uint(c.Offset)
	e.u64(uint64(c.TopicIncarnation))
	e.str(string(c.Group))
	e.uint(uint64(c.Attempts))
	e.flow(c.Flow)
	e.str(string(c.City))
	e.str(string(c.Destination))
	switch {
	case c.ofTimer():
		e.uint(c.Bucket)
	case c.ordered():
		e.uint(1)
	default:
		e.uint(c.Number)
	}
	e.byte(byte(c.Outcome))
	e.uint(uint64(c.Reason))
	e.str(string(c.Original.Group))
	e.u64(uint64(c.Original.Incarnation))
	e.uint(c.Original.Epoch)
	e.uint(uint64(c.Original.Position))
	switch {
	case c.Kind == CauseReceipt:
		e.offsets(c.Offsets)
	case c.ordered():
		e.order(c.Order)
	}
	return e.b
}

// ParseCause reads the Cause of a TypeDeadLetter or TypeMessage record. It keeps nothing of b.
func ParseCause(b []byte) (Cause, error) {
	d := decoder{b: b}
	if v := d.byte(); v != causeVersion {
		return Cause{}, &BodyError{What: "dead-letter cause", Version: v}
	}
	c := Cause{
		Kind:             CauseKind(d.byte()),
		Topic:            zone.Topic(d.str()),
		Queue:            int(d.uint()),
		Offset:           d.uint(),
		TopicIncarnation: record.Position(d.u64()),
		Group:            zone.ConsumerGroup(d.str()),
		Attempts:         int(d.uint()),
		Flow:             d.flow(),
		City:             zone.City(d.str()),
		Destination:      zone.Group(d.str()),
		Number:           d.uint(),
		Outcome:          record.Outcome(d.byte()),
		Reason:           record.Reason(d.uint()),
	}
	ordered := c.Kind == CauseCommit && c.Number == 1
	switch {
	case c.ofTimer():
		c.Bucket, c.Number = c.Number, 0
	case ordered:
		c.Number = 0
	}
	c.Original = record.Identity{
		Group:       zone.Group(d.str()),
		Incarnation: record.Incarnation(d.u64()),
		Epoch:       d.uint(),
		Position:    record.Position(d.uint()),
	}
	switch {
	case c.Kind == CauseReceipt:
		c.Offsets = d.offsets()
	case ordered:
		c.Order = d.order()
	}
	if !d.ok() {
		return Cause{}, &BodyError{What: "dead-letter cause", Version: causeVersion}
	}
	return c, nil
}
