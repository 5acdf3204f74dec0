package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/policy"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// landWait bounds how long Land waits for room in the log's queue.
	landWait = time.Second
)

// errNotNext refuses a landing that does not continue the settled prefix.
var errNotNext = errors.New("broker: landing does not continue the settled prefix")

// errTooManyFlows refuses the first landing or the seal of one flow too many.
var errTooManyFlows = errors.New("broker: too many flows land here")

// Sink returns the destination's end of all flows. Source and Sink are two
// views of one broker: some of their methods share a name.
func (b *Broker) Sink() flow.Sink { return (*sink)(b) }

type sink Broker

func (s *sink) b() *Broker { return (*Broker)(s) }

// Group implements flow.Sink.
func (s *sink) Group() zone.Group { return s.self }

// Incarnation implements flow.Sink.
func (s *sink) Incarnation() record.Incarnation { return s.log.Incarnation() }

// Epoch implements flow.Sink.
func (s *sink) Epoch() uint64 { return s.log.Epoch() }

// Topology implements flow.Sink.
func (s *sink) Topology() *zone.Topology { return s.b().Topology() }

// Resume implements flow.Sink.
func (s *sink) Resume(id record.FlowID) flow.SinkState {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f := s.state.in[id]
	if f == nil {
		return flow.SinkState{}
	}
	st := flow.SinkState{
		Known: true, Settled: f.settled, Last: f.last, Sealed: f.sealed,
		History: slices.Clone(f.history), Outcomes: slices.Clone(f.outcomes),
	}
	slices.SortStableFunc(st.History, func(a, b flow.Have) int {
		if a.Epoch < b.Epoch {
			return -1
		}
		if a.Epoch > b.Epoch {
			return 1
		}
		return 0
	})
	return st
}

// Writable implements flow.Sink.
func (s *sink) Writable() error {
	if err := s.b().ready("land"); err != nil {
		return err
	}
	if err := s.log.Writable(); err != nil {
		return &Error{Op: "land", Kind: kindOfLog(err), Err: err}
	}
	return nil
}

// Land implements flow.Sink. It may wait up to a second for room in the log's
// queue and is held after that.
func (s *sink) Land(l flow.Landing, done func(error)) error {
	b := s.b()
	if err := s.Writable(); err != nil {
		return &flow.HeldError{Code: wire.CodeHeld, Err: err}
	}
	if err := s.room(&l); err != nil {
		return err
	}
	o := new(op)
	entries, t, err := s.judge(&l, o)
	if err != nil {
		b.lites.give(o)
		return err
	}
	o.batch.Entries = entries
	o.finished = func(err error) {
		if err == nil && slices.ContainsFunc(o.places, func(p placement) bool { return !p.ok }) {
			err = errNotNext
		}
		if err == nil {
			b.metrics.landed(len(l.Records))
			if t != nil {
				t.trace(b, &l)
			}
		}
		done(err)
	}
	ctx, cancel := context.WithTimeout(b.ctx, landWait)
	defer cancel()
	if err := b.append(ctx, o); err != nil {
		return &flow.HeldError{Code: wire.CodeHeld, Err: err}
	}
	return nil
}

// room holds a landing that would let the fold's state grow beyond its bounds.
func (s *sink) room(l *flow.Landing) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f := s.state.in[l.Flow]
	switch {
	case f == nil && len(s.state.in) >= s.limits.MaxFlows:
		s.flowsRefused.Add(1)
		return &flow.HeldError{Code: wire.CodeTooMany, Err: errTooManyFlows}
	case f != nil && f.waiting(l.OriginCursor) >= maxOutcomes:
		return &flow.HeldError{Code: wire.CodeHeld, Err: errors.New("too many outcomes wait for the origin's cursor")}
	}
	return nil
}

