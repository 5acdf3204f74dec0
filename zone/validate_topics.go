package zone

import (
	"fmt"
	"slices"
)

func (d *draft) checkTopic(t *draftTopic) {
	info, name := t.info, t.info.Name
	route := info.Route
	switch {
	case route.Kind == RouteShard && !d.shards.declared:
		d.add(t.routeAt, fmt.Sprintf("topic %s is routed by shard, and the deployment has no shards", name),
			"declare shards with count, by and owners, or choose another route")
	case route.Kind == RouteGlobal && d.topo.index.activeGZone == nil && !d.hasKind(GZone):
		d.add(t.routeAt, fmt.Sprintf("topic %s is routed to the active GZone, and the deployment has no GZone", name),
			"add a zone of kind GZone, or choose another route")
	}
	if route.From == FromMessageGroup && info.Kind != KindFIFO && info.Kind != KindLite && info.Kind != 0 {
		d.add(t.kindAt.or(t.routeAt), fmt.Sprintf("topic %s reads its route from the message group, and its kind is %s", name, info.Kind),
			"clients set a message group only on topics of kind fifo, and a lite topic, which stands for it, on those of kind lite")
	}
	if t.maxDelayAt.line > 0 && info.Kind != KindDelay && info.Kind != 0 {
		d.add(t.maxDelayAt, fmt.Sprintf("topic %s bounds how long messages are delayed, and its kind is %s", name, info.Kind),
			"only messages on topics of kind delay have a delivery time; set kind: delay or remove max_delay")
	}
	if info.Budget < int64(info.MaxBody) {
		d.add(t.budgetAt.or(t.at), fmt.Sprintf("topic %s allows bodies of %s, and its budget of %s would not hold one", name,
			formatSize(int64(info.MaxBody)), formatSize(info.Budget)), "raise budget or lower max_body")
	}
	if info.AtBudget == BudgetCompact && info.Channel == nil && route.Kind != 0 {
		d.add(t.budgetAt.or(t.at), fmt.Sprintf("topic %s is compacted at its budget, and its route is %s", name, route),
			"only broadcasts of changes are compacted, by key and version; use refuse or gap")
	}
	d.checkTransaction(t)
	d.checkLite(t)
	d.checkReceipts(t)
	d.checkIdempotent(t)
	d.checkInSync(t)
	d.checkKind(t)
	d.checkResidency(t)
	d.checkLimits(t)
}

func (d *draft) hasKind(k Kind) bool {
	return slices.ContainsFunc(d.zones, func(z *draftZone) bool { return z.info.Kind == k })
}

// checkResidency reports a residency that keeps the topic's records from the
// places where its route sends them.
func (d *draft) checkResidency(t *draftTopic) {
	info := t.info
	if info.resident == nil || len(info.Residency) == 0 {
		return
	}
	forbidden := func(z *ZoneInfo) bool { return z != nil && !info.ResidentIn(z.City) }
	switch info.Route.Kind {
	case RouteGlobal:
		if z := d.topo.index.activeGZone; forbidden(z) {
			d.add(t.residencyAt, fmt.Sprintf("topic %s lands in the active GZone %s, which is in city %s, and its residency allows only %s",
				info.Name, z.Name, z.City.Name, cityNames(info.Residency)),
				fmt.Sprintf("add %s to residency, or choose another route", z.City.Name))
		}
	case RouteShard:
		var out []string
		var cities []string
		shards := 0
		for _, z := range d.topo.index.zoneList {
			if z.Shards > 0 && forbidden(z) {
				out = append(out, string(z.Name))
				shards += z.Shards
				if c := string(z.City.Name); !slices.Contains(cities, c) {
					cities = append(cities, c)
				}
			}
		}
		if len(out) > 0 {
			d.add(t.residencyAt, fmt.Sprintf("topic %s is routed by shard, and its residency (%s) keeps it out of %d shards, owned by %s",
				info.Name, cityNames(info.Residency), shards, listed(out, 8)),
				fmt.Sprintf("add %s to residency, or choose another route", listed(cities, 8)))
		}
	case RouteBroadcastCity, RouteBroadcastZone:
		if len(info.Residency) == 1 && info.Route.Kind == RouteBroadcastCity && len(d.cities) > 1 {
			d.add(t.residencyAt, fmt.Sprintf("topic %s is broadcast to cities, and its residency allows only %s", info.Name, cityNames(info.Residency)),
				"allow a second city, or use the route local")
		}
	}
}

