package node

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/coordinator/raft"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
)

// voterFolder is the folder of a voter's store in a node's data folder.
const voterFolder = "coordinator"

// city is what a node has to know of its city's coordinator, by the topology in force.
type city struct {
	*base
	topology func() *zone.Topology
}

func (c city) info() *zone.CityInfo { return c.topology().FindCity(c.self.City.Name) }

// voters names the voters of the city.
func (c city) voters() []zone.Node {
	info := c.info()
	if info == nil || info.Coordinator == nil {
		return nil
	}
	var all []zone.Node
	for _, n := range info.Coordinator.Voters {
		all = append(all, n.Name)
	}
	return all
}

// groups names the city's broker groups that have several nodes.
func (c city) groups() []zone.Group {
	info := c.info()
	if info == nil {
		return nil
	}
	var all []zone.Group
	for _, z := range info.Zones {
		for _, g := range z.Groups {
			if len(g.Nodes) > 1 {
				all = append(all, g.Name)
			}
		}
	}
	return all
}

// group says what the coordinator has to know of a broker group.
func (c city) group(name zone.Group) (coordinator.Group, bool) {
	info := c.info()
	if info == nil {
		return coordinator.Group{}, false
	}
	for _, z := range info.Zones {
		for _, g := range z.Groups {
			if g.Name != name || len(g.Nodes) < 2 {
				continue
			}
			out := coordinator.Group{Name: name}
			for _, n := range g.Nodes {
				out.Members = append(out.Members, n.Name)
			}
			return out, true
		}
	}
	return coordinator.Group{}, false
}

// alone returns the node of a broker group of the city that has one.
func (c city) alone(name zone.Group) (zone.Node, bool) {
	info := c.info()
	if info == nil {
		return "", false
	}
	for _, z := range info.Zones {
		for _, g := range z.Groups {
			if g.Name == name && len(g.Nodes) == 1 {
				return g.Nodes[0].Name, true
			}
		}
	}
	return "", false
}

// majority says whether some topic is acknowledged when a majority has it.
func majority(t *zone.Topology) bool {
	return slices.ContainsFunc(t.Topics, func(t *zone.TopicInfo) bool { return t.Durability == zone.DurabilityQuorum })
}

// dial connects to a node of the city for a protocol of the coordinator.
func (c city) dial(ctx context.Context, to zone.Node, protocol string) (net.Conn, error) {
	t := c.topology()
	n := t.FindNode(to)
	if n == nil || n.City.Name != c.self.City.Name {
		return nil, fmt.Errorf("node %s is not in this city", to)
	}
	secured := c.inCity(c.topology, zone.RoleBroker, zone.RoleCoordinator)
	return peer.DialOther(ctx, secured, n.Peer, peer.IdentityFor(t.Deployment, n), protocol, c.net.Dial)
}

// timing returns the times of the city's coordinator: a lease of the topology's
// length, and the rest in the proportions of the default.
func (c city) timing() coordinator.Timing {
	info := c.info()
	if info == nil || info.Coordinator == nil {
		return coordinator.Timing{}.WithDefaults()
	}
	return scaled(coordinator.Timing{}, info.Coordinator.Lease)
}

// startVoter makes this node a voter of its city; the peer listener gives it its
// connections (see voterProtocols).
func (c city) startVoter(ctx context.Context) (*raft.Voter, error) {
	v, err := raft.NewVoter(raft.Options{
		Self: c.self.Name, Dir: filepath.Join(c.cfg.DataDir, voterFolder), Voters: c.voters, Dial: c.dial,
		Group: c.group, Groups: c.groups, Alone: c.alone, Timing: c.timing(), Logger: c.log, Meter: c.meter(),
	})
	if err != nil {
		return nil, err
	}
	c.run(ctx, "coordinator", v.Run)
	return v, nil
}

// voterProtocols are those that a voter shares its peer address for. Who connects was
// verified by TLS; that it is of this city and has one of the roles, by the
// listener's own authorization.
func (c city) voterProtocols(v *raft.Voter) map[string]func(net.Conn) {
	out := map[string]func(net.Conn){}
	for _, protocol := range []string{raft.ALPNCoordinator, raft.ALPNRaft} {
		out[protocol] = func(nc net.Conn) {
			id, err := peer.IdentityOn(nc)
			if err != nil { // the listener has verified that there is one
				_ = nc.Close()
				return
			}
			v.Accept(nc, protocol, id)
		}
	}
	return out
}

// voterStatus puts a voter's state into the node's status.
func voterStatus(s *admin.Status, v *raft.Voter) {
	st := v.Status()
	c := &admin.Coordinator{State: st.State, Since: st.Since, Leader: string(st.Leader), Leadership: st.Leadership, Applied: st.Applied, Servers: st.Servers, Problem: st.Problem}
	for _, g := range st.Groups {
		row := admin.CoordinatedGroup{Group: string(g.Term.Group), Epoch: g.Term.Epoch, Master: string(g.Term.Master), Leased: g.Leased, Waiting: g.Waiting, Known: uint64(g.Known)}
		for _, n := range g.Term.InSync {
			row.InSync = append(row.InSync, string(n))
		}
		for _, n := range g.Term.Proposed {
			row.Proposed = append(row.Proposed, string(n))
		}
		if l := g.Term.Lost; l != nil {
			row.Lost = lossOf(l)
		}
		c.Groups = append(c.Groups, row)
		if g.Term.Master == "" && g.Waiting != "" {
			s.Reasons = append(s.Reasons, fmt.Sprintf("broker group %s has no master: %s", g.Term.Group, g.Waiting))
		}
	}
	if st.Problem != "" {
		s.Reasons = append(s.Reasons, "coordinator: "+st.Problem)
	}
	s.Coordinator = c
}
