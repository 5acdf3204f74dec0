package broker

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/transaction"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Resolution is what a producer says about its half message.
type Resolution uint8

// The resolutions.
const (
	ResolutionUnknown Resolution = iota // the half message stays, and producers are asked again
	ResolutionCommit
	ResolutionRollback
)

// outcome is what the resolution makes of a half message.
func (r Resolution) outcome() transaction.Outcome {
	if r == ResolutionCommit {
		return transaction.Committed
	}
	return transaction.RolledBack
}

// halves are what a broker keeps of half messages beside the fold's table.
type halves struct {
	sealer   *transaction.Sealer
	agenda   transaction.Agenda                    // guarded by Broker.mu
	deciding map[transaction.Key]chan struct{}     // decisions that are being appended; guarded by Broker.mu
	asked    map[transaction.Key]*transaction.Half // those with checks that are not logged yet; guarded by Broker.mu
	arriving arriving
	refused  atomic.Uint64 // half messages for which there was no room
	check    checkState
}

func newHalves() halves {
	return halves{deciding: map[transaction.Key]chan struct{}{}, asked: map[transaction.Key]*transaction.Half{},
		check: checkState{kick: make(chan struct{}, 1), lonely: map[zone.Topic]bool{},
			missed: map[zone.Topic]map[*transaction.Half]struct{}{}}}
}

// makeHalf makes the record of a message of a kind transaction a half message, as
// far as there is room for another.
func (b *Broker) makeHalf(r *record.Record, t *zone.TopicInfo, m *Message, p *publication) error {
	immunity := t.Transaction.Immunity
	if m.Recovery > 0 {
		immunity = min(m.Recovery, maxImmunity)
	}
	b.mu.RLock()
	all, of := b.state.halves.Len(), b.state.halves.LenOf(t.Name)
	b.mu.RUnlock()
	var text string
	switch {
	case !b.halves.arriving.take(int64(b.limits.MaxHalves - all)):
		text = fmt.Sprintf("%d half messages wait for their decisions, at most %d may", all, b.limits.MaxHalves)
	case of >= b.limits.MaxTopicHalves:
		b.halves.arriving.give(1)
		text = fmt.Sprintf("%d half messages of the topic wait for their decisions, at most %d may", of, b.limits.MaxTopicHalves)
	}
	if text != "" {
		b.halves.refused.Add(1)
		b.metrics.tx.refused(t.Name)
		return &Error{Op: "publish", Kind: KindBusy, Topic: t.Name, Text: text}
	}
	p.halves++
	terms := halfTerms{immunity: immunity.Truncate(time.Millisecond)}
	r.Type, r.Cause = record.TypeHalf, terms.append(nil)
	return nil
}

// arrived gives the places of half messages back: the fold counts them now, or
// they did not come.
func (b *Broker) arrived(p *publication) {
	if p.halves > 0 {
		b.halves.arriving.give(p.halves)
		p.halves = 0
	}
}

// halfResult fills in the result of a half message that is stored.
func (b *Broker) halfResult(r *PublishResult, at placement) {
	r.Level, r.Offset = LevelHalf, 0
	r.TransactionID = b.halves.sealer.Seal(record.Identity{
		Group: b.self, Incarnation: b.log.Incarnation(), Epoch: at.epoch, Position: record.Position(at.offset),
	})
}

// EndTransaction decides the half message with the transaction id, which is of the
// topic. It returns when the decision is durable: a committed message is in its
// queue or on its flow then. The first decision counts; the same one again changes
// nothing and is no error, as long as it is among the transaction.Remembered newest
// ones of the store. ResolutionUnknown changes nothing.
//
// The broker group that stored the half message decides. A broker of another group
// of the zone passes the call on to it.
//
// KindTransaction: the id is malformed, of no group of this zone, not given out by
// its group's store, of another topic, or no longer known. KindDecided: something
// else was decided before. A commit may fail as a publish may, by what the topology
// in force says of the topic and its destination, or for want of members in sync
// (KindInSync); the half message stays then. KindUnconfirmed: it may have been committed
// with fewer copies than the topic asks for; the same decision again tells.
func (b *Broker) EndTransaction(ctx context.Context, topic zone.Topic, id string, r Resolution) error {
	if err := b.ready("end transaction"); err != nil {
		return err
	}
	owner, err := transaction.Owner(id)
	if err != nil {
		return &Error{Op: "end transaction", Kind: KindTransaction, Topic: topic, Err: err}
	}
	if owner != b.self {
		return b.passDecision(ctx, owner, topic, id, r)
	}
	return b.endTransaction(ctx, topic, id, r)
}

