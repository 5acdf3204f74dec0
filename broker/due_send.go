package broker

import (
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/broker/timer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// dueEntry is what becomes of a message that is due.
type dueEntry struct {
	entry  commitlog.Entry
	gone   bool       // its topic is: the entry is a dead letter
	topic  zone.Topic // that it was published to
	source timer.Ref
}

// dueSend is one append of the due loop.
type dueSend struct {
	list    []dueEntry
	size    int
	backlog prepared
}

// send appends copies of the messages that still wait, but for those that have an
// obstacle, which are put aside. With an error it returns those of which nothing
// was stored, as far as is known; should they be stored after all, the fold ignores
// the copies that follow.
func (d *dueLoop) send(refs []timer.Ref) (left []timer.Ref, stored int, err error) {
	v := d.b.view.Load()
	var batch dueSend
	for i, r := range refs {
		index := d.waiting(r)
		if index == nil {
			continue
		}
		e, obstacle := d.copy(v, r, index, &batch.backlog)
		if obstacle != nil {
			if d.waiting(r) != nil { // else it was carried meanwhile, or recalled
				d.blocked.put(r, *obstacle)
			}
			continue
		}
		batch.list = append(batch.list, e)
		if batch.size += len(e.entry.Record); batch.size >= dueBytes {
			if err := d.append(&batch, &stored); err != nil {
				return append(batch.refs(), refs[i+1:]...), stored, err
			}
		}
	}
	if err := d.append(&batch, &stored); err != nil {
		return batch.refs(), stored, err
	}
	return nil, stored, nil
}

func (s *dueSend) refs() []timer.Ref {
	refs := make([]timer.Ref, len(s.list))
	for i := range s.list {
		refs[i] = s.list[i].source
	}
	return refs
}

// append appends what is prepared, and counts what the fold took of it.
func (d *dueLoop) append(s *dueSend, stored *int) error {
	if len(s.list) == 0 {
		return nil
	}
	o := &op{}
	for i := range s.list {
		o.batch.Entries = append(o.batch.Entries, s.list[i].entry)
	}
	b := d.b
	if err := b.appendWait(b.ctx, o); err != nil {
		return err
	}
	now := b.clock.Now().UnixMilli()
	letters := 0
	var topic zone.Topic
	for i := range s.list {
		switch e := &s.list[i]; {
		case !o.places[i].ok: // it was recalled just now
			continue
		case e.gone:
			letters, topic = letters+1, e.topic
			b.metrics.timerStranded()
		default:
			b.metrics.fired(now - e.source.Due)
		}
		*stored++
	}
	if letters > 0 {
		if missed, ok := d.told.Allow(time.Now()); ok {
			b.logger.Warn("delayed messages fell due and their topic is gone: they are dead letters now", "group", string(b.self),
				"topic", string(topic), "messages", letters, "suppressed", missed)
		}
	}
	*s = dueSend{list: s.list[:0]}
	return nil
}

// copy makes the record that delivers a message: as it was published, but routed
// by the topology in force. When its topic is gone for good it makes a dead letter.
// before is what the same append has for budgets to count, and gets the record added.
func (d *dueLoop) copy(v *view, ref timer.Ref, index *queue.Index, before *prepared) (dueEntry, *obstacle) {
	b := d.b
	entry, err := index.Get(ref.Number)
	var waited record.View
	var r record.Record
	if err == nil {
		waited, err = b.readRecord(entry)
	}
	if err == nil {
		err = waited.Decode(&r)
	}
	if err != nil {
		return dueEntry{}, &obstacle{kind: unreadable, text: err.Error()}
	}
	ref.Due = dueMillis(r.DeliverAt)
	out := dueEntry{topic: r.Topic, source: ref}
	cause := Cause{Kind: CauseDue, Bucket: ref.Bucket + 1, Offset: ref.Number, Original: waited.Identity()}
	switch err := b.routeDue(v, &r, *before); {
	case err == nil:
		r.Cause = appendCause(nil, &cause)
		out.entry, err = b.own(&r)
		if err != nil {
			return dueEntry{}, &obstacle{topic: r.Topic, kind: unreadable, text: err.Error()}
		}
		before.add(&r, out.entry.FrameSize())
	case KindOf(err) == KindTopicUnknown && d.givesUp(r.Topic, ref.Due):
		cause.Kind, cause.Topic, cause.Reason, out.gone = CauseStranded, r.Topic, record.ReasonUnknownTopic, true
		out.entry, err = b.copyTo(ParkedTopic, waited, &cause)
		if err != nil {
			return dueEntry{}, &obstacle{topic: r.Topic, kind: unreadable, text: err.Error()}
		}
	default:
		return dueEntry{}, obstacleOf(r.Topic, r.Target, err)
	}
	return out, nil
}

// routeDue resolves the route of a message anew. before is what the same append has.
func (b *Broker) routeDue(v *view, r *record.Record, before prepared) error {
	t := v.topics[r.Topic]
	if t == nil {
		return &Error{Op: "deliver", Kind: KindTopicUnknown, Topic: r.Topic}
	}
	m := Message{
		Topic: t.info, ID: r.MessageID, Tag: r.Tag, Keys: r.Keys, MessageGroup: r.MessageGroup, Body: r.Body,
		Encoding: r.Encoding, Digest: r.Digest, Born: r.Born, BornHost: r.BornHost, TraceContext: r.TraceContext,
		Queue: int(r.Queue), Attempt: int(r.Attempt), DeliverAt: r.DeliverAt,
	}
	if route := t.info.Route; route.From == zone.FromProperty {
		for _, p := range r.Properties {
			if p.Key == route.Property {
				m.Properties = map[string]string{p.Key: p.Value}
			}
		}
	}
	dest, err := v.topo.Resolve(query(v, t.info, &m))
	if err != nil {
		r.Target = ""
		return &Error{Op: "deliver", Kind: kindOfResolve(err), Topic: r.Topic, Err: err}
	}
	if dest.Reach == zone.ReachZone && m.MessageGroup == "" {
		dest.Group = v.group // as Publish does
	}
	kept := *r
	b.recordOf(r, v, t, &m, &dest, b.wallNow())
	r.Flags, r.Properties, r.Priority, r.ExpireAt = kept.Flags, kept.Properties, kept.Priority, kept.ExpireAt
	if r.Target == "" {
		return nil
	}
	err = b.checkBudgetWith(t.info, r, before)
	if err != nil && b.makeRoom(b.ctx, t.info) {
		err = b.checkBudgetWith(t.info, r, before)
	}
	return err
}
