package conformance

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

func firstMaster(t *testing.T, s Subject) {
	s.Timing = s.Timing.WithDefaults()
	all := play(t, s)
	// The group has had a master by itself before: its log has lineages.
	all["n2"].st.Incarnation, all["n2"].st.Epoch, all["n2"].st.End = 7, 12, 1000
	for range 8 {
		for _, n := range []zone.Node{"n1", "n2"} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			term, _, err := s.Client(n).Renew(ctx, Name, all[n].st)
			cancel()
			if err == nil && term.Master != "" {
				t.Fatalf("a master before n3 has answered, which may have the longest log: %+v", term)
			}
		}
		pause(t.Context(), s.Timing.Renew/2)
	}
	term := all["n2"].renew(leads("n2"), all["n1"], all["n3"])
	if term.Epoch <= 12 || !slices.Equal(term.InSync, []zone.Node{"n2"}) || term.Incarnation != 7 || term.Lineage == 0 || term.Lost != nil {
		t.Errorf("first term %+v: want an epoch above 12, in sync n2 alone, incarnation 7, a lineage, no loss", term)
	}
	terms, err := s.Client("n1").Terms(t.Context())
	if err != nil || len(terms) != 1 || terms[0].Version < term.Version {
		t.Errorf("terms %+v, %v", terms, err)
	}
}

func changeSet(t *testing.T, s Subject) {
	s.Timing = s.Timing.WithDefaults()
	_, term := grown(t, s, "n1", "n2")
	c := s.Client("n1")
	change := func(epoch, version uint64, in, proposed []zone.Node, want error) {
		t.Helper()
		next, err := c.ChangeSet(t.Context(), Name, epoch, version, in, proposed)
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("set %v, proposed %v: %v, want %v", in, proposed, err, want)
		}
		if err == nil {
			term = next
		}
	}
	change(term.Epoch, term.Version, []zone.Node{"n1", "n2", "n3"}, nil, coordinator.KindRefused)
	change(term.Epoch, term.Version, []zone.Node{"n2"}, nil, coordinator.KindRefused)
	change(term.Epoch, term.Version, []zone.Node{"n1", "n2"}, []zone.Node{"n1", "n9"}, coordinator.KindRefused)
	change(term.Epoch-1, term.Version, []zone.Node{"n1"}, nil, coordinator.KindStaleEpoch)
	change(term.Epoch, term.Version-1, []zone.Node{"n1"}, nil, coordinator.KindStaleVersion)
	change(term.Epoch, term.Version, []zone.Node{"n1", "n2"}, []zone.Node{"n1", "n2", "n3"}, nil)
	if !slices.Equal(term.Proposed, []zone.Node{"n1", "n2", "n3"}) || !slices.Equal(term.InSync, []zone.Node{"n1", "n2"}) {
		t.Errorf("term %+v after n3 was proposed", term)
	}
	change(term.Epoch, term.Version, []zone.Node{"n1", "n3"}, nil, nil)
	if !slices.Equal(term.InSync, []zone.Node{"n1", "n3"}) || term.Proposed != nil {
		t.Errorf("term %+v after the set was confirmed", term)
	}
	if _, _, err := c.Renew(t.Context(), "nowhere", coordinator.Standing{Node: "n1"}); !errors.Is(err, coordinator.KindNotFound) {
		t.Errorf("renew for a group that there is not: %v", err)
	}
	if _, _, err := s.Client("n9").Renew(t.Context(), Name, coordinator.Standing{Node: "n9"}); !errors.Is(err, coordinator.KindNotFound) {
		t.Errorf("renew for a node that is not one of the group: %v", err)
	}
}

