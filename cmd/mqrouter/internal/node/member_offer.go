package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/broker/tails"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/replication/call"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// Bounds of an offer.
const (
	offerBytes   = 1 << 20 // of the records of a page, about
	offerRefused = 50      // refused messages that a page names
)

// toMaster is a member's way to its own group's master.
type toMaster struct {
	m      *memberNode
	client *call.Client
}

// newToMaster returns it. What it measures is with the calls of the broker.
func newToMaster(m *memberNode) (*toMaster, error) {
	w := &toMaster{m: m}
	var err error
	w.client, err = call.NewClient(call.Options{Meter: m.meter(), KindName: callName, Session: func() uint64 { return rand.Uint64() | 1 }, PerGroup: 1, Open: w.open})
	return w, err
}

func (w *toMaster) open(ctx context.Context, _ zone.Group, session uint64) (wire.Stream, error) {
	t, term := w.m.topologyNow(), w.m.known()
	n := t.FindNode(term.Master)
	if n == nil || n.Name == w.m.self.Name {
		return nil, fmt.Errorf("broker group %s has no master now", w.m.self.Group.Name)
	}
	addr := n.Peer
	if told := memberAddr(w.m.city, n.Name); told != "" {
		addr = told
	}
	s, err := w.m.dialer.Open(ctx, peer.Target{Identity: peer.IdentityFor(t.Deployment, n), Addr: addr,
		Destination: n.City.Name, Class: zone.ClassControl}, session)
	if err != nil {
		return nil, err // not s: a nil *Session is no nil Stream
	}
	return s, nil
}

// Call implements broker.Caller. This node answers itself while it is the master.
func (w *toMaster) Call(ctx context.Context, group zone.Group, kind broker.CallKind, body []byte) ([]byte, error) {
	if l := w.m.life.Load(); l != nil && l.reigns() {
		return l.broker.ServeCall(ctx, kind, body)
	}
	return zoneCaller{w.client}.Call(ctx, group, kind, body)
}

// Offer implements admin.Tails.
func (d tailDesk) Offer(ctx context.Context, by string, o admin.TailOffer) ([]admin.TailOffered, error) {
	bad := func(status int, text string) error {
		return &admin.RequestError{Status: status, Err: errors.New(text)}
	}
	if strings.TrimSpace(o.Why) == "" {
		return nil, bad(http.StatusBadRequest, "say why: who comes after you will ask")
	}
	if !d.m.offering.TryLock() {
		return nil, bad(http.StatusServiceUnavailable, "another part of a tail of this node is being offered: ask again")
	}
	defer d.m.offering.Unlock()
	info, err := d.m.tails.Find(o.ID)
	if err != nil {
		return nil, tailError(err)
	}
	p := passOf(&info, by, &o)
	if p == nil {
		return nil, bad(http.StatusConflict, "another offer of this tail has begun since: begin anew")
	}
	page, err := d.m.tailReader.Read(ctx, broker.TailQuery{ID: o.ID, From: record.Position(o.From), After: record.Position(o.After),
		Limit: broker.MaxOffered, Bytes: offerBytes, Topic: zone.Topic(o.Topic), Offered: true})
	if err != nil {
		return nil, tailError(err)
	}
	x := offerPage{d: d, info: &info, p: p, out: admin.TailOffered{Next: uint64(page.Next), After: uint64(page.After), Outcomes: map[string]int{}}}
	if err := x.offer(ctx, page.Records, broker.OfferOptions{Dry: o.Dry, Reroute: o.Reroute}); err != nil {
		return nil, err
	}
	if o.Dry {
		return []admin.TailOffered{x.out}, nil
	}
	p.Next, p.After = record.Position(x.out.Next), record.Position(x.out.After)
	if err := d.m.tails.SetProgress(o.ID, p); err != nil {
		return nil, err
	}
	if p.Next == 0 {
		sum := sumOf(p)
		d.m.log.Warn("tail was offered again by order of an operator", "tail", o.ID, "topic", o.Topic, "offered", sum.Offered, "duplicates", sum.Duplicate,
			"decided", sum.Decided, "not", sum.Not, "refused", sum.Refused, "by", by, "why", o.Why)
	}
	return []admin.TailOffered{x.out}, nil
}

// passOf returns the progress of the pass that an order is a part of: a new one's when
// it begins; nil when it goes on with another one than that under way.
func passOf(info *tails.Info, by string, o *admin.TailOffer) *tails.Progress {
	p := &tails.Progress{Topics: map[string]tails.Offered{}}
	if was := info.Progress; was != nil {
		*p = *was
		p.Topics, p.Blocked, p.Reasons = maps.Clone(was.Topics), slices.Clone(was.Blocked), slices.Clone(was.Reasons)
	}
	switch {
	case o.From == 0:
		p.Blocked, p.Reasons, p.Pass = nil, nil, o.Topic
		if o.Topic == "" {
			p.Topics = map[string]tails.Offered{}
		} else {
			delete(p.Topics, info.TopicOf(o.Topic))
		}
	case !o.Dry && (uint64(p.Next) != o.From || p.Pass != o.Topic):
		return nil
	}
	p.By, p.Why, p.At = by, o.Why, time.Now()
	return p
}

