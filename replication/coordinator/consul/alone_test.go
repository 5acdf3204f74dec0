package consul

import (
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/coordinator/conformance"
	"github.com/mqrouter/mqrouter/zone"
)

// TestTheMasterBesideANodeThatWentOnAloneLeadsNoLonger: n2 was told by an operator that it
// is the group's only node, and n1 leads all the same. n1 is given no more leases, so that
// what n2 wrote alone is asked for while n2 is there, and not found when both have died.
func TestTheMasterBesideANodeThatWentOnAloneLeadsNoLonger(t *testing.T) {
	x := newTrio(t, servers(t, 1)[0])
	was := x.led()
	if known, err := x.members["n2"].Alone(t.Context(), conformance.Name); err != nil || !known {
		t.Fatalf("alone: %v, %v", known, err)
	}
	st := x.says["n2"]
	st.Epoch, st.End = was.Epoch+1, 300 // what it wrote alone
	x.says["n2"] = st
	got := x.renew("another epoch", func(last map[zone.Node]answer) bool {
		for n, a := range last {
			if a.lease.Duration > 0 && a.term.Alone != "" {
				t.Fatalf("%s has a lease in epoch %d, and n2 went on alone", n, a.term.Epoch)
			}
		}
		return last["n2"].lease.Duration > 0
	}, conformance.Nodes...)
	if now := got["n2"].term; now.Epoch <= was.Epoch+1 || now.Alone != "" || now.Lost != (*coordinator.Loss)(nil) {
		t.Errorf("the term is %+v, and was %+v", now, was)
	}
}

// TestATermIsPutBackWithoutALeaseBesideANodeThatWentOnAlone: Consul loses the term while
// the lease of before still runs; that is no way round the election.
func TestATermIsPutBackWithoutALeaseBesideANodeThatWentOnAlone(t *testing.T) {
	x := newTrio(t, servers(t, 1)[0])
	was := x.led()
	for _, n := range conformance.Nodes { // nobody is elected meanwhile
		x.stops[n]()
	}
	if known, err := x.members["n2"].Alone(t.Context(), conformance.Name); err != nil || !known {
		t.Fatalf("alone: %v, %v", known, err)
	}
	n1 := x.members["n1"]
	term, l, err := n1.Renew(t.Context(), conformance.Name, x.says["n1"])
	if err != nil || l.Duration != 0 || term.Alone != "n2" || term.Epoch != was.Epoch {
		t.Fatalf("n1 hears of it: %+v, %+v, %v", term, l, err)
	}
	n1.mu.Lock()
	g := n1.granted[conformance.Name]
	g.until = n1.o.Now().Add(time.Hour) // its lease of before, however long this takes
	n1.granted[conformance.Name] = g
	n1.mu.Unlock()
	x.forget("term")
	term, l, err = n1.Renew(t.Context(), conformance.Name, x.says["n1"])
	if err != nil || term.Alone != "n2" || term.Epoch != was.Epoch {
		t.Fatalf("it is put back: %+v, %v", term, err)
	}
	if l.Duration != 0 {
		t.Error("n1 has a lease again")
	}
	if s, err := n1.list(t.Context(), conformance.Name); err != nil || s.term.Version != term.Version {
		t.Errorf("Consul has %+v, %v", s.term, err)
	}
}
