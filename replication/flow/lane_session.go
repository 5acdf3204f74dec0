package flow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// frameQueue is how many frames may wait for a lane: at least as many as a
// destination sends while the lane is blocked in one Send, since a destination
// joins Acks that cannot leave.
const frameQueue = 16

// settleRetry is how soon a settlement that the source could not record is
// offered again.
const settleRetry = 200 * time.Millisecond

// conn is the open session of a lane.
type conn struct {
	id       uint64
	stream   wire.Stream
	frames   chan wire.Frame
	failed   chan error // capacity 1: why reading ended
	grew     <-chan struct{}
	settleAt time.Time // when to offer the pending settlement again; zero = at once
	seal     bool      // Seal is to be sent
}

// session opens a session and sends until it ends.
func (l *lane) session(ctx context.Context) error {
	state, ok := l.src.Origin(l.leg.Flow)
	if !ok {
		return errNothing
	}
	cursor, at := l.src.Cursor(l.leg)
	seal := l.o.sealWanted(l.leg)
	if state.Head <= cursor && !l.behind && !seal && !l.verify.Load() {
		return errNothing
	}
	l.setState(StateOpening, wire.CodeOK, "")
	c := &conn{id: l.rng.Uint64() | 1, frames: make(chan wire.Frame, frameQueue), failed: make(chan error, 1), seal: seal}

	dialCtx, cancel := context.WithTimeout(ctx, l.lim.OpenTimeout)
	s, err := l.o.dialer.Open(dialCtx, l.leg, c.id)
	cancel()
	if err != nil {
		return err
	}
	l.o.routeFound(l, false)
	c.stream = s
	return l.converse(ctx, c, state, cursor, at)
}

// converse sends on an open stream until the session ends, and closes it.
func (l *lane) converse(ctx context.Context, c *conn, state OriginState, cursor uint64, at Fingerprint) (err error) {
	l.state = state
	l.s.start(time.Now(), l.lim, state.Head, cursor)
	l.linger, l.shelf = linger{}, shelf{}
	l.s.landed, l.s.owner = state.Landed, l.leg.Flow.Channel && !state.Landed
	runCtx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.failed <- l.receive(runCtx, c)
	}()
	defer func() {
		code := codeOf(err)
		if ctx.Err() != nil {
			code = wire.CodeShutdown
		}
		stop()
		_ = c.stream.Close(code) // its error says nothing that the session's end does not
		<-done
		if l.s.phase != phaseOpening {
			// After a change of tables only a session can tell what is settled.
			l.behind = l.s.backlog() || errors.Is(err, errOtherTable)
		}
		l.traces.abandon(code)
		if (code == wire.CodeMalformed || code == wire.CodeUnsupported) && len(l.shelf.told) > 0 {
			l.o.library.refused(l.leg.Group, time.Now()) // in case that it was a dictionary
		}
	}()
	if err := l.sendOpen(runCtx, c, cursor); err != nil {
		return err
	}
	return l.stream(runCtx, c, &origin{state: state, cursor: cursor, at: at, lookup: func(n uint64) (Fingerprint, bool) {
		return l.src.FingerprintAt(l.leg.Flow, n)
	}})
}