// sumOf adds up what became of a tail's messages.
func sumOf(p *tails.Progress) (sum tails.Offered) {
	if p == nil {
		return sum
	}
	for _, t := range p.Topics {
		sum.Offered, sum.Duplicate, sum.Decided = sum.Offered+t.Offered, sum.Duplicate+t.Duplicate, sum.Decided+t.Decided
		sum.Not, sum.Refused = sum.Not+t.Not, sum.Refused+t.Refused
	}
	return sum
}

// offerPage offers a page of a tail.
type offerPage struct {
	d    tailDesk
	info *tails.Info
	p    *tails.Progress
	out  admin.TailOffered
}

// offer offers the records in their order. It counts nothing of what comes behind a record
// that is held, which is offered again with it.
func (x *offerPage) offer(ctx context.Context, page []broker.TailRecord, how broker.OfferOptions) error {
	for len(page) > 0 && x.out.Held == "" {
		var list []broker.Offered
		n := 0
		for n < len(page) && broker.OfferBatch(list) == len(list) {
			if !x.judged(&page[n]) {
				list = append(list, page[n].Offered())
			}
			n++
		}
		if fit := broker.OfferBatch(list); fit < len(list) { // the last one is for the next call
			list, n = list[:fit], n-1
		}
		if err := x.call(ctx, page[:n], list, how); err != nil {
			return err
		}
		page = page[n:]
	}
	return nil
}

// judged reports whether what becomes of a record is known without its master.
func (x *offerPage) judged(r *broker.TailRecord) bool {
	g, ok := broker.MessageGroupOf(&r.Record)
	return r.Not != "" || ok && slices.Contains(x.p.Blocked, tails.Blocked{Topic: string(g.Topic), Group: g.Group})
}

// call offers what of the records is not judged, the list, and counts what became of all.
func (x *offerPage) call(ctx context.Context, page []broker.TailRecord, list []broker.Offered, how broker.OfferOptions) error {
	known := make([]bool, len(page)) // before the calls' results block more
	for i := range page {
		known[i] = x.judged(&page[i])
	}
	var results []broker.OfferResult
	if len(list) > 0 {
		var err error
		if results, err = broker.Offer(ctx, x.d.m.toMaster, x.d.m.self.Group.Name, list, how); err != nil {
			return &admin.RequestError{Status: http.StatusServiceUnavailable, Err: err}
		}
	}
	for i := range page {
		r := &page[i]
		was := broker.OfferResult{Outcome: broker.OfferRefused, Text: broker.OfferBehind}
		if !known[i] {
			was, results = results[0], results[1:]
		}
		if was.Outcome == broker.OfferHeld {
			x.out.Next, x.out.After, x.out.Held = uint64(r.Position), uint64(r.After), was.Text
			return nil
		}
		if err := x.count(r, was.Outcome, was.Text); err != nil {
			return err
		}
	}
	return nil
}

// count notes what became of a record.
func (x *offerPage) count(r *broker.TailRecord, o broker.OfferOutcome, text string) error {
	v := r.Record
	word := o.String()
	if r.Not != "" {
		word = "not offered"
	}
	x.out.Outcomes[word]++
	if len(v.Bytes()) > 0 {
		x.out.Bytes += len(v.Bytes())
	}
	if o == broker.OfferRefused && r.Not == "" {
		if len(x.out.Refused) < offerRefused {
			x.out.Refused = append(x.out.Refused, admin.TailRefused{Topic: string(v.Topic()), MessageID: string(v.MessageID()), Kind: string(r.Kind), Why: text})
		}
		x.reason(text)
		if err := x.block(r); err != nil {
			return err
		}
	}
	if !r.Kind.IsMessage() {
		return nil
	}
	topic := x.info.TopicOf(string(v.Topic()))
	t := x.p.Topics[topic]
	switch {
	case r.Not != "":
		t.Not++
	case o == broker.OfferStored, o == broker.OfferAgain:
		t.Offered++
	case o == broker.OfferDuplicate:
		t.Duplicate++
	case o == broker.OfferRefused:
		t.Refused++
	default:
		t.Decided++
	}
	x.p.Topics[topic] = t
	return nil
}

// block has what follows of the record's message group wait for it.
func (x *offerPage) block(r *broker.TailRecord) error {
	g, ok := broker.MessageGroupOf(&r.Record)
	b := tails.Blocked{Topic: string(g.Topic), Group: g.Group}
	switch {
	case !ok || slices.Contains(x.p.Blocked, b):
		return nil
	case len(x.p.Blocked) >= tails.MaxBlocked:
		return &admin.RequestError{Status: http.StatusConflict,
			Err: fmt.Errorf("messages of %d message groups are refused, and more: mend the cause, or offer one topic at a time", tails.MaxBlocked)}
	}
	x.p.Blocked = append(x.p.Blocked, b)
	return nil
}

func (x *offerPage) reason(text string) {
	for i := range x.p.Reasons {
		if x.p.Reasons[i].Text == text {
			x.p.Reasons[i].Messages++
			return
		}
	}
	if len(x.p.Reasons) < tails.MaxReasons {
		x.p.Reasons = append(x.p.Reasons, tails.Reason{Text: text, Messages: 1})
	}
}
