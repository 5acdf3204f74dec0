package zone

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// CoordinatorDriver is what decides in a city which member of a broker group is its
// master.
type CoordinatorDriver uint8

// The drivers.
const (
	CoordinatorRaft   CoordinatorDriver = iota + 1 // nodes of the city agree among themselves
	CoordinatorConsul                              // a lease in the KV store of the city's Consul
)

// String returns the word of topology files.
func (d CoordinatorDriver) String() string { return say(coordinatorWords, d) }

var coordinatorWords = []word[CoordinatorDriver]{{CoordinatorRaft, "raft"}, {CoordinatorConsul, "consul"}}

// CoordinatorInfo describes the coordinator of a city: who says which member of a
// broker group is its master, in which epoch, and which members are in sync.
type CoordinatorInfo struct {
	Driver CoordinatorDriver
	Voters []*NodeInfo   // in file order, of the city; one, three or five with CoordinatorRaft, else empty
	Nodes  []*NodeInfo   // in file order: nodes that do nothing but coordinate; with CoordinatorRaft only
	Lease  time.Duration // how long a master may act without having been heard
	Prefix string        // where keys begin in the KV store; with CoordinatorConsul only, never empty then
}

// Bounds and default of a master's lease. Below the least, a pause of a process or
// of the network that harms nobody else costs a master; a dead master is replaced
// after the lease and a margin, so that the longest bounds how long a group stands.
const (
	minLease     = 500 * time.Millisecond
	maxLease     = 30 * time.Second
	defaultLease = 1500 * time.Millisecond
	consulLease  = 2 * time.Second // its default with Consul, whose renewals pass its disks
)

// prefixName is what a prefix in Consul's KV obeys.
var prefixName = nameRule{most: 200, extra: "/.", check: func(s string) string {
	if s[0] == '/' || s[len(s)-1] == '/' || strings.Contains(s, "//") {
		return "parts are joined by one slash each, without one at the ends"
	}
	return ""
}}

type draftCoordinator struct {
	info     *CoordinatorInfo
	at       place
	voters   []ref
	votersAt place // zero when the file does not say it
	nodes    []*draftNode
	nodesAt  place // zero when the file does not say it
	prefixAt place // zero when the file does not say it
	leaseAt  place // zero when the file does not say it
}

// readCoordinator reads {driver, voters, nodes, lease, prefix}.
func (d *draft) readCoordinator(v value, c *draftCity) {
	x := &draftCoordinator{info: &CoordinatorInfo{Lease: defaultLease}, at: v.at()}
	c.coordinator = x
	d.object(v, "a coordinator", []field{
		{"driver", true, func(v value) { x.info.Driver = choose(&d.reader, v, "a coordinator's driver", coordinatorWords) }},
		{"voters", false, func(v value) { x.votersAt, x.voters = v.at(), d.refs(v, "voters") }},
		{"nodes", false, func(v value) {
			x.nodesAt = v.at()
			d.list(v, "nodes", func(v value) { x.nodes = append(x.nodes, d.readNode(v, RoleCoordinator)) })
		}},
		{"lease", false, func(v value) {
			x.leaseAt = v.at()
			d.duration(v, "lease", minLease, maxLease, &x.info.Lease)
		}},
		{"prefix", false, func(v value) {
			x.prefixAt = v.at()
			x.info.Prefix = d.name(v, "a coordinator's prefix", prefixName)
		}},
	})
}

// linkCoordinators finds the voters, and fills in what the files leave out.
func (d *draft) linkCoordinators() {
	for _, c := range d.cities {
		x := c.coordinator
		if x == nil {
			continue
		}
		c.info.Coordinator = x.info
		x.info.Voters = each(d, x.voters, "node", d.topo.index.nodes)
		if x.info.Driver == CoordinatorConsul && x.prefixAt.line == 0 {
			x.info.Prefix = "mqrouter/" + d.topo.Deployment + "/" + string(c.info.Name)
		}
		if x.info.Driver == CoordinatorConsul && x.leaseAt.line == 0 {
			x.info.Lease = consulLease
		}
	}
}

