package zone

import (
	"strings"
	"testing"
)

// replicas is a city with a broker group of three nodes.
const replicas = `deployment: d
epoch: 1.1
cities:
  - name: c
    coordinator: {driver: raft, voters: [a, b, co], nodes: [{name: co, room: r3, peer: co:2, gossip: co:3}]}
    zones:
      - name: z
        kind: CZone
        groups:
          - name: g
            nodes:
              - {name: a, room: r1, client: a:1, peer: a:2, gossip: a:3}
              - {name: b, room: r2, client: b:1, peer: b:2, gossip: b:3}
              - {name: x, room: r3, client: x:1, peer: x:2, gossip: x:3}
topics:
  - {name: t, route: local, min_in_sync: 2, durability: quorum}
`

func TestReplicasAndCoordinatorsAreFound(t *testing.T) {
	top := mustParse(t, replicas)
	g, c := top.FindGroup("g"), top.FindCity("c")
	if len(g.Nodes) != 3 || g.Member("b") != top.FindNode("b") || g.Member("co") != nil || g.Nodes[0].Room != "r1" {
		t.Errorf("members: %+v", g)
	}
	co := top.FindNode("co")
	if co == nil || co.Role != RoleCoordinator || co.City != c || co.Group != nil || co.Peer != "co:2" || co.Room != "r3" || c.CoordinatorNodes()[0] != co {
		t.Errorf("coordinator node: %+v", co)
	}
	x := c.Coordinator
	if x.Driver != CoordinatorRaft || len(x.Voters) != 3 || x.Voters[2] != co || x.Lease != defaultLease || x.Prefix != "" {
		t.Errorf("coordinator: %+v", x)
	}
	for name, votes := range map[Node]bool{"a": true, "co": true, "x": false} {
		if top.FindNode(name).Votes() != votes {
			t.Errorf("%s votes: %t", name, !votes)
		}
	}
	if topic := top.FindTopic("t"); topic.Durability != DurabilityQuorum || topic.MinInSync != 2 {
		t.Errorf("topic: %+v", topic)
	}
	if sample := sampleTopology(t); sample.Cities[0].Coordinator != nil || sample.Cities[0].CoordinatorNodes() != nil || sample.FindNode("rz01-a-1").Votes() {
		t.Error("a city without a coordinator has one")
	}
}

// A deployment without replicas has the digest that nodes compute which know none, so
// that a rolling upgrade does not stop at its first node.
func TestDigestOfATopologyWithoutReplicasStays(t *testing.T) {
	text := string(canonical(sampleTopology(t)))
	for _, word := range []string{"all-in-sync", "coordinator", "room", "min-in-sync"} {
		if strings.Contains(text, word) {
			t.Errorf("the canonical form has %q", word)
		}
	}
	for _, change := range [][2]string{
		{"room: r1", "room: r2"}, {"[a, b, co]", "[a, x, co]"}, {"min_in_sync: 2", "min_in_sync: 3"}, {"quorum", "master"},
		{"driver: raft,", "driver: raft, lease: 2s,"}, {"peer: co:2", "peer: co:4"}, {"nodes: [{name: co, room: r3", "nodes: [{name: co, room: r4"},
	} {
		a, b := mustParse(t, replicas), mustParse(t, replaced(t, replicas, change[0], change[1]))
		if a.Digest == b.Digest || len(Diff(a, b)) == 0 {
			t.Errorf("%s changes nothing", change[1])
		}
	}
	if a, b := mustParse(t, replicas), mustParse(t, replaced(t, replicas, "[a, b, co]", "[co, b, a]")); a.Digest != b.Digest || len(Diff(a, b)) > 0 {
		t.Error("the order of voters means something")
	}
}

func TestAdviceNamesWhatOneFaultTakesTogether(t *testing.T) {
	for _, c := range []struct {
		name    string
		replace []string
		want    string // the only advice; empty when there is none
	}{
		{"well spread", nil, ""},
		{"copies in one room", []string{"room: r2", "room: r1", "name: x, room: r3", "name: x, room: r1", "[a, b, co]", "[co]"}, "all nodes of broker group g are in room r1"},
		{"voters in one room", []string{"name: b, room: r2", "name: b, room: r1"}, "2 of the 3 voters of city c are in room r1"},
		{"one voter", []string{"[a, b, co]", "[co]"}, "city c has one voter: while co is down"},
		{"two nodes that both must be in sync", []string{"              - {name: x, room: r3, client: x:1, peer: x:2, gossip: x:3}\n", ""}, "topic t needs both in sync"},
		{"rooms unknown", []string{"room: r1, ", "", "room: r2, ", "", "room: r3, ", ""}, ""},
	} {
		text := strings.NewReplacer(c.replace...).Replace(replicas)
		list := Advice(mustParse(t, text))
		if c.name == "copies in one room" {
			if len(list) != 2 {
				t.Errorf("%s: %q", c.name, list)
				continue
			}
			list = list[:1] // the one voter is told too
		}
		if got := strings.Join(list, "; "); (c.want == "") != (got == "") || !strings.Contains(got, c.want) || len(list) > 1 {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestMembersAndVotersChangeStepByStep(t *testing.T) {
	const x = "              - {name: x, room: r3, client: x:1, peer: x:2, gossip: x:3}\n"
	running := mustParse(t, replicas)
	for _, c := range []struct {
		name    string
		replace []string
		want    string
	}{
		{"a member comes", []string{x, x + "              - {name: y, client: y:1, peer: y:2, gossip: y:3}\n"}, ""},
		{"a member goes", []string{x, ""}, ""},
		{"a member is replaced", []string{"name: x", "name: y"}, ""},
		{"two members go", []string{"name: x", "name: y", "name: b", "name: w", "voters: [a, b, co]", "voters: [a, w, co]"}, "broker group g loses 2 of its 3 nodes at once"},
		{"a voter is replaced", []string{"[a, b, co]", "[a, x, co]"}, ""},
		{"two voters are replaced", []string{"[a, b, co]", "[a, x, cp]", "name: co", "name: cp"}, "city c keeps 1 of its 3 voters"},
		{"three voters become one", []string{"[a, b, co]", "[co]"}, "city c keeps 1 of its 3 voters"},
		{"another driver", []string{"driver: raft, voters: [a, b, co], nodes: [{name: co, room: r3, peer: co:2, gossip: co:3}]", "driver: consul"}, "changes its coordinator from raft to consul"},
	} {
		got := strings.Join(Moves(running, mustParse(t, strings.NewReplacer(c.replace...).Replace(replicas))), "; ")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	one := mustParse(t, strings.NewReplacer("[a, b, co]", "[co]").Replace(replicas))
	if got := Moves(one, running); len(got) > 0 {
		t.Errorf("one voter becomes three: %q", got)
	}
	consul := func(prefix string) *Topology {
		return mustParse(t, strings.NewReplacer("driver: raft, voters: [a, b, co], nodes: [{name: co, room: r3, peer: co:2, gossip: co:3}]", "driver: consul"+prefix).Replace(replicas))
	}
	if got := Moves(consul(""), consul(", prefix: p")); len(got) != 1 || !strings.Contains(got[0], "from mqrouter/d/c to p") {
		t.Errorf("another prefix: %q", got)
	}
}
