package coordinator_test

import (
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

var pair = coordinator.Group{Name: "g", Members: []zone.Node{"a", "b"}}

func ruled() coordinator.Term {
	return coordinator.Term{Group: "g", Epoch: 4, Lineage: 1, Master: "a", Incarnation: 7, InSync: nodes("a b"), Version: 9}
}

func renewal(t coordinator.Term) coordinator.Standing {
	s := at("a", t.Epoch, 100)
	s.Leads, s.Seen, s.SeenEpoch = t.Epoch, t.Version, t.Epoch
	return s
}

func TestLeaseIsOverBeforeItsEpochIsTakenAway(t *testing.T) {
	start := time.Now()
	timing := coordinator.Timing{}.WithDefaults()
	term := ruled()
	// A new desk knows of no lease, and waits for all that may be out.
	d := coordinator.NewDesk(timing, start)
	span := timing.Lease + timing.Margin
	if s := d.Judge(start.Add(span-1), pair, term); s.Vacate || !s.Wake.Equal(start.Add(span)) {
		t.Errorf("a new desk takes the epoch away before a lease and a margin are over: %+v", s)
	}
	if s := d.Judge(start.Add(span), pair, term); !s.Vacate {
		t.Errorf("a new desk does not take the epoch away from a silent master: %+v", s)
	}
	if l := d.Renew(start.Add(span), pair, term, renewal(term)); l != (coordinator.Lease{}) {
		t.Errorf("a lease %+v after the epoch was to be taken away", l)
	}

	d = coordinator.NewDesk(timing, start)
	asked := start.Add(time.Second)
	if l := d.Renew(asked, pair, term, renewal(term)); l.Duration != timing.Lease || l.Epoch != 4 {
		t.Fatalf("lease %+v", l)
	}
	if s := d.Judge(asked.Add(span-1), pair, term); s.Vacate {
		t.Error("the epoch is taken away before the lease and its margin are over")
	}
	if s := d.Judge(asked.Add(span), pair, term); !s.Vacate {
		t.Error("the epoch is not taken away when the lease and its margin are over")
	}
}

func TestLeaseIsForTheMasterOfTheEpochOnly(t *testing.T) {
	start := time.Now()
	term := ruled()
	for name, change := range map[string]func(*coordinator.Standing){
		"a replica":             func(s *coordinator.Standing) { s.Node = "b" },
		"an epoch before":       func(s *coordinator.Standing) { s.Leads-- },
		"an epoch to come":      func(s *coordinator.Standing) { s.Leads++ },
		"who does not claim it": func(s *coordinator.Standing) { s.Leads, s.Epoch = 0, 3 },
		"who was started again": func(s *coordinator.Standing) { s.Leads = 0 },
	} {
		d := coordinator.NewDesk(coordinator.Timing{}, start)
		s := renewal(term)
		change(&s)
		if l := d.Renew(start, pair, term, s); l != (coordinator.Lease{}) {
			t.Errorf("%s got the lease %+v", name, l)
		}
	}
}

func TestStandingFromBeforeTheVacancyElectsNobody(t *testing.T) {
	start := time.Now()
	timing := coordinator.Timing{}.WithDefaults()
	term := ruled().Vacated()
	d := coordinator.NewDesk(timing, start)
	old := at("b", 4, 100)
	old.Seen, old.SeenEpoch = term.Version-1, term.Epoch
	d.Renew(start, pair, term, old)
	if s := d.Judge(start.Add(timing.Settle), pair, term); s.Elect != nil {
		t.Fatalf("elected %+v by a standing that its master may have gone on after", s.Elect)
	}
	old.Seen = term.Version
	now := start.Add(2 * timing.Settle)
	d.Renew(now, pair, term, old)
	if s := d.Judge(now, pair, term); s.Elect == nil || s.Elect.Master != "b" {
		t.Fatalf("step %+v: b knows of the vacancy and is in sync", s)
	}
	if s := d.Judge(now.Add(2*timing.Lease), pair, term); s.Elect != nil {
		t.Errorf("elected %+v, which was not heard of for two leases", s.Elect)
	}
}

func TestDeadMasterIsNotWaitedForOneThatSteppedDownIs(t *testing.T) {
	for _, says := range []bool{false, true} {
		start := time.Now()
		timing := coordinator.Timing{}.WithDefaults()
		term := ruled()
		d := coordinator.NewDesk(timing, start)
		d.Renew(start, pair, term, renewal(term))
		now := start.Add(timing.Lease + timing.Margin)
		if says {
			now = start.Add(time.Millisecond)
			d.Renew(now, pair, term, at("a", 4, 100))
		}
		if s := d.Judge(now, pair, term); !s.Vacate {
			t.Fatalf("step %+v", s)
		}
		vacant := term.Vacated()
		b := at("b", 4, 90)
		b.Seen, b.SeenEpoch = vacant.Version, vacant.Epoch
		d.Renew(now, pair, vacant, b)
		if s := d.Judge(now, pair, vacant); (s.Elect == nil) != says {
			t.Errorf("the master says that it stopped: %v; step %+v", says, s)
		}
	}
}

func TestMasterThatSaysSoGivesTheLeaseBackAtOnce(t *testing.T) {
	start := time.Now()
	term := ruled()
	d := coordinator.NewDesk(coordinator.Timing{}, start)
	d.Renew(start, pair, term, renewal(term))
	again := at("a", 4, 100) // its log has the lineage of epoch 4, and it leads nothing
	d.Renew(start.Add(time.Millisecond), pair, term, again)
	if s := d.Judge(start.Add(time.Millisecond), pair, term); !s.Vacate {
		t.Errorf("step %+v after the master was started again", s)
	}
}

// Both logs are equal: a part of the master failed, or it was started again, and the
// other one has no such trouble.
func TestAnotherMemberLeadsAfterAMasterThatGaveItsLeaseBack(t *testing.T) {
	for name, leave := range map[string]func(d *coordinator.Desk, now time.Time, term coordinator.Term){
		"says that it leads nothing": func(d *coordinator.Desk, now time.Time, term coordinator.Term) {
			d.Renew(now, pair, term, at("a", 4, 100))
		},
		"resigns": func(d *coordinator.Desk, now time.Time, term coordinator.Term) {
			if why, ok := d.Resign(now, pair, term, ""); !ok {
				t.Fatal(why)
			}
		},
	} {
		start := time.Now()
		term := ruled()
		d := coordinator.NewDesk(coordinator.Timing{}, start)
		d.Renew(start, pair, term, renewal(term))
		now := start.Add(time.Millisecond)
		leave(d, now, term)
		vacant := term.Vacated()
		for _, n := range pair.Members {
			s := at(n, 4, 100)
			s.Seen, s.SeenEpoch = vacant.Version, vacant.Epoch
			d.Renew(now, pair, vacant, s)
		}
		if s := d.Judge(now, pair, vacant); s.Elect == nil || s.Elect.Master != "b" || len(s.Elect.InSync) != 2 {
			t.Errorf("the master %s; step %+v elects %+v", name, s, s.Elect)
		}
	}
}

func TestTermChangesByTheRulesOnly(t *testing.T) {
	term := ruled()
	v := term.Vacated()
	if v.Master != "" || v.Epoch != 4 || v.Version != 10 || len(v.InSync) != 2 || term.Master != "a" {
		t.Errorf("vacated %+v from %+v", v, term)
	}
	if _, err := v.Changed(pair, 4, 10, nodes("a"), nil); err == nil {
		t.Error("a vacant term's set was changed")
	}
	e := v.Elected(coordinator.Election{Master: "b", Epoch: 6, Incarnation: 7, InSync: nodes("b a b")}, 5, time.Second, time.Now())
	if e.Master != "b" || e.Epoch != 6 || e.Lineage != 5 || e.Version != 11 || len(e.InSync) != 2 || e.InSync[0] != "a" || e.Lost != nil {
		t.Errorf("elected %+v", e)
	}
}

// TestForgottenGroupKeepsItsMastersLease: a topology that leaves a group out for a
// moment does not end the lease that its master holds.
func TestForgottenGroupKeepsItsMastersLease(t *testing.T) {
	began := time.Now()
	d := coordinator.NewDesk(coordinator.Timing{}, began)
	g := coordinator.Group{Name: "g", Members: []zone.Node{"a", "b"}}
	term := coordinator.Term{Group: "g", Epoch: 4, Master: "a", InSync: []zone.Node{"a", "b"}, Version: 9}
	now := began.Add(time.Minute)
	l := d.Renew(now, g, term, coordinator.Standing{Node: "a", Epoch: 4, Leads: 4, Seen: 9, Fit: true})
	if l.Duration == 0 {
		t.Fatal("no lease")
	}
	d.Forget(func(zone.Group) bool { return false })
	if j := d.Judge(now.Add(l.Duration-time.Millisecond), g, term); j.Vacate {
		t.Error("the epoch was taken away while its master holds the lease")
	}
	if j := d.Judge(now.Add(2*l.Duration+d.Timing().Margin), g, term); !j.Vacate {
		t.Error("the epoch of a silent master stays")
	}
}
