package node

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/broker/tails"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
	"github.com/mqrouter/mqrouter/zone"
)

// tailDesk shows operators the tails that a member keeps. They are files: whether the
// store is open, and whoever is master, makes no difference.
type tailDesk struct{ m *memberNode }

var _ admin.Tails = tailDesk{}

// Bounds of a page.
const (
	tailLimit   = 100     // messages, unless the query says
	maxTailPage = 1000    // messages
	tailBytes   = 8 << 20 // of records, about: a record is at most as large
	tailPreview = 256     // bytes of a body
)

// List implements admin.Tails.
func (d tailDesk) List(context.Context) ([]admin.Tail, error) {
	list, err := d.m.tails.List()
	return tailsOf(list, d.m.self), err
}

// tailsOf tells of tails.
func tailsOf(list []tails.Info, self *zone.NodeInfo) []admin.Tail {
	var all []admin.Tail
	for _, x := range list {
		all = append(all, tailOf(x, self))
	}
	return all
}

func tailOf(x tails.Info, self *zone.NodeInfo) admin.Tail {
	if x.Damage != nil {
		return admin.Tail{ID: x.ID, Group: string(self.Group.Name), Node: string(self.Name), Bytes: x.Bytes, Damage: x.Damage.Error()}
	}
	t := admin.Tail{ID: x.ID, Group: x.Group, Node: string(self.Name), Epoch: x.Epoch, From: uint64(x.From), End: uint64(x.End),
		Committed: uint64(x.Committed), Forced: x.Forced, Saved: x.Saved, Bytes: x.Bytes,
		Records: x.Counts.Records, Messages: x.Counts.Messages, Certain: x.Counts.Certain, Kinds: x.Counts.Kinds, More: x.Counts.More}
	t.Waiting = x.Waiting()
	if p := x.Progress; p != nil {
		sum := sumOf(p)
		t.Offer = &admin.TailProgress{Offered: sum.Offered, Duplicates: sum.Duplicate, Decided: sum.Decided, Not: sum.Not, Refused: sum.Refused,
			Under: p.Next > 0, Topic: p.Pass, By: p.By, Why: p.Why, At: p.At}
		for _, r := range p.Reasons {
			t.Offer.Reasons = append(t.Offer.Reasons, admin.TailReason(r))
		}
	}
	for _, p := range x.Counts.Topics {
		t.Topics = append(t.Topics, admin.TailTopic(p))
	}
	return t
}

// Messages implements admin.Tails.
func (d tailDesk) Messages(ctx context.Context, q admin.TailQuery) (admin.TailPage, error) {
	limit := q.Limit
	if limit <= 0 {
		limit = tailLimit
	}
	p, err := d.m.tailReader.Read(ctx, broker.TailQuery{ID: q.ID, From: record.Position(q.From), After: record.Position(q.After),
		Limit: min(limit, maxTailPage), Bytes: tailBytes, Topic: zone.Topic(q.Topic), MessageID: q.MessageID, All: q.All})
	if err != nil {
		return admin.TailPage{}, tailError(err)
	}
	page := admin.TailPage{Next: uint64(p.Next), After: uint64(p.After)}
	for i := range p.Records {
		page.Messages = append(page.Messages, tailMessage(&p.Records[i], q.Whole))
	}
	return page, nil
}

func tailMessage(r *broker.TailRecord, whole bool) admin.TailMessage {
	m := admin.TailMessage{Position: uint64(r.Position), End: uint64(r.End), After: uint64(r.After), Kind: string(r.Kind), Acknowledged: "perhaps", Not: r.Not}
	if r.Certain {
		m.Acknowledged = "yes"
	}
	for _, g := range r.Again.Groups {
		m.SettledBy = append(m.SettledBy, string(g))
	}
	v := r.Record
	if len(v.Bytes()) == 0 {
		return m
	}
	m.Topic, m.MessageID, m.Target, m.MsgGroup, m.Tag = string(v.Topic()), string(v.MessageID()), string(v.Target()), string(v.MessageGroup()), string(v.Tag())
	for k := range v.Keys {
		m.Keys = append(m.Keys, string(k))
	}
	m.Stored, m.DeliverAt, m.BodySize = v.Stored(), v.DeliverAt(), len(v.Body())
	if whole {
		m.Record = v.Bytes()
	} else if r.Kind != broker.TailBroker {
		m.Body = v.Body()[:min(tailPreview, len(v.Body()))]
	}
	return m
}

// tailMeters tells of the tails that a broker keeps.
func tailMeters(m *meterSet) func(*look) {
	kept := m.gauge("mqrouter.tails", "{tail}", "Tails that this node keeps: what its log had and its group has not.")
	size := m.gauge("mqrouter.tails.size", "By", "Bytes of these tails on the disk.")
	messages := m.gauge("mqrouter.tails.messages", "{message}", "Messages of clients in these tails.")
	waiting := m.gauge("mqrouter.tails.waiting", "{message}", "Of these, messages that were not offered again, or refused.")
	return func(l *look) {
		var list []admin.Tail // none of a broker that is its group's only node, which keeps none
		if s := l.status.Member; s != nil {
			list = s.Tails
		}
		var bytes, count, wait int64
		for _, t := range list {
			bytes, count, wait = bytes+t.Bytes, count+int64(t.Messages), wait+int64(t.Waiting)
		}
		l.ObserveInt64(kept, int64(len(list)))
		l.ObserveInt64(size, bytes)
		l.ObserveInt64(messages, count)
		l.ObserveInt64(waiting, wait)
	}
}

// Drop implements admin.Tails.
func (d tailDesk) Drop(_ context.Context, _ string, o admin.TailDrop) ([]admin.Tail, error) {
	if strings.TrimSpace(o.Why) == "" {
		return nil, &admin.RequestError{Status: http.StatusBadRequest, Err: errors.New("say why: who comes after you will ask")}
	}
	x, err := d.m.tails.Drop(o.ID)
	if err != nil {
		return nil, tailError(err)
	}
	return []admin.Tail{tailOf(x, d.m.self)}, nil
}

func tailError(err error) error {
	if errors.Is(err, tails.ErrNone) {
		return &admin.RequestError{Status: http.StatusNotFound, Err: err}
	}
	return err
}

// forced is the epoch of the last fail-over with loss that this node knows of.
func (m *memberNode) forced() uint64 {
	if l := m.known().Lost; l != nil {
		return l.Epoch
	}
	return 0
}

// gaveUp reports whether an operator's order explains how a log has diverged: the order
// gave up what this log has beyond a place that is known, and nobody counts on this node.
func (m *memberNode) gaveUp(t coordinator.Term, d *ship.DivergedError) bool {
	return d.Verified && d.LogEpoch < m.forced() && m.dispensable(t)
}

// errParted says that a member's log is to go: what the group does not have of it is
// saved.
var errParted = errors.New("an operator's fail-over gave up the end of this log, which is set aside; a copy of the master's takes the log's place")

// part saves what the group does not have of the log, and returns why the life ends.
func (l *life) part(ctx context.Context, d *ship.DivergedError) error {
	if err := l.broker.SetTailAside(ctx, d.Common); err != nil {
		return err
	}
	return errParted
}

// forsake removes the store of a log that has parted. It reports whether it has.
func (m *memberNode) forsake() bool {
	if err := broker.Forsake(m.o.FS, m.cfg.DataDir, time.Now()); err != nil {
		m.say(errors.Join(errors.New("the log that was given up cannot be removed"), err))
		return false
	}
	return true
}
