package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
)

const trio = `deployment: test
epoch: {term: 1, number: 7}
cities:
  - name: c
    coordinator: {driver: raft, voters: [g-1, g-2, g-3]}
    zones:
      - name: cz
        kind: CZone
        groups:
          - name: g
            nodes:
              - {name: g-1, client: "127.0.0.1:1", peer: "127.0.0.1:2", gossip: "127.0.0.1:3", admin: "127.0.0.1:4"}
              - {name: g-2, client: "127.0.0.1:5", peer: "127.0.0.1:6", gossip: "127.0.0.1:7", admin: "127.0.0.1:8"}
              - {name: g-3, client: "127.0.0.1:9", peer: "127.0.0.1:10", gossip: "127.0.0.1:11", admin: "127.0.0.1:12"}
topics: [{name: orders, route: local}, {name: safe, route: local, min_in_sync: 2}]
consumer_groups: [{name: billing, topics: [orders]}]
`

// trioStatuses are those of a healthy group in epoch 4, whose master is g-1.
func trioStatuses(t *testing.T) (*zone.Topology, []admin.Status) {
	t.Helper()
	topo, err := zone.Parse([]byte(trio), "trio")
	if err != nil {
		t.Fatal(err)
	}
	all := []string{"g-1", "g-2", "g-3"}
	var list []admin.Status
	for _, n := range all {
		s := admin.Status{Node: n, Role: "broker", Group: "g", Topology: admin.Topology{Epoch: topo.Epoch.String()},
			Coordinator: &admin.Coordinator{State: "follower", Leader: "g-2"},
			Member:      &admin.Member{Role: "replica", Epoch: 4, Master: "g-1", InSync: all, LogEpoch: 4, Committed: 900, Synced: 1000, End: 1000, Following: true}}
		list = append(list, s)
	}
	list[0].Member.Role = "master"
	for _, n := range all[1:] {
		list[0].Member.Replicas = append(list[0].Member.Replicas, admin.Replica{Node: n, Phase: "sync", Synced: 1000})
	}
	list[1].Coordinator.State = "leader"
	list[1].Coordinator.Groups = []admin.CoordinatedGroup{{Group: "g", Epoch: 4, Master: "g-1", Leased: true, InSync: all, Known: 900}}
	return topo, list
}

func dead(s *admin.Status) {
	*s = admin.Status{Node: s.Node, Error: "connection refused"}
}

// alone makes g-1 the only one in sync.
func alone(list []admin.Status) {
	for i := range list {
		if m := list[i].Member; m != nil {
			m.InSync = []string{"g-1"}
		}
		if c := list[i].Coordinator; c != nil && c.Groups != nil {
			c.Groups[0].InSync = []string{"g-1"}
		}
	}
}

