package sim

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/mqrouter/mqrouter/zone"
)

// plan is the deployment of a world: which cities, zones and topics there are.
type plan struct {
	cities []cityPlan
	epoch  int
	topics []string // declarations of topics beside the usual ones
	groups []string // likewise of consumer groups
}

type cityPlan struct {
	name  string
	zones []zonePlan // RZones; each city has a CZone and two routers besides
	cache bool
	via   string // the city from whose landings it is served
	body  string // max_body of the city and its zones; empty: the default
}

type zonePlan struct {
	name   string
	groups int
	shards string
}

// threeCities has several zones and groups: two zones in the first city, the
// first of which has two groups.
func threeCities() plan {
	return plan{epoch: 1, cities: []cityPlan{
		{name: "east", cache: true, zones: []zonePlan{{"rz1", 2, "0-29"}, {"rz2", 1, "30-49"}}},
		{name: "west", cache: true, zones: []zonePlan{{"rz3", 1, "50-74"}}},
		{name: "north", cache: true, zones: []zonePlan{{"rz4", 1, "75-99"}}},
	}}
}

// Ports of every node; each has an address of its own.
const (
	portClient = 8081
	portPeer   = 9001
	portQUIC   = 7001
	portGossip = 6001
	portWAN    = 6101
	portAdmin  = 5101 // of cache readers, on their loopback; the next one in each city
)

// text writes the topology file of an epoch.
func (p *plan) text(epoch int) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "deployment: sim\nepoch: {term: 1, number: %d}\nunknown_groups: refuse\n", epoch)
	var owners []string
	for _, c := range p.cities {
		for _, z := range c.zones {
			if z.shards != "" {
				owners = append(owners, fmt.Sprintf("%s: %q", z.name, z.shards))
			}
		}
	}
	fmt.Fprintf(&b, "shards: {count: 100, by: last-digits, owners: {%s}}\ncities:\n", strings.Join(owners, ", "))
	var rz, all []string
	for i, c := range p.cities {
		p.city(&b, i, &c)
		for _, z := range c.zones {
			rz = append(rz, z.name)
		}
		all = append(all, "cz-"+c.name)
	}
	all = append(all, rz...)
	b.WriteString("topics:\n")
	for _, t := range append([]string{
		"{name: transfer, queues: 1, budget: 64MiB, route: {shard: {property: user}}}",
		"{name: orders, queues: 2, budget: 64MiB, route: {explicit: {property: to}}}",
		"{name: notes, queues: 2, route: local}",
		"{name: member, budget: 64MiB, class: urgent, route: {broadcast: city}}",
	}, p.topics...) {
		fmt.Fprintf(&b, "  - %s\n", t)
	}
	retry := "max_attempts: 1000, retry: {steps: [1s]}"
	b.WriteString("consumer_groups:\n")
	for _, g := range append([]string{
		fmt.Sprintf("{name: transfer-credit, topics: [transfer], zones: [%s], %s}", strings.Join(rz, ", "), retry),
		fmt.Sprintf("{name: orders-pack, topics: [orders], zones: [%s], %s}", strings.Join(all, ", "), retry),
		fmt.Sprintf("{name: notes-read, topics: [notes], zones: [%s], %s}", strings.Join(all, ", "), retry),
		fmt.Sprintf("{name: member-watch, topics: [member], %s}", retry),
		"{name: member-cache, topics: [member], cache: true}",
	}, p.groups...) {
		fmt.Fprintf(&b, "  - %s\n", g)
	}
	return []byte(b.String())
}

// city writes a city; its nodes have the addresses 10.<city>.0.<n>.
func (p *plan) city(b *strings.Builder, i int, c *cityPlan) {
	n := 0
	next := func() string { n++; return fmt.Sprintf("10.%d.0.%d", i+1, n) }
	fmt.Fprintf(b, "  - name: %s\n", c.name)
	if c.via != "" {
		fmt.Fprintf(b, "    broadcasts_via: %s\n", c.via)
	}
	if c.body != "" {
		fmt.Fprintf(b, "    max_body: %s\n", c.body)
	}
	b.WriteString("    routers:\n")
	for r := range 2 {
		ip := next()
		fmt.Fprintf(b, "      - {name: rt-%s-%d, quic: \"%s:%d\", peer: \"%s:%d\", gossip: \"%s:%d\", wan: \"%s:%d\"}\n",
			c.name, r+1, ip, portQUIC, ip, portPeer, ip, portGossip, ip, portWAN)
	}
	if c.cache {
		fmt.Fprintf(b, "    caches:\n      - {name: cache-%s, admin: \"127.0.0.1:%d\"}\n", c.name, portAdmin+i)
	}
	b.WriteString("    zones:\n")
	for _, z := range append(c.zones, zonePlan{name: "cz-" + c.name, groups: 1}) {
		kind := "RZone, standby: none"
		if strings.HasPrefix(z.name, "cz-") {
			kind = "CZone"
		}
		fmt.Fprintf(b, "      - {name: %s, kind: %s, groups: [", z.name, kind)
		for g := range z.groups {
			slots := fmt.Sprintf("slots: %d-%d, ", g*zone.Slots/z.groups, (g+1)*zone.Slots/z.groups-1)
			ip := next()
			fmt.Fprintf(b, "{name: %s-%c, %snodes: [{name: %s-%c-1, client: \"%s:%d\", peer: \"%s:%d\", gossip: \"%s:%d\"}]}, ",
				z.name, 'a'+g, slots, z.name, 'a'+g, ip, portClient, ip, portPeer, ip, portGossip)
		}
		b.WriteString("]}\n")
	}
}

// addrOf returns the address of a node; cache readers have no port of their own.
func addrOf(t *zone.Topology, n *zone.NodeInfo) netip.Addr {
	for _, a := range []string{n.Peer, n.Client, n.QUIC} {
		if ap, err := netip.ParseAddrPort(a); err == nil {
			return ap.Addr()
		}
	}
	return cityAddr(t, n.City.Name, 1, 1)
}

// cityAddr returns an address in a city that no node of the topology has.
func cityAddr(t *zone.Topology, city zone.City, third, last byte) netip.Addr {
	for i, c := range t.Cities {
		if c.Name == city {
			return netip.AddrFrom4([4]byte{10, byte(i + 1), third, last})
		}
	}
	return netip.Addr{}
}
