package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// headroom is what a published record leaves for the cause that a dead-letter
// copy of it carries in addition (bytes).
const headroom = 8 << 10

// wallNow is the time that records carry. Nothing is decided by it but what is old
// enough to be dropped.
func (b *Broker) wallNow() time.Time { return b.wall() }

// wallNow is the system's wall clock, without a monotonic reading that would hide
// that it was set.
func wallNow() time.Time { return time.Now().Round(0) }

// Publish stores the messages in one append and waits until they are committed
// and folded. out has one element a message; it takes the result of each,
// including its own error. The returned error is for the call as a whole: out
// is not filled then, and when it is of ctx, KindNotMaster or KindUnconfirmed, the
// messages may be stored nevertheless. Messages that all are of buffered topics are answered when
// they are handed to the operating system, with LevelAccepted and offset -1;
// likewise, in a group with replicas, those of topics with an early durability when
// as many disks have them as the most careful of these topics asks for.
func (b *Broker) Publish(ctx context.Context, msgs []Message, out []PublishResult) error {
	if err := b.ready("publish"); err != nil {
		return err
	}
	if len(msgs) == 0 || len(msgs) > b.limits.MaxBatch || len(out) < len(msgs) {
		return &Error{Op: "publish", Kind: KindInvalid, Text: fmt.Sprintf("%d messages and %d results; 1 to %d messages are allowed", len(msgs), len(out), b.limits.MaxBatch)}
	}
	v := b.view.Load()
	if v.passesOn(msgs) {
		return b.publishAtHome(ctx, v, msgs, out)
	}
	return b.publishHere(ctx, v, msgs, out)
}

// publishHere is Publish for messages that this group stores.
func (b *Broker) publishHere(ctx context.Context, v *view, msgs []Message, out []PublishResult) error {
	p := b.publication(len(msgs))
	stored := b.wallNow()
	for i := range msgs {
		out[i] = PublishResult{Offset: -1}
		if v.once && b.recognize(v, &msgs[i], &out[i], stored, p) {
			continue
		}
		out[i].Err = b.prepare(v, &msgs[i], &out[i], stored, p)
		if out[i].Err != nil && KindOf(out[i].Err) == KindBudget && b.makeRoom(ctx, msgs[i].Topic) {
			out[i].Err = b.prepare(v, &msgs[i], &out[i], stored, p)
		}
		switch {
		case out[i].Err == nil:
			p.which = append(p.which, i)
		case KindOf(out[i].Err) == KindBudget:
			b.metrics.budgetRefused(msgs[i].Topic.Name)
		}
	}
	if len(p.which) == 0 {
		b.forgetPending(p)
		b.lites.give(&p.op)
		b.release(p)
		return nil
	}
	began := b.now()
	err := b.appendWait(ctx, &p.op)
	b.forgetPending(p)
	if err != nil {
		b.metrics.publishFailed(ctx, len(p.which))
		var waiting *waitError
		if !errors.As(err, &waiting) { // else the log still uses it
			b.release(p)
		} else {
			b.arrived(p)
		}
		return &Error{Op: "publish", Kind: kindOfLog(err), Err: err}
	}
	b.metrics.published(ctx, len(p.which), b.now()-began)
	for k, i := range p.which {
		if p.op.batch.Buffered || p.op.batch.EarlyDone() {
			out[i].Level = LevelAccepted
			continue
		}
		b.result(&msgs[i], &out[i], &p.op.places[k])
	}
	b.release(p)
	return nil
}

// result fills in what was reached: by this message, or by its first copy.
func (b *Broker) result(m *Message, r *PublishResult, p *placement) {
	switch {
	case p.conflict:
		*r = PublishResult{Offset: -1, Err: b.conflict(m.Topic.Name, m)}
		return
	case p.again:
		b.metrics.answeredAgain(m.Topic.Name)
	}
	if p.half {
		b.halfResult(r, *p)
		return
	}
	if p.waits {
		r.Recall = b.recallHandle(m, p)
		r.Queue, r.Offset, r.Level = 0, -1, LevelWaiting
		return
	}
	r.Queue, r.Offset = p.queue, int64(p.offset)
	r.Level = LevelOrigin
	if r.Destination.Group != nil && r.Destination.Group.Name == b.self {
		r.Level = LevelStored
	}
}

