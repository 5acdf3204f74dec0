package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// A receipt tells the zone where messages were published that all declared consumer
// groups of their destination have settled them. Which messages those are follows from
// the fold; the receipt loop (receipts_loop.go) reads them, writes receipts and appends
// them, each with the marks of its messages in one record, so that a message gets one
// whatever fails.
// A receipt then takes the way of any message to the topic that is declared for it.

// Bounds of receipts.
const (
	maxReceipts     = 1024     // messages of a queue that one round looks at
	maxReceiptBatch = 100      // messages of one receipt
	maxReceiptIDs   = 8 << 10  // bytes of their ids: they are the receipt's keys
	maxReceiptBody  = 64 << 10 // bytes, or what the topic of the receipts takes, if that is less
	receiptRetry    = time.Second
)

// Receipt is the body of a receipt, as JSON.
type Receipt struct {
	Topic    zone.Topic        `json:"topic"` // of the messages
	City     zone.City         `json:"city"`  // where they were consumed
	Zone     zone.Zone         `json:"zone"`
	Broker   zone.Group        `json:"broker"`
	Settled  time.Time         `json:"settled"` // when the receipt was written: lately
	Messages []json.RawMessage `json:"messages"`
}

// ReceiptMessage is what a receipt says of a message.
type ReceiptMessage struct {
	ID      string         `json:"id"`
	Outcome string         `json:"outcome"` // acked, or dead-lettered when any group gave it up
	Groups  []ReceiptGroup `json:"groups"`
	Stored  time.Time      `json:"stored"`          // at its origin
	Landed  time.Time      `json:"landed,omitzero"` // here; zero when it was published here
}

// ReceiptGroup is what a consumer group did with a message.
type ReceiptGroup struct {
	Group   zone.ConsumerGroup `json:"group"`
	Outcome string             `json:"outcome"`
}

// The outcomes of a receipt.
const (
	ReceiptAcked        = "acked" // settled: acknowledged, left out by the group's filter, or passed over
	ReceiptDeadLettered = "dead-lettered"
)

// receipts writes some of the receipts of a queue.
type receipts struct {
	b       *Broker
	v       *view
	t       *topic
	to      *topicView // nil: the topology in force does not have the topic yet, or any more
	queue   int
	floor   uint64 // no receipt is missing below
	now     time.Time
	due     []consumer.Range // maxReceipts of them at most
	groups  []receiptAwaits
	givenUp givenUp // of the offsets that are due

	entries []commitlog.Entry
	backlog prepared         // of the entries
	open    []*receipt       // one for each zone, in order of their first message
	none    []consumer.Range // messages that can have no receipt
	blocked []blockedReceipt
}

// receiptAwaits is a group whose settlement a receipt waits for, from an offset on.
type receiptAwaits struct {
	group zone.ConsumerGroup
	began uint64
}

// receipt is one that is being written.
type receipt struct {
	zone  *zone.ZoneInfo
	body  Receipt
	ids   []string
	size  int // of the body, about
	keys  int // bytes of the ids
	marks []consumer.Range
}

// give appends the receipts of what is due and waits until they are folded.
func (r *receipts) give(ctx context.Context) error {
	for _, d := range r.due {
		for o := d.From; o < d.To; o++ {
			if err := r.add(o); err != nil {
				return err
			}
		}
	}
	for _, x := range r.open {
		if err := r.close(x); err != nil {
			return err
		}
	}
	if len(r.none) > 0 {
		e, err := r.b.control(record.TypeProgress, appendProgressBody(nil, map[zone.Topic]record.Position{r.t.name: r.t.first}, &consumer.Delta{
			Groups: []consumer.GroupDelta{{Group: receiptGroup, Topic: r.t.name, Queues: []consumer.QueueDelta{{Queue: uint16(r.queue), Acked: r.none}}}},
		}))
		if err != nil {
			return err
		}
		r.entries = append(r.entries, e)
	}
	if len(r.entries) == 0 {
		return nil
	}
	return r.b.appendWait(ctx, &op{batch: commitlog.Batch{Entries: r.entries}})
}

// errNoReceipt says that a message can have no receipt.
var errNoReceipt = errors.New("no receipt")

// add puts a message into the receipt of its zone.
func (r *receipts) add(offset uint64) error {
	z, id, entry, err := r.message(offset)
	if errors.Is(err, errNoReceipt) {
		r.none = appendOffset(r.none, offset)
		return nil
	}
	if err != nil {
		return err
	}
	i := slices.IndexFunc(r.open, func(x *receipt) bool { return x.zone == z })
	if i >= 0 && !r.open[i].room(r.bodyLimit(z), len(entry), len(id)) {
		if err := r.close(r.open[i]); err != nil {
			return err
		}
		r.open, i = slices.Delete(r.open, i, i+1), -1
	}
	if i < 0 {
		x := &receipt{zone: z, body: Receipt{Topic: r.t.name, City: r.v.zone.City.Name, Zone: r.v.zone.Name, Broker: r.b.self, Settled: r.now}}
		head, err := json.Marshal(&x.body)
		if err != nil {
			return err
		}
		if x.size = len(head); !x.room(r.bodyLimit(z), len(entry), len(id)) {
			r.none = appendOffset(r.none, offset) // larger than its topic takes
			return nil
		}
		r.open, i = append(r.open, x), len(r.open)
	}
	x := r.open[i]
	x.body.Messages = append(x.body.Messages, entry)
	x.ids = append(x.ids, id)
	x.size, x.keys = x.size+len(entry)+1, x.keys+len(id)
	x.marks = appendOffset(x.marks, offset)
	return nil
}

