package zone

import (
	"fmt"
	"slices"
)

// maxMembers bounds the nodes of a broker group: with more copies a publish waits
// for the slowest of many, and no more faults are survived that a deployment sees.
const maxMembers = 5

// checkMembers reports a broker group of more nodes than are supported.
func (d *draft) checkMembers(g *draftGroup) {
	if n := len(g.nodes); n > maxMembers {
		d.add(g.nodes[maxMembers].at, fmt.Sprintf("broker group %s has %d nodes", orUnnamed(string(g.info.Name)), n),
			fmt.Sprintf("a group is a master and at most %d replicas; spread the slots over more groups", maxMembers-1))
	}
}

// checkInSync reports a topic that asks for more copies than a group has that stores
// it: where it may be published its publishes would be refused for ever.
func (d *draft) checkInSync(t *draftTopic) {
	info := t.info
	if info.MinInSync <= 1 {
		return
	}
	var least *GroupInfo
	for _, c := range d.topo.Cities {
		if !info.ResidentIn(c) {
			continue
		}
		for _, z := range c.Zones {
			for _, g := range z.Groups {
				if len(g.Nodes) > 0 && len(g.Nodes) < info.MinInSync && (least == nil || len(g.Nodes) < len(least.Nodes)) {
					least = g
				}
			}
		}
	}
	if least != nil {
		d.add(t.minInSyncAt, fmt.Sprintf("topic %s needs %d nodes in sync, and broker group %s, which may store it, has %d",
			info.Name, info.MinInSync, least.Name, len(least.Nodes)),
			fmt.Sprintf("add nodes to the group, lower min_in_sync to %d, or keep the topic out of the group's city by residency", len(least.Nodes)))
	}
}

// promise says what an acknowledgement of the topic's messages means, for tables;
// empty when it is the default.
func (t *TopicInfo) promise() string {
	out := ""
	if t.Durability != DurabilityAllInSync {
		out = t.Durability.String()
	}
	if t.MinInSync > 1 {
		if out != "" {
			out += ", "
		}
		out += fmt.Sprintf("%d in sync", t.MinInSync)
	}
	return out
}

// promiseText says the same in a sentence.
func (t *TopicInfo) promiseText() string {
	out := ""
	switch t.Durability {
	case DurabilityBuffered:
		out = "buffered: when the message is handed to the operating system of the group's master"
	case DurabilityMaster:
		out = "master: when the message is on the disk of the group's master"
	case DurabilityQuorum:
		out = "quorum: when the message is on the disks of most nodes of the group that are in sync"
	default:
		out = "all-in-sync: when the message is on the disks of all nodes of the group that are in sync"
	}
	if t.MinInSync > 1 {
		out += fmt.Sprintf("; refused while fewer than %d are", t.MinInSync)
	}
	return out
}

// members says how many nodes a group has, when there are several.
func members(g *GroupInfo) string {
	if len(g.Nodes) < 2 {
		return ""
	}
	return fmt.Sprintf(" (%d nodes)", len(g.Nodes))
}

