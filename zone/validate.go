package zone

import (
	"fmt"
	"strings"
)

// validate reports what is wrong with the values of a draft that was read and
// linked. Each rule stands in a function of its own, so that a fault of one
// kind hides none of another.
func (d *draft) validate() {
	for _, c := range d.cities {
		d.checkCity(c)
		d.checkCoordinator(c)
	}
	d.checkGZones()
	for _, z := range d.zones {
		d.checkSlots(z)
		d.checkStandby(z)
	}
	d.checkShards()
	d.checkAddresses()
	d.checkGossipSize()
	for _, t := range d.topics {
		d.checkTopic(t)
	}
	d.checkChannels()
	for _, g := range d.consumers {
		d.checkConsumers(g)
	}
}

func (d *draft) checkCity(c *draftCity) {
	name := orUnnamed(string(c.info.Name))
	if len(d.cities) > 1 && len(c.routers) == 0 {
		d.add(c.at, fmt.Sprintf("city %s has no router, so no record can enter or leave it", name),
			"declare at least one under routers; two survive the loss of one")
	}
	var czones []*draftZone
	kindless := false
	for _, z := range c.zones {
		kindless = kindless || z.info.Kind == 0
		if z.info.Kind == CZone {
			czones = append(czones, z)
		}
		if len(z.groups) == 0 {
			d.add(z.at, fmt.Sprintf("zone %s has no broker group", orUnnamed(string(z.info.Name))), "declare at least one under groups")
		}
		for _, g := range z.groups {
			if len(g.nodes) == 0 {
				d.add(g.at, fmt.Sprintf("broker group %s has no node", orUnnamed(string(g.info.Name))), "declare at least one under nodes")
			}
			d.checkMembers(g)
		}
		if z.maxBodyAt.line > 0 && z.info.MaxBody > c.info.MaxBody {
			d.add(z.maxBodyAt, fmt.Sprintf("zone %s stores bodies of %s, and the routers of %s pass on at most %s",
				z.info.Name, formatSize(int64(z.info.MaxBody)), name, formatSize(int64(c.info.MaxBody))),
				"lower the zone's max_body or raise the city's")
		}
	}
	if len(czones) == 0 && !kindless {
		d.add(c.at, fmt.Sprintf("city %s has no CZone", name),
			"every city has one zone of kind CZone for the data that the city shares; add it under zones")
	}
	for _, z := range czones[min(1, len(czones)):] {
		d.add(z.at, fmt.Sprintf("zone %s is a second CZone of city %s, beside %s", z.info.Name, name, czones[0].info.Name),
			"a city has one; change the kind of the others")
	}
}

func orUnnamed(s string) string {
	if s == "" {
		return "without a name"
	}
	return clip(s)
}

func (d *draft) checkGZones() {
	var active, all []*draftZone
	for _, z := range d.zones {
		if z.info.Kind != GZone {
			if z.activeAt.line > 0 && z.info.Kind != 0 {
				d.add(z.activeAt, fmt.Sprintf("zone %s is of kind %s and says active", z.info.Name, z.info.Kind),
					"only a GZone is active or not; remove the key")
			}
			continue
		}
		all = append(all, z)
		if z.info.Active {
			active = append(active, z)
		}
	}
	if len(all) > 0 && len(active) == 0 {
		d.add(all[0].activeAt.or(all[0].at), "no GZone is active", "set active: true at exactly one of the GZones: "+zoneNames(all))
	}
	for _, z := range active[min(1, len(active)):] {
		d.add(z.activeAt.or(z.at), fmt.Sprintf("zone %s is a second active GZone, beside %s at line %d",
			z.info.Name, active[0].info.Name, active[0].at.line),
			"one GZone is active in the deployment; set active: false at the others")
	}
}

func zoneNames(zones []*draftZone) string {
	names := make([]string, len(zones))
	for i, z := range zones {
		names[i] = string(z.info.Name)
	}
	return listed(names, 8)
}

