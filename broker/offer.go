package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/once"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// MaxOffered bounds the records of one call of OfferTail.
const MaxOffered = 256

// OfferOutcome is what became of a record of a tail that was offered. Its values travel
// in calls between brokers: new ones come at the end.
type OfferOutcome uint8

// The outcomes.
const (
	OfferStored    OfferOutcome = iota + 1 // stored again; with OfferOptions.Dry it would be
	OfferAgain                             // stored before, by an earlier offer
	OfferDuplicate                         // its topic is idempotent, and it was published again since
	OfferKept                              // the group has not lost it
	OfferDecided                           // a decision, or a message that waited for one, that was decided since
	OfferRefused                           // it cannot be stored, now or ever, until somebody changes something
	OfferHeld                              // not now: offer it and what follows again later
)

var offerWords = [...]string{OfferStored: "offered", OfferAgain: "offered before", OfferDuplicate: "published again since", OfferKept: "kept",
	OfferDecided: "decided since", OfferRefused: "refused", OfferHeld: "held"}

// String returns the outcome in words.
func (o OfferOutcome) String() string {
	if o == 0 || int(o) >= len(offerWords) {
		return "none"
	}
	return offerWords[o]
}

// offerFate is why the fold ignored a message that comes again.
type offerFate uint8

const (
	offerRepeated offerFate = iota + 1 // it was stored before
	offerNoRoom                        // there is no room to remember it
)

// Offered is a record of a tail that is to be stored again.
type Offered struct {
	Record  record.View
	Again   record.Again    // where it stood; Decides is for OfferTail to say
	Route   *Route          // on which flow Again.Sent left; nil when it did not
	Begin   record.Position // of the tail
	Certain bool            // it was surely acknowledged
}

// Route is where a record leaves to.
type Route struct {
	Target  string
	Channel bool
	Class   zone.Class
	Lane    uint8
}

func routeOf(v *record.View) Route {
	return Route{Target: string(v.Target()), Channel: v.Channel(), Class: v.Class(), Lane: v.Lane()}
}

// OfferOptions qualifies an offer.
type OfferOptions struct {
	Dry bool // say what would happen, and do nothing
	// Reroute has messages stored whose route is another one now than when they left: both
	// destinations may have them then.
	Reroute bool
}

// OfferResult is the result for one record.
type OfferResult struct {
	Outcome OfferOutcome
	Text    string // where it goes, or why not
}

// OfferTail stores records of a tail again, in their order, as messages of this group
// that are late, by the topology in force: what was committed is a message, what was
// delayed waits again until its time, a half message waits for the decision of its
// producers, who are asked. Decisions about half and delayed messages that the group has
// kept are done. A message counts once for the place in the old log where it stood,
// however often it is offered. With Dry nothing is done.
//
// What cannot be stored now is OfferHeld, and so is all that follows it. It returns when
// everything is committed. After an error what was asked for may have been stored: offer
// it again. Calls wait for each other, and for those of Replay.
func (b *Broker) OfferTail(ctx context.Context, list []Offered, how OfferOptions) ([]OfferResult, error) {
	if err := b.ready("offer"); err != nil {
		return nil, err
	}
	if len(list) == 0 || len(list) > MaxOffered {
		return nil, &Error{Op: "offer", Kind: KindInvalid, Text: fmt.Sprintf("%d records; 1 to %d are allowed", len(list), MaxOffered)}
	}
	b.replaying.Lock()
	defer b.replaying.Unlock()
	o := &offering{b: b, v: b.view.Load(), how: how, results: make([]OfferResult, len(list))}
	for i := range list {
		if o.isBlocked(&list[i].Record) {
			o.results[i] = OfferResult{Outcome: OfferRefused, Text: OfferBehind}
			continue
		}
		err := o.one(i, &list[i])
		var e *Error
		if errors.As(err, &e) && e.Retryable() {
			o.hold(i, err)
			break
		}
		if err != nil {
			o.results[i] = OfferResult{Outcome: OfferRefused, Text: err.Error()}
			o.block(&list[i].Record)
		}
	}
	defer b.oncePending.Add(-int64(o.ids))
	if how.Dry || len(o.which) == 0 {
		b.lites.give(&o.op)
		return o.results, nil
	}
	// Whoever comes next must see them, also when the caller has gone.
	if err := b.appendWait(context.WithoutCancel(ctx), &o.op); err != nil {
		return nil, &Error{Op: "offer", Kind: kindOfLog(err), Err: err}
	}
	o.judge()
	b.metrics.offered(o.results)
	return o.results, nil
}

