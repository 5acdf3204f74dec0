package zone

import (
	"fmt"
	"maps"
	"slices"
)

// link looks up every name that the file uses, and fills the topology's lists
// and lookups. What it cannot find or finds twice is a problem.
func (d *draft) link() {
	t := d.topo
	t.index = index{
		cities: map[City]*CityInfo{}, zones: map[Zone]*ZoneInfo{}, groups: map[Group]*GroupInfo{},
		nodes: map[Node]*NodeInfo{}, topics: map[Topic]*TopicInfo{}, channels: map[Channel]*ChannelInfo{},
		consumerGroups: map[ConsumerGroup]*ConsumerGroupInfo{}, destinations: map[string]*ZoneInfo{},
	}
	d.linkPlaces()
	d.linkVias()
	d.linkCoordinators()
	d.linkStandbys()
	d.linkTopics()
	d.linkReceipts()
	d.linkChannels()
	d.linkConsumers()
}

// register puts info under its name, or reports that the name is taken. lines
// holds where each name stands. Empty names were reported by the reader.
func register[N ~string, T any](d *draft, to map[N]*T, lines map[string]int, what string, name N, info *T, at place) {
	if name == "" {
		return
	}
	if line, taken := lines[string(name)]; taken {
		d.add(at, fmt.Sprintf("%s %s is declared twice, first at line %d", what, clip(string(name)), line),
			"names are unique in the whole deployment; rename one")
		return
	}
	lines[string(name)] = at.line
	to[name] = info
}

func (d *draft) linkPlaces() {
	t := d.topo
	cityLines, zoneLines, groupLines, nodeLines := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	addNode := func(n *draftNode, c *draftCity) {
		n.info.City = c.info
		register(d, t.index.nodes, nodeLines, "node", n.info.Name, n.info, n.at)
	}
	for _, c := range d.cities {
		t.Cities = append(t.Cities, c.info)
		register(d, t.index.cities, cityLines, "city", c.info.Name, c.info, c.at)
		for _, n := range c.routers {
			c.info.Routers = append(c.info.Routers, n.info)
			addNode(n, c)
		}
		for _, n := range c.caches {
			c.info.Caches = append(c.info.Caches, n.info)
			addNode(n, c)
		}
		if c.coordinator != nil {
			for _, n := range c.coordinator.nodes {
				c.coordinator.info.Nodes = append(c.coordinator.info.Nodes, n.info)
				addNode(n, c)
			}
		}
		for _, z := range c.zones {
			c.info.Zones = append(c.info.Zones, z.info)
			t.index.zoneList = append(t.index.zoneList, z.info)
			register(d, t.index.zones, zoneLines, "zone", z.info.Name, z.info, z.at)
			for _, g := range z.groups {
				z.info.Groups = append(z.info.Groups, g.info)
				register(d, t.index.groups, groupLines, "broker group", g.info.Name, g.info, g.at)
				for _, n := range g.nodes {
					g.info.Nodes = append(g.info.Nodes, n.info)
					addNode(n, c)
				}
			}
		}
	}
	for _, z := range d.zones {
		if line, taken := cityLines[string(z.info.Name)]; taken && z.info.Name != "" {
			d.add(z.at, fmt.Sprintf("zone %s has the name of a city, at line %d", z.info.Name, line),
				"an explicit destination names a zone or a city, so rename one")
		}
	}
}

// unknown reports a name that does not exist.
func unknown[N ~string, T any](d *draft, r ref, what string, known map[N]*T) {
	names := make([]string, 0, len(known))
	for _, n := range slices.Sorted(maps.Keys(known)) {
		names = append(names, clip(string(n)))
	}
	fix := fmt.Sprintf("there is no %s of any name; declare it", what)
	if near := nearest(r.name, names); near != "" {
		fix = "did you mean " + near + "?"
	} else if len(names) > 0 {
		const show = 8
		fix = fmt.Sprintf("declare it, or use one of %s", listed(names, show))
	}
	d.add(r.at, fmt.Sprintf("there is no %s %q", what, clip(r.name)), fix)
}