// destination resolves where a message goes.
func (v *view) destination(t *topicView, m *Message) (zone.Destination, error) {
	d, err := v.topo.Resolve(query(v, t.info, m))
	if err != nil {
		return d, &Error{Op: "publish", Kind: kindOfResolve(err), Topic: t.info.Name, Err: err}
	}
	if d.Reach == zone.ReachZone && m.MessageGroup == "" {
		// Every group of the zone serves its consumers: passing a message without
		// an order on to the owner of its slot would only store it twice.
		d.Group = v.group
	}
	return d, nil
}

// prepare validates, resolves and encodes one message into the publication.
func (b *Broker) prepare(v *view, m *Message, r *PublishResult, stored time.Time, p *publication) error {
	if m.Topic == nil || v.topics[m.Topic.Name] == nil {
		var name zone.Topic
		if m.Topic != nil {
			name = m.Topic.Name
		}
		return &Error{Op: "publish", Kind: KindTopicUnknown, Topic: name}
	}
	t := v.topics[m.Topic.Name]
	if err := checkMessage(t.info, v, m); err != nil {
		return err
	}
	if err := b.checkInSync("publish", t.info); err != nil {
		return err
	}
	d, err := v.destination(t, m)
	if err != nil {
		return err
	}
	r.Destination = d
	rec := &p.record
	b.recordOf(rec, v, t, m, &d, stored)
	rec.Once = p.once
	waits := false
	if !m.DeliverAt.IsZero() {
		if waits, err = b.delay(t.info, rec); err != nil {
			return err
		}
	}
	p.properties = properties(p.properties[:0], m.Properties)
	rec.Properties = p.properties
	r.Queue = int(rec.Queue)
	if t.info.Kind == zone.KindLite && rec.Target == "" && !b.liteRoom(t.info, m.MessageGroup, &p.op) {
		b.metrics.liteRefused(t.info.Name)
		return &Error{Op: "publish", Kind: KindLiteTopics, Topic: t.info.Name,
			Text: fmt.Sprintf("%d lite topics live at broker group %s, as many as may", t.info.Lite.Topics, b.self)}
	}
	if rec.Target != "" {
		if !waits { // else its backlog then is what counts
			if err := b.checkBudget(t.info, rec); err != nil {
				return err
			}
		}
		if err := checkFar(t.info, m, &d); err != nil {
			return err
		}
	}
	if t.info.Kind == zone.KindTransaction {
		if err := b.makeHalf(rec, t.info, m, p); err != nil {
			return err
		}
		r.Level = LevelHalf
	}
	size := record.EncodedLen(rec)
	if size-len(m.Body) > record.MaxHeader-headroom || size > record.MaxRecord-headroom {
		return &Error{Op: "publish", Kind: KindTooLarge, Topic: t.info.Name,
			Text: fmt.Sprintf("properties, keys and ids of %d bytes; at most %d are allowed", size-len(m.Body), record.MaxHeader-headroom)}
	}
	if err := p.add(size); err != nil {
		kind := KindInvalid
		var limit *record.LimitError
		if errors.As(err, &limit) {
			kind = KindTooLarge
		}
		return &Error{Op: "publish", Kind: kind, Topic: t.info.Name, Err: err}
	}
	plain := !waits && r.Level != LevelHalf
	p.op.batch.Buffered = p.op.batch.Buffered && t.info.Durability == zone.DurabilityBuffered && plain
	p.op.batch.Ack = min(p.op.batch.Ack, b.ackOf(t.info, plain))
	p.op.inSync = max(p.op.inSync, t.info.MinInSync)
	return nil
}

// checkMessage refuses what this build or the topic does not take.
func checkMessage(t *zone.TopicInfo, v *view, m *Message) error {
	refuse := func(kind Kind, format string, args ...any) error {
		return &Error{Op: "publish", Kind: kind, Topic: t.Name, Text: fmt.Sprintf(format, args...)}
	}
	if err := checkKind(t, m); err != nil {
		return err
	}
	if m.ID == "" {
		return refuse(KindInvalid, "the message has no id")
	}
	if limit := smallest(t.MaxBody, v.zone.MaxBody); limit > 0 && len(m.Body) > limit {
		return refuse(KindTooLarge, "body of %d bytes; at most %d are allowed", len(m.Body), limit)
	}
	return nil
}

