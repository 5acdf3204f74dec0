package raft

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/coordinator/conformance"
	"github.com/mqrouter/mqrouter/zone"
)

// TestFailoverTimes prints how long a broker group has no master, with the defaults,
// when its master dies, alone and together with the coordinator's leader. It judges
// nothing: the machine may be busy.
func TestFailoverTimes(t *testing.T) {
	if os.Getenv("MQROUTER_BENCH_FAILOVER") == "" {
		t.Skip("MQROUTER_BENCH_FAILOVER=1 measures")
	}
	const each = 10
	for _, both := range []bool{false, true} {
		var took []time.Duration
		for range each {
			took = append(took, failover(t, both))
		}
		slices.Sort(took)
		t.Logf("the leader dies too: %v; without a master for: median %s, longest %s, all %s", both, took[each/2], took[each-1], took)
	}
}

func failover(t *testing.T, leaderToo bool) time.Duration {
	c := newCluster(t, "v1", "v2", "v3")
	c.timing, c.beat = coordinator.Timing{}.WithDefaults(), DefaultBeat
	for _, n := range c.voters() {
		c.start(n)
	}
	c.leader()
	place := map[zone.Node]*coordinator.Member{}
	stop := map[zone.Node]func(){}
	led := map[zone.Node]uint64{}
	for _, n := range conformance.Nodes {
		m := coordinator.NewMember(coordinator.MemberOptions{Coordinator: c.client(n), Group: conformance.Name, Node: n,
			Standing: func() coordinator.Standing {
				return coordinator.Standing{Incarnation: 7, Epoch: led[n], End: 10, Fit: true}
			}})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); _ = m.Run(ctx) }()
		place[n], stop[n] = m, func() { cancel(); <-done }
	}
	holder := func() (zone.Node, coordinator.Term) {
		for n, m := range place {
			if t, _ := m.Term(); t.Master == n && m.Holds(t.Epoch) {
				return n, t
			}
		}
		return "", coordinator.Term{}
	}
	var master zone.Node
	var term coordinator.Term
	until(t, "a first master", func() bool { master, term = holder(); return master != "" })
	client := c.client(master)
	for _, step := range [][2][]zone.Node{{term.InSync, conformance.Nodes}, {conformance.Nodes, nil}} {
		var err error
		if term, err = client.ChangeSet(t.Context(), conformance.Name, term.Epoch, term.Version, step[0], step[1]); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	if leaderToo {
		n, _ := c.leader()
		heal := c.isolate(n)
		defer heal()
	}
	stop[master]()
	delete(place, master)
	until(t, "the next master", func() bool { n, _ := holder(); return n != "" })
	took := time.Since(began)
	for n := range place {
		stop[n]()
	}
	for _, n := range c.running() {
		c.stop(n)
	}
	return took
}
