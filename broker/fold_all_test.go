package broker

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// TestFoldFromScratchKnowsWhatIsGivenUpAndGoesOnward: as
// TestFoldFromScratchEqualsSnapshotAndTail, with what only some topologies have:
// backlogs beyond their budgets, relays, legs that end and come back, letters that
// are replayed.
func TestFoldFromScratchKnowsWhatIsGivenUpAndGoesOnward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.SnapshotBytes = 10 << 10
		edits := []string{"budget: 64MiB", "budget: 64KiB, at_budget: gap", "max_body: 1MiB", "max_body: 32KiB"}
		w := newWorld(t, fourCities(t, edits...), limits, "rza-1", "cza-1", "czb-1", "czd-1") // c is away
		defer w.close()
		from, relay := w.sites["rza-g"], w.sites["czb-g"]
		for round := range 6 {
			for i := range 40 {
				m := from.message("rules", fmt.Sprintf("%d-%d", round, i))
				m.Body = make([]byte, 1<<10)
				from.publish(m)
				time.Sleep(50 * time.Millisecond)
			}
			if list := relay.receive("watch", "rules", 2, time.Minute); len(list) == 2 {
				relay.ack("watch", list[0])
				if err := relay.DeadLetter(t.Context(), "watch", "rules", list[1].Handle); err != nil {
					t.Fatal(err)
				}
				relay.replay(DeadLetterTopic("watch"), true, 0)
			}
			e := append([]string{"number: 1}", fmt.Sprintf("number: %d}", round+2)}, edits...)
			if round%3 == 1 {
				e = append(e, "broadcasts_via: b", "")
			}
			for _, s := range w.sites {
				if err := s.ApplyTopology(t.Context(), fourCities(t, e...)); err != nil {
					t.Fatal(err)
				}
				s.topo = s.Topology()
			}
			w.sites[[]zone.Group{"rza-g", "czb-g", "czd-g"}[round%3]].bounce()
		}
		time.Sleep(time.Minute)
		if o := from.to("c", "czc-g"); o.Lost == 0 {
			t.Fatalf("nothing was given up: %+v", o)
		}
		for _, s := range w.sites {
			s.down()
			whole := s.mem.Crash(rand.New(rand.NewPCG(1, 1)))
			a := open(t, s.mem, s.node, s.topo, limits)
			removeSnapshots(t, whole)
			b := open(t, whole, s.node, s.topo, limits)
			if !bytes.Equal(scrub(t, a, nil), scrub(t, b, nil)) {
				t.Errorf("%s: fold from scratch differs from snapshot and tail", s.node)
			}
			a.Close()
			b.Close()
			s.mem, s.fs = disk.NewMem(), nil
			s.fs = s.mem
			s.up()
		}
	})
}

// TestFlowsHaveOneOrder: the fold and its snapshots go by it.
func TestFlowsHaveOneOrder(t *testing.T) {
	group := record.FlowID{Origin: "a", Incarnation: 1, Target: "b"}
	channel := group
	channel.Channel = true
	if flowOrder(group, channel) >= 0 || flowOrder(channel, group) <= 0 {
		t.Error("a channel and a group of one name have no order")
	}
}
