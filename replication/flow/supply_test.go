package flow

import (
	"testing"
	"time"
)

func TestSupplyLeavesAHolderAndComesBack(t *testing.T) {
	lim := Limits{}.withDefaults()
	now := time.Unix(1e9, 0)
	s := newSupply(&lim, 2, now)
	if s.origin() || !s.retry().IsZero() {
		t.Fatal("the declared holder does not begin")
	}
	s.failed(now)
	if s.at != 1 || !s.retry().Equal(now.Add(2*lim.RelayRest)) {
		t.Fatalf("at %d, again in %v", s.at, s.retry().Sub(now))
	}
	s.failed(now)
	if !s.origin() {
		t.Fatal("the origin does not serve when nobody else can")
	}
	s.failed(now)
	if s.at != 2 {
		t.Fatalf("at %d: there is nobody behind the origin", s.at)
	}
	for range 20 { // it does not come back for long
		now = s.retry()
		s.refused(now)
	}
	if rest := s.retry().Sub(now); rest != lim.RelayRestMax {
		t.Fatalf("it rests for %v, want at most %v", rest, lim.RelayRestMax)
	}
	s.returned(now)
	if s.at != 0 || !s.retry().IsZero() {
		t.Fatal("the declared holder does not serve again")
	}
	// One that fails again soon rests long, one that had been good for long does not.
	s.failed(now.Add(time.Second))
	if s.rest != lim.RelayRestMax {
		t.Errorf("rest %v", s.rest)
	}
	s.returned(now)
	s.failed(now.Add(time.Hour))
	if s.rest != lim.RelayRest {
		t.Errorf("rest %v after an hour of service", s.rest)
	}
}

func TestSupplyNoticesSilence(t *testing.T) {
	lim := Limits{}.withDefaults()
	at := func(d time.Duration) time.Time { return time.Unix(1e9, 0).Add(d) }
	var g lagging
	for _, c := range []struct {
		after         time.Duration
		head, settled uint64
		held, want    bool
	}{
		{0, 10, 10, false, false},
		{time.Hour, 10, 10, false, false}, // nothing is missing
		{time.Hour + 1, 11, 10, false, false},
		{time.Hour + lim.RelayStall/2, 12, 10, false, false},
		{time.Hour + lim.RelayStall + time.Second, 12, 11, false, false}, // it moves
		{time.Hour + 2*lim.RelayStall, 12, 11, false, false},
		{time.Hour + 4*lim.RelayStall, 12, 11, true, false}, // this end takes nothing: nobody could serve it
		{time.Hour + 5*lim.RelayStall - 1, 12, 11, false, false},
		{time.Hour + 6*lim.RelayStall, 12, 11, false, true},
	} {
		if got := g.stalled(at(c.after), &lim, c.head, c.settled, c.held); got != c.want {
			t.Errorf("after %v, %d of %d: silent %v", c.after, c.settled, c.head, got)
		}
	}
}