// offering is one call of OfferTail.
type offering struct {
	b       *Broker
	v       *view
	how     OfferOptions
	op      op
	which   []int // of the results, by entry
	ids     int   // message ids that the batch adds to windows
	halves  int
	before  prepared
	blocked map[MessageGroup]bool // a message of it was refused
	results []OfferResult
}

// MessageGroup names a message group, or a lite topic, of a topic.
type MessageGroup struct {
	Topic zone.Topic
	Group string
}

// MessageGroupOf returns the message group of a record; false when it has none.
func MessageGroupOf(v *record.View) (MessageGroup, bool) {
	g := MessageGroup{zone.Topic(v.Topic()), string(v.MessageGroup())}
	return g, g.Group != ""
}

// OfferBehind is why a message is refused that must not overtake one of its message group.
const OfferBehind = "a message before it, of its message group, was refused"

func (o *offering) block(v *record.View) {
	if g, ok := MessageGroupOf(v); ok {
		if o.blocked == nil {
			o.blocked = map[MessageGroup]bool{}
		}
		o.blocked[g] = true
	}
}

func (o *offering) isBlocked(v *record.View) bool {
	if len(o.blocked) == 0 {
		return false
	}
	g, _ := MessageGroupOf(v)
	return o.blocked[g]
}

// hold leaves a record and all that follow for later.
func (o *offering) hold(from int, err error) {
	for i := from; i < len(o.results); i++ {
		o.results[i] = OfferResult{Outcome: OfferHeld, Text: err.Error()}
	}
}

// one prepares one record.
func (o *offering) one(i int, x *Offered) error {
	topic := zone.Topic(x.Record.Topic())
	refuse := func(kind Kind, text string) error { return &Error{Op: "offer", Kind: kind, Topic: topic, Text: text} }
	id := x.Record.Identity()
	if id.Group != o.b.self || id.Incarnation != o.b.log.Incarnation() || id.Position != x.Again.Position || id.Epoch != x.Again.Epoch || x.Again.Lineage == 0 || x.Record.Verify() != nil {
		return refuse(KindInvalid, "this is no record of a log of this group")
	}
	if o.b.kept(x) {
		o.results[i] = OfferResult{Outcome: OfferKept, Text: "the group has it"}
		return nil
	}
	_, kind := kindInTail(&commitlog.Entry{Kind: commitlog.KindOwn, Record: x.Record.Bytes()})
	switch {
	case kind == TailUnknown:
		return refuse(KindCorrupt, "this version cannot read it")
	case kind == TailRollback, kind == TailRecall:
		return o.decision(i, x, kind)
	case !kind.IsMessage():
		return refuse(KindInvalid, "it is no message of a client")
	}
	return o.message(i, x, kind)
}

// kept reports whether the record is in this group's log, or was: the lineage that wrote
// it goes on here beyond it.
func (b *Broker) kept(x *Offered) bool {
	rows := b.log.Lineage()
	for i, row := range rows {
		if row.ID == x.Again.Lineage {
			return i+1 == len(rows) || x.Again.Position < rows[i+1].First
		}
	}
	return false
}

// message prepares a message of a client.
func (o *offering) message(i int, x *Offered, kind TailKind) error {
	b, topic := o.b, zone.Topic(x.Record.Topic())
	refuse := func(kind Kind, text string) error { return &Error{Op: "offer", Kind: kind, Topic: topic, Text: text} }
	var r record.Record
	if err := x.Record.Decode(&r); err != nil {
		return refuse(KindCorrupt, err.Error())
	}
	was := r
	t := o.v.topics[topic]
	if t == nil {
		return refuse(KindTopicUnknown, "the topology does not have it any more")
	}
	if err := b.checkInSync("offer", t.info); err != nil {
		return err
	}
	where, err := b.routeAnew(o.v, topic, &r)
	if KindOf(err) == KindBudget && b.makeRoom(b.ctx, t.info) {
		r = was
		where, err = b.routeAnew(o.v, topic, &r)
	}
	if err == nil && r.Target != "" {
		err = b.checkBudgetWith(t.info, &r, o.before)
	}
	if err != nil {
		return err
	}
	r.Flags, r.Priority, r.ExpireAt = was.Flags|record.FlagLate, was.Priority, was.ExpireAt
	if !x.Certain {
		r.Flags |= record.FlagMaybeDuplicate
	}
	if r.Again, err = o.againOf(x, &was, &r); err != nil {
		return err
	}
	if where, err = o.asKind(kind, t.info, x, &was, &r, where); err != nil {
		return err
	}
	if b.storedBefore(&r.Again) {
		o.results[i] = OfferResult{Outcome: OfferAgain, Text: "an offer before this one stored it"}
		return nil
	}
	known, err := o.knownID(t.info, &was, &r)
	if err != nil {
		return err
	}
	e, err := b.own(&r)
	if err != nil {
		return &Error{Op: "offer", Kind: KindTooLarge, Topic: topic, Err: err}
	}
	o.before.add(&r, e.FrameSize())
	o.op.inSync = max(o.op.inSync, t.info.MinInSync)
	o.add(i, e, where)
	if known { // the fold decides, and remembers that it was offered
		o.results[i] = OfferResult{Outcome: OfferDuplicate, Text: "its id was published again since"}
	}
	return nil
}

