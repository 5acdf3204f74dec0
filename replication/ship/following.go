package ship

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// frameQueue is how many frames wait between the stream and the log: a few reads of
// the stream. Their bytes are bounded by the credit.
const frameQueue = 64

// following is a session of a replica with its master. All fields are only its own
// goroutine's.
type following struct {
	f      *Follower
	stream wire.Stream
	to     target
	window uint64

	table    []record.LineageStart // the master's
	rows     int                   // of table, at its end, that this log does not have yet
	frames   chan wire.Frame       // what has come
	unsynced int64                 // bytes appended since the last sync
	stale    bool                  // the last ack does not tell what it could
	credited uint64                // bytes taken in, all in all
	commit   record.Position       // as the master says
	heard    time.Time
	part     assembly
	buf      []byte // of acknowledgements
}

// assembly collects the parts of a stretch that came in several frames.
type assembly struct {
	ship wire.Ship // the first part's; Size 0 = none is under way
	buf  []byte
}

// ask sends Follow and returns the answer: a Lead or a Seed frame. A master that needs
// time for it says meanwhile that it lives.
func (s *following) ask(ctx context.Context) (wire.Frame, error) {
	o := &s.f.o
	x := wire.Follow{Group: o.Group, Node: o.Self, Incarnation: o.Log.Incarnation(), Epoch: s.to.epoch, Lineage: o.Log.Lineage()}
	x.Begin, x.End, x.Synced, x.Committed = s.f.positions()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := fmt.Errorf("ship: master %s has not answered for %s", s.to.master, o.Limits.Dial)
	silence := time.AfterFunc(o.Limits.Dial, func() { cancel(silent) })
	defer silence.Stop()
	if err := s.stream.Send(ctx, wire.Frame{Type: wire.TypeFollow, Payload: x.Append(nil)}); err != nil {
		return wire.Frame{}, causeOf(ctx, err)
	}
	for {
		a, err := s.stream.Recv(ctx)
		if err != nil {
			return wire.Frame{}, causeOf(ctx, err)
		}
		switch a.Type {
		case wire.TypeLead, wire.TypeSeed:
			return a, nil
		case wire.TypeDrain:
			continue
		case wire.TypeShip: // it prepares
			x, err := wire.ParseShip(a.Payload)
			if err != nil {
				return wire.Frame{}, err
			}
			if x.Size > 0 {
				return wire.Frame{}, breach("a master sent a stretch before it answered Follow")
			}
			silence.Reset(o.Limits.Dial)
			continue
		case wire.TypeRefuse:
			r, err := wire.ParseRefuse(a.Payload)
			if err != nil {
				return wire.Frame{}, err
			}
			if r.Code == wire.CodeDiverged {
				return wire.Frame{}, s.diverged(r.Text, 0)
			}
			return wire.Frame{}, &RefusedError{Master: s.to.master, Code: r.Code, Text: r.Text}
		}
		return wire.Frame{}, breach("a master answered Follow with " + a.Type.String())
	}
}

// causeOf returns why ctx has ended, if that is what err says.
func causeOf(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil && errors.Is(err, ended) {
		return context.Cause(ctx)
	}
	return err
}

func (s *following) diverged(what string, common record.Position) *DivergedError {
	l := s.f.o.Log
	err := &DivergedError{
		Group: s.f.o.Group, Master: s.to.master, Epoch: s.to.epoch, What: what,
		Common: common, Committed: l.Committed(), End: l.End(),
	}
	if rows := l.Lineage(); len(rows) > 0 {
		err.LogEpoch = rows[len(rows)-1].Epoch
	}
	return err
}

// run takes what the master sends until the session ends.
func (s *following) run(ctx context.Context, answer wire.Frame) error {
	s.frames = make(chan wire.Frame, frameQueue)
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { cancel(s.listen(ctx)) })
	var err error
	if answer.Type == wire.TypeSeed {
		err = s.seed(ctx, answer)
	} else {
		err = s.follow(ctx, answer)
	}
	err = causeOf(ctx, err)
	cancel(err)
	wg.Wait()
	return err
}

