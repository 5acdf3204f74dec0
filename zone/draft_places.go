package zone

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// readTopology reads the root of the file.
func (d *draft) readTopology(v value) {
	t := d.topo
	d.epochAt, d.deploymentAt = v.at(), v.at()
	d.object(v, "the topology", []field{
		{"deployment", true, func(v value) {
			d.deploymentAt = v.at()
			t.Deployment = d.name(v, "the deployment's name", placeName)
		}},
		{"epoch", true, d.readEpoch},
		{"unknown_groups", false, func(v value) {
			t.UnknownGroupsNewest = choose(&d.reader, v, "unknown_groups", unknownGroupWords)
		}},
		{"shards", false, d.readShards},
		{"cities", true, func(v value) {
			d.list(v, "cities", d.readCity)
			if len(v.node.Content) == 0 {
				d.add(v.at(), "cities is empty", "a deployment has at least one city")
			}
		}},
		{"topics", false, func(v value) { d.list(v, "topics", d.readTopic) }},
		{"consumer_groups", false, func(v value) { d.list(v, "consumer_groups", d.readConsumers) }},
	})
}

var unknownGroupWords = []word[bool]{{false, "refuse"}, {true, "newest"}}

// readEpoch reads {term: 1, number: 7} or "1.7".
func (d *draft) readEpoch(v value) {
	d.epochAt = v.at()
	e := &d.topo.Epoch
	const most = 1<<63 - 1
	if s := v.node.Value; s != "" {
		var err error
		if *e, err = ParseEpoch(s); err != nil {
			d.add(v.at(), "epoch is "+v.describe(), "write it as {term: 1, number: 1}; both count from 1 and every change of the file raises it")
		}
		return
	}
	d.object(v, "epoch", []field{
		{"term", true, func(v value) { integer(&d.reader, v, "the epoch's term", 1, most, &e.Term) }},
		{"number", true, func(v value) { integer(&d.reader, v, "the epoch's number", 1, most, &e.Number) }},
	})
}

// ParseEpoch reads the form that Epoch.String writes, such as "1.7". Term and
// number are at least 1.
func ParseEpoch(s string) (Epoch, error) {
	term, number, ok := strings.Cut(s, ".")
	t, err1 := strconv.ParseUint(term, 10, 63)
	n, err2 := strconv.ParseUint(number, 10, 63)
	if !ok || err1 != nil || err2 != nil || t == 0 || n == 0 {
		return Epoch{}, fmt.Errorf("zone: epoch %q is not of the form term.number", clip(s))
	}
	return Epoch{Term: t, Number: n}, nil
}

func (d *draft) readShards(v value) {
	t := d.topo
	d.shards.declared, d.shards.at = true, v.at()
	var owners value
	d.object(v, "shards", []field{
		{"count", true, func(v value) {
			d.shards.at = v.at()
			integer(&d.reader, v, "the number of shards", 1, maxShards, &t.ShardCount)
		}},
		{"by", true, func(v value) { t.ShardBy = choose(&d.reader, v, "shards.by", shardByWords) }},
		{"owners", true, func(v value) { owners = v }},
	})
	if owners.node == nil {
		return
	}
	d.shards.ownersAt = owners.at()
	d.eachPair(owners, "shards.owners", "zone names with ranges of shards, such as rz01: 0-19", func(key, val value) {
		limit := t.ShardCount
		if limit == 0 {
			limit = maxShards
		}
		spans, ok := d.spans(val, "what "+clip(key.node.Value)+" owns", limit)
		d.shards.garbled = d.shards.garbled || !ok
		d.shards.owners = append(d.shards.owners, draftOwner{zone: ref{name: key.node.Value, at: key.at()}, spans: spans})
	})
	if t.ShardBy == ShardByLastDigits && t.ShardCount > 0 && !isPowerOfTen(t.ShardCount) {
		d.add(d.shards.at, fmt.Sprintf("%d shards cannot be told by last digits", t.ShardCount),
			"use a power of ten (10, 100, 1000, ...) or by: modulo")
	}
}

func isPowerOfTen(n uint32) bool {
	for n >= 10 && n%10 == 0 {
		n /= 10
	}
	return n == 1
}

// eachPair reads a mapping with free keys, each of which may stand once.
func (d *draft) eachPair(v value, what, needed string, read func(key, val value)) {
	if v.node.Kind != yaml.MappingNode {
		d.add(v.at(), fmt.Sprintf("%s is %s", what, v.describe()), "a mapping is needed: "+needed)
		return
	}
	seen := map[string]int{}
	for i := 0; i < len(v.node.Content); i += 2 {
		name := v.node.Content[i].Value
		key := value{node: v.node.Content[i], path: join(v.path, name)}
		val := value{node: v.node.Content[i+1], path: key.path}
		if line, twice := seen[name]; twice {
			d.add(key.at(), fmt.Sprintf("%s has the key %s twice, first at line %d", what, clip(name), line), "join them")
		}
		seen[name] = key.node.Line
		read(key, val)
	}
}