// checkFar refuses a body that the destination would have to park.
func checkFar(t *zone.TopicInfo, m *Message, d *zone.Destination) error {
	if d.Zone != nil && d.Zone.MaxBody > 0 && len(m.Body) > d.Zone.MaxBody {
		return &Error{Op: "publish", Kind: KindTooLarge, Topic: t.Name,
			Text: fmt.Sprintf("body of %d bytes; zone %s takes at most %d", len(m.Body), d.Zone.Name, d.Zone.MaxBody)}
	}
	return nil
}

// smallest returns the smaller of two limits of which 0 is none.
func smallest(a, b int) int {
	if a == 0 || (b != 0 && b < a) {
		return b
	}
	return a
}

// query reads from the message what the topic's route asks for.
func query(v *view, t *zone.TopicInfo, m *Message) zone.Query {
	q := zone.Query{Topic: t, From: v.zone, MessageGroup: m.MessageGroup, MessageID: m.ID}
	var value string
	switch t.Route.From {
	case zone.FromProperty:
		value = m.Properties[t.Route.Property]
	case zone.FromKey:
		if len(m.Keys) > 0 {
			value = m.Keys[0]
		}
	case zone.FromMessageGroup:
		value = m.MessageGroup
	}
	switch t.Route.Kind {
	case zone.RouteShard:
		q.User = value
	case zone.RouteExplicit:
		q.Destination = value
	}
	return q
}

func kindOfResolve(err error) Kind {
	switch {
	case errors.Is(err, zone.ErrUnknownTopic):
		return KindTopicUnknown
	case errors.Is(err, zone.ErrOriginForbidden), errors.Is(err, zone.ErrDestinationForbidden):
		return KindResidency
	}
	return KindUnroutable
}

// recordOf makes the record of a message, but for its properties.
func (b *Broker) recordOf(r *record.Record, v *view, t *topicView, m *Message, d *zone.Destination, stored time.Time) {
	info := t.info
	*r = record.Record{
		Identity: record.Identity{Group: b.self},
		Type:     record.TypeMessage, Topic: info.Name, Queue: chooseQueue(t, m),
		Kind: info.Kind, Class: info.Class, Durability: info.Durability,
		Shard: record.NoShard, Slot: d.Slot, RouteEpoch: v.topo.Epoch, Residency: t.residency,
		Born: m.Born, Stored: stored,
		MessageID: m.ID, Tag: m.Tag, Keys: m.Keys, MessageGroup: m.MessageGroup,
		Attempt: uint32(max(m.Attempt, 0)), TraceContext: m.TraceContext, BornHost: m.BornHost,
		Encoding: m.Encoding, Digest: m.Digest, Body: m.Body, DeliverAt: m.DeliverAt, Priority: m.Priority,
	}
	if m.MessageGroup != "" {
		r.GroupHash = xxhash.Sum64String(m.MessageGroup)
	}
	if d.HasShard {
		r.Shard = uint32(d.Shard)
	}
	switch {
	case d.Channel != nil:
		r.Target, r.Channel, r.Class = string(d.Channel.Name), true, d.Channel.Class
	case d.Group.Name != b.self:
		r.Target = string(d.Group.Name)
		r.Lane = uint8(int(d.Slot) % b.log.Lanes())
	}
}

// chooseQueue takes the client's hint, and else goes round. A broadcast has one
// order and so one queue. So has a FIFO topic, and one of kind lite: the order of a message group then
// does not hang on the number of queues, which may change, nor on what a client
// thinks of it, and message groups go on without each other in one queue as well. A
// priority is a queue.
func chooseQueue(t *topicView, m *Message) uint16 {
	n := max(t.info.Queues, 1)
	switch {
	case t.info.Channel != nil, t.info.Kind == zone.KindFIFO, t.info.Kind == zone.KindLite:
		return 0
	case t.info.Kind == zone.KindPriority:
		return uint16(min(int(m.Priority), n-1))
	case m.MessageGroup != "":
		return uint16(xxhash.Sum64String(m.MessageGroup) % uint64(n))
	case m.Queue >= 0 && m.Queue < n:
		return uint16(m.Queue)
	}
	return uint16(t.turn.Add(1) % uint32(n))
}

// properties appends the properties in order, so that equal messages have equal
// bytes.
func properties(list []record.Property, m map[string]string) []record.Property {
	for k, v := range m {
		list = append(list, record.Property{Key: k, Value: v})
	}
	if len(list) > 1 {
		slices.SortFunc(list, func(a, b record.Property) int { return cmp.Compare(a.Key, b.Key) })
	}
	return list
}
