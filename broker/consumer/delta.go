package consumer

import (
	"encoding/binary"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// Retry is what must be known of a message that is to be delivered again.
type Retry struct {
	Offset   uint64
	Attempts uint32    // deliveries so far
	Visible  time.Time // wall clock, millisecond precision; not to be delivered before; zero = at once
	Attempt  uint64    // in order: id of the attempt that has it in hands; 0 = none
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

// QueueDelta is the change for one queue. Acked and Retries ascend; ranges
// are not empty. An offset that is both acked and retried is acked.
type QueueDelta struct {
	Queue   uint16
	Created bool    // the group starts here; without effect when it has the queue already
	Start   uint64  // first offset to deliver, when Created
	Mark    uint64  // of the Reset after which this was collected; 0 = none. With another one than the queue's it is void
	Acked   []Range // settled
	Retries []Retry // replace what was known of their offsets
}

// deltaVersion is the first byte of an encoded delta.
const deltaVersion = 2

// The flags of a queue in an encoded delta. A reader refuses unknown ones.
const (
	queueCreated = 1 << iota
	queueMarked
	queueFlags = 1<<iota - 1
)

// Empty reports whether the delta changes nothing.
func (d *Delta) Empty() bool { return len(d.Groups) == 0 }

// Append appends the encoding of the delta to dst:
//
//	version u8 = 2
//	groups: count, then for each
//	  consumer group, topic: text
//	  queues: count, then for each
//	    queue, flags (1: created, 2: marked)
//	    start, when created
//	    mark, when marked
//	    acked: count, then for each: distance from the last end, length
//	    retries: count, then for each: distance from the last offset,
//	      attempts, visible in Unix milliseconds (signed, 0: at once),
//	      attempt id
//
// Numbers are varints of encoding/binary, signed where said; a text is its
// length and its bytes.
func (d *Delta) Append(dst []byte) []byte {
	dst = append(dst, deltaVersion)
	dst = binary.AppendUvarint(dst, uint64(len(d.Groups)))
	for i := range d.Groups {
		g := &d.Groups[i]
		dst = appendText(dst, string(g.Group))
		dst = appendText(dst, string(g.Topic))
		dst = binary.AppendUvarint(dst, uint64(len(g.Queues)))
		for k := range g.Queues {
			dst = g.Queues[k].append(dst)
		}
	}
	return dst
}

func (q *QueueDelta) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(q.Queue))
	flags := byte(0)
	if q.Created {
		flags |= queueCreated
	}
	if q.Mark > 0 {
		flags |= queueMarked
	}
	dst = append(dst, flags)
	if q.Created {
		dst = binary.AppendUvarint(dst, q.Start)
	}
	if q.Mark > 0 {
		dst = binary.AppendUvarint(dst, q.Mark)
	}
	dst = appendRanges(dst, q.Acked)
	return appendRetries(dst, q.Retries)
}

// ParseDelta decodes a delta, or returns *FormatError. What it allocates is
// bounded by a multiple of len(b); nothing of b is kept.
func ParseDelta(b []byte) (Delta, error) {
	r := &decoder{what: "delta", b: b}
	if r.byte() != deltaVersion {
		r.fail("unknown version")
	}
	var d Delta
	for range r.count(3) {
		g := GroupDelta{Group: zone.ConsumerGroup(r.text()), Topic: zone.Topic(r.text())}
		for range r.count(4) {
			g.Queues = append(g.Queues, r.queueDelta())
			if r.err != nil {
				return Delta{}, r.err
			}
		}
		d.Groups = append(d.Groups, g)
	}
	if err := r.end(); err != nil {
		return Delta{}, err
	}
	return d, nil
}

func (d *decoder) queueDelta() QueueDelta {
	q := QueueDelta{Queue: d.queue()}
	flags := d.byte()
	if flags&^queueFlags != 0 {
		d.fail("unknown flags")
	}
	if flags&queueCreated != 0 {
		q.Created, q.Start = true, d.uvarint()
	}
	if flags&queueMarked != 0 {
		if q.Mark = d.uvarint(); q.Mark == 0 {
			d.fail("mark of no reset")
		}
	}
	q.Acked = d.ranges()
	q.Retries = d.retries()
	return q
}