// checkLimits reports a zone or city on the topic's route that takes only
// smaller bodies than the topic allows: such a message would be accepted and
// then never fit.
func (d *draft) checkLimits(t *draftTopic) {
	info := t.info
	if info.Route.Kind == 0 {
		return
	}
	fix := func(limit int, whose string) string {
		return fmt.Sprintf("lower the topic's max_body to %s or raise that of %s", formatSize(int64(limit)), whose)
	}
	if info.Route.Kind != RouteLocal {
		for _, c := range d.topo.Cities {
			if info.ResidentIn(c) && c.MaxBody < info.MaxBody && len(d.cities) > 1 {
				d.add(t.maxBodyAt.or(t.at), fmt.Sprintf("topic %s allows bodies of %s, and the routers of city %s pass on at most %s",
					info.Name, formatSize(int64(info.MaxBody)), c.Name, formatSize(int64(c.MaxBody))), fix(c.MaxBody, "the city"))
				return
			}
		}
	}
	for _, z := range d.topo.index.zoneList {
		if z.MaxBody < info.MaxBody && d.topo.LandsIn(info, z) {
			d.add(t.maxBodyAt.or(t.at), fmt.Sprintf("topic %s allows bodies of %s, and zone %s, where it can land, stores at most %s",
				info.Name, formatSize(int64(info.MaxBody)), z.Name, formatSize(int64(z.MaxBody))), fix(z.MaxBody, "the zone"))
			return
		}
	}
}

// checkChannels holds the topics of one channel to one audience.
func (d *draft) checkChannels() {
	first := map[*ChannelInfo]*draftTopic{}
	for _, t := range d.topics {
		ch := t.info.Channel
		if ch == nil {
			continue
		}
		f := first[ch]
		if f == nil {
			first[ch] = t
			continue
		}
		differs, at := "", place{}
		switch {
		case f.info.Route.Kind != t.info.Route.Kind:
			differs, at = "route", t.routeAt
		case f.info.Class != t.info.Class:
			differs, at = "class", t.classAt
		case !slices.Equal(f.info.resident, t.info.resident):
			differs, at = "residency", t.residencyAt
		case f.info.AtBudget != t.info.AtBudget:
			differs, at = "at_budget", t.budgetAt
		}
		if differs != "" {
			d.add(at.or(t.at), fmt.Sprintf("topics %s and %s share the channel %s and differ in %s", f.info.Name, t.info.Name, ch.Name, differs),
				"the topics of a channel are numbered together and so have one route, class, residency and at_budget; use another channel")
		}
	}
}

func (d *draft) checkConsumers(g *draftConsumers) {
	info := g.info
	if info.Cache {
		d.checkCache(g)
	}
	d.checkLiteMode(g)
	for _, topic := range info.Topics {
		if len(info.Zones) == 0 || topic.Route.Kind == 0 {
			continue
		}
		var missed []string
		for _, z := range d.topo.index.zoneList {
			if d.topo.LandsIn(topic, z) && !info.declares(z) {
				missed = append(missed, string(z.Name))
			}
		}
		if len(missed) > 0 {
			d.add(g.zonesAt, fmt.Sprintf("consumer group %s subscribes to topic %s (%s), which can land in %s, where the group does not consume",
				info.Name, topic.Name, topic.Route, listed(missed, 8)),
				"add these zones, or remove the key to consume wherever the topics land")
		}
	}
	for i, z := range info.Zones {
		if len(info.Zones) == len(g.zones) && len(info.Topics) > 0 && !d.anyResident(info, z) {
			d.add(g.zones[i].at, fmt.Sprintf("consumer group %s consumes in zone %s of city %s, which the residency of all its topics forbids",
				info.Name, z.Name, z.City.Name), "remove the zone")
		}
	}
}

func (d *draft) anyResident(g *ConsumerGroupInfo, z *ZoneInfo) bool {
	return slices.ContainsFunc(g.Topics, func(t *TopicInfo) bool { return t.ResidentIn(z.City) })
}

// checkCache reports a cache subscription that is none: caches follow
// broadcasts in every city.
func (d *draft) checkCache(g *draftConsumers) {
	for _, topic := range g.info.Topics {
		if topic.Channel == nil && topic.Route.Kind != 0 {
			d.add(g.cacheAt, fmt.Sprintf("consumer group %s feeds a cache, and its topic %s is routed %s", g.info.Name, topic.Name, topic.Route),
				"a cache follows broadcast topics; use another topic or remove cache")
		}
	}
	if g.zonesAt.line > 0 {
		d.add(g.zonesAt, fmt.Sprintf("consumer group %s feeds a cache and names zones", g.info.Name),
			"a cache reads where the broadcast lands; remove zones")
	}
}