// listen hands frames on. The queue is drained before its end is seen.
func (s *following) listen(ctx context.Context) error {
	defer close(s.frames)
	for {
		f, err := s.stream.Recv(ctx)
		if err != nil {
			return err
		}
		if f.Type == wire.TypeDrain {
			continue
		}
		select {
		case s.frames <- f:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// follow puts the log right by Lead and takes stretches.
func (s *following) follow(ctx context.Context, answer wire.Frame) error {
	lead, err := wire.ParseLead(answer.Payload)
	if err != nil {
		return err
	}
	if err := s.align(ctx, &lead); err != nil {
		return err
	}
	// A copy that was received and is not in place yet must not replace what is written
	// from here on.
	if err := s.f.o.Restore.Forget(ctx); err != nil {
		return &LogError{Op: "restore", Err: err}
	}
	s.table, s.commit, s.heard, s.stale = lead.Lineage, lead.Committed, time.Now(), true
	s.rows = missing(lead.Lineage, s.f.o.Log.Lineage())
	s.f.o.Logger.Info("following", "peer", string(s.to.master), "epoch", lead.Epoch, "from", lead.From)
	s.f.began()
	if err := s.settle(ctx); err != nil { // the first acknowledgement, with the first credit
		return err
	}
	beat := time.NewTicker(s.f.o.Limits.Beat)
	defer beat.Stop()
	for {
		select {
		case f, open := <-s.frames:
			if !open {
				return context.Cause(ctx)
			}
			if err := s.take(ctx, f); err != nil {
				return err
			}
			if len(s.frames) > 0 && s.unsynced < s.f.o.Limits.SyncBytes {
				continue // one sync for all that has come
			}
			if err := s.settle(ctx); err != nil {
				return err
			}
		case now := <-beat.C:
			if now.Sub(s.heard) > s.f.o.Limits.Dead && len(s.frames) == 0 {
				return fmt.Errorf("ship: master %s has been silent for %s", s.to.master, s.f.o.Limits.Dead)
			}
			if err := s.ack(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// align verifies that the two logs are equal up to where the master goes on, and
// drops what this one has beyond.
func (s *following) align(ctx context.Context, lead *wire.Lead) error {
	l := s.f.o.Log
	begin, end, _, committed := s.f.positions()
	switch {
	case lead.Epoch != s.to.epoch:
		return breach(fmt.Sprintf("a master of epoch %d answered for epoch %d", lead.Epoch, s.to.epoch))
	case lead.Incarnation != l.Incarnation():
		return s.diverged("another store of the same name", 0)
	case lead.From < begin || lead.From > end:
		return breach("the master goes on where this log does not stand")
	}
	table := l.Lineage()
	common, ok := commonEnd(extent{lineage: table, begin: begin, end: end}, extent{lineage: lead.Lineage, begin: lead.Begin, end: lead.From})
	if !ok || common != lead.From {
		return breach("the master goes on where the lineages do not agree")
	}
	if lead.HasLast {
		last, ok, err := l.LastFrame(ctx, lead.From)
		if err != nil {
			return err
		}
		if ok && last != Fingerprint(lead.Last) {
			return s.diverged("the logs differ below the end of a common lineage", lead.From)
		}
	}
	if lead.From < committed {
		err := s.diverged("the master does not have what is committed here", lead.From)
		err.Verified = true
		return err
	}
	if lead.From < end || len(table) > 0 && table[len(table)-1].First >= lead.From {
		if err := l.Truncate(ctx, lead.From); err != nil {
			if errors.Is(err, ErrCommitted) {
				return s.diverged("the master does not have what is committed here", lead.From)
			}
			return restoring("truncate", err)
		}
		s.f.o.Logger.Info("log truncated to what is common with the master's", "peer", string(s.to.master), "to", lead.From, "was", end)
		s.f.metrics.truncated(uint64(end - lead.From))
	}
	return nil
}

// take handles one frame.
func (s *following) take(ctx context.Context, f wire.Frame) error {
	if f.Type != wire.TypeShip {
		return breach("a master sent " + f.Type.String())
	}
	x, err := wire.ParseShip(f.Payload)
	if err != nil {
		return err
	}
	s.heard = time.Now()
	s.commit = max(s.commit, x.Committed)
	if x.Size == 0 {
		s.f.keeps(x.Begin)
		return nil
	}
	s.stale = true
	s.credited += uint64(len(x.Data))
	frames, whole, err := s.part.add(&x)
	if err != nil || !whole {
		return err
	}
	return s.write(ctx, Stretch{From: x.From, Base: x.Base, Next: x.Next, Frames: frames})
}

// add takes a part and returns the whole stretch with the last one.
func (a *assembly) add(x *wire.Ship) (frames []byte, whole bool, err error) {
	first := a.ship.Size == 0
	if first && x.Offset == 0 && len(x.Data) == int(x.Size) {
		return x.Data, true, nil
	}
	if first {
		a.ship, a.buf = *x, make([]byte, 0, x.Size)
	}
	same := a.ship.From == x.From && a.ship.Next == x.Next && a.ship.Base == x.Base && a.ship.Size == x.Size
	if !same || int(x.Offset) != len(a.buf) {
		return nil, false, breach("parts of a stretch do not fit each other")
	}
	a.buf = append(a.buf, x.Data...)
	if len(a.buf) < int(x.Size) {
		return nil, false, nil
	}
	frames = a.buf
	*a = assembly{}
	return frames, true, nil
}

// write appends a stretch, the lineages that begin in it first.
func (s *following) write(ctx context.Context, st Stretch) error {
	l := s.f.o.Log
	if st.From != l.End() {
		return breach("a stretch begins where the log does not end")
	}
	for s.rows > 0 && s.table[len(s.table)-s.rows].First < st.Next {
		row := s.table[len(s.table)-s.rows]
		if row.First < st.From {
			return breach("a lineage begins where the log has ended already")
		}
		if err := l.AddLineage(ctx, row); err != nil {
			return &LogError{Op: "lineage", Err: err}
		}
		s.rows--
	}
	if err := l.AppendRaw(ctx, st); err != nil {
		if errors.Is(err, ErrRefused) || errors.Is(err, ErrFull) {
			return err
		}
		return &LogError{Op: "append", Err: err}
	}
	s.unsynced += int64(len(st.Frames))
	s.f.metrics.received(len(st.Frames))
	return nil
}

// settle makes what was written durable, takes over what the master says is
// committed, and acknowledges.
func (s *following) settle(ctx context.Context) error {
	l := s.f.o.Log
	if l.Synced() < l.End() {
		if _, err := l.Sync(ctx); err != nil {
			return &LogError{Op: "sync", Err: err}
		}
		s.unsynced, s.stale = 0, true
	}
	if p := min(s.commit, l.Synced()); p > l.Committed() {
		l.Commit(p)
	}
	if !s.stale { // the beat tells it
		return nil
	}
	return s.ack(ctx)
}

// ack tells the master how far this log is. Only what was written through this
// session, or verified at its beginning, stands in the log by now.
func (s *following) ack(ctx context.Context) error {
	l := s.f.o.Log
	s.stale = false
	synced := l.Synced()
	x := wire.ShipAck{Written: l.End(), Synced: synced, Credit: s.credited + s.window}
	s.buf = x.Append(s.buf[:0])
	return s.stream.Send(ctx, wire.Frame{Type: wire.TypeShipAck, Payload: s.buf})
}