func resign(t *testing.T, s Subject) {
	s.Timing = s.Timing.WithDefaults()
	all, _ := grown(t, s, "n1", "n2")
	term := all["n1"].renew(leads("n1"), all["n2"], all["n3"])
	if _, err := s.Client("n1").Resign(t.Context(), Name, term.Epoch-1, "n2"); !errors.Is(err, coordinator.KindStaleEpoch) {
		t.Errorf("resign from an old epoch: %v", err)
	}
	if _, err := s.Client("n1").Resign(t.Context(), Name, term.Epoch, "n3"); !errors.Is(err, coordinator.KindNoCandidate) {
		t.Errorf("resign to a node that is not in sync: %v", err)
	}
	all["n1"].renew(leads("n1")) // nothing was given back
	start := time.Now()
	began := start
	next, err := s.Client("n1").Resign(t.Context(), Name, term.Epoch, "n2")
	for errors.Is(err, coordinator.KindNoCandidate) && time.Since(start) < patience {
		all["n1"].renew(leads("n1"), all["n2"]) // on a busy machine n2 was not heard of for a while
		began = time.Now()
		next, err = s.Client("n1").Resign(t.Context(), Name, term.Epoch, "n2")
	}
	if err != nil {
		t.Fatal(err)
	}
	if next.Master != "n2" || next.Epoch != term.Epoch+1 || next.Lineage == term.Lineage || !slices.Equal(next.InSync, []zone.Node{"n1", "n2"}) {
		t.Errorf("term %+v after a planned switch from %+v", next, term)
	}
	all["n2"].term = next
	all["n2"].renew(leads("n2"))
	if d := time.Since(began); d > s.Timing.Lease {
		t.Errorf("a planned switch took %s: it waits for no lease of %s", d, s.Timing.Lease)
	}
	// A sick master gives back without a successor; the rule finds one.
	all["n2"].st.Epoch, all["n1"].st.Epoch = next.Epoch, next.Epoch
	vacant, err := s.Client("n2").Resign(t.Context(), Name, next.Epoch, "")
	if err != nil || vacant.Epoch == next.Epoch && vacant.Master != "" {
		t.Fatalf("term %+v, %v after a sick master resigned", vacant, err)
	}
	all["n2"].st.Fit = false
	last := all["n1"].renew(leads("n1"), all["n2"], all["n3"])
	if last.Epoch <= next.Epoch || slices.Contains(last.InSync, "n2") {
		t.Errorf("term %+v after a sick master resigned", last)
	}
}

func noCandidate(t *testing.T, s Subject) {
	s.Timing = s.Timing.WithDefaults()
	all, term := grown(t, s, "n1", "n2")
	// Both that are in sync are gone; n3 has a longer log, but may lack what counts.
	all["n3"].st.End = 500
	all["n3"].renew(func(t coordinator.Term, _ coordinator.Lease) bool { return t.Master == "" })
	for range 10 {
		all["n3"].renew(func(coordinator.Term, coordinator.Lease) bool { return true })
		if m := all["n3"].term.Master; m != "" {
			t.Fatalf("%s was elected: %+v", m, all["n3"].term)
		}
		pause(t.Context(), s.Timing.Renew/2)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := s.Client("n3").Failover(ctx, Name, coordinator.Order{To: "n3"}); !errors.Is(err, coordinator.KindNoCandidate) {
		t.Errorf("fail-over without loss to a node that is not in sync: %v", err)
	}
	if _, err := s.Client("n3").Failover(ctx, Name, coordinator.Order{To: "n9", AllowLoss: true, By: "test", Reason: "n1 and n2 are gone"}); !errors.Is(err, coordinator.KindNotFound) {
		t.Errorf("fail-over to a node that is not one of the group: %v", err)
	}
	done := make(chan error, 1)
	var forced coordinator.Term
	go func() {
		var err error
		forced, err = s.Client("n3").Failover(ctx, Name, coordinator.Order{To: "n3", AllowLoss: true, By: "test", Reason: "n1 and n2 are gone"})
		for errors.Is(err, coordinator.KindNoCandidate) && ctx.Err() == nil { // likewise of n3
			forced, err = s.Client("n3").Failover(ctx, Name, coordinator.Order{To: "n3", AllowLoss: true, By: "test", Reason: "n1 and n2 are gone"})
		}
		done <- err
	}()
	for over := false; !over; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatalf("fail-over with loss: %v", err)
			}
			over = true
		default:
			all["n3"].renew(func(coordinator.Term, coordinator.Lease) bool { return true })
			pause(t.Context(), s.Timing.Renew/4)
		}
	}
	if l := forced.Lost; forced.Master != "n3" || l == nil || l.By != "test" || l.Reason == "" || l.Epoch != forced.Epoch || l.From != 500 || forced.Epoch <= term.Epoch || !slices.Equal(forced.InSync, []zone.Node{"n3"}) {
		t.Errorf("term %+v, loss %+v after a fail-over with loss at 500", forced, forced.Lost)
	}
}
