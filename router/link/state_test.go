package link

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// script drives a machine by hand.
type script struct {
	t   *testing.T
	m   *machine
	now time.Time
}

func newScript(t *testing.T, lower bool) *script {
	half := func(d time.Duration) time.Duration { return d / 2 }
	return &script{t: t, now: epoch, m: newMachine(Timing{}.withDefaults(), lower, 1, half, epoch)}
}

// step applies the event after d and compares effects and state.
func (s *script) step(d time.Duration, ev event, state State, want ...effect) {
	s.t.Helper()
	s.now = s.now.Add(d)
	got := s.m.step(s.now, ev)
	if fmt.Sprint(got) != fmt.Sprint(want) || s.m.state != state {
		s.t.Errorf("%T%+v: %v in state %s, want %v in %s", ev, ev, got, s.m.state, want, state)
	}
}

func TestLowerNameDialsAtOnceTheOtherWaits(t *testing.T) {
	s := newScript(t, true)
	s.step(0, evWant{true}, StateDialling, effect{doDial, 1})
	s = newScript(t, false)
	s.step(0, evWant{true}, StateDialling)
	if wait := s.m.deadline().Sub(s.now); wait < 250*time.Millisecond || wait > 500*time.Millisecond {
		t.Errorf("the higher name dials after %v, want 250 to 500 ms", wait)
	}
	s.step(375*time.Millisecond, evTick{}, StateDialling, effect{doDial, 1})
}

func TestAttemptsThatHangAreJoinedByOthersUpToTheBound(t *testing.T) {
	s := newScript(t, true)
	s.step(0, evWant{true}, StateDialling, effect{doDial, 1})
	for i := uint64(2); i <= maxAttempts; i++ {
		state := StateDialling
		if i >= 5 {
			state = StateRed // failing for 2 s
		}
		s.step(500*time.Millisecond, evTick{}, state, effect{doDial, i})
	}
	s.step(500*time.Millisecond, evTick{}, StateRed)
	if !s.m.deadline().IsZero() {
		t.Errorf("deadline = %v, want none: attempts end by themselves", s.m.deadline())
	}
	s.step(0, evFailed{1}, StateRed)
	s.step(250*time.Millisecond, evTick{}, StateRed, effect{doDial, maxAttempts + 1})
}

func TestFirstGreetedAttemptWinsAndProbesBegin(t *testing.T) {
	s := newScript(t, true)
	s.step(0, evWant{true}, StateDialling, effect{doDial, 1})
	s.step(500*time.Millisecond, evTick{}, StateDialling, effect{doDial, 2})
	s.step(0, evConnected{2}, StateHandshaking)
	since := s.m.since
	s.step(10*time.Millisecond, evConnected{1}, StateHandshaking)
	if s.m.since != since {
		t.Errorf("handshaking since %v, want the first", s.m.since)
	}
	s.step(0, evUp{attempt: 1, conn: 7, incarnation: 1}, StateUp, effect{doCancel, 2}, effect{doProbe, 7})
	s.step(500*time.Millisecond, evTick{}, StateUp, effect{doProbe, 7})
	s.step(0, evFailed{2}, StateUp)
}

func TestSilenceIsRedOnlyAfterEnoughProbes(t *testing.T) {
	s := newScript(t, true)
	s.step(0, evWant{true}, StateDialling, effect{doDial, 1})
	s.step(0, evUp{attempt: 1, conn: 7, incarnation: 1}, StateUp, effect{doProbe, 7})
	s.step(0, evReply{7}, StateUp)
	// The process stood still for a minute: nobody was asked, nobody is to blame.
	s.step(time.Minute, evTick{}, StateUp, effect{doProbe, 7})
	s.step(time.Millisecond, evReply{7}, StateUp)
	for range 3 {
		s.step(500*time.Millisecond, evTick{}, StateUp, effect{doProbe, 7})
	}
	s.step(500*time.Millisecond, evTick{}, StateRed, effect{doSilent, 7})
	s.step(250*time.Millisecond, evTick{}, StateRed, effect{doDial, 2})
	s.step(0, evUp{attempt: 2, conn: 8, incarnation: 1}, StateUp, effect{doProbe, 8})
	if s.m.reconnects != 1 {
		t.Errorf("reconnects = %d, want 1", s.m.reconnects)
	}
}

func TestCrossedDialsLeaveTheLowerNamesConnection(t *testing.T) {
	for _, lower := range []bool{true, false} {
		s := newScript(t, lower)
		s.m.wanted = true
		ours, theirs := uint64(7), uint64(8)
		s.m.attempts = []attemptState{{id: 1}}
		s.step(0, evUp{attempt: 1, conn: ours, incarnation: 1}, StateUp, effect{doProbe, ours})
		s.step(100*time.Millisecond, evUp{conn: theirs, incarnation: 1}, StateUp, effect{doProbe, theirs})
		want := theirs
		loser := ours
		if lower {
			want, loser = ours, theirs
		}
		if got := s.m.current(); got != want {
			t.Errorf("lower %v: sessions go to %d, want %d", lower, got, want)
		}
		s.step(0, evIdle{loser}, StateUp) // not before it has lingered
		s.step(300*time.Millisecond, evReply{ours}, StateUp)
		s.step(0, evReply{theirs}, StateUp)
		s.now = s.now.Add(1700 * time.Millisecond)
		s.m.step(s.now, evTick{})
		s.step(0, evIdle{loser}, StateUp, effect{doSurplus, loser})
		s.step(0, evLost{loser}, StateUp)
	}
}

