package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
)

// brokerGroup is a broker group of several nodes as its nodes and its coordinator tell.
type brokerGroup struct {
	Group    string           `json:"group"`
	City     string           `json:"city"`
	Zone     string           `json:"zone"`
	Epoch    uint64           `json:"epoch"`
	Master   string           `json:"master,omitempty"` // in Epoch; empty: nobody
	Serves   bool             `json:"serves"`           // the master answers clients
	Lease    time.Duration    `json:"lease,omitempty"`  // what the master has left of it
	InSync   []string         `json:"in_sync"`
	Proposed []string         `json:"proposed,omitempty"` // the set that it is being changed to
	Nodes    []*groupNode     `json:"nodes"`
	Short    []shortTopic     `json:"short,omitempty"`     // topics that are refused for want of copies
	Waiting  string           `json:"waiting,omitempty"`   // why the coordinator elects nobody
	Lost     *admin.GroupLoss `json:"lost,omitempty"`      // of the last forced fail-over
	Known    uint64           `json:"known"`               // position up to which the log is known to have been committed
	TermGone bool             `json:"term_gone,omitempty"` // Consul has lost the term that was in force
	Led      bool             `json:"led"`                 // the coordinator answers and decides, as far as can be asked
	Voters   []*voterRow      `json:"voters,omitempty"`

	driver zone.CoordinatorDriver
	info   *zone.GroupInfo
}

// groupNode is a node of a broker group.
type groupNode struct {
	Node      string   `json:"node"`
	Room      string   `json:"room,omitempty"`
	State     string   `json:"state"` // master, sync, semi-sync, async, absent, diverged, no answer, gone, or its role
	InSync    bool     `json:"in_sync"`
	Epoch     string   `json:"topology_epoch,omitempty"`
	LogEpoch  uint64   `json:"log_epoch"`
	Committed uint64   `json:"committed"`
	Synced    uint64   `json:"synced"`
	End       uint64   `json:"end"`
	Behind    uint64   `json:"behind"`                   // bytes
	Records   *int     `json:"behind_records,omitempty"` // nil: not counted
	More      bool     `json:"behind_more,omitempty"`    // Records counts a part of them
	SetAside  []string `json:"set_aside,omitempty"`
	Tails     int      `json:"tails,omitempty"` // that it keeps: what its log had and the group has not
	Problem   string   `json:"problem,omitempty"`

	TailMessages int `json:"tail_messages,omitempty"` // of clients, in all of them
	TailWaiting  int `json:"tail_waiting,omitempty"`  // of these, not offered again, or refused

	member *admin.Member // nil: it does not answer, or is no member
	info   *zone.NodeInfo
}

// voterRow is a voter of the group's city.
type voterRow struct {
	Node  string `json:"node"`
	Votes bool   `json:"votes"` // it is part of the quorum now
	Epoch string `json:"topology_epoch,omitempty"`
}

// shortTopic is a topic that asks for more copies than are in sync.
type shortTopic struct {
	Topic string `json:"topic"`
	Wants int    `json:"wants"`
}

// brokerGroups returns the groups of several nodes, as the statuses of all nodes have
// them.
func brokerGroups(t *zone.Topology, all []admin.Status) []*brokerGroup {
	groups := []*brokerGroup{}
	for _, z := range t.Zones() {
		for _, g := range z.Groups {
			if len(g.Nodes) > 1 {
				groups = append(groups, viewGroup(t, g, all))
			}
		}
	}
	return groups
}

// viewGroup puts a group together. What the master says counts, then what was said of
// the highest epoch.
func viewGroup(t *zone.Topology, g *zone.GroupInfo, all []admin.Status) *brokerGroup {
	v := &brokerGroup{Group: string(g.Name), City: string(g.Zone.City.Name), Zone: string(g.Zone.Name), InSync: []string{}, info: g}
	byNode := map[string]*admin.Status{}
	for i := range all {
		byNode[all[i].Node] = &all[i]
	}
	v.hearCoordinator(byNode)
	var master *admin.Member
	for _, n := range g.Nodes {
		row := &groupNode{Node: string(n.Name), Room: string(n.Room), State: "no answer", info: n}
		v.Nodes = append(v.Nodes, row)
		s := byNode[row.Node]
		switch {
		case s == nil:
			row.Problem = "it has no admin address"
			continue
		case s.Error != "":
			row.Problem = s.Error
			continue
		case s.Member == nil:
			row.State, row.Epoch, row.Problem = "alone", s.Topology.Epoch, "it runs as the only node of its group: start it again"
			continue
		}
		m := s.Member
		row.member, row.Epoch, row.LogEpoch, row.Problem, row.SetAside = m, s.Topology.Epoch, m.LogEpoch, m.Problem, m.SetAside
		row.Committed, row.Synced, row.End, row.State = m.Committed, m.Synced, m.End, m.Role
		row.Tails = len(m.Tails)
		for _, x := range m.Tails {
			row.TailMessages += x.Messages
			row.TailWaiting += x.Waiting
		}
		v.hear(m.Epoch, m.Master, m.InSync, m.Proposed)
		v.hearOfConsul(m)
		if m.Role == "master" && (master == nil || m.Epoch > master.Epoch) {
			master = m
		}
	}
	if master != nil && master.Epoch >= v.Epoch {
		v.Serves, v.Lease = true, master.Lease
		v.Epoch, v.Master, v.InSync, v.Proposed = master.Epoch, master.Master, orNone(master.InSync), master.Proposed
		v.Known = max(v.Known, master.Committed)
	}
	for _, row := range v.Nodes {
		v.judge(row, master)
	}
	for _, topic := range t.Topics {
		if topic.MinInSync > 1 && topic.MinInSync > len(v.InSync) {
			v.Short = append(v.Short, shortTopic{string(topic.Name), topic.MinInSync})
		}
	}
	return v
}

