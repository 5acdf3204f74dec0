package flow

import "time"

// supply decides who serves a flow that is relayed: the declared holder, another
// one, or at last the origin. It is a pure state machine of one pull.
//
// A holder that fails is left for the next at once. Back to the declared one it is
// tried after a rest, which doubles each time that it fails again soon after.
type supply struct {
	lim     *Limits
	holders int       // how many there are; the declared one is 0
	at      int       // who serves; holders = the origin
	since   time.Time // when at began
	rest    time.Duration
}

func newSupply(lim *Limits, holders int, now time.Time) supply {
	return supply{lim: lim, holders: holders, since: now, rest: lim.RelayRest}
}

// origin reports whether the origin serves.
func (s *supply) origin() bool { return s.at >= s.holders }

// failed leaves who serves for the next.
func (s *supply) failed(now time.Time) {
	if s.at == 0 {
		s.rest = min(2*s.rest, s.lim.RelayRestMax)
		if now.Sub(s.since) >= s.lim.RelayRestMax {
			s.rest = s.lim.RelayRest // it had been good for long
		}
	}
	s.at, s.since = min(s.at+1, s.holders), now
}

// retry is when the declared holder is tried again; zero while it serves.
func (s *supply) retry() time.Time {
	if s.at == 0 {
		return time.Time{}
	}
	return s.since.Add(s.rest)
}

// refused tells that the declared holder was tried again and cannot serve yet.
func (s *supply) refused(now time.Time) {
	s.rest = min(2*s.rest, s.lim.RelayRestMax)
	s.since = now
}

// returned tells that the declared holder serves again.
func (s *supply) returned(now time.Time) { s.at, s.since = 0, now }

// lagging decides whether who serves has fallen silent: the origin has more than
// what is settled, and nothing moved for RelayStall.
type lagging struct {
	settled uint64
	moved   time.Time // when settled moved, or the backlog began
}

func (g *lagging) stalled(now time.Time, lim *Limits, head, settled uint64, held bool) bool {
	if settled != g.settled || head <= settled || held || g.moved.IsZero() {
		g.settled, g.moved = settled, now
		return false
	}
	return now.Sub(g.moved) >= lim.RelayStall
}