func (o *offering) add(i int, e commitlog.Entry, where string) {
	o.op.batch.Entries, o.which = append(o.op.batch.Entries, e), append(o.which, i)
	o.results[i] = OfferResult{Outcome: OfferStored, Text: where}
}

// againOf says where a message stood. One that was offered before from another tail, and
// was lost with this one, stays what it was: its first place is what others know it by.
func (o *offering) againOf(x *Offered, was, r *record.Record) (record.Again, error) {
	a := x.Again
	if first, ok := comesAgain(&x.Record); ok {
		a = first
		a.After, a.Groups = a.Position, slices.Concat(was.Again.Groups, x.Again.Groups)
	}
	if size := 0; len(a.Groups) > 0 {
		for i, g := range a.Groups {
			if size += 2 + len(g); size > record.MaxAgainGroups {
				a.Groups, r.Flags = a.Groups[:i], r.Flags|record.FlagMaybeDuplicate
				break
			}
		}
	}
	if x.Route == nil || x.Route.Target == "" {
		a.Sent = 0
		return a, nil
	}
	switch now := (Route{Target: r.Target, Channel: r.Channel, Class: r.Class, Lane: r.Lane}); {
	case now.Channel && x.Route.Channel:
		// Each city is offered it again: one that landed it may have zones behind it that
		// have it not, and appliers take a version once.
		a.Sent, r.Flags = 0, r.Flags|record.FlagMaybeDuplicate
	case now == *x.Route:
	case o.how.Reroute:
		a.Sent, r.Flags = 0, r.Flags|record.FlagMaybeDuplicate
	default:
		return a, &Error{Op: "offer", Kind: KindUnroutable, Topic: r.Topic,
			Text: fmt.Sprintf("it left for %s, which may have it, and would leave for %s now: its route has changed", x.Route, now)}
	}
	return a, nil
}

// String names the destination.
func (r Route) String() string {
	switch {
	case r.Target == "":
		return "this group"
	case r.Channel:
		return "channel " + r.Target
	}
	return fmt.Sprintf("%s (lane %d)", r.Target, r.Lane)
}

// asKind makes r what a message of its kind is stored as.
func (o *offering) asKind(kind TailKind, t *zone.TopicInfo, x *Offered, was, r *record.Record, where string) (string, error) {
	b := o.b
	r.DeliverAt = was.DeliverAt
	switch {
	case kind == TailHalf:
		b.mu.RLock()
		all, of := b.state.halves.Len(), b.state.halves.LenOf(r.Topic)
		b.mu.RUnlock()
		if all+o.halves >= b.limits.MaxHalves || of+o.halves >= b.limits.MaxTopicHalves {
			return "", &Error{Op: "offer", Kind: KindBusy, Topic: r.Topic, Text: fmt.Sprintf("%d half messages wait for their decisions, %d of the topic", all, of)}
		}
		o.halves++
		r.Type, r.Cause = record.TypeHalf, was.Cause
		where += ", once its producers have decided"
	case kind == TailCommitted:
		if c, err := ParseCause(was.Cause); err == nil && c.Original.Position < x.Begin {
			r.Cause, r.Again.Decides = was.Cause, true
			where += ", which commits the half message that waits here"
		}
	case !r.DeliverAt.IsZero():
		waits, err := b.delay(t, r)
		if err != nil {
			return "", err
		}
		if waits {
			r.Again.Sent = 0
			where += ", when it is due"
		}
	case t.Kind == zone.KindLite && r.Target == "" && !b.liteRoom(t, r.MessageGroup, &o.op):
		return "", &Error{Op: "offer", Kind: KindLiteTopics, Topic: r.Topic, Text: "as many lite topics live as may"}
	}
	return where, nil
}

// storedBefore reports whether the place is known to the fold.
func (b *Broker) storedBefore(a *record.Again) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.state.again.has(a)
}