// TestCheckSaysSafeOnlyWhenItIs: each thing that can be wrong is said, and is the
// reason why it is not safe.
func TestCheckSaysSafeOnlyWhenItIs(t *testing.T) {
	for name, c := range map[string]struct {
		change func(list []admin.Status)
		p      safety
		says   string // "" = safe
	}{
		"whole":                    {says: ""},
		"without a replica":        {p: safety{without: "g-3"}},
		"without the master":       {p: safety{without: "g-1"}, says: "g-1 is the master"},
		"without one that is dead": {change: func(l []admin.Status) { dead(&l[2]); withdrawn(l, "g-3") }, p: safety{without: "g-3"}},
		"one dead":                 {change: func(l []admin.Status) { dead(&l[2]) }, says: "g-3: no answer: connection refused"},
		"one dead, without another": {change: func(l []admin.Status) { dead(&l[2]); withdrawn(l, "g-3") }, p: safety{without: "g-2"},
			says: "1 of the coordinator's 3 voters are in its quorum without g-2: it needs 2"},
		"copies for a topic": {change: func(l []admin.Status) { withdrawn(l, "g-3") }, p: safety{without: "g-2", inSync: 1}, says: "safe are refused without g-2"},
		"diverged":           {change: func(l []admin.Status) { l[2].Member.Diverged = true }, says: "g-3: its log has diverged"},
		"not in sync":        {change: func(l []admin.Status) { withdrawn(l, "g-3") }, says: "g-3 is not in sync"},
		"fewer will do":      {change: func(l []admin.Status) { withdrawn(l, "g-3") }, p: safety{inSync: 2}},
		"changing":           {change: func(l []admin.Status) { l[0].Member.Proposed = []string{"g-1"} }, says: "being changed to g-1"},
		"no master":          {change: nobody, says: "no master: 1 of the 1 in sync must answer"},
		"another topology":   {change: func(l []admin.Status) { l[1].Topology.Epoch = "1.6" }, says: "g-2 has 1.6"},
		"nobody leads":       {change: func(l []admin.Status) { l[1].Coordinator.Groups = nil }, says: "no voter says that it leads"},
		"a stranger":         {change: func(l []admin.Status) { l[0].Member.InSync = append(l[0].Member.InSync, "g-4") }, says: "g-4 is in sync and not in this topology"},
		"runs alone":         {change: func(l []admin.Status) { l[2].Member = nil }, says: "the only node of its group"},
		"the coordinator":    {change: func(l []admin.Status) { l[2].Member.CoordinatorErr = "timeout" }, says: "g-3: coordinator: timeout"},
	} {
		topo, list := trioStatuses(t)
		if c.change != nil {
			c.change(list)
		}
		v := brokerGroups(topo, list)[0]
		against, _ := v.against(topo, c.p)
		if text := strings.Join(against, "\n"); (text == "") != (c.says == "") || !strings.Contains(text, c.says) {
			t.Errorf("%s: got %q, want %q", name, text, c.says)
		}
	}
}

// withdrawn takes a node out of the in-sync set.
func withdrawn(list []admin.Status, node string) {
	var rest []string
	for _, n := range []string{"g-1", "g-2", "g-3"} {
		if n != node {
			rest = append(rest, n)
		}
	}
	for i := range list {
		if m := list[i].Member; m != nil {
			m.InSync = rest
		}
		if c := list[i].Coordinator; c != nil && c.Groups != nil {
			c.Groups[0].InSync = rest
		}
	}
}

// nobody leaves the group without a master: g-1, which alone was in sync, is dead.
func nobody(list []admin.Status) {
	alone(list)
	dead(&list[0])
	for i := range list {
		if m := list[i].Member; m != nil {
			m.Master, m.Following = "", false
		}
	}
	g := &list[1].Coordinator.Groups[0]
	g.Master, g.Waiting, g.Known = "", "1 of the 1 in sync must answer", 1500
}

func TestSwitchRefusesWhoCannotTakeOver(t *testing.T) {
	for name, c := range map[string]struct {
		change func(list []admin.Status)
		to     string
		says   string
	}{
		"in sync":    {to: "g-2"},
		"the master": {to: "g-1", says: "is the master already"},
		"a stranger": {to: "g-9", says: "not a node of broker group"},
		"dead":       {change: func(l []admin.Status) { dead(&l[1]) }, to: "g-2", says: "connection refused"},
		"not in sync": {change: func(l []admin.Status) {
			withdrawn(l, "g-2")
			l[0].Member.Replicas[0] = admin.Replica{Node: "g-2", Phase: "async", Behind: 2048}
		}, to: "g-2", says: "it is async, 2.0 KiB behind"},
		"no master": {change: nobody, to: "g-2", says: "see mqrouter brokergroup failover"},
	} {
		topo, list := trioStatuses(t)
		if c.change != nil {
			c.change(list)
		}
		err := brokerGroups(topo, list)[0].maySwitch(c.to)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %q", name, err, c.says)
		}
	}
}