// endTransaction is EndTransaction for half messages of this group.
func (b *Broker) endTransaction(ctx context.Context, topic zone.Topic, id string, r Resolution) error {
	return b.startDecision(ctx, topic, id, r, Order{})()
}

// startDecision has the log take a decision, of a client or by order of an operator.
// The function that it returns waits for the end and must be called.
func (b *Broker) startDecision(ctx context.Context, topic zone.Topic, id string, r Resolution, order Order) (wait func() error) {
	over := func(err error) func() error { return func() error { return err } }
	refuse := func(kind Kind, err error) error {
		return &Error{Op: "end transaction", Kind: kind, Topic: topic, Err: err}
	}
	identity, err := b.halves.sealer.Open(id)
	if err == nil && identity.Incarnation != b.log.Incarnation() {
		err = transaction.ErrForeign
	}
	if err != nil {
		return over(refuse(KindTransaction, err))
	}
	h, done, err := b.beginDecision(ctx, topic, keyOfHalf(identity), r)
	if h == nil {
		return over(err)
	}
	o := &op{}
	if r == ResolutionCommit {
		err = b.prepareCommit(ctx, h, identity, o, order)
	} else {
		err = b.prepareRollback(h, o, order)
	}
	if err != nil {
		done()
		return over(err)
	}
	decided := make(chan error, 1)
	o.finished = func(err error) {
		done()
		decided <- err
	}
	if err := b.append(ctx, o); err != nil {
		done()
		return over(refuse(kindOfLog(err), err))
	}
	return func() error {
		var err error
		select {
		case err = <-decided:
		case <-ctx.Done():
			return refuse(KindBusy, ctx.Err())
		}
		if err != nil {
			return refuse(kindOfLog(err), err)
		}
		if !o.places[0].ok { // the fold has the last word
			_, err := b.answered(topic, keyOfHalf(identity), r)
			return err
		}
		b.metrics.tx.decided(r.outcome(), h.Topic)
		if order.given() {
			b.metrics.tx.ordered(r.outcome(), h.Topic)
		}
		return nil
	}
}

// beginDecision returns the half message and who has to be told that its decision
// was appended or failed. It waits for a decision that is under way. Without a half
// message the error is the answer.
func (b *Broker) beginDecision(ctx context.Context, topic zone.Topic, k transaction.Key, r Resolution) (*transaction.Half, func(), error) {
	for {
		h, err := b.answered(topic, k, r)
		if h == nil || err != nil || r == ResolutionUnknown {
			return nil, nil, err
		}
		free, done := b.claim(h)
		if done != nil {
			return h, done, nil
		}
		select {
		case <-free:
		case <-ctx.Done():
			return nil, nil, &Error{Op: "end transaction", Kind: KindBusy, Topic: topic, Err: ctx.Err()}
		}
	}
}

// claim makes the caller the only one who decides the half message, until it calls
// done. When somebody else is at it, done is nil, and free closes when it is worth
// trying again.
func (b *Broker) claim(h *transaction.Half) (free <-chan struct{}, done func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if other := b.halves.deciding[h.Key]; other != nil {
		return other, nil
	}
	mine := make(chan struct{})
	if h.Decided() {
		close(mine)
		return mine, nil
	}
	b.halves.deciding[h.Key] = mine
	return nil, func() {
		b.mu.Lock()
		delete(b.halves.deciding, h.Key)
		b.mu.Unlock()
		close(mine)
	}
}

