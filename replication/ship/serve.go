package ship

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// nothing is what a leader asks its log to keep when no replica has to read it.
const nothing = record.Position(math.MaxUint64)

// Serve answers a session that began with Follow, and ships until the session ends,
// which it returns the reason of, or ctx does, or Run. node is who the other side's
// certificate names; it must be a member of the group. A newer session of the node
// ends an older one. The stream is closed when Serve returns.
func (l *Leader) Serve(ctx context.Context, node zone.Node, stream wire.Stream, first wire.Frame) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := l.serve(ctx, cancel, node, stream, first)
	code := closeCode(err)
	if l.isOver() {
		code = wire.CodeNotMaster
	}
	_ = stream.Close(code) // err says what happened
	return err
}

func closeCode(err error) wire.Code {
	var bad *wire.FrameError
	var breach *protocolError
	switch {
	case err == nil:
		return wire.CodeOK
	case errors.As(err, &bad):
		return bad.Code
	case errors.As(err, &breach):
		return breach.code
	case errors.Is(err, errSuperseded):
		return wire.CodeSuperseded
	case errors.Is(err, context.Canceled):
		return wire.CodeShutdown
	}
	return wire.CodeInternal
}

var errSuperseded = errors.New("ship: a newer session of the replica has taken over")

// errMute ends a session; see Limits.Mute.
var errMute = errors.New("ship: the replica has been silent for too long")

func (l *Leader) isOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

func (l *Leader) serve(ctx context.Context, cancel context.CancelFunc, node zone.Node, stream wire.Stream, first wire.Frame) error {
	f, err := wire.ParseFollow(first.Payload)
	if err != nil {
		return err
	}
	if f.Node != node || f.Group != l.o.Group || node == l.o.Self || !slices.Contains(l.o.Members(), node) {
		return l.refuse(ctx, stream, wire.CodeWrongIdentity, "not another member of the group")
	}
	if l.isOver() || f.Epoch > l.o.Term.Epoch || !l.o.Leading() {
		return l.refuse(ctx, stream, wire.CodeNotMaster, fmt.Sprintf("epoch %d", l.o.Term.Epoch))
	}
	from, how, what := l.plan(&f)
	if how == planRefuse {
		l.o.Logger.Error("replica has diverged", "peer", string(node), "what", what, "common", from, "committed", f.Committed, "end", f.End)
		if f.Incarnation == l.o.Log.Incarnation() && from >= f.Begin && from > 0 {
			return l.tellApart(ctx, stream, from, what)
		}
		return l.refuse(ctx, stream, wire.CodeDiverged, what)
	}
	if how == planSeed {
		if l.emptied(node) {
			return l.refuse(ctx, stream, wire.CodeHeld, "counted as in sync until the coordinator has taken it out of the set")
		}
		return l.seed(ctx, node, stream)
	}
	s, err := l.enter(cancel, node, stream, from)
	if err != nil {
		return l.refuse(ctx, stream, wire.CodeNotMaster, err.Error())
	}
	defer l.leave(s)
	lead, err := l.leadFrom(ctx, from)
	if err != nil {
		return err
	}
	if lead.Begin > from { // trimmed meanwhile: the replica asks again
		return ErrTrimmed
	}
	if err := stream.Send(ctx, wire.Frame{Type: wire.TypeLead, Payload: lead.Append(nil)}); err != nil {
		return err
	}
	l.o.Logger.Info("replica follows", "peer", string(node), "from", from, "behind", l.o.Log.End()-from)
	return s.run(ctx)
}

// leadFrom says what the log is, for one that is to go on from a position.
func (l *Leader) leadFrom(ctx context.Context, from record.Position) (wire.Lead, error) {
	x := wire.Lead{
		Incarnation: l.o.Log.Incarnation(), Epoch: l.o.Term.Epoch, From: from, Begin: l.o.Log.Begin(),
		Committed: l.o.Log.Committed(), Lineage: l.o.Log.Lineage(),
	}
	last, ok, err := l.o.Log.LastFrame(ctx, from)
	x.HasLast, x.Last = ok, wire.LogFingerprint(last)
	return x, err
}

