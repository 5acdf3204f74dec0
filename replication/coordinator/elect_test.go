package coordinator_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

func at(n zone.Node, epoch uint64, end record.Position) coordinator.Standing {
	return coordinator.Standing{Node: n, Incarnation: 7, Epoch: epoch, End: end, Committed: 50, Fit: true}
}

func unfit(s coordinator.Standing) coordinator.Standing { s.Fit = false; return s }

func of(s coordinator.Standing, i record.Incarnation) coordinator.Standing {
	s.Incarnation = i
	return s
}

func TestElectionChoosesTheLongestLogThatIsInSync(t *testing.T) {
	type standings = []coordinator.Standing
	for _, c := range []struct {
		name     string
		quorum   bool
		epoch    uint64 // of the term; 0 = there was no master yet
		inSync   string
		proposed string
		known    record.Position
		answered standings
		waiting  bool // not all were waited for
		gone     zone.Node
		left     zone.Node
		master   zone.Node
		next     uint64
		set      string
		why      string
	}{
		{name: "longest end", epoch: 4, inSync: "a b c", answered: standings{at("a", 4, 10), at("b", 4, 12), at("c", 4, 11)}, master: "b", next: 5, set: "a b c"},
		{name: "epoch before end", epoch: 4, inSync: "a b", answered: standings{at("a", 3, 99), at("b", 4, 12)}, master: "b", next: 5, set: "a b"},
		{name: "earlier member of equals", epoch: 4, inSync: "b c", answered: standings{at("b", 4, 12), at("c", 4, 12)}, master: "c", next: 5, set: "b c"},
		{name: "of equals not who gave the lease back", epoch: 4, inSync: "a b c", left: "c", answered: standings{at("c", 4, 12), at("a", 4, 11), at("b", 4, 12)}, master: "b", next: 5, set: "a b c"},
		{name: "who gave the lease back, with the longest log", epoch: 4, inSync: "a b c", left: "c", answered: standings{at("b", 4, 12), at("c", 4, 13)}, master: "c", next: 5, set: "b c"},
		{name: "who gave the lease back, when nobody else answers", epoch: 4, inSync: "a b c", left: "c", answered: standings{at("c", 4, 13)}, master: "c", next: 5, set: "c"},
		{name: "nobody outside the set", epoch: 4, inSync: "a", answered: standings{at("b", 4, 99), at("c", 4, 99)}, why: "a does not answer"},
		{name: "nobody who is only proposed", epoch: 4, inSync: "a", proposed: "a b", answered: standings{at("b", 4, 99)}, why: "a does not answer"},
		{name: "one is enough when all have everything", epoch: 4, inSync: "a b c", answered: standings{at("b", 4, 9)}, master: "b", next: 5, set: "b"},
		{name: "the others are waited for", epoch: 4, inSync: "a b c", answered: standings{at("b", 4, 9)}, waiting: true, why: "waiting a moment"},
		{name: "a master that fell silent is not waited for", epoch: 4, inSync: "a b c", gone: "c", answered: standings{at("b", 4, 9), at("a", 4, 8)}, waiting: true, master: "b", next: 5, set: "a b"},
		{name: "nobody is waited for when all answered", epoch: 4, inSync: "a b", answered: standings{at("b", 4, 9), at("a", 4, 8)}, waiting: true, master: "b", next: 5, set: "a b"},
		{name: "a majority needs an intersection", quorum: true, epoch: 4, inSync: "a b c", answered: standings{at("b", 4, 9)}, why: "2 of the 3 in sync"},
		{name: "two of three intersect", quorum: true, epoch: 4, inSync: "a b c", answered: standings{at("b", 4, 9), at("a", 4, 11)}, master: "a", next: 5, set: "a"},
		{name: "equals stay in the set of a majority", quorum: true, epoch: 4, inSync: "a b c", answered: standings{at("b", 4, 11), at("a", 4, 11)}, master: "a", next: 5, set: "a b"},
		{name: "one of two has what both acknowledged", quorum: true, epoch: 4, inSync: "a b", answered: standings{at("b", 4, 9)}, master: "b", next: 5, set: "b"},
		{name: "who is not fit does not count", quorum: true, epoch: 4, inSync: "a b c", answered: standings{at("b", 4, 9), unfit(at("a", 4, 11))}, why: "a is not fit"},
		{name: "another store does not count", epoch: 4, inSync: "a b", answered: standings{of(at("a", 4, 99), 8), at("b", 4, 9)}, master: "b", next: 5, set: "b"},
		{name: "an empty store does not count", epoch: 4, inSync: "a", answered: standings{of(at("a", 0, 0), 0)}, why: "another store"},
		{name: "a log set back does not count", epoch: 4, inSync: "a b", known: 10, answered: standings{at("a", 4, 9), at("b", 4, 10)}, master: "b", next: 5, set: "b"},
		{name: "above every log", epoch: 4, inSync: "a", answered: standings{at("a", 9, 9)}, master: "a", next: 10, set: "a"},

		{name: "first: all nodes", answered: standings{at("a", 0, 0), at("b", 0, 0)}, why: "missing: c"},
		{name: "first: the one with a log", answered: standings{of(at("a", 0, 0), 0), at("b", 7, 3), of(at("c", 0, 0), 0)}, master: "b", next: 8, set: "b"},
		{name: "first: the earliest of empty ones", answered: standings{of(at("a", 0, 0), 0), of(at("b", 0, 0), 0), of(at("c", 0, 0), 0)}, master: "c", next: 1, set: "c"},
		{name: "first: two stores", answered: standings{at("a", 7, 3), of(at("b", 7, 4), 8), of(at("c", 0, 0), 0)}, why: "different stores"},
		{name: "first: all fit", answered: standings{at("a", 0, 0), unfit(at("b", 0, 0)), at("c", 0, 0)}, why: "not: b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := coordinator.Ballot{
				Group: coordinator.Group{Name: "g", Members: nodes("c a b")},
				Term:  coordinator.Term{Group: "g", Epoch: c.epoch, InSync: nodes(c.inSync), Proposed: nodes(c.proposed), Majority: c.quorum, Version: 3},
				Known: c.known, Gone: c.gone, Left: c.left, Standings: c.answered, Settled: !c.waiting,
			}
			if c.epoch != 0 {
				b.Term.Incarnation = 7
			}
			e, why, ok := b.Elect()
			if ok != (c.master != "") || e.Master != c.master || e.Epoch != c.next || !slices.Equal(e.InSync, nodes(c.set)) || !strings.Contains(why, c.why) || e.Loss != nil {
				t.Errorf("elected %+v (%v, %q), want %s in epoch %d with %q, because %q", e, ok, why, c.master, c.next, c.set, c.why)
			}
		})
	}
}