// hear takes what somebody says of the term, if it is of no older epoch.
func (v *brokerGroup) hear(epoch uint64, master string, inSync, proposed []string) {
	if epoch < v.Epoch || epoch == v.Epoch && v.Master != "" {
		return
	}
	v.Epoch, v.Master, v.InSync, v.Proposed = epoch, master, orNone(inSync), proposed
}

func orNone(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// hearCoordinator takes what the voters of the city say.
func (v *brokerGroup) hearCoordinator(byNode map[string]*admin.Status) {
	c := v.info.Zone.City.Coordinator
	if c == nil {
		return
	}
	if v.driver = c.Driver; v.driver == zone.CoordinatorConsul {
		return // Consul is not asked: the members say whether it answers, and what it says
	}
	for _, n := range c.Voters {
		row := &voterRow{Node: string(n.Name)}
		v.Voters = append(v.Voters, row)
		s := byNode[row.Node]
		if s == nil || s.Error != "" || s.Coordinator == nil {
			continue
		}
		row.Votes, row.Epoch = s.Coordinator.Leader != "" && s.Coordinator.Problem == "", s.Topology.Epoch
		for _, g := range s.Coordinator.Groups {
			if g.Group != v.Group {
				continue
			}
			v.Led = true
			if g.Epoch >= v.Epoch {
				v.Epoch, v.Master, v.InSync, v.Proposed = g.Epoch, g.Master, orNone(g.InSync), g.Proposed
				v.Waiting, v.Lost, v.Known = g.Waiting, g.Lost, g.Known
			}
		}
	}
}

// hearOfConsul takes what a member says of its coordinator when that is Consul: of the
// members that reach it, since another may have been cut off from it for long.
func (v *brokerGroup) hearOfConsul(m *admin.Member) {
	if v.driver != zone.CoordinatorConsul {
		return
	}
	v.Known = max(v.Known, m.Known)
	if m.Lost != nil && (v.Lost == nil || m.Lost.Epoch > v.Lost.Epoch) {
		v.Lost = m.Lost
	}
	v.TermGone = v.TermGone || m.TermGone
	if m.CoordinatorErr == "" || m.TermGone {
		v.Led = true
		v.Waiting = cmp.Or(v.Waiting, m.Waiting)
	}
}

// notLed says that nobody would be elected now.
func (v *brokerGroup) notLed() string {
	if v.driver == zone.CoordinatorConsul {
		return "no node of the group reaches Consul"
	}
	return "no voter says that it leads the coordinator of city " + v.City
}

// judge says how a node stands to its group.
func (v *brokerGroup) judge(row *groupNode, master *admin.Member) {
	row.InSync = slices.Contains(v.InSync, row.Node)
	m := row.member
	if m == nil {
		return
	}
	if m.LogEpoch == v.Epoch {
		v.Known = max(v.Known, m.Committed)
	}
	if row.Problem == "" && m.CoordinatorErr != "" {
		row.Problem = "coordinator: " + m.CoordinatorErr
	}
	switch {
	case m.Diverged:
		row.State = "diverged"
		return
	case m.Role != "replica":
		return
	case row.Problem == "" && !m.Following && m.FollowErr != "":
		row.Problem = m.FollowErr
	}
	if master == nil {
		row.Behind = v.Known - min(v.Known, m.Synced)
		return
	}
	i := slices.IndexFunc(master.Replicas, func(r admin.Replica) bool { return r.Node == row.Node })
	if i < 0 {
		return
	}
	r := master.Replicas[i]
	row.State, row.Behind = r.Phase, r.Behind
	if row.Problem == "" {
		row.Problem = r.Fault
	}
}

// node returns a node of the group, or nil.
func (v *brokerGroup) node(name string) *groupNode {
	i := slices.IndexFunc(v.Nodes, func(n *groupNode) bool { return n.Node == name })
	if i < 0 {
		return nil
	}
	return v.Nodes[i]
}

// master returns the node that serves as the master, or nil.
func (v *brokerGroup) master() *groupNode {
	if !v.Serves {
		return nil
	}
	return v.node(v.Master)
}

// countLag has the master count the records that its replicas do not have yet.
func (f *fleet) countLag(ctx context.Context, v *brokerGroup) {
	master := v.master()
	if master == nil {
		return
	}
	for _, row := range v.Nodes {
		if row == master || row.member == nil {
			continue
		}
		i := slices.IndexFunc(master.member.Replicas, func(r admin.Replica) bool { return r.Node == row.Node })
		if i < 0 {
			continue
		}
		r := master.member.Replicas[i]
		n := 0
		switch {
		case r.Behind == 0 || r.Synced >= master.Committed:
			row.Records = &n
		case r.Synced > 0:
			x, err := f.client.Extent(ctx, master.info.Admin, admin.ExtentQuery{From: r.Synced, To: master.Committed})
			if err == nil { // else the bytes have to do
				row.Records, row.More = &x.Records, x.Partial
			}
		}
	}
}

// brokerGroup asks all nodes and returns one group.
func (f *fleet) brokerGroup(ctx context.Context, name string) (*brokerGroup, error) {
	g := f.topology.FindGroup(zone.Group(name))
	switch {
	case g == nil:
		var names []string
		for _, x := range brokerGroups(f.topology, nil) {
			names = append(names, x.Group)
		}
		return nil, fmt.Errorf("broker group %q is not in the topology; with several nodes it has %s", name, cmp.Or(strings.Join(names, ", "), "none"))
	case len(g.Nodes) < 2:
		return nil, fmt.Errorf("broker group %s has one node by the topology: it has no replicas, and nobody elects its master", name)
	}
	return viewGroup(f.topology, g, f.statuses(ctx)), nil
}