// TestFailoverIsPlannedFromWhatIsKnown: who takes over when nobody is named, what is
// refused, and how much is given up.
func TestFailoverIsPlannedFromWhatIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		change func(list []admin.Status)
		to     string
		loss   bool // allowed
		wants  string
		bytes  uint64
		says   string // of the refusal
	}{
		"in sync":             {wants: "g-2"},
		"master dead":         {change: func(l []admin.Status) { dead(&l[0]) }, wants: "g-2"},
		"longer log":          {change: func(l []admin.Status) { nobody(l); l[2].Member.Synced = 1200 }, loss: true, wants: "g-3", bytes: 300},
		"later epoch":         {change: func(l []admin.Status) { nobody(l); l[2].Member.Synced, l[2].Member.LogEpoch = 1200, 3 }, loss: true, wants: "g-2", bytes: 500},
		"loss not allowed":    {change: nobody, wants: "g-2", bytes: 500, says: "give --allow-loss"},
		"nothing known":       {change: func(l []admin.Status) { nobody(l); l[1].Coordinator.Groups[0].Known = 0 }, loss: true, wants: "g-2"},
		"master answers":      {change: alone, to: "g-2", loss: true, wants: "g-2", says: "the master g-1 answers"},
		"another is in sync":  {change: func(l []admin.Status) { dead(&l[0]); withdrawn(l, "g-3") }, to: "g-3", loss: true, wants: "g-3", says: "g-2 is and answers"},
		"the named one":       {change: nobody, to: "g-3", loss: true, wants: "g-3", bytes: 500},
		"the dead one":        {change: nobody, to: "g-1", loss: true, says: "connection refused"},
		"diverged one chosen": {change: func(l []admin.Status) { nobody(l); l[2].Member.Diverged = true }, to: "g-3", loss: true, wants: "g-3", bytes: 500},
	} {
		topo, list := trioStatuses(t)
		if c.change != nil {
			c.change(list)
		}
		p, err := brokerGroups(topo, list)[0].planFailover(c.to, c.loss)
		if err != nil {
			if c.wants != "" || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var bytes uint64
		if p.Loss != nil {
			bytes = p.Loss.Bytes
		}
		if p.To != c.wants || (p.Refused == "") != (c.says == "") || !strings.Contains(p.Refused, c.says) || bytes != c.bytes {
			t.Errorf("%s: to %s, refused %q, %d bytes; want %+v", name, p.To, p.Refused, bytes, c)
		}
	}
}

// TestAnOrderThatSparedALossSaysSo: the coordinator has found one that is in sync.
func TestAnOrderThatSparedALossSaysSo(t *testing.T) {
	out := switchOutput{Group: "g", To: "g-3"}
	out.spared([]admin.GroupTerm{{Group: "g", Epoch: 5, Master: "g-3"}})
	if out.To != "g-3" || out.sparedText() != "" {
		t.Errorf("as ordered: %+v, %q", out, out.sparedText())
	}
	out.spared([]admin.GroupTerm{{Group: "g", Epoch: 5, Master: "g-2"}})
	if out.To != "g-2" || out.Spared != "g-3" || !strings.Contains(out.sparedText(), "nothing was given up") || !strings.Contains(out.sparedText(), "g-3") {
		t.Errorf("%+v, %q", out, out.sparedText())
	}
}

func TestBrokerGroupsArePrinted(t *testing.T) {
	topo, list := trioStatuses(t)
	nobody(list)
	list[2].Member.Diverged, list[2].Member.SetAside = true, []string{"log.damaged-20260102T030405Z"}
	list[1].Coordinator.Groups[0].Lost = &admin.GroupLoss{Epoch: 3, From: 10, Known: 40}
	var out bytes.Buffer
	printBrokerGroups(&out, brokerGroups(topo, list))
	for _, want := range []string{"no master: 1 of the 1 in sync must answer", "publishes to safe are refused: it asks for 2 in sync", "diverged", "log.damaged-20260102T030405Z",
		"connection refused", "gave up what was acknowledged from 10 on, at least up to 40", "500 B"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}
