package broker

import (
	"context"
	"fmt"
	"slices"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// CauseReplay is the Cause of a message (TypeMessage) that is a dead letter
// brought back. Its Topic, Queue, Offset and TopicIncarnation name the letter,
// which the fold marks as replayed when it folds the message: message and mark
// are one record, so that no crash leaves one without the other. Group is the
// only consumer group that gets it; empty when everybody does. Original is the
// identity of the message that was given up.
const CauseReplay CauseKind = 3

// replayGroup is the subscription of a dead-letter topic in which replayed
// letters are settled. No client can ask for it: consumer groups have no colon.
const replayGroup = zone.ConsumerGroup("replay:")

// MaxReplay is how many letters one call of Replay brings back.
const MaxReplay = 256

// ReplayRequest names dead letters of a topic by their offsets.
type ReplayRequest struct {
	Topic   zone.Topic
	Offsets []uint64 // at most MaxReplay
	Force   bool     // also what was replayed already
	DryRun  bool     // say what would happen, and do nothing
}

// ReplayOutcome is what became of a letter.
type ReplayOutcome uint8

// The outcomes.
const (
	Replayed    ReplayOutcome = iota + 1 // brought back; durable
	ReplayedYet                          // was brought back before
	ReplayGone                           // trimmed, or never there
	ReplayError                          // refused; it stays a dead letter
)

// String returns the outcome in words.
func (o ReplayOutcome) String() string {
	return [...]string{"none", "replayed", "already replayed", "gone", "refused"}[min(o, ReplayError)]
}

// ReplayResult is the result for one letter.
type ReplayResult struct {
	Offset    uint64
	MessageID string
	Outcome   ReplayOutcome
	Where     string // where it went, for people
	Err       error  // of ReplayError: an *Error
}

// Replay brings dead letters back. What a consumer group gave up goes into the
// queue where it was, for this group alone, with no attempts counted. What a
// destination refused is published anew by the topology in force; a broadcast
// goes to all cities again. A letter that was replayed is marked and not
// replayed again without Force. Replay returns when everything is committed; a
// letter keeps its place and its mark, whatever fails.
//
// Calls wait for each other. An error is for the call as a whole: what is not
// in the results was not replayed, unless the error is of the log, when the last
// letters may have been. They carry their mark then.
func (b *Broker) Replay(ctx context.Context, r ReplayRequest) ([]ReplayResult, error) {
	if err := b.ready("replay"); err != nil {
		return nil, err
	}
	if len(r.Offsets) == 0 || len(r.Offsets) > MaxReplay {
		return nil, &Error{Op: "replay", Kind: KindInvalid, Topic: r.Topic, Text: fmt.Sprintf("%d letters; 1 to %d are allowed", len(r.Offsets), MaxReplay)}
	}
	// The marks that are looked at must be those of all calls before.
	b.replaying.Lock()
	defer b.replaying.Unlock()
	l := b.lettersOf(r.Topic)
	if l == nil {
		return nil, &Error{Op: "replay", Kind: KindTopicUnknown, Topic: r.Topic, Text: "nothing was given up there"}
	}
	p := replay{b: b, view: b.view.Load(), l: l, r: r}
	offsets := slices.Clone(r.Offsets)
	slices.Sort(offsets)
	for _, offset := range slices.Compact(offsets) {
		if err := ctx.Err(); err != nil {
			break // what was prepared is flushed: its results are true then
		}
		if err := p.one(ctx, offset); err != nil {
			return p.results[:p.durable], err
		}
	}
	if err := p.flush(ctx); err != nil {
		return p.results[:p.durable], err
	}
	return p.results, nil
}

// replay is one call of Replay.
type replay struct {
	b       *Broker
	view    *view
	l       *letters
	r       ReplayRequest
	entries []commitlog.Entry // not appended yet
	bytes   int
	results []ReplayResult
	durable int // results that nothing can undo
}

// one prepares the letter at the offset.
func (p *replay) one(ctx context.Context, offset uint64) error {
	result := ReplayResult{Offset: offset}
	d, ok, err := p.read(offset)
	switch {
	case err != nil:
		result.Outcome, result.Err = ReplayError, err
	case !ok:
		result.Outcome = ReplayGone
	default:
		result.MessageID = string(d.Record.MessageID())
		p.prepare(&d, &result)
	}
	p.results = append(p.results, result)
	if len(p.entries) < maxCopies && p.bytes < maxCopyBytes {
		return nil
	}
	return p.flush(ctx)
}

func (p *replay) read(offset uint64) (DeadLetter, bool, error) {
	if offset >= p.l.index.Next() {
		return DeadLetter{}, false, nil
	}
	return p.b.letter(p.l, offset)
}

func (p *replay) prepare(d *DeadLetter, result *ReplayResult) {
	if d.Replayed && !p.r.Force {
		result.Outcome = ReplayedYet
		return
	}
	e, where, err := p.b.replayed(p.view, p.l, d)
	if err != nil {
		result.Outcome, result.Err = ReplayError, err
		return
	}
	result.Outcome, result.Where = Replayed, where
	if p.r.DryRun {
		return
	}
	p.entries = append(p.entries, e)
	p.bytes += len(e.Record)
}

// flush appends what is prepared. It waits for the log even when the caller has
// gone: whoever comes next must see the marks.
func (p *replay) flush(ctx context.Context) error {
	if n := len(p.entries); n > 0 {
		if e, ok, err := p.b.forgetTrimmed(p.l); err != nil {
			return err
		} else if ok {
			p.entries = append(p.entries, e)
		}
		o := &op{batch: commitlog.Batch{Entries: p.entries}}
		if err := p.b.appendWait(context.WithoutCancel(ctx), o); err != nil {
			return &Error{Op: "replay", Kind: kindOfLog(err), Topic: p.l.topic, Err: err}
		}
		p.b.metrics.replayed(n)
		p.entries, p.bytes = nil, 0
	}
	p.durable = len(p.results)
	return nil
}

// forgetTrimmed makes the progress that marks everything below the first letter
// that is left, so that marks of letters that are gone take no room.
func (b *Broker) forgetTrimmed(l *letters) (commitlog.Entry, bool, error) {
	first, _ := l.extent(b.log.Begin())
	if first == 0 || (len(l.done) > 0 && l.done[0].From == 0 && l.done[0].To >= first) {
		return commitlog.Entry{}, false, nil
	}
	e, err := b.control(record.TypeProgress, appendProgressBody(nil, map[zone.Topic]record.Position{l.topic: l.incarnation}, &consumer.Delta{
		Groups: []consumer.GroupDelta{{Group: replayGroup, Topic: l.topic, Queues: []consumer.QueueDelta{{
			Acked: []consumer.Range{{To: first}},
		}}}},
	}))
	return e, err == nil, err
}

// replayed makes the message that a dead letter becomes, and says where it goes.
func (b *Broker) replayed(v *view, l *letters, d *DeadLetter) (commitlog.Entry, string, error) {
	var r record.Record
	if err := d.Record.Decode(&r); err != nil {
		return commitlog.Entry{}, "", &Error{Op: "replay", Kind: KindCorrupt, Topic: l.topic, Err: err}
	}
	var where string
	var err error
	if d.Cause.Kind == CauseConsumer {
		where, err = b.backToQueue(v, d, &r)
	} else {
		where, err = b.routeAnew(v, d.Cause.Topic, &r)
	}
	if err != nil {
		return commitlog.Entry{}, "", err
	}
	r.Cause = appendCause(nil, &Cause{
		Kind: CauseReplay, Topic: l.topic, Offset: d.Offset, TopicIncarnation: l.incarnation,
		Group: d.Cause.Group, Attempts: d.Cause.Attempts, Original: d.Cause.Original,
	})
	e, err := b.own(&r)
	if err != nil {
		return commitlog.Entry{}, "", &Error{Op: "replay", Kind: KindTooLarge, Topic: r.Topic, Err: err}
	}
	return e, where, nil
}

// backToQueue makes r the message for the consumer group that gave it up.
func (b *Broker) backToQueue(v *view, d *DeadLetter, r *record.Record) (string, error) {
	c := &d.Cause
	refuse := func(kind Kind, text string) error {
		return &Error{Op: "replay", Kind: kind, Topic: c.Topic, Group: c.Group, Text: text}
	}
	t := v.topics[c.Topic]
	if t == nil || !t.lands {
		return "", refuse(KindTopicUnknown, fmt.Sprintf("the topic does not land in zone %s any more", v.zone.Name))
	}
	b.mu.RLock()
	sub := b.state.subs[subKey{c.Group, c.Topic}]
	b.mu.RUnlock()
	if sub == nil {
		return "", refuse(KindGroupUnknown, "the consumer group does not consume the topic here any more")
	}
	r.Type, r.Topic, r.Queue, r.Identity, r.Stored = record.TypeMessage, c.Topic, uint16(c.Queue), record.Identity{}, b.wallNow()
	r.RouteEpoch, r.Attempt = v.topo.Epoch, 0
	return fmt.Sprintf("%s for %s in %s", c.Topic, c.Group, v.zone.Name), nil
}

// routeAnew makes r what publishing the message to the topic again would store.
func (b *Broker) routeAnew(v *view, topic zone.Topic, r *record.Record) (string, error) {
	t := v.topics[topic]
	if t == nil {
		return "", &Error{Op: "route", Kind: KindTopicUnknown, Topic: topic}
	}
	m := Message{
		Topic: t.info, ID: r.MessageID, Tag: r.Tag, Keys: r.Keys, MessageGroup: r.MessageGroup, Body: r.Body,
		Encoding: r.Encoding, Digest: r.Digest, Born: r.Born, BornHost: r.BornHost, TraceContext: r.TraceContext, Queue: int(r.Queue),
		Priority: r.Priority, Properties: make(map[string]string, len(r.Properties)),
	}
	for _, p := range r.Properties {
		m.Properties[p.Key] = p.Value
	}
	if t.info.Kind == zone.KindDelay { // it is told to consumers; the cause says that nothing waits
		m.DeliverAt = r.DeliverAt
	}
	if err := checkMessage(t.info, v, &m); err != nil {
		return "", err
	}
	dest, err := v.topo.Resolve(query(v, t.info, &m))
	if err != nil {
		return "", &Error{Op: "route", Kind: kindOfResolve(err), Topic: t.info.Name, Err: err}
	}
	if dest.Reach == zone.ReachZone && m.MessageGroup == "" {
		dest.Group = v.group // as Publish does
	}
	props := r.Properties
	b.recordOf(r, v, t, &m, &dest, b.wallNow())
	r.Properties = props
	if r.Target == "" {
		return fmt.Sprintf("%s in %s", t.info.Name, v.zone.Name), nil
	}
	if err := b.checkBudget(t.info, r); err != nil {
		return "", err
	}
	if err := checkFar(t.info, &m, &dest); err != nil {
		return "", err
	}
	if dest.Channel != nil {
		return fmt.Sprintf("%s to all cities", t.info.Name), nil
	}
	return fmt.Sprintf("%s to %s in %s", t.info.Name, dest.Zone.Name, dest.Zone.City.Name), nil
}

// markReplayed folds the mark that a replayed message carries.
func (s *state) markReplayed(c *Cause) {
	t := s.topics[c.Topic]
	if t == nil || !t.deadLetter || t.first != c.TopicIncarnation || c.Offset >= t.queues[0].index.Next() {
		return
	}
	s.subscribe(subKey{replayGroup, c.Topic}, t)
	s.progress.Settle(replayGroup, c.Topic, 0, c.Offset)
}

// meantForAll reports whether all consumer groups get a message.
func meantForAll(v record.View) bool { return meantFor(v, "") }

// meantFor reports whether a consumer group gets a message: all do, unless it
// was replayed for another one, or comes again with a tail in which the group had settled it.
func meantFor(v record.View, g zone.ConsumerGroup) bool {
	if v.IsAgain() && v.SettledBefore(g) {
		return false
	}
	cause := v.Cause()
	if len(cause) == 0 || v.Type() != record.TypeMessage {
		return true
	}
	c, err := ParseCause(cause)
	return err != nil || c.Kind != CauseReplay || c.Group == "" || c.Group == g
}
