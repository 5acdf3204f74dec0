package node

import (
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/internal/gossip"
	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/ship"
	"github.com/mqrouter/mqrouter/zone"
)

// TestRoutesForgetADeadMasterAtOnce: gossip takes seconds to notice a death, routes do
// not. From the moment at which a master knows of another one than the dead, of its own
// group or of another of its zone, no route names the dead; and none names a replica of
// the own group that has left its master, or has not come to it.
func TestRoutesForgetADeadMasterAtOnce(t *testing.T) {
	top := parse(t, []byte(`{deployment: d, epoch: 1.1, cities: [{name: c, coordinator: {driver: consul}, zones: [{name: z, kind: CZone, groups: [
  {name: g, slots: 0-511, nodes: [{name: a, client: "a:1", peer: "a:2", gossip: "a:3"}, {name: b, client: "b:1", peer: "b:2", gossip: "b:3"}, {name: c, client: "c:1", peer: "c:2", gossip: "c:3"}]},
  {name: h, slots: 512-1023, nodes: [{name: x, client: "x:1", peer: "x:2", gossip: "x:3"}, {name: y, client: "y:1", peer: "y:2", gossip: "y:3"}]}]}]}]}`))
	member := func(n zone.Node, leads bool, term uint64) gossip.Member {
		return gossip.Member{Name: n, Meta: gossip.Meta{Group: top.FindNode(n).Group.Name, Leads: leads, Term: term}}
	}
	shipping := func(inSync []zone.Node, replicas ...ship.ReplicaStatus) *ship.LeaderStatus {
		return &ship.LeaderStatus{Term: coordinator.Term{InSync: inSync}, Replicas: replicas}
	}
	without := func(n zone.Node, term uint64, away string) gossip.Member {
		m := member(n, true, term)
		m.Away = away
		return m
	}
	all := []gossip.Member{member("a", true, 3), member("b", false, 4), member("c", false, 4), member("x", false, 7), member("y", true, 7)}
	for _, c := range []struct {
		name  string
		group zone.Group
		sight sight
		want  string
	}{
		{"its own group, after a died: nobody but gossip thinks that it lives", "g",
			sight{members: all, self: "b", master: "b", epoch: 4, shipping: shipping([]zone.Node{"b", "c"}, ship.ReplicaStatus{Node: "a"}, ship.ReplicaStatus{Node: "c", Phase: ship.PhaseSync})}, "b c"},
		{"and before c has come to its new master", "g",
			sight{members: all, self: "b", master: "b", epoch: 4, shipping: shipping([]zone.Node{"b", "c"}, ship.ReplicaStatus{Node: "a"}, ship.ReplicaStatus{Node: "c"})}, "b c"},
		{"c does not come", "g",
			sight{members: all, self: "b", master: "b", epoch: 4, shipping: shipping([]zone.Node{"b", "c"}, ship.ReplicaStatus{Node: "a"}, ship.ReplicaStatus{Node: "c", Fault: ship.FaultNotCome})}, "b"},
		{"a replica's session has ended", "g",
			sight{members: []gossip.Member{member("a", false, 4), member("b", true, 4), member("c", false, 4)}, self: "b", master: "b", epoch: 4,
				shipping: shipping([]zone.Node{"a", "b", "c"}, ship.ReplicaStatus{Node: "a", Fault: ship.FaultGone}, ship.ReplicaStatus{Node: "c", Phase: ship.PhaseSync})}, "b c"},
		{"a is back as a replica and catches up", "g",
			sight{members: []gossip.Member{member("a", false, 4), member("b", true, 4), member("c", false, 4)}, self: "b", master: "b", epoch: 4,
				shipping: shipping([]zone.Node{"b", "c"}, ship.ReplicaStatus{Node: "a", Phase: ship.PhaseAsync}, ship.ReplicaStatus{Node: "c", Phase: ship.PhaseSync})}, "b a c"},
		{"another group, whose new master is known", "g",
			sight{members: append([]gossip.Member{member("c", true, 4)}, all...), self: "y", master: "c", epoch: 4}, "c b"},
		{"another group, whose master is not known to be dead", "g", sight{members: all, self: "y", master: "a", epoch: 3}, "a b c"},
		{"another group without a master", "g", sight{members: all[1:], self: "y"}, "b c"},
		{"another group, whose master misses two replicas that gossip does not miss yet", "g",
			sight{members: []gossip.Member{without("a", 4, "b,c"), member("b", false, 4), member("c", false, 4)}, self: "y", master: "a", epoch: 4}, "a"},
		{"what the master of before missed says nothing", "g",
			sight{members: []gossip.Member{without("a", 3, "b,c"), member("b", true, 4), member("c", false, 4)}, self: "y", master: "b", epoch: 4}, "b c"},
		{"and so does what a master of another group misses", "g",
			sight{members: []gossip.Member{member("a", true, 4), member("b", false, 4), without("y", 7, "a,b")}, self: "x", master: "a", epoch: 4}, "a b"},
		{"what this master itself sees is newer than what it told", "g",
			sight{members: []gossip.Member{without("a", 4, "b"), member("b", false, 4), member("c", false, 4)}, self: "a", master: "a", epoch: 4,
				shipping: shipping([]zone.Node{"a", "b"}, ship.ReplicaStatus{Node: "b", Phase: ship.PhaseSync}, ship.ReplicaStatus{Node: "c"})}, "a b"},
		{"a claim about another group says nothing", "h", sight{members: all, self: "b", master: "y", epoch: 7}, "y x"},
	} {
		g := top.FindGroup(c.group)
		c.sight.order = g.Nodes
		var names []string
		for _, n := range c.sight.fronts(g) {
			names = append(names, string(n.Name))
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
