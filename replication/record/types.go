package record

import (
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// Position is a byte offset in a broker group's log. A position is given out
// once per lineage.
type Position uint64

// Incarnation is the random, non-zero id made when a store is created.
type Incarnation uint64

// LineageID is the random, non-zero id of one lineage: the stretch of a log
// between two starts of its store (or two take-overs of its group).
type LineageID uint64

// Type says what a record is.
type Type uint8

// The record types. Types without a body of a client carry a body that package
// broker encodes and folds.
const (
	TypeMessage         Type = iota + 1 // a message of a client
	TypeHalf                            // a transactional message before its decision
	TypeCommit                          // decision: commit
	TypeRollback                        // decision: roll back
	TypeSettle                          // origin side: cursors of legs moved
	TypeRecall                          // a delayed message is taken back before it is due
	TypeReroute                         // a record leaves on another flow
	TypeLineageStart                    // first entry of a lineage
	TypeTopologyApplied                 // the broker switched to a topology
	TypeProgress                        // consumer progress ranges and retries
	TypeDeadLetter                      // a message copied to a dead-letter topic; Cause says what it settles
	TypeSeal                            // destination side: a flow is sealed
	TypeGiveUp                          // origin side: numbers that a destination is not sent
	TypeCarried                         // an old record again, so that the log behind it can go
	TypeOffsets                         // where a consumer group goes on was chosen
	TypeChecked                         // how often producers were asked about half messages
	TypeLite                            // lite topics were forgotten, or a consumer group goes on elsewhere in one
)

// Flags qualify a record. The upper eight bits are required: a reader that
// does not know one refuses the record; it skips unknown lower ones.
type Flags uint16

// The record flags.
const (
	FlagMaybeDuplicate Flags = 1 << iota
	FlagLate
	FlagShadow // stress-test traffic
	FlagCanary
)

// Encoding is how the client encoded the body; the broker never decodes it.
// Values are those of the RocketMQ 5 protocol.
type Encoding uint8

// Digest is the digest that the client sent with the body, kept to the byte.
type Digest struct {
	Type     uint8 // value of the RocketMQ 5 protocol; 0 = none
	Checksum string
}

// Identity says where a record was first appended. It never changes, neither
// by landing elsewhere nor by being appended again before a trim.
type Identity struct {
	Group       zone.Group
	Incarnation Incarnation
	Epoch       uint64 // lineage epoch
	Position    Position
}

// FlowID names a flow: the only way on which records leave a broker group.
type FlowID struct {
	Origin      zone.Group
	Incarnation Incarnation // of the origin's store
	Target      string      // destination broker group, or the channel when Channel is set
	Channel     bool
	Class       zone.Class
	Lane        uint8
}

// Property is one user property. Order is kept.
type Property struct{ Key, Value string }

// Record is the decoded form of a record. See the package comment for its bytes.
type Record struct {
	Type     Type
	Flags    Flags
	Identity Identity

	Topic      zone.Topic
	Queue      uint16 // queue chosen at the origin
	Kind       zone.MessageKind
	Class      zone.Class
	Durability zone.Durability
	Shard      uint32 // NoShard when the route has none
	Slot       zone.Slot
	GroupHash  uint64 // hash of MessageGroup; 0 when empty

	// Target, Channel and Lane say on which flow the record leaves; Target is
	// empty for a record that stays in this group.
	Target     string
	Channel    bool
	Lane       uint8
	RouteEpoch zone.Epoch
	Residency  []zone.City // cities that it may enter; empty = all

	Born      time.Time // client's clock, millisecond precision or better
	Stored    time.Time // origin's clock
	DeliverAt time.Time // zero = at once
	ExpireAt  time.Time // zero = never

	MessageID    string // client message id
	Tag          string
	Keys         []string
	MessageGroup string
	Attempt      uint32 // publish attempt
	TraceContext string // W3C traceparent, kept to the byte
	BornHost     string
	Encoding     Encoding
	Digest       Digest
	Priority     int32
	Properties   []Property
	Cause        []byte // TypeDeadLetter, TypeReroute: what this record settles; encoded by package broker
	Once         Once   // zero = the record may come again
	Again        Again  // zero = the record is no message that its group had lost
	Body         []byte
}

// NoShard marks a record whose route uses no shard.
const NoShard = ^uint32(0)

// Outcome is how a number of a flow was settled.
type Outcome uint8

// The settle outcomes.
const (
	OutcomeLanded  Outcome = iota + 1
	OutcomeParked          // never acceptable at this destination
	OutcomeMoved           // the destination no longer owns the shard
	OutcomeSkipped         // compacted, or not for this city
	OutcomeGap             // declared lost
)

// Reason says why an outcome is not OutcomeLanded. Unknown values are legal.
type Reason uint16

// The reasons.
const (
	ReasonNone Reason = iota
	ReasonTooLarge
	ReasonDenied
	ReasonUnknownTopic
	ReasonUnknownZone
	ReasonResidency
	ReasonHops
	ReasonCorrupt
	ReasonNotOwner
	ReasonTrimmed  // no longer held by the origin
	ReasonExcluded // not for this city
	ReasonUnsupported
	ReasonBudget    // declared lost by the origin: the backlog passed its budget, or an operator withdrew it
	ReasonCompacted // a newer record of the same key follows
	ReasonQuota     // the destination has as many lite topics as may be
	ReasonKnown     // the message landed before, in a lineage that its group has lost
	reasonEnd
)

// Known reports whether this version knows the reason; a peer may send any.
func (r Reason) Known() bool { return r < reasonEnd }

// Envelope is the landing envelope: what changes per hop and therefore is not
// part of the record. An envelope with another outcome than OutcomeLanded has
// no record and settles the numbers Number to Through.
type Envelope struct {
	Flow         FlowID
	Lineage      LineageID
	LineageEpoch uint64
	Number       uint64
	Through      uint64 // == Number for a landed record
	Outcome      Outcome
	Reason       Reason
	Hops         uint8       // city crossings and re-landings so far
	Path         []zone.City // cities passed, origin first
	OriginCursor uint64      // the origin's cursor when it sent: what outcomes up to it ask for is durable there, so they may be forgotten
	Landed       time.Time
	// Lineages is the origin's lineage table up to Number, ascending. It stands in
	// the first envelope of a session or of a lineage only, so that whoever serves
	// the landings onward can prove what they are; nil elsewhere.
	Lineages []LineageMark
}

// LineageMark says from which number of a flow on a lineage counts.
type LineageMark struct {
	Epoch uint64
	ID    LineageID
	First uint64
}
