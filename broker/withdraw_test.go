package broker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/flow"
)

// TestRemovedDestinationKeepsItsBacklog: what waits for a city that leaves the
// topology is seen, goes to it when it returns, or is given up by an operator who
// was told how much it is.
func TestRemovedDestinationKeepsItsBacklog(t *testing.T) {
	for _, returns := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, sample(t), testLimits(), "rz02-a-1", "cz-sh-a-1", "cz-hz-a-1", "cz-sz-a-1")
			defer w.close()
			from := w.sites["rz02-a"]
			apply := func(n int, edits ...string) {
				e := epoch(n)
				topo := sample(t, append([]string{e[0], e[1]}, edits...)...)
				for _, s := range w.sites {
					if err := s.ApplyTopology(t.Context(), topo); err != nil {
						t.Fatal(err)
					}
					s.topo = topo
				}
			}
			publish := func(from *site, first, n int) {
				for i := range n {
					from.publish(from.message("member", fmt.Sprint(first+i)))
				}
				time.Sleep(5 * time.Second)
			}
			withBeijing := []string{"\ntopics:\n", "\n" + beijing}
			apply(2, withBeijing...)
			publish(from, 0, 1) // the flow begins with beijing, which is away
			publish(from, 1, 29)
			if _, err := from.Withdraw(t.Context(), "cz-bj-a", false); KindOf(err) != KindInvalid {
				t.Fatalf("withdrawn although the topology has it: %v", err)
			}
			apply(3)
			publish(from, 30, 10)
			from.crash()
			gone := func() *OutgoingStatus {
				for _, o := range from.Status().Outgoing {
					if o.Group == "cz-bj-a" {
						return &o
					}
				}
				return nil
			}
			if o := gone(); o == nil || !o.Removed || o.Head != 30 || o.Cursor != 0 || o.BacklogBytes == 0 {
				t.Fatalf("the leg to a city that was removed: %+v", o)
			}
			if returns {
				apply(4, withBeijing...)
				bj := w.late("cz-bj-a-1", from.topo, from.limits)
				w.settled()
				wantOnce(t, bj.drain("member-watch", "member"), numbered(0, 40))
				return
			}
			was := gone().BacklogBytes
			for _, dry := range []bool{true, false} {
				list, err := from.Withdraw(t.Context(), "cz-bj-a", dry)
				if err != nil || len(list) != 1 || list[0].Records != 30 || list[0].Bytes != was || list[0].Oldest < 10*time.Second || list[0].Leg.City != "beijing" {
					t.Fatalf("dry %v: %+v, %v", dry, list, err)
				}
				if dry && gone() == nil {
					t.Fatal("a preview gave it up")
				}
			}
			from.crash()
			if o := gone(); o != nil || from.Status().Counts.Withdrawn != 30 {
				t.Fatalf("after the withdrawal %+v, counts %+v", o, from.Status().Counts)
			}
			if list, err := from.Withdraw(t.Context(), "cz-bj-a", false); err != nil || len(list) != 0 {
				t.Fatalf("a second withdrawal: %+v, %v", list, err)
			}
		})
	}
}

// TestWithdrawnGroupThatReturnsIsToldTheTruth: a group given up by hand that comes
// back all the same gets what is still there, and nothing is passed in silence.
func TestWithdrawnGroupThatReturnsIsToldTheTruth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sample(t), testLimits(), "rz02-a-1")
		defer w.close()
		from := w.sites["rz02-a"]
		for i := range 20 {
			from.publish(from.message("transfer", fmt.Sprint(i), "userId", "50"))
		}
		var given uint64
		for _, o := range from.Status().Outgoing {
			// As if the topology had lost the group.
			if err := from.decide(t.Context(), &giveUp{kind: giveWithdrawn, leg: legOf(o)}); err != nil {
				t.Fatal(err)
			}
			given += o.Head
		}
		if st := from.Status(); st.Counts.Withdrawn != 20 || given != 20 || len(from.Legs()) != 0 {
			t.Fatalf("counts %+v, legs %v", st.Counts, from.Legs())
		}
		to := w.late("rz03-a-1", from.topo, from.limits)
		time.Sleep(3 * time.Minute)
		wantOnce(t, to.drain("transfer-credit", "transfer"), numbered(0, 20))
	})
}

func legOf(o OutgoingStatus) flow.Leg { return flow.Leg{Flow: o.Flow, City: o.City, Group: o.Group} }