// checkSlots reports slots of a zone that no group owns, or two own.
func (d *draft) checkSlots(z *draftZone) {
	if len(z.groups) == 0 {
		return
	}
	var owner [Slots]*draftGroup
	declared, garbled := false, false
	for _, g := range z.groups {
		declared, garbled = declared || g.slotsAt.line > 0, garbled || g.garbled
		if g.slotsAt.line == 0 && len(z.groups) > 1 {
			d.add(g.at, fmt.Sprintf("broker group %s does not say its slots, and zone %s has %d groups",
				g.info.Name, z.info.Name, len(z.groups)), "divide 0-1023 among the groups, such as slots: "+share(z, g))
			return
		}
	}
	if !declared {
		return
	}
	for _, g := range z.groups {
		for _, s := range g.slots {
			var twice []uint32
			other := (*draftGroup)(nil)
			for i := s.lo; i <= s.hi; i++ {
				if owner[i] != nil {
					twice, other = append(twice, i), owner[i]
					continue
				}
				owner[i] = g
			}
			if other != nil {
				d.add(s.at, fmt.Sprintf("slots %s of zone %s are owned by %s and by %s", rangesText(twice), z.info.Name,
					other.info.Name, g.info.Name), "each slot has one owner; remove them from one of the groups")
			}
		}
	}
	var missing []uint32
	for i := range owner {
		if owner[i] == nil {
			missing = append(missing, uint32(i))
		}
	}
	if len(missing) > 0 && !garbled {
		d.add(z.groups[0].slotsAt, fmt.Sprintf("slots %s of zone %s are owned by no group", rangesText(missing), z.info.Name),
			"the groups of a zone together own 0-1023; give them to one of "+groupNames(z))
	}
}

// share proposes the slots of one group when all divide them evenly.
func share(z *draftZone, g *draftGroup) string {
	for i, o := range z.groups {
		if o == g {
			n := len(z.groups)
			return fmt.Sprintf("%d-%d", i*Slots/n, max((i+1)*Slots/n-1, i*Slots/n))
		}
	}
	return "0-1023"
}

func groupNames(z *draftZone) string {
	names := make([]string, len(z.groups))
	for i, g := range z.groups {
		names[i] = string(g.info.Name)
	}
	return listed(names, 8)
}

// rangesText writes rising numbers as ranges: 0-9, 12, 40-49.
func rangesText(numbers []uint32) string {
	const show = 8
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, fmt.Sprint(numbers[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", numbers[i], numbers[j]))
		}
		i = j + 1
	}
	return listed(parts, show)
}

// checkStandby holds a zone's standbys to their places: the in-city one in the
// same city, the remote one in another, both of the zone's kind.
func (d *draft) checkStandby(z *draftZone) {
	d.checkStandbyZone(z, z.info.InCityStandby, z.standby.inCity, "standby.in_city", true)
	d.checkStandbyZone(z, z.info.RemoteStandby, z.standby.remote, "standby.remote", false)
	needed := z.info.Kind == RZone && z.info.Shards > 0 || z.info.Kind == GZone && z.info.Active
	if !needed || z.standby.remote.name != "" {
		return
	}
	var fit []string
	for _, o := range d.zones {
		if o.city != z.city && o.info.Kind == z.info.Kind && o.info.Name != "" {
			fit = append(fit, string(o.info.Name))
		}
	}
	if len(fit) > 0 {
		d.add(z.at, fmt.Sprintf("zone %s has no remote standby, so the loss of city %s would stop it", z.info.Name, z.city.info.Name),
			"add standby: {remote: ZONE} with one of "+listed(fit, 8)+", or remote: none to do without")
	}
}

func (d *draft) checkStandbyZone(z *draftZone, s *ZoneInfo, r ref, key string, sameCity bool) {
	switch {
	case s == nil:
	case s == z.info:
		d.add(r.at, fmt.Sprintf("zone %s is its own standby", z.info.Name), "name another zone, or none")
	case sameCity && s.City != z.info.City:
		d.add(r.at, fmt.Sprintf("%s of zone %s is %s, which is in city %s", key, z.info.Name, s.Name, s.City.Name),
			fmt.Sprintf("name a zone of city %s, or move it to standby.remote", z.info.City.Name))
	case !sameCity && s.City == z.info.City:
		d.add(r.at, fmt.Sprintf("%s of zone %s is %s, which is in the same city %s", key, z.info.Name, s.Name, s.City.Name),
			"name a zone of another city, or move it to standby.in_city")
	case s.Kind != z.info.Kind && s.Kind != 0 && z.info.Kind != 0:
		d.add(r.at, fmt.Sprintf("%s of zone %s (%s) is %s, which is a %s", key, z.info.Name, z.info.Kind, s.Name, s.Kind),
			"a standby takes over the work and so is of the same kind")
	}
}

