package coordinator_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
)

// TestLongerLeaseOfAnotherCoordinatorIsWaitedFor: the lease in the topology has become
// shorter, and the one before granted by the longer.
func TestLongerLeaseOfAnotherCoordinatorIsWaitedFor(t *testing.T) {
	start := time.Now()
	short := coordinator.Timing{}.WithDefaults()
	term := ruled()
	term.Leased = 20 * short.Lease
	d := coordinator.NewDesk(short, start)
	over := start.Add(short.Over(term.Leased))
	if got := over.Sub(start); got < term.Leased+term.Leased/10 {
		t.Errorf("a lease of %s is over after %s: the margin has to grow with it", term.Leased, got)
	}
	if s := d.Judge(over.Add(-1), pair, term); s.Vacate {
		t.Error("the epoch is taken away while a lease of before may be valid")
	}
	if s := d.Judge(over, pair, term); !s.Vacate {
		t.Error("the epoch is not taken away when every lease is over")
	}
}

// TestLongerLeaseIsGrantedOnceTheTermSaysSo: the lease in the topology has become
// longer, and a coordinator with the shorter one may take over at any time.
func TestLongerLeaseIsGrantedOnceTheTermSaysSo(t *testing.T) {
	start := time.Now()
	long := coordinator.Timing{}.WithDefaults()
	term := ruled()
	term.Leased = long.Lease / 4
	d := coordinator.NewDesk(long, start)
	if l := d.Renew(start, pair, term, renewal(term)); l.Duration != term.Leased {
		t.Fatalf("lease %+v, but the term says %s", l, term.Leased)
	}
	if s := d.Judge(start, pair, term); !s.Mark {
		t.Fatalf("step %+v", s)
	}
	term = d.Mark(start, term)
	if l := d.Renew(start, pair, term, renewal(term)); term.Leased != long.Lease || l.Duration != long.Lease {
		t.Errorf("lease %+v by %+v", l, term)
	}
}

// TestMajorityIsTheMastersWord: it is in force from when the master says so until the
// next election, whatever the master says later.
func TestMajorityIsTheMastersWord(t *testing.T) {
	start := time.Now()
	term := ruled()
	d := coordinator.NewDesk(coordinator.Timing{}, start)
	s := renewal(term)
	s.Majority = true
	d.Renew(start, pair, term, s)
	if j := d.Judge(start, pair, term); !j.Mark {
		t.Fatalf("step %+v", j)
	}
	term = d.Mark(start, term)
	if !term.Majority || term.Version != 10 {
		t.Fatalf("term %+v", term)
	}
	s = renewal(term)
	d.Renew(start, pair, term, s)
	if j := d.Judge(start, pair, term); j.Mark {
		t.Errorf("step %+v: nothing is taken back", j)
	}
	changed, err := term.Changed(pair, 4, 10, nodes("a"), nil)
	if err != nil || !changed.Majority || !term.Vacated().Majority || !term.Passed("b", 3, 0).Majority {
		t.Errorf("the word was forgotten before an election: %+v, %v", changed, err)
	}
	if e := term.Vacated().Elected(coordinator.Election{Master: "b", Epoch: 5}, 3, 0, start); e.Majority {
		t.Errorf("elected %+v", e)
	}
}

// TestDiskThatWasSetBackIsNotElected: the coordinator that heard what is committed is
// another one than the one that elects.
func TestDiskThatWasSetBackIsNotElected(t *testing.T) {
	start := time.Now()
	timing := coordinator.Timing{}.WithDefaults()
	term := ruled()
	d := coordinator.NewDesk(timing, start)
	s := renewal(term)
	s.Committed = 100
	d.Renew(start, pair, term, s)
	if j := d.Judge(start, pair, term); j.Mark {
		t.Fatal("each renewal is noted")
	}
	later := start.Add(coordinator.NoteEvery)
	d.Renew(later, pair, term, s)
	if j := d.Judge(later, pair, term); !j.Mark {
		t.Fatalf("step %+v: what is committed is not noted", j)
	}
	term = d.Mark(later, term).Vacated()
	next := coordinator.NewDesk(timing, later)
	back := at("b", 4, 99)
	back.Seen, back.SeenEpoch = term.Version, term.Epoch
	next.Renew(later, pair, term, back)
	at := later.Add(timing.Settle)
	next.Judge(later, pair, term)
	next.Renew(at, pair, term, back)
	if j := next.Judge(at, pair, term); j.Elect != nil {
		t.Errorf("elected %+v, whose log ends below %d", j.Elect, term.Committed)
	}
	if o := next.Opinion(at, term); !strings.Contains(o.Waiting, "set back") {
		t.Errorf("waiting: %q", o.Waiting)
	}
}