func TestLaterConnectionOfTheSameDiallerReplacesAndAReserveReturns(t *testing.T) {
	s := newScript(t, true)
	s.step(0, evUp{conn: 1, incarnation: 5}, StateUp, effect{doProbe, 1})
	s.step(0, evUp{conn: 2, incarnation: 5}, StateUp, effect{doProbe, 2})
	if s.m.current() != 2 {
		t.Errorf("sessions go to %d, want the newer", s.m.current())
	}
	s.step(0, evLost{2}, StateUp) // the peer gave that attempt up
	if s.m.current() != 1 {
		t.Errorf("sessions go to %d, want what is left", s.m.current())
	}
	s.step(0, evUp{conn: 3, incarnation: 6}, StateUp, effect{doStale, 1}, effect{doProbe, 3})
}

func TestDraining(t *testing.T) {
	s := newScript(t, true)
	s.m.wanted = true
	s.m.attempts = []attemptState{{id: 1}}
	s.step(0, evUp{attempt: 1, conn: 1, incarnation: 5}, StateUp, effect{doProbe, 1})
	s.step(0, evDrain{1}, StateDraining)
	if s.m.current() != 0 {
		t.Error("a draining peer gets sessions")
	}
	s.step(time.Millisecond, evReply{1}, StateDraining)
	s.step(0, evLost{1}, StateRed) // it went as it said; whoever comes next is dialled
	s.step(250*time.Millisecond, evTick{}, StateRed, effect{doDial, 1})
	s.step(0, evDrain{0}, StateDraining)
	s.step(time.Minute, evTick{}, StateDraining)
}

// TestMachineKeepsItsPromises runs random events against what must always hold.
func TestMachineKeepsItsPromises(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		m := newMachine(Timing{}.withDefaults(), seed%2 == 0, 1, func(d time.Duration) time.Duration {
			return time.Duration(r.Int64N(int64(d)))
		}, epoch)
		now, conn := epoch, uint64(0)
		dialled := make(map[uint64]bool) // attempts that have not ended
		open := make(map[uint64]bool)    // connections that the loop holds
		pick := func(set map[uint64]bool) uint64 {
			ids := slices.Sorted(maps.Keys(set))
			if len(ids) == 0 {
				return 1
			}
			return ids[r.IntN(len(ids))]
		}
		for range 400 {
			now = now.Add(time.Duration(r.Int64N(int64(300 * time.Millisecond))))
			var ev event
			switch r.IntN(10) {
			case 0:
				ev = evWant{r.IntN(4) > 0}
			case 1:
				ev = evConnected{pick(dialled)}
			case 2:
				id := pick(dialled)
				delete(dialled, id)
				ev = evFailed{id}
			case 3:
				conn++
				open[conn] = true
				e := evUp{conn: conn, incarnation: uint64(1 + r.IntN(20)/19)}
				if id := pick(dialled); dialled[id] && m.attempt(id) >= 0 {
					delete(dialled, id)
					e.attempt = id
				}
				ev = e
			case 4, 5:
				ev = evReply{pick(open)}
			case 6:
				id := pick(open)
				delete(open, id)
				ev = evLost{id}
			case 7:
				ev = evIdle{pick(open)}
			case 8:
				ev = evDrain{pick(open)}
			default:
				ev = evTick{}
			}
			if e, ok := ev.(evDrain); ok && !open[e.conn] {
				ev = evTick{}
			}
			for _, e := range m.step(now, ev) {
				switch e.kind {
				case doDial:
					if len(m.conns) > 0 || !m.wanted {
						t.Fatalf("seed %d: dials although wanted is %v with %d connections", seed, m.wanted, len(m.conns))
					}
					dialled[e.id] = true
				case doCancel:
					delete(dialled, e.id)
				case doSilent, doSurplus, doStale:
					if m.conn(e.id) >= 0 {
						t.Fatalf("seed %d: closes connection %d and keeps it", seed, e.id)
					}
					delete(open, e.id)
				}
			}
			check(t, seed, m, now)
		}
	}
}

func check(t *testing.T, seed uint64, m *machine, now time.Time) {
	t.Helper()
	if len(m.attempts) > maxAttempts || len(m.conns) > maxConns {
		t.Fatalf("seed %d: %d attempts, %d connections", seed, len(m.attempts), len(m.conns))
	}
	retired := 0
	for _, c := range m.conns {
		if !c.retired.IsZero() || c.draining {
			retired++
		}
	}
	for _, c := range m.conns {
		if retired == len(m.conns) && !c.draining {
			t.Fatalf("seed %d: a connection that could be used is put aside: %+v", seed, m.conns)
		}
	}
	if (m.current() != 0) != (m.state == StateUp) {
		t.Fatalf("seed %d: state %s with current connection %d", seed, m.state, m.current())
	}
	if m.wanted && len(m.conns) == 0 && len(m.attempts) == 0 {
		if at := m.deadline(); at.IsZero() || at.Sub(now) > m.timing.Redial {
			t.Fatalf("seed %d: nothing is dialled and the next attempt is at %v", seed, at)
		}
	}
}