// checkShards reports shards that no zone owns, or two own.
func (d *draft) checkShards() {
	t := d.topo
	if !d.shards.declared {
		return
	}
	claimed := make([]string, t.ShardCount)
	for _, o := range d.shards.owners {
		z := t.index.zones[Zone(o.zone.name)]
		if z == nil {
			unknown(d, o.zone, "zone", t.index.zones)
		} else if z.Kind != RZone && z.Kind != 0 {
			d.add(o.zone.at, fmt.Sprintf("zone %s owns shards and is of kind %s", z.Name, z.Kind), "shards of users belong to an RZone")
		}
		for _, s := range o.spans {
			if d.omitted > 0 { // enough is wrong; more would take long and help nobody
				return
			}
			d.claimShards(claimed, o, s)
		}
	}
	var missing []uint32
	for i, name := range claimed {
		if name == "" {
			missing = append(missing, uint32(i))
		}
	}
	if len(missing) > 0 && d.shards.ownersAt.line > 0 && !d.shards.garbled {
		d.add(d.shards.ownersAt, fmt.Sprintf("shards %s are owned by no zone", rangesText(missing)),
			fmt.Sprintf("each of the %d shards has one owner; give them to an RZone", t.ShardCount))
	}
}

// claimShards marks a span as the owner's and reports those that have one.
func (d *draft) claimShards(claimed []string, o draftOwner, s span) {
	var twice []uint32
	other := ""
	for i := s.lo; i <= s.hi && i < uint32(len(claimed)); i++ {
		if claimed[i] == "" {
			claimed[i] = o.zone.name
			continue
		}
		if other == "" {
			other = claimed[i]
		}
		if claimed[i] == other {
			twice = append(twice, i)
		}
	}
	if other != "" {
		d.add(s.at, fmt.Sprintf("shards %s are owned by %s and by %s", rangesText(twice), clip(other), clip(o.zone.name)),
			"each shard has one owner; remove them from one of the zones")
	}
}

// checkAddresses reports an address that stands at two places. UDP and TCP
// have ports of their own: QUIC speaks UDP, gossip both, the rest TCP.
func (d *draft) checkAddresses() {
	type user struct {
		node *draftNode
		addr draftAddr
	}
	taken := map[string]user{}
	d.eachNode(func(n *draftNode) {
		for _, a := range n.addrs {
			for _, net := range networksOf(a.key) {
				key := net + " " + a.value
				if u, ok := taken[key]; ok {
					d.add(a.at, fmt.Sprintf("address %s is %s of node %s, and already %s of node %s at line %d", a.value, a.key,
						n.info.Name, u.addr.key, u.node.info.Name, u.addr.at.line), "give each its own port or host")
					break
				}
				taken[key] = user{n, a}
			}
		}
	})
}

func networksOf(key string) []string {
	switch key {
	case "quic":
		return []string{"udp"}
	case "gossip", "wan":
		return []string{"udp", "tcp"}
	}
	return []string{"tcp"}
}

func (d *draft) eachNode(visit func(*draftNode)) {
	for _, c := range d.cities {
		for _, n := range c.routers {
			visit(n)
		}
		for _, n := range c.caches {
			visit(n)
		}
		if c.coordinator != nil {
			for _, n := range c.coordinator.nodes {
				visit(n)
			}
		}
		for _, z := range c.zones {
			for _, g := range z.groups {
				for _, n := range g.nodes {
					visit(n)
				}
			}
		}
	}
}

// Gossip metadata holds 512 bytes (memberlist's limit). Beside names and
// addresses it carries versions, epoch, digest and flags, for which
// gossipFixed is set aside.
const (
	gossipMeta  = 512
	gossipFixed = 128
)

// checkGossipSize reports a node whose names and addresses do not fit into its
// gossip metadata.
func (d *draft) checkGossipSize() {
	d.eachNode(func(n *draftNode) {
		size := len(n.info.City.Name)
		if n.info.Zone != nil {
			size += len(n.info.Zone.Name) + len(n.info.Group.Name)
		}
		for _, a := range n.addrs {
			size += len(a.value)
		}
		if size > gossipMeta-gossipFixed {
			d.add(n.at, fmt.Sprintf("the names and addresses of node %s have %d bytes", n.info.Name, size),
				fmt.Sprintf("they travel in gossip metadata, which holds %d of them; use shorter host names", gossipMeta-gossipFixed))
		}
	})
}

// cityNames lists the names of cities.
func cityNames(cities []*CityInfo) string {
	names := make([]string, len(cities))
	for i, c := range cities {
		names[i] = string(c.Name)
	}
	return strings.Join(names, ", ")
}
