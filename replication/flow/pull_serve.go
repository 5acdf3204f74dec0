package flow

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/internal/loglimit"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// ServePull serves a flow that landed here to the destination that opened the
// stream with f, an Open of the role OpenPull, until one of them ends the session.
// It closes the stream. Whether the destination may ask is the caller's to judge.
//
// Nothing is recorded of what the destination settles: the flow's origin keeps the
// cursor. A number that did not land here, or whose record has passed too many cities or
// may not pass all that the destination named, ends the session as not held: another holder,
// at last the origin, has it.
func (o *Outbox) ServePull(ctx context.Context, s wire.Stream, f wire.Frame) error {
	want, err := wire.ParseOpen(f.Payload)
	if err == nil && (want.Role != wire.OpenPull || want.Want.Class != f.Class) {
		err = refused(wire.CodeMalformed, "a flow of class %d is asked for in a frame of class %d", want.Want.Class, f.Class)
	}
	var state OriginState
	if err == nil {
		state, err = o.holds(&want)
	}
	if err != nil {
		if w := refusal(err); w != nil {
			sendCtx, cancel := context.WithTimeout(ctx, time.Second)
			// An error means that nobody is there to hear it.
			_ = s.Send(sendCtx, wire.Frame{Type: wire.TypeRefuse, Session: f.Session, Class: f.Class, Payload: w.Append(nil)})
			cancel()
		}
		return errors.Join(err, s.Close(codeOf(err)))
	}
	group := want.Flow.Origin
	leg := Leg{Flow: want.Want, City: want.OriginCity, Group: group}
	l := o.pullLane(leg, want.Residency)
	o.mu.Lock()
	o.pulls[l] = struct{}{}
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		delete(o.pulls, l)
		o.mu.Unlock()
	}()
	c := &conn{id: f.Session, stream: s, frames: make(chan wire.Frame, frameQueue), failed: make(chan error, 1)}
	return l.converse(ctx, c, state, 0, Fingerprint{})
}

// holds returns the state of the flow, or why this group cannot serve it.
func (o *Outbox) holds(want *wire.Open) (OriginState, error) {
	state, ok := o.src.Origin(want.Want)
	switch {
	case !ok || !state.Landed:
		return state, refused(wire.CodeHeld, "flow %s has not landed here yet", FlowName(want.Want))
	case state.Oldest > max(want.Oldest, 1):
		return state, refused(wire.CodeNotHeld, "number %d is asked for, the oldest here is %d", want.Oldest, state.Oldest)
	}
	// The lineage of the number that is asked for. One that is not here yet may come,
	// and one that this end has and its origin gave up must not be served.
	for _, m := range want.Lineage {
		if !slices.ContainsFunc(state.Lineage, func(own Mark) bool { return own.ID == m.ID }) {
			return state, refused(wire.CodeHeld, "lineage %x has not landed here yet", m.ID)
		}
	}
	return state, nil
}

// pullLane makes the lane of one pulled session.
func (o *Outbox) pullLane(leg Leg, residency []zone.City) *lane {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := &lane{
		o: o, leg: leg, src: &held{Source: o.src, residency: residency, hops: o.lim.RelayHops}, lim: &o.lim, met: o.met.leg(leg), pulled: true,
		rng: rand.New(rand.NewPCG(o.rng.Uint64(), o.rng.Uint64())), path: []zone.City{o.city},
		sealC: make(chan struct{}, 1), gaps: loglimit.Limit{Lines: 5, Window: repeatLog},
		log: o.log.With("group", string(leg.Group), "city", string(leg.City), "flow", FlowName(leg.Flow)),
	}
	l.status = LegStatus{Leg: leg, State: StateOpening, Since: time.Now(), Pulled: true}
	return l
}

// held is a Source for a destination that is nobody's leg here: it keeps no cursor
// and gives out only what truly landed.
type held struct {
	Source
	residency []zone.City // cities that every record must be allowed to enter; empty = all
	hops      int         // that a landing may have behind it
}

func (*held) Cursor(Leg) (uint64, Fingerprint) { return 0, Fingerprint{} }

func (*held) Settle(context.Context, Leg, Settlement) error { return nil }

// Read stops before the first number that this group does not hold.
func (h *held) Read(leg Leg, from uint64, count, bytes int, dst []Item) ([]Item, error) {
	start := len(dst)
	dst, err := h.Source.Read(leg, from, count, bytes, dst)
	if errors.Is(err, ErrTrimmed) {
		err = refused(wire.CodeNotHeld, "number %d is no longer here", from)
	}
	for i := start; i < len(dst); i++ {
		if h.gives(&dst[i]) {
			continue
		}
		if i == start {
			err = refused(wire.CodeNotHeld, "number %d did not land here, or may not go where it is asked for", dst[i].Number)
		}
		return dst[:i], err
	}
	return dst, err
}

// gives reports whether an item may go to who asked: a record that landed here,
// or one that did and is not for that city.
func (h *held) gives(it *Item) bool {
	if it.Skip {
		return !it.Gap && it.Reason == record.ReasonNone
	}
	v, err := record.Parse(it.Record)
	if err != nil || int(it.Hops) > h.hops {
		return false
	}
	if v.Unrestricted() {
		return true
	}
	for _, c := range h.residency {
		if !v.MayEnter(c) {
			return false
		}
	}
	return len(h.residency) > 0
}