// listed joins at most show names.
func listed(names []string, show int) string {
	out := ""
	for i, n := range names {
		if i == show {
			return fmt.Sprintf("%s and %d more", out, len(names)-show)
		}
		if i > 0 {
			out += ", "
		}
		out += n
	}
	return out
}

func (d *draft) linkStandbys() {
	find := func(r ref) *ZoneInfo {
		if r.name == "" || r.name == none {
			return nil
		}
		z := d.topo.index.zones[Zone(r.name)]
		if z == nil {
			unknown(d, r, "zone", d.topo.index.zones)
		}
		return z
	}
	for _, z := range d.zones {
		z.info.InCityStandby = find(z.standby.inCity)
		z.info.RemoteStandby = find(z.standby.remote)
	}
}

// each looks up names of one list, and reports unknown and repeated ones.
func each[N ~string, T any](d *draft, refs []ref, what string, known map[N]*T) []*T {
	var out []*T
	lines := map[string]int{}
	for _, r := range refs {
		info := known[N(r.name)]
		if line, twice := lines[r.name]; twice {
			d.add(r.at, fmt.Sprintf("%s %s stands twice in the list, first at line %d", what, clip(r.name), line), "remove one")
			continue
		}
		lines[r.name] = r.at.line
		if info == nil {
			unknown(d, r, what, known)
			continue
		}
		out = append(out, info)
	}
	return out
}

func (d *draft) linkTopics() {
	t := d.topo
	lines := map[string]int{}
	for _, dt := range d.topics {
		t.Topics = append(t.Topics, dt.info)
		register(d, t.index.topics, lines, "topic", dt.info.Name, dt.info, dt.at)
		dt.info.Residency = each(d, dt.residency, "city", t.index.cities)
		if len(dt.residency) > 0 {
			dt.info.resident = make([]bool, len(t.Cities))
			for _, c := range dt.info.Residency {
				dt.info.resident[c.Index] = true
			}
		}
	}
}

// linkReceipts finds the topics of receipts.
func (d *draft) linkReceipts() {
	for _, dt := range d.topics {
		if dt.receipts.name == "" {
			continue
		}
		known := d.topo.index.topics
		if dt.info.Receipts = known[Topic(dt.receipts.name)]; dt.info.Receipts == nil {
			unknown(d, dt.receipts, "topic", known)
		}
	}
}

// linkChannels gathers broadcast topics into channels; a topic without a
// channel is one of its own.
func (d *draft) linkChannels() {
	t := d.topo
	for _, dt := range d.topics {
		info := dt.info
		if info.Route.Kind != RouteBroadcastCity && info.Route.Kind != RouteBroadcastZone {
			if dt.channel.name != "" && info.Route.Kind != 0 {
				d.add(dt.channel.at, fmt.Sprintf("topic %s has a channel, and its route is %s", info.Name, info.Route),
					"channels number broadcasts; remove the key or broadcast the topic")
			}
			continue
		}
		name := Channel(dt.channel.name)
		if name == "" {
			name = Channel(info.Name)
		}
		ch := t.index.channels[name]
		if ch == nil {
			ch = &ChannelInfo{Name: name, Slot: HashSlot(string(name)), Class: info.Class}
			t.index.channels[name] = ch
			t.Channels = append(t.Channels, ch)
		}
		info.Channel = ch
		ch.Topics = append(ch.Topics, info)
	}
}

func (d *draft) linkConsumers() {
	t := d.topo
	lines := map[string]int{}
	for _, g := range d.consumers {
		t.Groups = append(t.Groups, g.info)
		register(d, t.index.consumerGroups, lines, "consumer group", g.info.Name, g.info, g.at)
		g.info.Topics = each(d, g.topics, "topic", t.index.topics)
		g.info.Zones = each(d, g.zones, "zone", t.index.zones)
		g.orderByDefault()
		for _, topic := range g.info.Topics {
			topic.Groups = append(topic.Groups, g.info)
		}
	}
}
