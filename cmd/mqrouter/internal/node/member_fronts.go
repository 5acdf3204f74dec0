package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/internal/gossip"
	"github.com/mqrouter/mqrouter/replication/ship"
	"github.com/mqrouter/mqrouter/zone"
)

// fronts returns which nodes of a group serve clients now, the master first: what the
// routes name that this node gives as a master.
func (l *life) fronts(g *zone.GroupInfo) []*zone.NodeInfo {
	s := sight{order: l.m.masters.Order(g), members: l.m.city.Members(), self: l.self.Name}
	s.master, s.epoch = l.m.masters.Master(g)
	if g.Name == l.self.Group.Name { // what this node knows of its own group is newer than gossip
		t := l.m.known()
		s.master, s.epoch = t.Master, max(s.epoch, t.Epoch)
		l.mu.Lock()
		leader := l.leader
		l.mu.Unlock()
		if leader != nil {
			st := leader.Status()
			s.shipping = &st
		}
	}
	return s.fronts(g)
}

// fronts is the same for a broker that is its group's only node.
func (n *brokerNode) fronts(g *zone.GroupInfo) []*zone.NodeInfo {
	s := sight{order: n.masters.Order(g), members: n.city.Members(), self: n.self.Name}
	s.master, s.epoch = n.masters.Master(g)
	return s.fronts(g)
}

// awayEvery is how often a master looks who does not follow it.
const awayEvery = 250 * time.Millisecond

// tellAway has gossip tell, as long as this node serves, which members do not follow it:
// the routes of other groups' nodes are to name them no more.
func (l *life) tellAway(ctx context.Context) error {
	tick := time.NewTicker(awayEvery)
	defer tick.Stop()
	for {
		l.mu.Lock()
		leader := l.leader
		l.mu.Unlock()
		if leader != nil { // else the reign has just ended, and this with it
			away := strings.Join(absent(leader.Status()), ",")
			err := l.m.city.SetMeta(func(x *gossip.Meta) {
				if x.Leads {
					x.Away = away
				}
			})
			if err != nil && !errors.Is(err, gossip.ErrClosed) {
				l.log.Warn("gossip does not tell who does not follow", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// absent names the replicas that neither follow nor are waited for after an election.
func absent(s ship.LeaderStatus) []string {
	var all []string
	for _, r := range s.Replicas {
		if r.Phase == ship.PhaseAbsent && (r.Fault != ship.FaultNone || !slices.Contains(s.Term.InSync, r.Node)) {
			all = append(all, string(r.Node))
		}
	}
	return all
}

// sight is what a broker sees of a broker group.
type sight struct {
	order    []*zone.NodeInfo   // its members, as they are to be tried
	members  []gossip.Member    // living members of the city's pool
	self     zone.Node          // who looks
	master   zone.Node          // as far as it is known; empty = nobody
	epoch    uint64             // that master leads
	shipping *ship.LeaderStatus // nil unless it is the own group
}

// fronts returns the nodes that serve clients. Gossip notices a death within seconds
// only. Two things tell at once. A member that claims to lead an epoch older than the
// one in force is dead or cut off, or will take the claim back in a moment. And the
// master of a group knows who follows it, or came to its election and may yet: no other
// node can pass clients on to it. It tells that by gossip to the nodes of other groups.
func (s sight) fronts(g *zone.GroupInfo) []*zone.NodeInfo {
	living := map[zone.Node]bool{}
	for _, x := range s.members {
		living[x.Name] = !x.Leads || x.Group != g.Name || x.Name == s.master || x.Term >= s.epoch
	}
	var away []string
	for _, x := range s.members {
		if x.Name == s.master && x.Leads && x.Group == g.Name && x.Term >= s.epoch && x.Away != "" {
			away = strings.Split(x.Away, ",")
		}
	}
	if s.shipping != nil {
		away = absent(*s.shipping)
	}
	for _, n := range away {
		delete(living, zone.Node(n))
	}
	living[s.self] = true
	list := make([]*zone.NodeInfo, 0, len(s.order))
	if m := g.Member(s.master); m != nil && living[m.Name] {
		list = append(list, m)
	}
	for _, n := range s.order {
		if n.Name != s.master && living[n.Name] {
			list = append(list, n)
		}
	}
	return list
}