// knownID looks whether the message of an idempotent topic came again by itself. It is
// recognized by what its own record says, as publishers wrote it.
func (o *offering) knownID(t *zone.TopicInfo, was, r *record.Record) (known bool, err error) {
	if t.Idempotent == 0 || r.Again.Decides {
		return false, nil
	}
	r.Once = was.Once
	if r.Once.Window == 0 { // the topic was not idempotent then
		r.Once = record.Once{Key: once.Key(r.MessageID), Content: contentOfRecord(was)}
	}
	r.Once.Window = t.Idempotent
	o.b.mu.RLock()
	defer o.b.mu.RUnlock()
	switch _, answer := o.b.state.once.Look(r.Topic, &r.Once, r.Stored); answer {
	case once.Repeat:
		return true, nil
	case once.Conflict:
		return false, &Error{Op: "offer", Kind: KindConflict, Topic: r.Topic, Text: "message id " + strconv.Quote(r.MessageID) + " was published since with other content"}
	}
	if text := o.b.windowFull(r.Topic, r.Stored); text != "" {
		return false, &Error{Op: "offer", Kind: KindBusy, Topic: r.Topic, Text: text}
	}
	o.ids++
	o.b.oncePending.Add(1)
	return false, nil
}

// contentOfRecord is what the content of a message that r was made of is to package once.
func contentOfRecord(r *record.Record) uint64 {
	m := Message{Tag: r.Tag, MessageGroup: r.MessageGroup, Encoding: r.Encoding, DeliverAt: r.DeliverAt, Keys: r.Keys, Properties: make(map[string]string, len(r.Properties))}
	for _, p := range r.Properties {
		m.Properties[p.Key] = p.Value
	}
	return once.Content(contentOf(&m), r.Body)
}

// decision prepares a decision about a half or delayed message that the group has kept:
// its client was told that it counts.
func (o *offering) decision(i int, x *Offered, kind TailKind) error {
	b := o.b
	waits, err := false, error(nil)
	if kind == TailRollback {
		var r rollbackBody
		if r, err = parseRollback(x.Record.Body()); err == nil {
			b.mu.RLock()
			waits = r.key.Position < x.Begin && b.state.halves.Get(r.key) != nil
			b.mu.RUnlock()
		}
	} else {
		var r recallBody
		if r, err = parseRecall(x.Record.Body()); err == nil {
			waits = b.waitsBelow(r, x.Begin)
		}
	}
	if err != nil {
		return &Error{Op: "offer", Kind: KindCorrupt, Err: err}
	}
	if !waits {
		o.results[i] = OfferResult{Outcome: OfferDecided, Text: "nothing waits for it here"}
		return nil
	}
	var r record.Record
	if err := x.Record.Decode(&r); err != nil {
		return &Error{Op: "offer", Kind: KindCorrupt, Err: err}
	}
	r.Identity, r.Stored = record.Identity{}, b.wallNow()
	e, err := b.own(&r)
	if err != nil {
		return &Error{Op: "offer", Kind: KindTooLarge, Err: err}
	}
	o.add(i, e, "decides about what waits here")
	return nil
}

// waitsBelow reports whether what a recall names waits here and stands below a position.
// Buckets have the same names in two logs as far as these are one.
func (b *Broker) waitsBelow(r recallBody, p record.Position) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	k := b.state.timers.bucketOf(r.bucket)
	if k == nil || !k.waits(r.number) {
		return false
	}
	e, err := k.index.Get(r.number)
	return err == nil && e.Position < p
}

// judge fills in what the fold made of the entries.
func (o *offering) judge() {
	for k, i := range o.which {
		r, p := &o.results[i], &o.op.places[k]
		switch {
		case p.offer == offerRepeated:
			*r = OfferResult{Outcome: OfferAgain, Text: "an offer before this one stored it"}
		case p.offer == offerNoRoom:
			*r = OfferResult{Outcome: OfferRefused, Text: fmt.Sprintf("there is no room to remember that it was offered: %d parts of tails are, of %d lineages at most; offer tails whole", maxLostRanges, maxLostLineages)}
		case p.conflict:
			*r = OfferResult{Outcome: OfferRefused, Text: "its id was published since with other content"}
		case p.again:
			*r = OfferResult{Outcome: OfferDuplicate, Text: "its id was published again since"}
		case p.ok:
			r.Outcome = OfferStored // also when the id's window has ended since it was looked at
		default:
			*r = OfferResult{Outcome: OfferDecided, Text: "it was decided since"}
		}
	}
}
