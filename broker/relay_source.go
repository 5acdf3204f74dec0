package broker

import (
	"errors"
	"fmt"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// relayLegs appends the legs of relays that have an unsettled number. mu is held.
func (b *Broker) relayLegs(topo *zone.Topology, legs []flow.Leg) []flow.Leg {
	for id, r := range b.state.relays {
		for _, l := range r.legs {
			if l.cursor < r.settled {
				if leg, ok := liveLeg(topo, id, l.key); ok {
					legs = append(legs, leg)
				}
			}
		}
	}
	return legs
}

// relayOrigin is Origin of a flow that landed here.
func (b *Broker) relayOrigin(id record.FlowID) (flow.OriginState, bool) {
	begin := b.log.Begin()
	b.mu.RLock()
	defer b.mu.RUnlock()
	r := b.state.relays[id]
	if r == nil {
		return flow.OriginState{}, false
	}
	st := flow.OriginState{Head: r.settled, Oldest: r.oldest(begin), Landed: true}
	for _, m := range r.table {
		// A row that was announced and has no number yet may still be taken back.
		if m.First <= r.settled {
			st.Lineage = append(st.Lineage, m)
		}
	}
	return st, true
}

// relayFingerprint is FingerprintAt of a flow that landed here.
func (b *Broker) relayFingerprint(id record.FlowID, number uint64) (flow.Fingerprint, bool) {
	piece, err := b.relayEntries(id, number, 1)
	if err != nil || len(piece.entries) == 0 {
		return flow.Fingerprint{}, false
	}
	e, err := b.log.ReadAt(piece.entries[0].Position, int(piece.entries[0].Size))
	if err != nil || len(e.Record) == 0 {
		return flow.Fingerprint{}, false
	}
	v, err := record.Parse(e.Record)
	if err != nil {
		return flow.Fingerprint{}, false
	}
	return flow.Fingerprint{Lineage: piece.lineage, Number: number, Checksum: v.HeaderChecksum()}, true
}

// relayWait is Wait of a flow that landed here.
func (b *Broker) relayWait(r *relay, number uint64) <-chan struct{} {
	if r.settled > number {
		c := make(chan struct{})
		close(c)
		return c
	}
	if r.advanced == nil {
		r.advanced = make(chan struct{})
	}
	return r.advanced
}

// relayPiece is a run of entries of one lineage.
type relayPiece struct {
	lineage record.LineageID
	through uint64 // last number of the lineage that may be read
	entries []queue.Entry
}

// relayEntries returns the entries that settle the numbers from one on, on the
// branch in force: at most count, all of one extent.
func (b *Broker) relayEntries(id record.FlowID, from uint64, count int) (relayPiece, error) {
	b.mu.RLock()
	r := b.state.relays[id]
	if r == nil || from == 0 || from > r.settled {
		b.mu.RUnlock()
		return relayPiece{}, nil
	}
	row, through := r.row(from)
	i, ok := r.find(row.ID, from)
	if !ok {
		b.mu.RUnlock()
		return relayPiece{}, flow.ErrTrimmed
	}
	at, err := r.locate(i, from)
	end := r.end(i)
	p := relayPiece{lineage: row.ID, through: min(through, r.extents[i].through)}
	index := r.index
	b.mu.RUnlock()
	if err != nil {
		return relayPiece{}, asTrimmed(err)
	}
	p.entries = make([]queue.Entry, min(uint64(max(count, 1)), end-at))
	n, err := index.Read(at, p.entries)
	p.entries = p.entries[:n]
	if n > 0 {
		return p, nil
	}
	return p, asTrimmed(err)
}

// asTrimmed makes what is no longer there flow.ErrTrimmed.
func asTrimmed(err error) error {
	var outside *queue.RangeError
	if errors.As(err, &outside) || errors.Is(err, commitlog.ErrTrimmed) {
		return fmt.Errorf("%w: %w", flow.ErrTrimmed, err)
	}
	return err
}

// relayRead is Read of a flow that landed here. What did not land here goes on as
// a range without records: a gap as a gap, all else as skipped, with its reason.
func (b *Broker) relayRead(leg flow.Leg, from uint64, count, bytes int, dst []flow.Item) ([]flow.Item, error) {
	p, err := b.relayEntries(leg.Flow, from, count)
	if err != nil {
		return dst, err
	}
	near := leg.City == b.Zone().City.Name
	size := 0
	var env record.Envelope
	for i, e := range p.entries {
		if i > 0 && size+int(e.Size) > bytes {
			break
		}
		entry, err := b.log.ReadAt(e.Position, int(e.Size))
		if err == nil {
			_, err = record.ParseEnvelope(entry.Envelope, &env)
		}
		if err != nil {
			if i > 0 {
				break // what was read is of use; the next call meets the fault
			}
			return dst, asTrimmed(err)
		}
		if env.Flow != leg.Flow || env.Lineage != p.lineage || max(env.Number, from) > p.through || env.Through < from {
			break // another branch began meanwhile, or the piece ends
		}
		dst = append(dst, b.onwardItem(&env, entry.Record, leg, max(env.Number, from), p.through, near))
		size += int(e.Size)
	}
	return dst, nil
}

// onwardItem makes the item of a landing. near is a leg inside the city, where no
// router counts the hop of the re-landing.
func (b *Broker) onwardItem(env *record.Envelope, rec []byte, leg flow.Leg, number, through uint64, near bool) flow.Item {
	it := flow.Item{Number: number, Through: min(env.Through, through), Lineage: env.Lineage, Hops: env.Hops, Reason: env.Reason}
	if near {
		it.Hops++
	}
	it.Path = env.Path
	if n := len(env.Path); n == 0 || env.Path[n-1] != b.Zone().City.Name {
		it.Path = append(env.Path[:n:n], b.Zone().City.Name)
	}
	switch env.Outcome {
	case record.OutcomeLanded:
		it.Record, it.Reason = rec, record.ReasonNone
		if v, err := record.Parse(rec); err == nil && !v.MayEnter(leg.City) {
			it.Record, it.Skip = nil, true
		}
	case record.OutcomeGap:
		it.Skip, it.Gap = true, true
	default:
		it.Skip = true
		if it.Reason == record.ReasonTooLarge {
			// A receiver takes a skip for that reason for a record that no frame
			// holds, and parks it; this one its own city has parked.
			it.Reason = record.ReasonDenied
		}
	}
	return it
}

// relayCopy is parkedCopy of a flow that landed here.
func (b *Broker) relayCopy(leg flow.Leg, number uint64, o flow.Outcome) (commitlog.Entry, bool, error) {
	items, err := b.relayRead(leg, number, 1, 1, nil)
	var corrupt *commitlog.CorruptError
	switch {
	case errors.Is(err, flow.ErrTrimmed), err == nil && (len(items) == 0 || items[0].Record == nil):
		return commitlog.Entry{}, false, nil
	case errors.As(err, &corrupt):
		b.logger.Error("parked record cannot be copied", "flow", leg.Flow.Target, "seq", number, "err", err)
		return commitlog.Entry{}, false, nil
	case err != nil:
		return commitlog.Entry{}, false, err
	}
	v, err := record.Parse(items[0].Record)
	if err != nil {
		return commitlog.Entry{}, false, err
	}
	e, err := b.copyTo(ParkedTopic, v, legCause(leg, number, o, v))
	return e, err == nil, err
}

// isRelay reports whether the flow landed here and goes onward.
func (b *Broker) isRelay(id record.FlowID) bool {
	if id.Origin == b.self && id.Incarnation == b.log.Incarnation() {
		return false
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.state.relays[id] != nil
}

// relayNeeds returns what the relays' cursors need of the log, each with the bytes
// that it may hold back. mu is held.
func (b *Broker) relayNeeds(topo *zone.Topology) (list []relayNeed) {
	for id, r := range b.state.relays {
		for _, l := range r.legs {
			if l.cursor >= r.settled {
				continue
			}
			n := relayNeed{leg: flow.Leg{Flow: id, City: l.key.city, Group: l.key.group}, index: r.index, budget: channelBudget(topo, id.Target)}
			if at, err := r.entryOf(l.cursor + 1); err == nil {
				n.from = at
			} // else it waits for what is gone already, and needs all there is
			list = append(list, n)
		}
	}
	return list
}

type relayNeed struct {
	leg    flow.Leg
	index  *queue.Index
	from   uint64
	budget int64
}

// channelBudget returns the largest budget of a channel's topics: 0 = no bound.
func channelBudget(topo *zone.Topology, channel string) (budget int64) {
	for _, c := range topo.Channels {
		if string(c.Name) != channel {
			continue
		}
		for _, t := range c.Topics {
			budget = max(budget, t.Budget)
		}
	}
	return budget
}

// relayFloor returns the lowest position that destinations onward need, up to
// floor. One that holds back more than its budget is left out: it is told of the
// gap when it comes back.
func (b *Broker) relayFloor(floor, end record.Position) record.Position {
	topo := b.Topology()
	b.mu.RLock()
	list := b.relayNeeds(topo)
	b.mu.RUnlock()
	for _, n := range list {
		at := positionOf(n.index, n.from)
		if at < end && n.budget > 0 && int64(end-at) > n.budget {
			b.metrics.onwardLeftOut()
			b.logger.Warn("a destination onward no longer holds records back: it is beyond its channel's budget",
				"group", string(n.leg.Group), "city", string(n.leg.City), "flow", flow.FlowName(n.leg.Flow))
			continue
		}
		floor = min(floor, at)
	}
	return floor
}

// onwardStatus appends the destinations onward. mu is held.
func (b *Broker) onwardStatus(st *Status) (oldest []need) {
	topo := b.Topology()
	for _, id := range sortedFlows(b.state.relays) {
		r := b.state.relays[id]
		for _, l := range r.legs {
			leg, _ := liveLeg(topo, id, l.key)
			st.Outgoing = append(st.Outgoing, OutgoingStatus{
				Flow: id, City: leg.City, Group: l.key.group, Onward: true, Head: r.settled, Cursor: l.cursor, BacklogBytes: l.backlog,
			})
			n := need{}
			if l.cursor < r.settled {
				if at, err := r.entryOf(l.cursor + 1); err == nil {
					n = need{r.index, at}
				}
			}
			oldest = append(oldest, n)
		}
	}
	return oldest
}
