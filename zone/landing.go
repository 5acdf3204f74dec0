package zone

// LandsIn reports whether records of the topic can land in the zone, by the
// topic's route and residency. Both are of this topology, as in the other
// methods of this file.
func (t *Topology) LandsIn(topic *TopicInfo, z *ZoneInfo) bool {
	if topic == nil || z == nil || !topic.ResidentIn(z.City) {
		return false
	}
	switch topic.Route.Kind {
	case RouteLocal, RouteExplicit, RouteBroadcastZone:
		return true
	case RouteShard:
		return z.Shards > 0
	case RouteGlobal:
		return z == t.index.activeGZone
	case RouteBroadcastCity:
		return z == z.City.CZone
	}
	return false
}

// Landings returns the zones where records of the topic can land, in file
// order.
func (t *Topology) Landings(topic *TopicInfo) []*ZoneInfo {
	var out []*ZoneInfo
	for _, z := range t.index.zoneList {
		if t.LandsIn(topic, z) {
			out = append(out, z)
		}
	}
	return out
}

// ConsumedIn reports whether the consumer group consumes in the zone: one of
// its declared zones, or, when it declares none, any zone where one of its
// topics can land. A cache subscription is read from the CZone only.
func (t *Topology) ConsumedIn(g *ConsumerGroupInfo, z *ZoneInfo) bool {
	if g == nil || z == nil {
		return false
	}
	if len(g.Zones) > 0 {
		return g.declares(z)
	}
	if g.Cache && z != z.City.CZone {
		return false // a city has one cache, and it reads where the city lands
	}
	for _, topic := range g.Topics {
		if t.LandsIn(topic, z) {
			return true
		}
	}
	return false
}

// declares reports whether the group's list of zones names z.
func (g *ConsumerGroupInfo) declares(z *ZoneInfo) bool {
	for _, o := range g.Zones {
		if o == z {
			return true
		}
	}
	return false
}
