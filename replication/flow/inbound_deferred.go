package flow

import (
	"context"
	"errors"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
)

// tellEvery is how often an origin whose records another city serves hears of
// what is settled.
const tellEvery = 100 * time.Millisecond

// beginDeferred accepts an origin's session without credit: a holder serves the
// flow. The session stays open to tell the origin what is settled, and to hear
// from it what there is.
func (x *inbound) beginDeferred() error {
	in := x.in
	in.mu.Lock()
	if p := in.pulls[x.open.Flow]; p != nil && p.byOrigin {
		in.mu.Unlock()
		return errMoved
	}
	e := in.entryOf(x.open.Flow)
	old := e.waiting
	e.waiting, x.entry = x, e
	in.mu.Unlock()
	if old != nil {
		in.met.superseded()
		old.cancel(errSuperseded)
	}
	now := time.Now()
	have := in.sink.Resume(x.open.Flow)
	r, refusal := reconcile(&x.open, &have, true)
	if refusal != nil {
		return x.complain(refusal)
	}
	x.resumed = r
	x.cursor.Store(x.open.Cursor)
	x.rx.begin(now, &in.lim, &x.open, &have, r, 0)
	x.rx.credit = wire.Credit{Number: r.next - 1}
	a := x.rx.accept(r, have.Outcomes)
	a.Group, a.Incarnation, a.Epoch = in.sink.Group(), in.sink.Incarnation(), in.sink.Epoch()
	x.out.control(wire.TypeAccept, x.session, x.class, a.Append(nil))
	x.publish()
	return nil
}

// loopDeferred is the loop of a session without credit.
func (x *inbound) loopDeferred(ctx context.Context) error {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		if err := x.tell(); err != nil {
			return err
		}
		if x.rx.head > x.rx.settled {
			x.in.want(x.open.Flow)
		}
		select {
		case f := <-x.frames:
			done, err := x.handleDeferred(f)
			if done || err != nil {
				return err
			}
		case <-tick.C:
		case <-x.evicted:
			return errMoved
		case err := <-x.failed:
			if c := (*wire.ClosedError)(nil); errors.As(err, &c) && c.Code == wire.CodeOK {
				return nil
			}
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// errMoved asks an origin to open its session again: who serves the flow changes.
var errMoved = refused(wire.CodeDraining, "who serves the flow changes")

// tell acknowledges what a holder's session has settled, as far as it is of the
// lineages that the origin told.
func (x *inbound) tell() error {
	have := x.in.sink.Resume(x.open.Flow)
	r, refusal := reconcile(&x.open, &have, true)
	switch {
	case refusal != nil:
		return x.complain(refusal)
	case r.next-1 < x.rx.told:
		return errMoved // the flow settles another branch now: the tables must be compared anew
	}
	x.rx.settled = r.next - 1
	for x.rx.told < x.rx.settled {
		a := x.rx.ack(time.Now(), have.Outcomes)
		x.out.ack(x.session, x.class, &a)
	}
	x.publish()
	return nil
}

func (x *inbound) handleDeferred(f wire.Frame) (done bool, err error) {
	if f.Flags&wire.FlagsRequired != 0 {
		return false, refused(wire.CodeUnsupported, "required flags %04x of a %s frame", f.Flags, f.Type)
	}
	switch f.Type {
	case wire.TypeProbe:
		p, err := wire.ParseProbe(f.Payload)
		if err != nil {
			return false, err
		}
		x.rx.head = max(x.rx.head, p.Head)
		x.rx.cursor = max(x.rx.cursor, p.Cursor)
		x.cursor.Store(x.rx.cursor)
		r := wire.ProbeReply{Nonce: p.Nonce, SentAt: p.SentAt, Settled: x.rx.settled, Credit: x.rx.credit,
			Held: wire.CodeRelayed, Text: x.in.servedBy(x.open.Flow)}
		x.out.control(wire.TypeProbeReply, x.session, x.class, r.Append(nil))
		return false, nil
	case wire.TypeEnd:
		return true, nil
	case wire.TypeSeal:
		// Only the origin seals, and only the session that lands can answer.
		x.in.toOrigin(x.open.Flow)
		return false, errMoved
	}
	return false, refused(wire.CodeMalformed, "a %s frame without credit", f.Type)
}

// evict asks the session's origin to open it again. It is safe from anywhere.
func (x *inbound) evict() { x.evictOnce.Do(func() { close(x.evicted) }) }

// replaced returns why the session may not land any more.
func (x *inbound) replaced() error {
	select {
	case <-x.evicted:
		return errMoved
	default:
		return errSuperseded
	}
}