func nodes(s string) []zone.Node {
	var out []zone.Node
	for _, f := range strings.Fields(s) {
		out = append(out, zone.Node(f))
	}
	return out
}

func TestAppointmentLosesNothingAndForceSaysWhat(t *testing.T) {
	b := coordinator.Ballot{
		Group:     coordinator.Group{Name: "g", Members: nodes("a b c")},
		Term:      coordinator.Term{Group: "g", Epoch: 4, Incarnation: 7, InSync: nodes("a b c"), Majority: true, Version: 3},
		Standings: []coordinator.Standing{at("a", 4, 60), at("b", 4, 70), at("c", 4, 80)}, Settled: true, Known: 55,
	}
	if _, why, ok := b.Appoint("a"); ok || !strings.Contains(why, "2 of the 3") {
		t.Errorf("a was appointed although b and c are ahead, and two of three may have acknowledged: %q", why)
	}
	if e, why, ok := b.Appoint("b"); !ok || e.Master != "b" || !slices.Equal(e.InSync, nodes("b")) {
		t.Errorf("b was not appointed, which is not behind a and so has what any two have: %+v, %q", e, why)
	}
	if e, why, ok := b.Force(coordinator.Order{To: "a", By: "o"}); !ok || e.Loss != nil || e.Master != "c" {
		t.Errorf("%+v, loss %+v, %q: c is elected without loss, and the order for a only allows one", e, e.Loss, why)
	}
	all := b.Standings
	b.Standings = all[:1] // two of the three that may have acknowledged do not answer
	e, why, ok := b.Force(coordinator.Order{To: "a", By: "o"})
	if !ok || e.Master != "a" || e.Loss == nil || *e.Loss != (coordinator.Loss{Epoch: 5, From: 60, Known: 55, By: "o"}) {
		t.Errorf("a by force: %+v, loss %+v, %q", e, e.Loss, why)
	}
	b.Standings = all
	if e, _, ok := b.Force(coordinator.Order{To: "b"}); !ok || e.Master != "b" || e.Loss != nil {
		t.Errorf("b by force: %+v, %v: nothing is lost", e, e.Loss)
	}
	if _, why, ok := b.Force(coordinator.Order{To: "d"}); ok {
		t.Errorf("d is no member: %q", why)
	}
}
