package broker

import (
	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// offsetsBody is the body of a TypeOffsets record: where a consumer group goes on
// in queues of a topic. Everything below is settled then, and nothing from there on.
type offsetsBody struct {
	key         subKey
	incarnation record.Position // of the topic
	queues      []queueOffset
}

type queueOffset struct {
	queue  int
	offset uint64
}

func (o *offsetsBody) append(dst []byte) []byte {
	e := encoder{b: dst}
	e.byte(offsetsVersion)
	e.str(string(o.key.group))
	e.str(string(o.key.topic))
	e.u64(uint64(o.incarnation))
	e.uint(uint64(len(o.queues)))
	for _, q := range o.queues {
		e.uint(uint64(q.queue))
		e.uint(q.offset)
	}
	return e.b
}

func parseOffsets(b []byte) (*offsetsBody, error) {
	d := decoder{b: b}
	if v := d.byte(); v != offsetsVersion {
		return nil, &BodyError{What: "offsets", Version: v}
	}
	o := &offsetsBody{key: subKey{zone.ConsumerGroup(d.str()), zone.Topic(d.str())}, incarnation: record.Position(d.u64())}
	for range d.count() {
		o.queues = append(o.queues, queueOffset{int(d.uint()), d.uint()})
	}
	if !d.ok() {
		return nil, &BodyError{What: "offsets", Version: offsetsVersion}
	}
	return o, nil
}

// queueReset is a queue of a subscription whose hands are to be told of a reset.
type queueReset struct {
	sub   *subscription
	queue uint16
}

// applyOffsets makes a group go on elsewhere. The record's position is the mark of
// the reset: progress that was collected before, and is logged behind, is void.
func (s *state) applyOffsets(pos record.Position, body []byte) error {
	o, err := parseOffsets(body)
	if err != nil {
		return err
	}
	for _, q := range o.queues {
		tq := s.queueOf(o.key, o.incarnation, q.queue)
		if tq == nil {
			s.counts.VoidProgress++
			continue
		}
		s.progress.Reset(o.key.group, o.key.topic, uint16(q.queue), min(q.offset, tq.index.Next()), uint64(pos))
		s.counts.OffsetsSet++
		sub := s.subs[o.key]
		s.resets = append(s.resets, queueReset{sub, uint16(q.queue)})
		s.touchTopic(sub.topic)
		s.receiptsDue = s.receiptsDue || sub.topic.receipts != ""
	}
	return nil
}

// takeResets tells the hands of resets. mu is held.
func (b *Broker) takeResets() {
	for _, r := range b.state.resets {
		h := r.sub.hands
		if h == nil || b.state.subs[r.sub.key] != r.sub {
			continue
		}
		if st, ok := b.state.progress.QueueState(r.sub.key.group, r.sub.key.topic, r.queue); ok {
			h.setMarks(b.state.progress)
			h.disp.Reset(&st, b.now(), b.wallNow())
		}
	}
	b.state.resets = b.state.resets[:0]
}

// setMarks takes over the marks of resets. The fold's lock is held.
func (h *hands) setMarks(p *consumer.Progress) {
	var marks map[uint16]uint64
	p.Marks(h.sub.key.group, h.sub.key.topic, func(queue uint16, mark uint64) {
		if marks == nil {
			marks = map[uint16]uint64{}
		}
		marks[queue] = mark
	})
	if marks != nil {
		h.marks.Store(&marks)
	}
}
