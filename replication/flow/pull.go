package flow

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// lookAfter is how often a pull looks whether who serves still does.
const lookAfter = 200 * time.Millisecond

// askAgain is how soon a holder is asked again at first that has not landed yet what
// the origin has numbered.
const askAgain = 5 * time.Millisecond

// pull takes one flow from those that have landed it, while there is something to
// take. All fields but those marked belong to its goroutine.
type pull struct {
	in   *Inbox
	id   record.FlowID
	wake chan struct{} // capacity 1: there are numbers that have not settled

	byOrigin bool      // the origin serves; guarded by Inbox.mu
	city     zone.City // of the holder that serves; empty = none. Guarded by Inbox.mu

	s       supply
	holders []Leg
	lag     lagging
	asked   time.Time // when the holder was first asked for what it has not landed yet; zero = it was not
	again   time.Time // when to ask it again
	serving *serving  // the holder's session; nil = none
}

// serving is a holder's session on a goroutine of its own.
type serving struct {
	p    *pulled
	done chan error // capacity 1
}

func (s *serving) stop(why error) {
	s.p.cancel(why)
	<-s.done
}

// run pulls until nothing has been wanted for a while, or ctx ends.
func (p *pull) run(ctx context.Context) {
	defer p.let(nil)
	p.holders = p.in.pull.Holders(p.id)
	p.s = newSupply(&p.in.lim, len(p.holders), time.Now())
	if p.s.origin() { // the topology has changed since the origin's session was deferred
		p.in.serveFromOrigin(p, true)
	}
	tick := time.NewTicker(lookAfter)
	defer tick.Stop()
	soon := time.NewTimer(0) // to ask again
	defer soon.Stop()
	last := time.Now() // that something was wanted
	for {
		now := time.Now()
		if p.serving == nil && !p.s.origin() && !now.Before(p.again) && p.wanted() {
			p.begin(ctx)
			last = time.Now()
			continue
		}
		if at := p.s.retry(); !at.IsZero() && !now.Before(at) {
			p.goBack(ctx)
		}
		var done chan error
		if p.serving != nil {
			done = p.serving.done
		}
		soon.Reset(max(p.again.Sub(now), time.Millisecond))
		if p.serving != nil || !p.again.After(now) {
			soon.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-soon.C:
		case err := <-done:
			done <- err // for whoever stops it
			p.ended(err)
		case <-p.wake:
			last = time.Now()
		case now := <-tick.C:
			p.look(now)
		}
		if p.serving != nil || p.in.standing(p.id).open {
			last = time.Now()
		}
		if stale(last, time.Now(), &p.in.lim) && p.in.forgetPull(p) {
			return
		}
	}
}

// wanted reports whether the origin has numbered more than is settled here.
func (p *pull) wanted() bool {
	st := p.in.standing(p.id)
	return st.backlog()
}

// begin opens a session with the holder whose turn it is.
func (p *pull) begin(ctx context.Context) {
	leg := p.holders[p.s.at]
	x, err := p.in.openPull(ctx, p.id, leg)
	now := time.Now()
	switch {
	case err == nil:
		p.take(x, leg)
	case codeOf(err) == wire.CodeHeld && (p.asked.IsZero() || now.Sub(p.asked) < p.in.lim.RelayStall):
		// A record reaches the two of us at the same time, and its origin's news of
		// it may be here first.
		if p.asked.IsZero() {
			p.asked = now
		}
		p.again = now.Add(min(max(now.Sub(p.asked), askAgain), lookAfter))
	default:
		p.failed(leg, err)
	}
}

// take lets a holder's session serve the flow; the one before has ended then.
func (p *pull) take(x *pulled, leg Leg) {
	before := p.serving
	s := &serving{p: x, done: make(chan error, 1)}
	p.lag, p.asked, p.again = lagging{}, time.Time{}, time.Time{}
	p.in.mu.Lock()
	p.city, p.byOrigin = leg.City, false
	p.in.mu.Unlock()
	p.serving = s
	go func() { s.done <- x.serve() }() // joined by stop, or by who reads done
	if before != nil {
		before.stop(errSuperseded)
	}
	p.in.log.Info("flow is served by a city that has landed it", "flow", FlowName(p.id), "city", string(leg.City))
}

// let ends the holder's session.
func (p *pull) let(why error) {
	if p.serving == nil {
		return
	}
	p.serving.stop(why)
	p.serving = nil
	p.in.mu.Lock()
	p.city = ""
	p.in.mu.Unlock()
}

// ended deals with the end of the holder's session.
func (p *pull) ended(err error) {
	leg := p.holders[min(p.s.at, len(p.holders)-1)]
	p.let(nil)
	if err == nil || errors.Is(err, errNothing) {
		return // idle: the next number begins another
	}
	if codeOf(err) == 0 {
		return
	}
	p.failed(leg, err)
}

// failed leaves a holder for the next one.
func (p *pull) failed(leg Leg, err error) {
	p.in.met.pullFailed()
	p.in.log.Warn("flow is not served by this holder any more", "flow", FlowName(p.id), "city", string(leg.City), "err", err)
	p.s.failed(time.Now())
	p.asked, p.again = time.Time{}, time.Time{}
	if p.s.origin() {
		p.in.serveFromOrigin(p, true)
		p.in.log.Warn("flow is served by its origin: no other city can", "flow", FlowName(p.id))
	}
}

// goBack tries the declared holder again. Who serves goes on until it has answered.
func (p *pull) goBack(ctx context.Context) {
	x, err := p.in.openPull(ctx, p.id, p.holders[0])
	if err != nil {
		p.s.refused(time.Now())
		return
	}
	p.s.returned(time.Now())
	p.take(x, p.holders[0])
}

// turn begins anew with other holders: the topology has changed. Without any, the
// origin serves.
func (p *pull) turn(holders []Leg, now time.Time) {
	p.let(errMoved)
	p.holders, p.s = holders, newSupply(&p.in.lim, len(holders), now)
	p.asked, p.again = time.Time{}, time.Time{}
	p.in.log.Info("flow is to be served by others", "flow", FlowName(p.id), "holders", len(holders))
	p.in.serveFromOrigin(p, p.s.origin())
}

// errSilent ends a holder's session that moves nothing.
var errSilent = errors.New("flow: the holder has fallen silent")

// look leaves a holder that has fallen silent, and all of them when others are to
// serve now.
func (p *pull) look(now time.Time) {
	if h := p.in.pull.Holders(p.id); !slices.Equal(h, p.holders) {
		p.turn(h, now)
		return
	}
	if p.serving == nil {
		return
	}
	st := p.serving.p.x.snapshot()
	at := p.in.standing(p.id)
	if !p.lag.stalled(now, &p.in.lim, at.head, at.settled, st.Held != 0) {
		return
	}
	leg := p.holders[p.s.at]
	p.let(errSilent)
	p.failed(leg, errSilent)
}