func (d *draft) readCity(v value) {
	c := &draftCity{info: &CityInfo{Index: len(d.cities), MaxBody: defaultBody}, at: v.at()}
	d.cities = append(d.cities, c)
	d.object(v, "a city", []field{
		{"name", true, func(v value) { c.at, c.info.Name = v.at(), City(d.name(v, "a city's name", placeName)) }},
		{"max_body", false, func(v value) {
			c.maxBodyAt = v.at()
			size(&d.reader, v, "max_body", 1, maxBodyBytes, &c.info.MaxBody)
		}},
		{"broadcasts_via", false, func(v value) { c.via = d.ref(v, "broadcasts_via") }},
		{"routers", false, func(v value) {
			d.list(v, "routers", func(v value) {
				c.routers = append(c.routers, d.readNode(v, RoleRouter))
			})
		}},
		{"caches", false, func(v value) {
			d.list(v, "caches", func(v value) {
				c.caches = append(c.caches, d.readNode(v, RoleCacheSync))
			})
		}},
		{"coordinator", false, func(v value) { d.readCoordinator(v, c) }},
		{"zones", true, func(v value) {
			d.list(v, "zones", func(v value) { d.readZone(v, c) })
		}},
	})
	for _, z := range c.zones { // the city's limit may stand after its zones
		if z.maxBodyAt.line == 0 {
			z.info.MaxBody = c.info.MaxBody
		}
	}
}

func (d *draft) readZone(v value, c *draftCity) {
	z := &draftZone{info: &ZoneInfo{City: c.info, Index: len(d.zones), MaxBody: defaultBody}, city: c, at: v.at()}
	d.zones = append(d.zones, z)
	c.zones = append(c.zones, z)
	d.object(v, "a zone", []field{
		{"name", true, func(v value) { z.at, z.info.Name = v.at(), Zone(d.name(v, "a zone's name", placeName)) }},
		{"kind", true, func(v value) { z.info.Kind = choose(&d.reader, v, "a zone's kind", kindWords) }},
		{"active", false, func(v value) {
			if d.boolean(v, "active", &z.active) {
				z.activeAt = v.at()
			}
		}},
		{"max_body", false, func(v value) {
			z.maxBodyAt = v.at()
			size(&d.reader, v, "max_body", 1, maxBodyBytes, &z.info.MaxBody)
		}},
		{"standby", false, func(v value) {
			if v.node.Value == none {
				z.standby.inCity, z.standby.remote = ref{none, v.at()}, ref{none, v.at()}
				return
			}
			d.object(v, "standby", []field{
				{"in_city", false, func(v value) { z.standby.inCity = d.ref(v, "standby.in_city") }},
				{"remote", false, func(v value) { z.standby.remote = d.ref(v, "standby.remote") }},
			})
		}},
		{"groups", true, func(v value) {
			d.list(v, "groups", func(v value) { d.readGroup(v, z) })
		}},
	})
}

func (d *draft) readGroup(v value, z *draftZone) {
	g := &draftGroup{info: &GroupInfo{Zone: z.info}, at: v.at()}
	z.groups = append(z.groups, g)
	d.object(v, "a broker group", []field{
		{"name", true, func(v value) { g.at, g.info.Name = v.at(), Group(d.name(v, "a broker group's name", placeName)) }},
		{"slots", false, func(v value) {
			var ok bool
			g.slots, ok = d.spans(v, "slots", Slots)
			g.slotsAt, g.garbled = v.at(), !ok
		}},
		{"nodes", true, func(v value) {
			d.list(v, "nodes", func(v value) {
				n := d.readNode(v, RoleBroker)
				n.info.Zone, n.info.Group = z.info, g.info
				g.nodes = append(g.nodes, n)
			})
		}},
	})
}

func (d *draft) readNode(v value, role Role) *draftNode {
	n := &draftNode{info: &NodeInfo{Role: role}, at: v.at()}
	addr := func(key string, need bool, to *string) field {
		return field{key, need, func(v value) {
			s, ok := d.text(v, key)
			if !ok {
				return
			}
			clean, fix := cleanAddress(s)
			if fix != "" {
				d.add(v.at(), fmt.Sprintf("%s is %s", key, v.describe()), fix)
				return
			}
			*to = clean
			n.addrs = append(n.addrs, draftAddr{key: key, value: clean, at: v.at()})
		}}
	}
	room := field{"room", false, func(v value) { n.info.Room = Room(d.name(v, "a room's name", placeName)) }}
	name := field{"name", true, func(v value) { n.at, n.info.Name = v.at(), Node(d.name(v, "a node's name", nodeName)) }}
	switch role {
	case RoleRouter:
		d.object(v, "a router", []field{name, addr("quic", true, &n.info.QUIC), addr("peer", true, &n.info.Peer),
			addr("gossip", true, &n.info.Gossip), addr("wan", true, &n.info.WAN), addr("admin", false, &n.info.Admin)})
	case RoleCacheSync:
		d.object(v, "a cache", []field{name, addr("admin", true, &n.info.Admin)})
	case RoleCoordinator:
		d.object(v, "a coordinator node", []field{name, addr("peer", true, &n.info.Peer),
			addr("gossip", true, &n.info.Gossip), addr("admin", false, &n.info.Admin), room})
	default:
		d.object(v, "a broker node", []field{name, addr("client", true, &n.info.Client), addr("peer", true, &n.info.Peer),
			addr("gossip", true, &n.info.Gossip), addr("admin", false, &n.info.Admin), room})
	}
	return n
}

// retry bounds of consumer groups.
const (
	minBackoff = time.Millisecond
	maxBackoff = 7 * day
)