// receive passes the session's frames on until the stream ends.
func (l *lane) receive(ctx context.Context, c *conn) error {
	for {
		f, err := c.stream.Recv(ctx)
		if err != nil {
			return err
		}
		if f.Session != c.id {
			l.met.stray()
			continue
		}
		select {
		case c.frames <- f:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stream is the loop of an open session.
func (l *lane) stream(ctx context.Context, c *conn, own *origin) error {
	timer := time.NewTimer(l.lim.OpenTimeout)
	defer timer.Stop()
	for {
		if err := l.takeFrames(ctx, c, own); err != nil {
			return err
		}
		l.record(ctx, c)
		if l.s.phase == phaseStreaming {
			if l.verify.Swap(false) && !l.s.backlog() {
				return errNothing
			}
			if c.seal {
				c.seal = false
				p := wire.Seal{Flow: l.leg.Flow}
				if err := l.send(ctx, c, wire.TypeSeal, p.Append(l.payload[:0])); err != nil {
					return err
				}
			}
			sent, err := l.gatherOrSend(ctx, c)
			if err != nil {
				return err
			}
			if sent {
				continue
			}
		}
		if err := l.pause(ctx, c, own, timer); err != nil {
			return err
		}
	}
}

// takeFrames handles what has arrived, without waiting.
func (l *lane) takeFrames(ctx context.Context, c *conn, own *origin) error {
	for {
		select {
		case f := <-c.frames:
			if err := l.handle(ctx, c, own, f); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// pause waits for the next event: a frame, new records, a timer, a seal.
func (l *lane) pause(ctx context.Context, c *conn, own *origin, timer *time.Timer) error {
	now := time.Now()
	probe, end := l.s.tick(now)
	switch {
	case end != nil && end.Code == wire.CodeOK:
		return errNothing
	case end != nil:
		return end
	case probe:
		p := l.s.probe(now, l.rng.Uint64())
		if err := l.send(ctx, c, wire.TypeProbe, p.Append(l.payload[:0])); err != nil {
			return err
		}
	}
	l.publish()
	due := l.s.due()
	if !c.settleAt.IsZero() && c.settleAt.Before(due) {
		due = c.settleAt
	}
	wait := max(due.Sub(now), time.Millisecond)
	if !l.linger.until.IsZero() {
		wait = min(wait, l.linger.until.Sub(now))
	}
	timer.Reset(wait)
	if l.s.phase == phaseStreaming && l.s.next > l.s.head {
		if c.grew == nil {
			c.grew = l.src.Wait(l.leg.Flow, l.s.head)
		}
	} else {
		c.grew = nil
	}
	select {
	case f := <-c.frames:
		return l.handle(ctx, c, own, f)
	case <-c.grew:
		c.grew = nil
		return l.look()
	case <-timer.C:
		return nil
	case <-l.sealC:
		c.seal = l.o.sealWanted(l.leg)
		return nil
	case err := <-c.failed:
		// What arrived before the end still counts.
		if more := l.takeFrames(ctx, c, own); more != nil {
			return more
		}
		l.record(ctx, c)
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// look asks the source for the flow's numbers again.
func (l *lane) look() error {
	state, ok := l.src.Origin(l.leg.Flow)
	if !ok {
		return errNothing
	}
	if state.Landed && (state.Head < l.state.Head || !continues(l.state.Lineage, state.Lineage)) {
		return errOtherTable
	}
	l.state = state
	l.s.grown(time.Now(), state.Head)
	return nil
}

// errOtherTable ends a session at once, to begin another: what landed here belongs
// to another lineage table than the one that the session's Open told.
var errOtherTable error = &retryError{refused(wire.CodeOK, "the lineages of what landed here have changed"), 0}

// continues reports whether a lineage table is the one before, without rows that
// began in between: they may be told only by an Open.
func continues(before, now []Mark) bool {
	if len(now) > wire.MaxMarks || len(before) > wire.MaxMarks {
		return len(now) == len(before)
	}
	return slices.Equal(before, now)
}

// record hands what is settled to the source. A failure keeps it for later.
func (l *lane) record(ctx context.Context, c *conn) {
	for {
		p, ok := l.s.settlement()
		if !ok || !c.settleAt.IsZero() && time.Now().Before(c.settleAt) {
			return
		}
		if l.state.Landed {
			p.Lineage = lineageAt(l.state.Lineage, p.Through)
		}
		if err := l.src.Settle(ctx, l.leg, p); err != nil {
			if ctx.Err() == nil && c.settleAt.IsZero() {
				l.log.Warn("settlement not recorded, trying again", "err", err)
			}
			c.settleAt = time.Now().Add(settleRetry)
			return
		}
		c.settleAt = time.Time{}
		l.met.settled(&p)
		l.traces.settled(&p)
		l.s.recorded(p.Through)
	}
}

// lineageAt returns the lineage of a number by the table, 0 when it has none.
func lineageAt(table []Mark, number uint64) (id record.LineageID) {
	for _, m := range table {
		if m.First <= number {
			id = m.ID
		}
	}
	return id
}

// handle takes one frame of the destination.
func (l *lane) handle(ctx context.Context, c *conn, own *origin, f wire.Frame) error {
	if f.Flags&wire.FlagsRequired != 0 {
		return refused(wire.CodeUnsupported, "required flags %04x of a %s frame", f.Flags, f.Type)
	}
	switch f.Type {
	case wire.TypeAck:
		if err := l.ackFrame.Decode(f.Payload); err != nil {
			return err
		}
		if l.s.owner && l.ackFrame.Through > l.s.head { // by another city that has landed it
			if err := l.look(); err != nil {
				return err
			}
		}
		if err := l.s.ack(time.Now(), &l.ackFrame); err != nil {
			return err
		}
		return l.progressed()
	case wire.TypeAccept:
		a, err := wire.ParseAccept(f.Payload)
		if err != nil {
			return err
		}
		return l.accepted(c, own, &a)
	case wire.TypeProbeReply:
		p, err := wire.ParseProbeReply(f.Payload)
		if err != nil {
			return err
		}
		l.s.reply(time.Now(), &p)
		return nil
	case wire.TypeSealed:
		p, err := wire.ParseSealed(f.Payload)
		if err != nil {
			return err
		}
		return l.sealed(ctx, c, p.Through)
	case wire.TypeRefuse:
		p, err := wire.ParseRefuse(f.Payload)
		if err != nil {
			return err
		}
		if p.Code == wire.CodeDraining {
			return &drainError{}
		}
		return &retryError{&RefusedError{Code: p.Code, Text: p.Text}, p.RetryAfter}
	case wire.TypeDrain:
		return &drainError{}
	case wire.TypeEnd:
		p, err := wire.ParseEnd(f.Payload)
		if err != nil {
			return err
		}
		return &RefusedError{Code: p.Code, Text: p.Text}
	}
	return refused(wire.CodeUnsupported, "a %s frame from a destination", f.Type)
}

// progressed ends a session whose next record needs a larger window.
func (l *lane) progressed() error {
	l.drained = false
	if l.s.stuck() {
		return l.larger()
	}
	return nil
}

// larger ends the session so that the next one asks for a window that has room
// for the next record.
func (l *lane) larger() error {
	l.maxRecord = uint32(l.s.need)
	return &retryError{refused(wire.CodeOK, "a record of %d bytes needs a larger window", l.s.need), 0}
}

// accepted compares the destination's claims with the origin's knowledge.
func (l *lane) accepted(c *conn, own *origin, a *wire.Accept) error {
	if a.Group != l.leg.Group {
		return refused(wire.CodeWrongIdentity, "group %q answered", a.Group)
	}
	if l.s.owner && a.Next > own.state.Head+1 { // by another city that has landed it
		if err := l.look(); err != nil {
			return err
		}
		own.state = l.state
	}
	if err := own.verify(a); err != nil {
		return err
	}
	rewound, err := l.s.accept(time.Now(), a)
	if err != nil {
		return err
	}
	if l.dest != 0 && l.dest != a.Incarnation {
		l.log.Warn("destination has a new store", "was", fmt.Sprintf("%x", l.dest), "is", fmt.Sprintf("%x", a.Incarnation))
	}
	l.dest = a.Incarnation
	l.o.answered(l.leg, store{a.Incarnation, a.Epoch})
	if rewound > 0 {
		l.met.rewound(rewound)
		l.log.Warn("destination lost numbers, sending again", "next", a.Next, "cursor", own.cursor)
	}
	if a.Orphans != (wire.Range{}) {
		l.met.orphans(a.Orphans)
		l.log.Warn("destination keeps numbers that this origin lost", "first", a.Orphans.First, "through", a.Orphans.Through)
	}
	l.met.opened()
	if l.o.library.speaks(l.leg.Group, time.Now()) {
		l.shelf.keeps = min(int(a.Dictionaries), maxTopics)
	}
	l.setState(StateStreaming, wire.CodeOK, "")
	l.mu.Lock()
	l.status.Session, l.status.Incarnation = c.id, a.Incarnation
	l.mu.Unlock()
	return nil
}

// sealed takes the answer to Seal, or the news that the flow is sealed.
func (l *lane) sealed(ctx context.Context, c *conn, through uint64) error {
	if l.s.phase == phaseOpening || through >= l.s.next {
		return refused(wire.CodeMalformed, "sealed through %d, which was not sent", through)
	}
	if through != l.s.acked {
		return refused(wire.CodeMalformed, "sealed through %d before its outcomes were told", through)
	}
	l.record(ctx, c)
	if p := &l.s.pending; p.Through != 0 {
		return errors.New("flow: settlement before a seal was not recorded")
	}
	l.s.phase = phaseSealed
	l.publish()
	l.o.sealDone(l.leg, through)
	l.log.Warn("flow is sealed at its destination", "settled", through)
	return refused(wire.CodeOK, "sealed through %d", through)
}
