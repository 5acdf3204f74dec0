package flow

import (
	"context"
	"errors"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// loop is the session's loop: it owns the receiver.
func (x *inbound) loop(ctx context.Context) error {
	timer := time.NewTimer(x.in.lim.ProbeEvery)
	defer timer.Stop()
	x.sealing = x.rx.sealed
	x.heldNext = time.Now().Add(x.in.lim.HeldRetry)
	nextTick := time.Now().Add(x.in.lim.ProbeEvery)
	for {
		if err := x.advance(ctx, &nextTick); err != nil {
			return err
		}
		due := nextTick
		if x.held != nil && x.heldNext.Before(due) {
			due = x.heldNext
		}
		timer.Reset(max(time.Until(due), time.Millisecond))
		select {
		case f := <-x.frames:
			done, err := x.handle(f)
			if done || err != nil {
				return err
			}
		case <-x.wake:
		case <-x.evicted:
			return errMoved
		case <-timer.C:
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

// advance does everything that can be done without waiting for an event.
func (x *inbound) advance(ctx context.Context, nextTick *time.Time) error {
	if err := x.collect(); err != nil {
		return err
	}
	now := time.Now()
	if !now.Before(*nextTick) {
		*nextTick = now.Add(x.in.lim.ProbeEvery)
		if x.held == nil {
			x.hold(now, x.in.sink.Writable())
		}
		if !x.holder && x.in.defers(&x.open) {
			return errMoved // the topology lets a holder serve now
		}
		if x.rx.tick(now, x.in.budget.scarce(now)) {
			p := wire.Drain{}
			x.out.control(wire.TypeDrain, x.session, x.class, p.Append(nil))
		}
	}
	if err := x.land(now); err != nil {
		return err
	}
	x.rx.regrant(now, x.in.budget, x.held != nil)
	for x.rx.ackDue {
		a := x.rx.ack(now, x.in.sink.Resume(x.open.Flow).Outcomes)
		x.out.ack(x.session, x.class, &a)
	}
	x.publish()
	if x.sealing && len(x.rx.flight) == 0 {
		return x.seal(ctx)
	}
	return nil
}

// collect takes the results of landings.
func (x *inbound) collect() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, err := range x.done {
		if err != nil {
			x.done = append([]error(nil), x.done[i:]...) // giveBack counts them
			if errors.Is(err, ErrHeld) {
				_, text := heldReason(err)
				return &retryError{refused(wire.CodeHeld, "%s", text), x.in.lim.HeldRetry}
			}
			return refused(wire.CodeInternal, "landing failed: %v", err)
		}
		x.in.met.landed(&x.rx.flight[0].landing, x.holder)
		x.rx.landed()
	}
	x.done = x.done[:0]
	return nil
}

// land hands the sink what it can take, and asks a held one again when it is
// time.
func (x *inbound) land(now time.Time) error {
	if x.held != nil {
		if now.Before(x.heldNext) {
			return nil
		}
		x.hold(now, x.in.sink.Writable())
		if x.held != nil {
			return nil
		}
	}
	for {
		l := x.rx.ready()
		if l == nil {
			return nil
		}
		if !x.in.claim(x) {
			return x.replaced()
		}
		if err := x.in.sink.Land(*l, x.landingDone); err != nil {
			x.in.unclaim(x)
			if errors.Is(err, ErrHeld) {
				x.hold(now, err)
				return nil
			}
			return refused(wire.CodeInternal, "landing refused: %v", err)
		}
		x.rx.handed()
	}
}

// hold notes why the sink takes nothing, or that it does again.
func (x *inbound) hold(now time.Time, why error) {
	if (why != nil) != (x.held != nil) {
		if why != nil {
			x.log.Warn("destination is held, its credit ends", "err", why)
		} else {
			x.log.Info("destination takes records again")
		}
	}
	x.held, x.heldNext = why, now.Add(x.in.lim.HeldRetry)
}

// seal answers a Seal once nothing is on its way into the sink.
func (x *inbound) seal(ctx context.Context) error {
	through, err := x.in.sink.Seal(ctx, x.open.Flow)
	if err != nil {
		return refused(wire.CodeInternal, "seal failed: %v", err)
	}
	if through != x.rx.settled && !x.rx.sealed {
		return refused(wire.CodeInternal, "sealed through %d, but %d is settled", through, x.rx.settled)
	}
	x.rx.sealed, x.sealing = true, false
	p := wire.Sealed{Through: x.rx.settled}
	x.out.control(wire.TypeSealed, x.session, x.class, p.Append(nil))
	return nil
}

// handle takes one frame of the origin. done ends the session as agreed.
func (x *inbound) handle(f wire.Frame) (done bool, err error) {
	if f.Flags&wire.FlagsRequired != 0 {
		return false, refused(wire.CodeUnsupported, "required flags %04x of a %s frame", f.Flags, f.Type)
	}
	if f.Class != x.class {
		return false, refused(wire.CodeMalformed, "class %d in a session of class %d", f.Class, x.class)
	}
	switch f.Type {
	case wire.TypeBatch:
		if err := x.batch.Decode(f.Payload); err != nil {
			return false, err
		}
		return false, x.takeBatch(&x.batch, f.Hops)
	case wire.TypeDictionary:
		p, err := wire.ParseDictionary(f.Payload)
		if err != nil {
			return false, err
		}
		return false, x.takeDictionary(&p)
	case wire.TypeSkip:
		p, err := wire.ParseSkip(f.Payload)
		if err != nil {
			return false, err
		}
		outcome := record.OutcomeSkipped
		if p.Reason == record.ReasonTooLarge {
			outcome = record.OutcomeParked // no frame holds it: its sender must hear of it
		}
		return false, x.takeRange(&p, outcome, f.Hops)
	case wire.TypeGap:
		p, err := wire.ParseGap(f.Payload)
		if err != nil {
			return false, err
		}
		return false, x.takeRange((*wire.Skip)(&p), record.OutcomeGap, f.Hops)
	case wire.TypeProbe:
		p, err := wire.ParseProbe(f.Payload)
		if err != nil {
			return false, err
		}
		x.reply(&p)
		return false, nil
	case wire.TypeSeal:
		p, err := wire.ParseSeal(f.Payload)
		if err != nil {
			return false, err
		}
		if p.Flow != x.open.Flow {
			return false, refused(wire.CodeMalformed, "seal of another flow")
		}
		x.sealing = true
		return false, nil
	case wire.TypeEnd:
		return true, nil
	}
	return false, refused(wire.CodeUnsupported, "a %s frame from an origin", f.Type)
}

// reply answers a probe.
func (x *inbound) reply(p *wire.Probe) {
	x.rx.head = max(x.rx.head, p.Head)
	x.rx.cursor = max(x.rx.cursor, p.Cursor)
	r := wire.ProbeReply{Nonce: p.Nonce, SentAt: p.SentAt, Settled: x.rx.settled, Credit: x.rx.credit}
	if x.held != nil {
		r.Held, r.Text = heldReason(x.held)
	}
	x.out.control(wire.TypeProbeReply, x.session, x.class, r.Append(nil))
}

// takeBatch takes records into the queue for the sink.
func (x *inbound) takeBatch(b *wire.Batch, hops uint8) error {
	if x.sealing {
		return refused(wire.CodeSealed, "the flow is being sealed")
	}
	if uint64(b.RawSize) < 4*uint64(b.Count) {
		return refused(wire.CodeMalformed, "%d records in %d bytes", b.Count, b.RawSize)
	}
	through := b.First + uint64(b.Count) - 1
	skip, fresh, refusal := x.rx.take(time.Now(), b.First, through, int(b.RawSize), b.Lineage, b.LineageEpoch)
	if refusal != nil {
		return x.complain(refusal)
	}
	if !fresh {
		x.in.met.duplicates(uint64(b.Count))
		return nil
	}
	if skip > 0 {
		x.in.met.duplicates(skip)
	}
	l := x.landing(b.First+skip, b.Lineage, b.LineageEpoch, b.Cursor, hops)
	l.Through = through
	l.Path = append(l.Path, b.Path...)
	if !isIn(b.Residency, x.in.city) {
		l.Outcome, l.Reason = record.OutcomeParked, record.ReasonResidency
		x.rx.push(l, int(b.RawSize))
		return nil
	}
	data := b.Data
	if b.Codec == wire.CodecZstd {
		dec, err := x.decoderOf(b.Dictionary)
		if err != nil {
			return err
		}
		out, err := dec.DecodeAll(b.Data, make([]byte, 0, b.RawSize))
		if err != nil || len(out) != int(b.RawSize) {
			return refused(wire.CodeMalformed, "compressed data: %v, %d of %d bytes", err, len(out), b.RawSize)
		}
		data = out
	}
	records, err := split(data, uint64(b.Count), skip)
	if err != nil {
		return err
	}
	l.Outcome, l.Records = record.OutcomeLanded, records
	x.rx.push(l, int(b.RawSize))
	return nil
}

// takeRange takes numbers that come without records.
func (x *inbound) takeRange(p *wire.Skip, outcome record.Outcome, hops uint8) error {
	if x.sealing {
		return refused(wire.CodeSealed, "the flow is being sealed")
	}
	skip, fresh, refusal := x.rx.take(time.Now(), p.First, p.Through, 0, p.Lineage, p.LineageEpoch)
	if refusal != nil {
		return x.complain(refusal)
	}
	if !fresh {
		return nil
	}
	l := x.landing(p.First+skip, p.Lineage, p.LineageEpoch, p.Cursor, hops)
	l.Through, l.Outcome, l.Reason = p.Through, outcome, p.Reason
	x.rx.push(l, 0)
	return nil
}

// complain counts and logs what must never pass unseen.
func (x *inbound) complain(r *RefusedError) error {
	if r.Code == wire.CodeDiverged {
		x.in.met.diverged()
		x.log.Error("flow refused, origin and destination disagree", "err", r)
	}
	return r
}