// tellApart tells a replica where the two logs part, and ends the session: it has
// committed what is not here. It finds that by itself, and so knows what to set aside.
func (l *Leader) tellApart(ctx context.Context, stream wire.Stream, from record.Position, what string) error {
	x, err := l.leadFrom(ctx, from)
	if err != nil {
		return err
	}
	x.Begin = min(x.Begin, from) // nothing is going to be shipped from there
	if err := stream.Send(ctx, wire.Frame{Type: wire.TypeLead, Payload: x.Append(nil)}); err != nil {
		return err
	}
	l.metrics.refused(wire.CodeDiverged)
	return &protocolError{what: "session refused: " + what, code: wire.CodeDiverged}
}

func (l *Leader) refuse(ctx context.Context, stream wire.Stream, code wire.Code, text string) error {
	r := wire.Refuse{Code: code, Text: text}
	if err := stream.Send(ctx, wire.Frame{Type: wire.TypeRefuse, Payload: r.Append(nil)}); err != nil {
		return err
	}
	l.metrics.refused(code)
	return &protocolError{what: "session refused: " + text, code: code}
}

// emptied notes that a node has no log to go on from, and reports whether it must
// wait before it is given one.
func (l *Leader) emptied(node zone.Node) bool {
	leading, now := l.o.Leading(), time.Now()
	l.mu.Lock()
	wait := l.keeper.emptied(now, node)
	d := l.keeper.step(now, leading)
	l.mu.Unlock()
	l.act(d)
	return wait
}

// plan is what a master does with a replica.
type plan uint8

const (
	planShip plan = iota
	planSeed
	planRefuse
)

// plan decides from where a replica can go on, or that it needs another store, or
// that this would lose something.
func (l *Leader) plan(f *wire.Follow) (from record.Position, how plan, what string) {
	log := l.o.Log
	mine := extent{lineage: log.Lineage(), begin: log.Begin(), end: log.End()}
	return planFor(log.Incarnation(), mine, f)
}

func planFor(incarnation record.Incarnation, mine extent, f *wire.Follow) (from record.Position, how plan, what string) {
	if f.Incarnation == 0 {
		return 0, planSeed, ""
	}
	if f.Incarnation != incarnation {
		return 0, planRefuse, "another store of the same name"
	}
	from, ok := commonEnd(mine, extent{lineage: f.Lineage, begin: f.Begin, end: f.End})
	switch {
	case !ok && f.Committed > f.Begin:
		return 0, planRefuse, "no lineage in common"
	case ok && from < f.Committed:
		return from, planRefuse, "the replica has committed what the master does not have"
	case !ok || from < mine.begin || from < f.Begin:
		return from, planSeed, ""
	}
	return from, planShip, ""
}

// enter registers a session; a previous one of the node ends.
func (l *Leader) enter(cancel context.CancelFunc, node zone.Node, stream wire.Stream, from record.Position) (*sender, error) {
	s := newSender(l, cancel, node, stream, from)
	leading, now := l.o.Leading(), time.Now()
	l.mu.Lock()
	if l.over {
		l.mu.Unlock()
		return nil, ErrOver
	}
	old, seeded := l.senders[node], l.seeded[node]
	l.sessions++
	s.id = l.sessions
	l.senders[node] = s
	delete(l.seeded, node)
	l.keeper.joined(now, node, s.id, from)
	d := l.keeper.step(now, leading)
	l.mu.Unlock()
	if old != nil {
		old.supersede()
	}
	if seeded != nil {
		seeded.cancel(errSuperseded)
	}
	l.act(d)
	return s, nil
}

func (l *Leader) leave(s *sender) {
	leading, now := l.o.Leading(), time.Now()
	l.mu.Lock()
	if l.senders[s.node] == s {
		delete(l.senders, s.node)
	}
	l.keeper.left(now, s.node, s.id)
	d := l.keeper.step(now, leading)
	l.mu.Unlock()
	l.act(d)
}

// needed is the oldest position that a replica still has to read. The caller holds
// mu.
func (l *Leader) needed(now time.Time) record.Position {
	need := nothing
	for n, s := range l.senders {
		if m := l.keeper.find(n); m != nil && m.session == s.id {
			need = min(need, m.written)
		}
	}
	for n, h := range l.seeded {
		if !h.until.IsZero() && now.After(h.until) {
			delete(l.seeded, n)
			continue
		}
		need = min(need, h.begin)
	}
	return need
}
