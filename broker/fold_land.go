package broker

import (
	"slices"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
)

// inFlow is the destination's end of a flow. It is kept on its own, never
// derived from what is still in the log.
type inFlow struct {
	settled  uint64
	last     flow.Fingerprint
	history  []flow.Have    // in order of arrival; the last one is the present lineage
	outcomes []flow.Outcome // other than landed, above the origin's cursor
	sealed   bool
	orphans  uint64
	runs     []landedRun // of a flow that is no channel's, oldest first
	broken   bool        // something has not landed since the end of the last run
}

// accepts reports whether numbers from first on, of the lineage, may settle
// next: right behind the last number of its lineage, whether that is the
// present one or an earlier one whose origin came back. A lineage that is new to
// this end begins where the receiver, which compared the tables, lets it begin:
// at or below the settled prefix when the origin came back as an older copy
// (what lies above is orphaned then), above it when the origin came back as the
// one from which such a copy had been taken.
func (f *inFlow) accepts(lineage record.LineageID, first uint64) bool {
	if f.sealed || first == 0 || lineage == 0 {
		return false
	}
	for _, h := range f.history {
		if h.Lineage == lineage {
			return first == h.Last+1
		}
	}
	return first == f.settled+1 || len(f.history) > 0
}

// waiting returns how many outcomes the origin's cursor has not passed.
func (f *inFlow) waiting(cursor uint64) int {
	n := len(f.outcomes)
	for _, o := range f.outcomes {
		if o.Through > cursor {
			break
		}
		n--
	}
	return n
}

// applyLanding settles numbers of a flow. A landing that does not continue the
// settled prefix is ignored, so that no number can settle twice or be jumped
// over, whatever was appended.
func (s *state) applyLanding(e *commitlog.Entry) (placement, error) {
	env := &s.envelope
	if _, err := record.ParseEnvelope(e.Envelope, env); err != nil {
		return placement{}, err
	}
	f := s.in[env.Flow]
	if f == nil {
		f = &inFlow{}
	}
	if !f.accepts(env.Lineage, env.Number) || env.Through < env.Number {
		s.counts.Refused++
		return placement{}, nil
	}
	r, err := s.relayOf(env.Flow, f, e.Position)
	if err != nil {
		return placement{}, err
	}
	s.in[env.Flow] = f
	f.enter(env.Lineage, env.LineageEpoch, env.Number, &s.counts)
	f.settled = env.Through
	f.history[len(f.history)-1].Last = env.Through
	f.forget(env.OriginCursor)
	if r != nil {
		if err := r.append(e, env); err != nil {
			return placement{}, err
		}
		s.touchRelay(r)
	}
	if env.Outcome != record.OutcomeLanded {
		f.broken = f.broken || env.Reason != record.ReasonKnown
		f.addOutcome(flow.Outcome{First: env.Number, Through: env.Through, Outcome: env.Outcome, Reason: env.Reason})
		return placement{ok: true}, s.markChannel(e, env)
	}
	v, err := record.Parse(e.Record)
	if err != nil {
		return placement{}, err
	}
	f.last = flow.Fingerprint{Lineage: env.Lineage, Number: env.Number, Checksum: v.HeaderChecksum()}
	if !env.Flow.Channel {
		f.ran(env.Lineage, v.Position())
	}
	return s.store1(e, v)
}

// markLabel marks the entries of a broadcast topic's queue that carry no record:
// the landings of numbers that did not land. Readers of landings learn from them
// what they will not get, and which holes are none.
const markLabel = 1

// groupLabel marks the entries of records that belong to a message group: their
// hash is the lower half of the message group's (record.Record.GroupHash), so that
// who may be delivered is known without reading a record, damaged ones included.
// Two message groups of one hash wait for each other, which harms nobody.
const groupLabel = 2

// markEntry is the entry of such a landing.
func markEntry(e *commitlog.Entry) queue.Entry {
	return queue.Entry{Position: e.Position, Size: uint32(e.Size), Label: markLabel}
}

// markChannel puts a landing without a record into the queue of each topic of
// its channel: whose numbers they were, nobody knows any more.
func (s *state) markChannel(e *commitlog.Entry, env *record.Envelope) error {
	for _, t := range s.channelTopics(env.Flow) {
		if _, err := s.enqueue(t, 0, markEntry(e)); err != nil {
			return err
		}
	}
	return nil
}

// channelTopics returns the topics here whose records have the flow's numbers.
func (s *state) channelTopics(id record.FlowID) []*topic {
	if !id.Channel {
		return nil
	}
	var list []*topic
	for _, name := range sortedKeys(s.topics) {
		if t := s.topics[name]; t.broadcast && t.channel == id.Target {
			list = append(list, t)
		}
	}
	return list
}

// enter makes the lineage the present one.
func (f *inFlow) enter(id record.LineageID, epoch, first uint64, c *counts) {
	if n := len(f.history); n > 0 && f.history[n-1].Lineage == id {
		return
	}
	f.history = slices.DeleteFunc(f.history, func(h flow.Have) bool { return h.Lineage == id })
	if f.last.Number >= first {
		f.last = flow.Fingerprint{}
	}
	if first <= f.settled {
		lost := f.settled - first + 1
		f.orphans += lost
		c.Orphans += lost
		f.outcomes = slices.DeleteFunc(f.outcomes, func(o flow.Outcome) bool { return o.First >= first })
		for i := range f.outcomes {
			f.outcomes[i].Through = min(f.outcomes[i].Through, first-1)
		}
	}
	f.history = append(f.history, flow.Have{Lineage: id, Epoch: epoch})
	if len(f.history) > maxHistory {
		f.history = slices.Delete(f.history, 0, 1)
	}
}

// forget drops outcomes that the origin's cursor has passed: it has done what they ask for.
func (f *inFlow) forget(cursor uint64) {
	n := 0
	for n < len(f.outcomes) && f.outcomes[n].Through <= cursor {
		n++
	}
	if n > 0 {
		f.outcomes = slices.Delete(f.outcomes, 0, n)
	}
}

func (f *inFlow) addOutcome(o flow.Outcome) {
	if n := len(f.outcomes); n > 0 {
		last := &f.outcomes[n-1]
		if last.Through+1 == o.First && last.Outcome == o.Outcome && last.Reason == o.Reason {
			last.Through = o.Through
			return
		}
	}
	f.outcomes = append(f.outcomes, o)
}

// applySeal refuses everything above the settled prefix for ever.
func (s *state) applySeal(body []byte) error {
	id, err := parseSealBody(body)
	if err != nil {
		return err
	}
	f := s.in[id]
	if f == nil {
		f = &inFlow{}
		s.in[id] = f
	}
	f.sealed = true
	return nil
}