// TestWhatOnlyTheMasterHasIsNotedSoon: the voter that heard of it may be lost with it.
func TestWhatOnlyTheMasterHasIsNotedSoon(t *testing.T) {
	start := time.Now()
	for members, marked := range map[string]bool{"a": true, "a b": false} {
		term := ruled()
		term.InSync = nodes(members)
		d := coordinator.NewDesk(coordinator.Timing{}.WithDefaults(), start)
		s := renewal(term)
		s.Committed = 100
		d.Renew(start, pair, term, s)
		soon := start.Add(time.Second)
		d.Renew(soon, pair, term, s)
		if j := d.Judge(soon, pair, term); j.Mark != marked {
			t.Errorf("in sync are %s: step %+v after a second", members, j)
		}
		if marked {
			term = d.Mark(soon, term)
			if term.Committed != 100 {
				t.Errorf("noted %d", term.Committed)
			}
			s.Committed = 200
			d.Renew(soon, pair, term, s)
			if j := d.Judge(soon, pair, term); j.Mark {
				t.Error("each renewal is noted")
			}
		}
	}
}

func TestNodeThatWasAloneIsWaitedForAndItsLogCounts(t *testing.T) {
	term := ruled().LeftAlone("b").Vacated()
	b := coordinator.Ballot{Group: pair, Term: term, Settled: true, Standings: []coordinator.Standing{at("a", 4, 500)}}
	if e, why, ok := b.Elect(); ok || !strings.Contains(why, "b was the group's only node") {
		t.Errorf("elected %+v, %q: b may have written since", e, why)
	}
	b.Standings = append(b.Standings, at("b", 6, 400)) // epochs 5 and 6 were b's alone
	e, why, ok := b.Elect()
	if !ok || e.Master != "b" || e.Epoch != 7 || !slices.Equal(e.InSync, nodes("b")) || e.Loss != nil {
		t.Errorf("elected %+v, %q", e, why)
	}
	if next := term.Elected(e, 1, 0, time.Now()); next.Alone != "" {
		t.Errorf("term %+v", next)
	}
	if e, why, ok := b.Appoint("a"); ok {
		t.Errorf("appointed %+v, %q", e, why)
	}
	// The topology slipped for a moment: b never wrote by itself.
	b.Standings[1] = at("b", 4, 400)
	if e, why, ok := b.Elect(); !ok || e.Master != "a" || !slices.Equal(e.InSync, nodes("a b")) {
		t.Errorf("elected %+v, %q", e, why)
	}
}

// TestAGroupThatWasAloneElectsAnew: the topology had one node for a group and has two
// again. The master of before is given no more leases, so that the question what was
// written meanwhile is answered while the node that knows is there, not when it has
// died.
func TestAGroupThatWasAloneElectsAnew(t *testing.T) {
	start := time.Now()
	timing := coordinator.Timing{}.WithDefaults()
	for _, alone := range nodes("a b") {
		term := ruled().LeftAlone(alone)
		d := coordinator.NewDesk(timing, start)
		if l := d.Renew(start, pair, term, renewal(term)); l.Epoch != 0 {
			t.Errorf("%s was alone: the master of before has the lease %+v", alone, l)
		}
		now := start.Add(timing.Lease + timing.Margin)
		if s := d.Judge(now, pair, term); !s.Vacate {
			t.Fatalf("%s was alone: step %+v", alone, s)
		}
		term = term.Vacated()
		d.Judge(now, pair, term)
		for _, n := range nodes("a b") {
			s := at(n, 4, 100)
			s.Seen, s.SeenEpoch = term.Version, term.Epoch
			d.Renew(now, pair, term, s)
		}
		s := d.Judge(now, pair, term)
		if s.Elect == nil || s.Elect.Master != "a" {
			t.Fatalf("%s was alone, both answer: step %+v", alone, s)
		}
		if term = term.Elected(*s.Elect, 2, timing.Lease, start); term.Alone != "" {
			t.Fatalf("term %+v", term)
		}
		if l := d.Renew(now, pair, term, renewal(term)); l.Epoch != term.Epoch {
			t.Errorf("lease %+v of the new master", l)
		}
	}
}