// bodyLimit returns how large a receipt for the zone may be.
func (r *receipts) bodyLimit(z *zone.ZoneInfo) int {
	return smallest(smallest(r.to.info.MaxBody, z.MaxBody), min(maxReceiptBody, smallest(r.v.zone.MaxBody, maxReceiptBody)))
}

// room reports whether a message goes into the receipt.
func (x *receipt) room(limit, entry, id int) bool {
	return len(x.ids) < maxReceiptBatch && x.size+entry+1 <= limit && x.keys+id <= maxReceiptIDs
}

func appendOffset(list []consumer.Range, o uint64) []consumer.Range {
	if n := len(list); n > 0 && list[n-1].To == o {
		list[n-1].To++
		return list
	}
	return append(list, consumer.Range{From: o, To: o + 1})
}

// message reads a message and says what its receipt tells, and where it goes.
func (r *receipts) message(offset uint64) (z *zone.ZoneInfo, id string, entry json.RawMessage, err error) {
	m := ReceiptMessage{Outcome: ReceiptAcked}
	for _, g := range r.groups {
		if offset < g.began {
			continue
		}
		outcome := ReceiptAcked
		if slices.Contains(r.givenUp[offset], g.group) {
			outcome, m.Outcome = ReceiptDeadLettered, ReceiptDeadLettered
		}
		m.Groups = append(m.Groups, ReceiptGroup{g.group, outcome})
	}
	if len(m.Groups) == 0 {
		return nil, "", nil, errNoReceipt
	}
	v, landed, err := r.b.storedRecord(r.t, r.queue, offset)
	if err != nil {
		return nil, "", nil, err
	}
	if !meantForAll(v) { // brought back for one group: its message had its receipt
		return nil, "", nil, errNoReceipt
	}
	origin := r.v.topo.FindGroup(zone.Group(v.Group()))
	if origin == nil || !r.v.topo.LandsIn(r.to.info, origin.Zone) {
		return nil, "", nil, errNoReceipt
	}
	m.ID, m.Stored, m.Landed = string(v.MessageID()), v.Stored().UTC(), landed
	entry, err = json.Marshal(&m)
	return origin.Zone, m.ID, entry, err
}

// storedRecord reads a message of a queue, and when it landed; errNoReceipt when it is
// gone or damaged.
func (b *Broker) storedRecord(t *topic, n int, offset uint64) (v record.View, landed time.Time, err error) {
	b.mu.RLock()
	q := t.queues[n]
	b.mu.RUnlock()
	e, err := q.get(offset)
	var entry commitlog.Entry
	if err == nil {
		entry, err = b.log.ReadAt(e.Position, int(e.Size))
	}
	if err == nil && entry.Kind == commitlog.KindLanding {
		var env record.Envelope
		_, err = record.ParseEnvelope(entry.Envelope, &env)
		landed = env.Landed.UTC()
	}
	if err == nil {
		v, err = record.Parse(entry.Record)
	}
	var corrupt *commitlog.CorruptError
	var outside *queue.RangeError
	if errors.As(err, &corrupt) || errors.As(err, &outside) || errors.Is(err, commitlog.ErrTrimmed) {
		err = errNoReceipt
	}
	return v, landed, err
}

// close makes the entry of a receipt. When the backlog of its destination has reached
// the budget, its messages wait.
func (r *receipts) close(x *receipt) error {
	body, err := json.Marshal(&x.body)
	if err != nil {
		return err
	}
	m := Message{
		Topic: r.to.info, ID: fmt.Sprintf("receipt-%x-%x-%d-%d", uint64(r.b.log.Incarnation()), uint64(r.t.first), r.queue, x.marks[0].From),
		Keys: x.ids, Properties: map[string]string{"topic": string(r.t.name), "zone": string(r.v.zone.Name)},
		Body: body, Born: r.now, BornHost: string(r.b.node), Queue: AnyQueue,
	}
	if !strings.ContainsRune(string(r.t.name), '|') { // which parts tags in a filter
		m.Tag = string(r.t.name)
	}
	d := zone.Destination{Zone: x.zone, Slot: zone.HashSlot(m.ID), Reach: zone.ReachZone, Group: r.v.group}
	if x.zone != r.v.zone {
		d.Reach, d.Group = zone.ReachFar, x.zone.SlotOwner(d.Slot)
	}
	var rec record.Record
	r.b.recordOf(&rec, r.v, r.to, &m, &d, r.now)
	rec.Properties = properties(nil, m.Properties)
	rec.Cause = appendCause(nil, &Cause{Kind: CauseReceipt, Topic: r.t.name, TopicIncarnation: r.t.first, Queue: r.queue, Offsets: x.marks})
	if rec.Target != "" {
		if err := r.b.checkBudgetWith(r.to.info, &rec, r.backlog); err != nil {
			where := record.Record{Target: rec.Target, Channel: rec.Channel, Class: rec.Class, Lane: rec.Lane}
			r.blocked = append(r.blocked, blockedReceipt{refused: where, marks: x.marks})
			return nil
		}
	}
	e, err := r.b.own(&rec)
	if err != nil {
		return err
	}
	r.entries = append(r.entries, e)
	r.backlog.add(&rec, e.FrameSize())
	return nil
}
