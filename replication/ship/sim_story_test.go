package ship

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// story runs a world that is in sync, and checks it at the end.
func story(t *testing.T, seed uint64, tell func(w *simWorld, master *simNode)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := newSimWorld(t, ctx, seed)
		time.Sleep(10 * time.Second)
		if m := w.master(); m == nil || len(w.term().InSync) != len(w.nodes) {
			t.Fatalf("not in sync after 10 s: %s", w.describe())
		}
		tell(w, w.master())
		w.heal()
		if !w.settle(time.Minute) {
			t.Errorf("the group does not come to rest: %s", w.describe())
		}
		w.check()
		w.stop(cancel)
		for _, f := range w.faults {
			t.Error(f)
		}
	})
}

// acked is how many records were acknowledged so far.
func (w *simWorld) acked() int { return w.seen("acknowledged") }

func (w *simWorld) seen(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[what]
}

// A master that the coordinator does not hear, or that does not hear it, stops
// answering before another one begins; clients that reach only it get no answer.
func TestX2_AMasterThatIsCutOffAcknowledgesNothing(t *testing.T) {
	for _, answers := range []bool{false, true} {
		story(t, 7, func(w *simWorld, m *simNode) {
			before := w.term()
			if answers {
				w.net.set("", m.name, true)
			} else {
				w.net.set(m.name, "", true)
			}
			time.Sleep(6 * time.Second)
			if after := w.term(); after.Epoch == before.Epoch || after.Master == m.name || after.Master == "" {
				t.Errorf("the master was not replaced: %+v", after)
			}
		})
	}
}

// With a replica dead the others go on, after at most Gone and a word with the
// coordinator; with all replicas dead the master goes on alone.
func TestADeadReplicaHoldsAcknowledgementsUpForAMoment(t *testing.T) {
	story(t, 3, func(w *simWorld, m *simNode) {
		for _, n := range w.nodes {
			if n == m {
				continue
			}
			n.kill()
			time.Sleep(w.limits.WithDefaults().Gone + 100*time.Millisecond)
			before := w.acked()
			time.Sleep(200 * time.Millisecond)
			if w.acked() == before {
				t.Errorf("nothing was acknowledged for 200 ms, %s is dead for longer", n.name)
			}
		}
		if got := w.term().InSync; len(got) != 1 || got[0] != m.name {
			t.Errorf("in sync are %v", got)
		}
		if n := m.leading().InSync(); n != 1 {
			t.Errorf("an acknowledgement has %d copies, says the master", n)
		}
	})
}

func (n *simNode) leading() *Leader {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.leader
}

// A replica with a slow disk is waited for once; it leaves the set, and comes back
// when it keeps up.
func TestASlowReplicaLeavesTheSetAndComesBack(t *testing.T) {
	story(t, 5, func(w *simWorld, m *simNode) {
		slow := w.nodes[0]
		if slow == m {
			slow = w.nodes[1]
		}
		l, _ := slow.current()
		l.mu.Lock()
		l.slow = 3 * time.Second
		l.mu.Unlock()
		time.Sleep(3 * time.Second)
		if got := w.term().InSync; len(got) != len(w.nodes)-1 {
			t.Errorf("in sync are %v, with %s slow", got, slow.name)
		}
		l.mu.Lock()
		l.slow = 0
		l.mu.Unlock()
		time.Sleep(10 * time.Second)
		if got := w.term().InSync; len(got) != len(w.nodes) {
			t.Errorf("in sync are %v, with %s well again: %s", got, slow.name, w.describe())
		}
	})
}

// A replica with an empty disk becomes a copy by a snapshot, beside live traffic.
func TestAnEmptyReplicaIsSeeded(t *testing.T) {
	story(t, 9, func(w *simWorld, m *simNode) {
		before := w.seen("replaced")
		var victim zone.Node
		for _, n := range w.nodes {
			if n != m {
				w.replaceDisk(n)
				victim = n.name
				break
			}
		}
		time.Sleep(10 * time.Second)
		if len(w.term().InSync) != len(w.nodes) || w.seen("replaced") != before+1 {
			t.Errorf("%s is not in sync again: %s", victim, w.describe())
		}
	})
}