// Member returns the group's member of that name, or nil.
func (g *GroupInfo) Member(name Node) *NodeInfo {
	for _, n := range g.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// Advice lists what is allowed in a topology and yet not wise, a sentence each:
// copies and voters that one fault would take together.
func Advice(t *Topology) []string {
	var list []string
	for _, g := range groups(t) {
		if room := sharedRoom(g.Nodes); len(g.Nodes) > 1 && room != "" {
			list = append(list, fmt.Sprintf("all nodes of broker group %s are in room %s, whose loss would be the group's", g.Name, room))
		}
		if len(g.Nodes) == 2 {
			for _, topic := range t.Topics {
				if topic.MinInSync == 2 && topic.ResidentIn(g.Zone.City) {
					list = append(list, fmt.Sprintf("broker group %s has two nodes, and topic %s needs both in sync: the loss of either refuses its publishes", g.Name, topic.Name))
					break
				}
			}
		}
	}
	for _, c := range t.Cities {
		x := c.Coordinator
		switch {
		case x == nil || x.Driver != CoordinatorRaft:
		case len(x.Voters) == 1:
			list = append(list, fmt.Sprintf("the coordinator of city %s has one voter: while %s is down no broker group of the city can change its master", c.Name, x.Voters[0].Name))
		default:
			if room, n := mostInOneRoom(x.Voters); room != "" && n > len(x.Voters)/2 {
				list = append(list, fmt.Sprintf("%d of the %d voters of city %s are in room %s: with it the city loses its coordinator", n, len(x.Voters), c.Name, room))
			}
		}
	}
	return list
}

// sharedRoom returns the room in which all nodes are, or "".
func sharedRoom(nodes []*NodeInfo) Room {
	if room, n := mostInOneRoom(nodes); n == len(nodes) {
		return room
	}
	return ""
}

// mostInOneRoom returns the room that has the most of the nodes; nodes whose room is
// not known count nowhere.
func mostInOneRoom(nodes []*NodeInfo) (room Room, most int) {
	for _, n := range nodes {
		in := 0
		for _, o := range nodes {
			if o.Room == n.Room && n.Room != "" {
				in++
			}
		}
		if in > most {
			room, most = n.Room, in
		}
	}
	return room, most
}

// memberMoves lists what a change of broker groups' members and of voters would
// break, a sentence each. Both change while the deployment runs, a step at a time:
// those that leave must not be the ones that know.
func memberMoves(old, next *Topology) []string {
	var list []string
	for _, g := range groups(old) {
		n := next.FindGroup(g.Name)
		if n == nil || len(g.Nodes) < 2 {
			continue
		}
		gone := 0
		for _, m := range g.Nodes {
			if n.Member(m.Name) == nil {
				gone++
			}
		}
		if gone > 1 {
			list = append(list, fmt.Sprintf("broker group %s loses %d of its %d nodes at once; take one away at a time, when the others are in sync", g.Name, gone, len(g.Nodes)))
		}
	}
	for _, c := range old.Cities {
		if n := next.FindCity(c.Name); n != nil && c.replicates() && n.replicates() {
			list = append(list, coordinatorMoves(c, n.Coordinator)...)
		}
	}
	return list
}

// replicates reports whether a broker group of the city has several nodes.
func (c *CityInfo) replicates() bool {
	return slices.ContainsFunc(c.Zones, (*ZoneInfo).replicates)
}

// replicates reports whether a broker group of the zone has several nodes.
func (z *ZoneInfo) replicates() bool {
	return slices.ContainsFunc(z.Groups, func(g *GroupInfo) bool { return len(g.Nodes) > 1 })
}

// coordinatorMoves says why the coordinator of a city that has replicas cannot become
// next. Both have a coordinator, since both replicate.
func coordinatorMoves(c *CityInfo, next *CoordinatorInfo) []string {
	old := c.Coordinator
	switch {
	case old.Driver != next.Driver:
		return []string{fmt.Sprintf("city %s changes its coordinator from %s to %s while broker groups have several nodes", c.Name, old.Driver, next.Driver)}
	case old.Prefix != next.Prefix:
		return []string{fmt.Sprintf("the coordinator of city %s changes its prefix from %s to %s, where no master is known", c.Name, old.Prefix, next.Prefix)}
	}
	stay := 0
	for _, v := range old.Voters {
		if slices.ContainsFunc(next.Voters, func(n *NodeInfo) bool { return n.Name == v.Name }) {
			stay++
		}
	}
	if len(old.Voters) > 0 && 2*stay <= len(old.Voters) {
		return []string{fmt.Sprintf("city %s keeps %d of its %d voters; most of them stay in one change", c.Name, stay, len(old.Voters))}
	}
	return nil
}