// answered returns the pending half message, or the answer to a decision about one
// that is not pending.
func (b *Broker) answered(topic zone.Topic, k transaction.Key, r Resolution) (*transaction.Half, error) {
	b.mu.RLock()
	h := b.state.halves.Get(k)
	outcome, known := b.state.halves.Outcome(k)
	b.mu.RUnlock()
	refuse := func(kind Kind, text string) error {
		return &Error{Op: "end transaction", Kind: kind, Topic: topic, Text: text}
	}
	switch {
	case h != nil && h.Topic != topic:
		return nil, refuse(KindTransaction, "the transaction is of another topic")
	case h != nil:
		return h, nil
	case !known:
		return nil, refuse(KindTransaction, "the transaction is not known: it was decided too long ago")
	case r == ResolutionCommit && outcome == r.outcome(): // perhaps told to ask again, for want of copies
		if t := b.view.Load().topo.FindTopic(topic); t != nil {
			return nil, b.checkInSync("end transaction", t)
		}
		return nil, nil
	case r == ResolutionUnknown || outcome == r.outcome():
		return nil, nil
	case outcome == transaction.Parked:
		return nil, refuse(KindDecided, "the transaction was parked, since nobody decided it in time; mqrouter dlq shows and replays it")
	}
	return nil, refuse(KindDecided, "the transaction was "+outcome.String()+" before")
}

// prepareCommit makes the message that the half message becomes, by the topology
// in force.
func (b *Broker) prepareCommit(ctx context.Context, h *transaction.Half, identity record.Identity, o *op, order Order) error {
	refuse := func(kind Kind, err error) error {
		return &Error{Op: "end transaction", Kind: kind, Topic: h.Topic, Err: err}
	}
	rec, err := b.readHalf(h)
	if err != nil {
		return refuse(kindOfLog(err), err)
	}
	var r record.Record
	if err := rec.Decode(&r); err != nil {
		return refuse(KindCorrupt, err)
	}
	v := b.view.Load()
	if t := v.topo.FindTopic(h.Topic); t != nil { // a commit is worth what a send is
		if err := b.checkInSync("end transaction", t); err != nil {
			return err
		}
		o.inSync = t.MinInSync
	}
	_, err = b.routeAnew(v, h.Topic, &r)
	if KindOf(err) == KindBudget && b.makeRoom(ctx, v.topo.FindTopic(h.Topic)) {
		_, err = b.routeAnew(v, h.Topic, &r)
	}
	if err != nil {
		return err
	}
	r.Cause = appendCause(nil, &Cause{Kind: CauseCommit, Topic: h.Topic, Original: identity, Order: order})
	e, err := b.own(&r)
	if err != nil {
		return refuse(KindTooLarge, err)
	}
	o.batch.Entries = []commitlog.Entry{e}
	return nil
}

// prepareRollback makes the record of a rollback. It may use the space that the log
// keeps back: it lets space come free. One that an operator ordered can be found by the
// message's id, unless the message cannot be read.
func (b *Broker) prepareRollback(h *transaction.Half, o *op, order Order) error {
	body := rollbackBody{h.Key}
	r := record.Record{Type: record.TypeRollback, Shard: record.NoShard, Stored: b.wallNow(), Cause: order.append(nil), Body: body.append(nil)}
	if order.given() {
		if v, err := b.readHalf(h); err == nil {
			r.Topic, r.MessageID = h.Topic, string(v.MessageID())
		}
	}
	e, err := b.own(&r)
	if err != nil {
		return &Error{Op: "end transaction", Kind: KindInternal, Topic: h.Topic, Err: err}
	}
	o.batch = commitlog.Batch{Entries: []commitlog.Entry{e}, Reserved: true}
	return nil
}

// passDecision has the broker group that the id names decide. Its body is the
// topic's name, the transaction id and the resolution.
func (b *Broker) passDecision(ctx context.Context, owner zone.Group, topic zone.Topic, id string, r Resolution) error {
	if !b.inZone(owner) {
		return &Error{Op: "end transaction", Kind: KindTransaction, Topic: topic, Text: fmt.Sprintf("the transaction is of no broker group of zone %s", b.Zone().Name)}
	}
	var e encoder
	e.str(string(topic))
	e.str(id)
	e.byte(byte(r))
	_, err := b.call(ctx, owner, CallEndTransaction, e.b)
	return err
}

// serveDecision answers passDecision of another group of the zone.
func (b *Broker) serveDecision(ctx context.Context, body []byte) ([]byte, error) {
	d := decoder{b: body}
	topic, id, r := zone.Topic(d.str()), d.str(), Resolution(d.byte())
	if !d.ok() || r > ResolutionRollback {
		return nil, &Error{Op: "end transaction", Kind: KindInvalid, Text: "the call cannot be read"}
	}
	return nil, b.endTransaction(ctx, topic, id, r)
}