// TestTheStoreOfANodeThatWasAloneIsMissed: its disk was replaced, and with it what only
// it had is gone. Nobody decides that but an operator.
func TestTheStoreOfANodeThatWasAloneIsMissed(t *testing.T) {
	b := coordinator.Ballot{Group: pair, Term: ruled().LeftAlone("b").Vacated(), Settled: true}
	for name, s := range map[string]coordinator.Standing{"empty": of(at("b", 0, 0), 0), "begun anew": of(at("b", 9, 400), 8)} {
		b.Standings = []coordinator.Standing{at("a", 4, 500), s}
		if e, why, ok := b.Elect(); ok || !strings.Contains(why, "b was the group's only node") {
			t.Errorf("%s: elected %+v, %q", name, e, why)
		}
		if e, why, ok := b.Force(coordinator.Order{To: "a", AllowLoss: true, By: "o"}); !ok || e.Loss == nil {
			t.Errorf("%s: by force %+v, %q", name, e, why)
		}
	}
}

// TestQuorumThatLostItsStateGoesAboveWhatMembersKnow: its versions begin anew.
func TestQuorumThatLostItsStateGoesAboveWhatMembersKnow(t *testing.T) {
	b := coordinator.Ballot{Group: pair, Settled: true, Standings: []coordinator.Standing{at("a", 4, 9), at("b", 4, 9)}}
	b.Standings[1].SeenEpoch, b.Standings[1].Seen = 6, 500 // epochs 5 and 6 wrote nothing
	e, why, ok := b.Elect()
	if !ok || e.Epoch != 7 {
		t.Fatalf("elected %+v, %q", e, why)
	}
	known := coordinator.Term{Group: "g", Epoch: 6, Version: 500}
	fresh := coordinator.Term{Group: "g"}.Elected(e, 1, 0, time.Now())
	if !fresh.Newer(known) || known.Newer(fresh) {
		t.Errorf("%+v is newer than %+v", fresh, known)
	}
	old := coordinator.Standing{SeenEpoch: 6, Seen: 500}
	if old.Counts(fresh.Vacated()) {
		t.Error("a standing of before the vacancy counts, since the version that it knew was a higher one")
	}
}

// TestMemberOfBeforeIsNoHindrance: the coordinator's topology has the node out of the
// group, the master's has it still.
func TestMemberOfBeforeIsNoHindrance(t *testing.T) {
	trio := ruled()
	trio.InSync = nodes("a b c")
	now := coordinator.Group{Name: "g", Members: nodes("a c")}
	if next, err := trio.Changed(now, 4, 9, nodes("a b"), nil); err != nil || !slices.Equal(next.InSync, nodes("a b")) {
		t.Errorf("c cannot leave: %+v, %v", next, err)
	}
	two := ruled()
	two.InSync = nodes("a c")
	if next, err := two.Changed(now, 4, 9, nodes("a c"), nodes("a b c")); err == nil {
		t.Errorf("b comes back: %+v", next)
	}
}

func TestLossNeedsAnOperatorsName(t *testing.T) {
	for _, o := range []coordinator.Order{
		{To: "b", AllowLoss: true},
		{To: "b", By: strings.Repeat("x", coordinator.MaxWords+1)},
	} {
		d := coordinator.NewDesk(coordinator.Timing{}, time.Now())
		if why := o.Check(); why == "" {
			t.Errorf("%+v is an order", o)
		}
		if err := d.Order(time.Now(), pair, ruled(), o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}