// checkCoordinator reports a city whose broker groups could not have a master, and
// voters that could not agree.
func (d *draft) checkCoordinator(c *draftCity) {
	x := c.coordinator
	if x == nil {
		for _, z := range c.zones {
			for _, g := range z.groups {
				if len(g.nodes) > 1 {
					d.add(g.at, fmt.Sprintf("broker group %s has %d nodes, and city %s has no coordinator, which would say who is master",
						orUnnamed(string(g.info.Name)), len(g.nodes), orUnnamed(string(c.info.Name))),
						"add coordinator: {driver: raft, voters: [...]} to the city, with three or five of its brokers or coordinator nodes")
					return // one report a city
				}
			}
		}
		return
	}
	switch x.info.Driver {
	case CoordinatorConsul:
		if x.votersAt.line > 0 {
			d.add(x.votersAt, fmt.Sprintf("the coordinator of city %s is Consul, and names voters", c.info.Name), "Consul's servers agree among themselves; remove voters")
		}
		if x.nodesAt.line > 0 {
			d.add(x.nodesAt, fmt.Sprintf("the coordinator of city %s is Consul, and has nodes", c.info.Name), "nothing runs beside Consul; remove nodes")
		}
	case CoordinatorRaft:
		if x.prefixAt.line > 0 {
			d.add(x.prefixAt, fmt.Sprintf("the coordinator of city %s is raft, and names a prefix", c.info.Name), "only Consul's keys have one; remove prefix")
		}
		d.checkVoters(c, x)
	}
}

func (d *draft) checkVoters(c *draftCity, x *draftCoordinator) {
	if x.votersAt.line == 0 {
		d.add(x.at, fmt.Sprintf("the coordinator of city %s has no voters", c.info.Name), "add voters: three or five of the city's brokers or coordinator nodes")
		return
	}
	if n := len(x.voters); n != 1 && n != 3 && n != 5 {
		d.add(x.votersAt, fmt.Sprintf("the coordinator of city %s has %s", c.info.Name, plural(n, "voter")),
			"use three, of which one may be lost, or five, of which two may; one is for trying things out")
	}
	for _, r := range x.voters {
		n := d.topo.index.nodes[Node(r.name)]
		switch {
		case n == nil:
		case n.City != c.info:
			d.add(r.at, fmt.Sprintf("voter %s of city %s is in city %s", n.Name, c.info.Name, n.City.Name),
				"a city decides by itself, also when it is cut off; name nodes of the city")
		case n.Role != RoleBroker && n.Role != RoleCoordinator:
			d.add(r.at, fmt.Sprintf("voter %s of city %s is a %s", n.Name, c.info.Name, n.Role),
				"routers and caches keep nothing on disk; name brokers, or nodes declared under coordinator: {nodes: [...]}")
		}
	}
	for _, n := range x.nodes {
		if n.info.Name != "" && !slices.ContainsFunc(x.voters, func(r ref) bool { return r.name == string(n.info.Name) }) {
			d.add(n.at, fmt.Sprintf("coordinator node %s is no voter, and so does nothing", n.info.Name), "name it under voters, or remove it")
		}
	}
}

// text returns the coordinator in the words of topology files, in one line.
func (x *CoordinatorInfo) text() string {
	if x == nil {
		return ""
	}
	out := x.Driver.String()
	if x.Driver == CoordinatorConsul {
		out += " under " + x.Prefix
	} else {
		out += " of " + nodeNames(sortedBy(x.Voters, func(n *NodeInfo) Node { return n.Name }))
	}
	return out + ", lease " + FormatDuration(x.Lease)
}

// showCoordinators draws who decides on masters, and the nodes that do only that.
func showCoordinators(b *strings.Builder, t *Topology) {
	rows := [][]string{{"CITY", "COORDINATOR", "LEASE", "VOTERS"}}
	nodes := [][]string{{"CITY", "COORDINATOR NODE", "HOST", "PEER", "GOSSIP", "ADMIN", "ROOM"}}
	for _, c := range t.Cities {
		x := c.Coordinator
		if x == nil {
			continue
		}
		voters := orDash(nodeNames(x.Voters))
		if x.Driver == CoordinatorConsul {
			voters = "Consul's servers, under " + x.Prefix
		}
		rows = append(rows, []string{string(c.Name), x.Driver.String(), FormatDuration(x.Lease), voters})
		for _, n := range x.Nodes {
			row := append([]string{string(c.Name), string(n.Name)}, hostAndPorts(n.Peer, n.Gossip, n.Admin)...)
			nodes = append(nodes, append(row, orDash(string(n.Room))))
		}
	}
	for _, rows := range [][][]string{rows, nodes} {
		if len(rows) > 1 {
			table(b, rows)
		}
	}
}

// coordinators returns the nodes that do nothing but coordinate.
func coordinators(t *Topology) []*NodeInfo {
	var out []*NodeInfo
	for _, c := range t.Cities {
		out = append(out, c.CoordinatorNodes()...)
	}
	return out
}

// CoordinatorNodes returns the city's nodes that do nothing but coordinate, in file
// order; the caller does not change the slice.
func (c *CityInfo) CoordinatorNodes() []*NodeInfo {
	if c.Coordinator == nil {
		return nil
	}
	return c.Coordinator.Nodes
}

// Votes reports whether the node is a voter of its city's coordinator.
func (n *NodeInfo) Votes() bool {
	return n.City.Coordinator != nil && slices.Contains(n.City.Coordinator.Voters, n)
}
