package broker

import (
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/broker/filter"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// AnyQueue as Message.Queue leaves the choice of the queue to the broker.
const AnyQueue = -1

// Message is a message as a client publishes it.
type Message struct {
	Topic        *zone.TopicInfo // nil is refused with KindTopicUnknown
	ID           string          // the client's message id, kept to the byte
	Tag          string
	Keys         []string
	MessageGroup string           // of a topic of kind lite: the lite topic
	Kind         zone.MessageKind // zero = the topic's
	Priority     int32            // of a topic of kind priority: the higher, the sooner; those from its number of queues on are one
	Properties   map[string]string
	Body         []byte // kept until Publish returns
	Encoding     record.Encoding
	Digest       record.Digest
	Born         time.Time
	BornHost     string
	TraceContext string
	Queue        int // a hint, or AnyQueue; out of range is as AnyQueue
	Attempt      int
	DeliverAt    time.Time // zero = at once; only on topics of kind delay
	// Recovery is how long a half message is left alone before its producers are
	// asked; zero = as its topic says. More than an hour is as an hour.
	Recovery time.Duration
}

// Level says what a publish truly reached.
type Level uint8

// The levels.
const (
	LevelAccepted Level = iota + 1 // not yet committed: power loss, or of a master's disk a fail-over, may lose it
	LevelStored                    // durable, and at home: its consumers are in this zone
	LevelOrigin                    // durable at the origin, on its way to another zone or city
	LevelHalf                      // durable at the origin, where it waits for its producer's decision
	LevelWaiting                   // durable here, where it waits for its delivery time
)

// String returns a word for logs and tables.
func (l Level) String() string {
	switch l {
	case LevelAccepted:
		return "accepted"
	case LevelStored:
		return "stored"
	case LevelOrigin:
		return "origin"
	case LevelHalf:
		return "half"
	case LevelWaiting:
		return "waiting"
	}
	return "none"
}

// PublishResult is the result of one message.
type PublishResult struct {
	Err         error // nil, or an *Error
	Queue       int
	Offset      int64 // offset in the queue (LevelStored), or the number in its flow (LevelOrigin)
	Level       Level
	Destination zone.Destination

	// Recall is the handle by which a delayed message is taken back (Broker.Recall);
	// empty when it does not wait. Queue and Offset say nothing then.
	Recall string
	// TransactionID names a half message (LevelHalf) for EndTransaction; else empty.
	TransactionID string
}

// Filter selects messages: all, those with one of the tags, or those that an SQL
// expression is true for. The zero value selects none.
type Filter struct {
	All  bool
	Tags []string
	SQL  *filter.Expr // wins over Tags; nil = none
}

// Matches reports whether the filter selects the message. It keeps nothing of the
// view and does not allocate.
func (f *Filter) Matches(v *record.View) bool {
	switch {
	case f.All:
		return true
	case f.SQL != nil:
		return f.SQL.Match(v)
	}
	return slices.Contains(f.Tags, string(v.Tag()))
}

// tagHashes returns the hashes that a matching message's index entry may have; nil
// when an entry says nothing about that.
func (f *Filter) tagHashes() []uint32 {
	if f.All || f.SQL != nil {
		return nil
	}
	hashes := make([]uint32, 0, len(f.Tags))
	for _, tag := range f.Tags {
		hashes = append(hashes, tagHash([]byte(tag)))
	}
	return hashes
}

// ReceiveRequest asks for messages of a topic for a consumer group.
type ReceiveRequest struct {
	Group     zone.ConsumerGroup
	Topic     zone.Topic // a topic, or a dead-letter topic (DeadLetterTopic)
	Filter    Filter
	Max       int           // at most so many messages; below 1 is as 1
	MaxBytes  int           // stop before this many body bytes, but return at least one message; 0 = no bound
	Invisible time.Duration // how long the messages are hidden from others
	Wait      time.Duration // how long to wait for the first message
	Renew     bool          // renew the invisible time at expiry while the client lives (SetLiveness)
	ClientID  string
	AttemptID string
	Link      uint64 // of the connection over which the answer goes, for SetLiveness; 0 = none
	Room      Room   // of the bytes of what is read; nil = no bound
}

// Room bounds the bytes of messages that are in memory for those who receive them. Its
// methods must not block.
type Room interface {
	// Take takes room for a message before it is read; false when there is none. Then
	// the message stays where it is.
	Take(bytes int) bool
	// Give gives back what was taken for a message that a filter left out. The room of
	// the messages that were returned is the caller's.
	Give(bytes int)
}

// Delivery is one message in a consumer's hands.
type Delivery struct {
	Record    record.View // points into bytes that nobody changes
	Topic     zone.Topic  // the topic it was received from
	Queue     int
	Offset    int64
	Attempt   int    // deliveries so far, this one included
	Handle    string // receipt handle; URL-safe text
	Invisible time.Duration
	Stored    time.Time // when it was stored here
}

// DeadLetterPrefix begins the name of every dead-letter topic.
const DeadLetterPrefix = "%DLQ%"

// DeadLetterTopic returns the dead-letter topic of a consumer group. It is
// received like a topic, by any consumer group that is allowed to.
func DeadLetterTopic(g zone.ConsumerGroup) zone.Topic {
	return zone.Topic(DeadLetterPrefix + string(g))
}