// judge makes the landing's entries: a record that can never be accepted here
// is settled as parked, and stops nothing behind it. t is what asks for spans,
// nil when nothing does. What new lite topics take of their room is o's.
func (s *sink) judge(l *flow.Landing, o *op) (entries []commitlog.Entry, t *landed, err error) {
	v := s.view.Load()
	env := record.Envelope{
		Flow: l.Flow, Lineage: l.Lineage, LineageEpoch: l.LineageEpoch,
		Hops: l.Hops, Path: l.Path, OriginCursor: l.OriginCursor, Landed: s.b().wallNow(),
	}
	if len(l.Records) == 0 {
		env.Number, env.Through, env.Outcome, env.Reason, env.Lineages = l.First, l.Through, l.Outcome, l.Reason, lineagesOf(l)
		buf, err := record.AppendEnvelope(nil, &env)
		return []commitlog.Entry{{Kind: commitlog.KindLanding, Envelope: buf}}, nil, err
	}
	lineages := lineagesOf(l)
	entries = make([]commitlog.Entry, 0, len(l.Records))
	// All envelopes but the first are of one size: one arena holds them.
	arena := make([]byte, 0, len(l.Records)*record.EnvelopeLen(&env)+len(lineages)*lineageBytes)
	for i, rec := range l.Records {
		number := l.First + uint64(i)
		r, reason, err := v.judge(l, rec)
		if err != nil {
			return nil, nil, err
		}
		if reason == record.ReasonNone && !s.liteFits(v, &r, o) {
			reason = record.ReasonQuota
		}
		if s.tracer.On() && reason != record.ReasonCorrupt {
			t = t.add(number, r, reason)
		}
		env.Number, env.Through, env.Outcome, env.Reason = number, number, record.OutcomeLanded, record.ReasonNone
		switch {
		case reason != record.ReasonNone:
			env.Outcome, env.Reason, rec = record.OutcomeParked, reason, nil
		case s.landedBefore(l.Flow, &r):
			env.Outcome, env.Reason, rec = record.OutcomeSkipped, record.ReasonKnown, nil
			s.metrics.landedKnown()
		}
		env.Lineages = nil
		if i == 0 {
			env.Lineages = lineages
		}
		start := len(arena)
		if arena, err = record.AppendEnvelope(arena, &env); err != nil {
			return nil, nil, err
		}
		entries = append(entries, commitlog.Entry{Kind: commitlog.KindLanding, Envelope: arena[start:len(arena):len(arena)], Record: rec})
	}
	return entries, t, nil
}

// landedBefore reports whether a message that its group had lost, and sends again, is here
// already. It was sent in a lineage that ended before this one began on the flow, so
// nothing of it is on its way into the log.
func (s *sink) landedBefore(id record.FlowID, r *record.View) bool {
	a, again := comesAgain(r)
	if !again || a.Sent == 0 {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	f := s.state.in[id]
	return f != nil && f.knows(&a)
}

// liteFits reports whether the lite topic of a record may live here, and has it take
// its place for o.
func (s *sink) liteFits(v *view, r *record.View, o *op) bool {
	if r.Kind() != zone.KindLite {
		return true
	}
	t := v.topics[zone.Topic(r.Topic())]
	return t == nil || t.info.Kind != zone.KindLite || s.b().liteRoom(t.info, string(r.MessageGroup()), o)
}

// judge reads the record and returns why it can never land here, or ReasonNone.
// It is held (an error) when this node's topology is older than the record's route.
func (v *view) judge(l *flow.Landing, rec []byte) (r record.View, reason record.Reason, err error) {
	if r, err = record.Parse(rec); err != nil {
		return record.View{}, record.ReasonCorrupt, nil
	}
	if err := r.Verify(); err != nil {
		return record.View{}, record.ReasonCorrupt, nil
	}
	reason, err = v.accepts(l, &r)
	return r, reason, err
}

// accepts is judge for a record that is whole.
func (v *view) accepts(l *flow.Landing, r *record.View) (record.Reason, error) {
	if route := r.RouteEpoch(); v.topo.Epoch.Compare(route) < 0 {
		return 0, &flow.HeldError{Code: wire.CodeTopologyBehind,
			Err: fmt.Errorf("the record was routed by topology %s, this node has %s", route, v.topo.Epoch)}
	}
	t := v.topics[zone.Topic(r.Topic())]
	switch {
	case r.Type() != record.TypeMessage:
		return record.ReasonUnsupported, nil
	case l.Hops > policy.HopLimit:
		return record.ReasonHops, nil
	case t == nil || !t.lands:
		return record.ReasonUnknownTopic, nil
	case !r.MayEnter(v.zone.City.Name) || !t.info.ResidentIn(v.zone.City):
		return record.ReasonResidency, nil
	}
	if limit := smallest(t.info.MaxBody, v.zone.MaxBody); limit > 0 && len(r.Body()) > limit {
		return record.ReasonTooLarge, nil
	}
	return record.ReasonNone, nil
}

// Seal implements flow.Sink.
func (s *sink) Seal(ctx context.Context, id record.FlowID) (uint64, error) {
	b := s.b()
	if err := s.room(&flow.Landing{Flow: id}); errors.Is(err, errTooManyFlows) {
		return 0, &Error{Op: "seal", Kind: KindBusy, Err: err}
	}
	e, err := b.control(record.TypeSeal, appendSealBody(nil, id))
	if err == nil {
		err = b.appendWait(ctx, &op{batch: commitlog.Batch{Entries: []commitlog.Entry{e}}})
	}
	if err != nil {
		return 0, &Error{Op: "seal", Kind: kindOfLog(err), Err: err}
	}
	return s.Resume(id).Settled, nil
}

// lineageBytes is the room of one lineage row in an envelope (record.Envelope).
const lineageBytes = 24

// lineagesOf returns the rows of the landing's table that it proves. Only channels
// are served onward, so only their landings carry it.
func lineagesOf(l *flow.Landing) (rows []record.LineageMark) {
	if !l.Flow.Channel {
		return nil
	}
	for _, m := range l.Table {
		if m.First <= l.First {
			rows = append(rows, record.LineageMark(m))
		}
	}
	return rows
}
