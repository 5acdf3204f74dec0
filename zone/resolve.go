package zone

// Resolve says where a message lands. It is pure, does not allocate, and costs
// much the same in a deployment of 10,000 zones as in one of ten. The error is
// a *ResolveError that was made beforehand; compare it with errors.Is and the
// Err values of this package.
//
// A query without From is answered as if from a city of its own, which only
// RouteLocal refuses. A Topic or From of another epoch's topology is taken as
// a name: the answer is this topology's.
func (t *Topology) Resolve(q Query) (Destination, error) {
	if q.Topic == nil {
		return Destination{}, ErrUnknownTopic
	}
	if q.Topic.topology != t || q.From != nil && !t.owns(q.From) {
		if kind := t.translate(&q); kind != 0 {
			return Destination{}, generic(kind)
		}
	}
	topic := q.Topic
	if q.From != nil && !topic.ResidentIn(q.From.City) {
		return Destination{}, topic.fault(OriginForbidden)
	}
	if topic.Channel != nil {
		return Destination{Reach: ReachBroadcast, Channel: topic.Channel, Slot: topic.Channel.Slot}, nil
	}
	var d Destination
	index, kind := t.land(&q, &d)
	if kind != 0 {
		return Destination{}, topic.fault(kind)
	}
	z := &t.index.hot.zones[index]
	if topic.resident != nil && !topic.resident[z.index] {
		return Destination{}, topic.fault(DestinationForbidden)
	}
	switch {
	case q.MessageGroup != "":
		d.Slot = HashSlot(q.MessageGroup)
	case d.HasShard:
		d.Slot = ShardSlot(d.Shard)
	default:
		d.Slot = HashSlot(q.MessageID)
	}
	d.Zone = z.zone
	d.Group = t.index.hot.owner(z, d.Slot)
	switch {
	case q.From == z.zone:
		d.Reach = ReachZone
	case q.From != nil && q.From.City == z.city:
		d.Reach = ReachCity
	default:
		d.Reach = ReachFar
	}
	return d, nil
}

// owns reports whether z is a value of this topology.
func (t *Topology) owns(z *ZoneInfo) bool {
	return uint64(z.Index) < uint64(len(t.index.hot.zones)) && t.index.hot.zones[z.Index].zone == z
}

// translate replaces the topic and zone of another topology by this one's.
func (t *Topology) translate(q *Query) ResolveKind {
	if q.Topic.topology != t {
		if q.Topic = t.index.topics[q.Topic.Name]; q.Topic == nil {
			return UnknownTopic
		}
	}
	if q.From != nil && !t.owns(q.From) {
		if q.From = t.index.zones[q.From.Name]; q.From == nil {
			return UnknownOrigin
		}
	}
	return 0
}

// land returns the index of the zone that the route picks, and notes the
// shard; kind is 0 when there is a zone.
func (t *Topology) land(q *Query, d *Destination) (index uint32, kind ResolveKind) {
	switch q.Topic.Route.Kind {
	case RouteLocal:
		if q.From == nil {
			return 0, UnknownOrigin
		}
		return uint32(q.From.Index), 0
	case RouteShard:
		d.Shard, kind = t.shardOf(q.User)
		if kind != 0 {
			return 0, kind
		}
		if uint64(d.Shard) >= uint64(len(t.index.hot.owners)) {
			return 0, ShardUnowned
		}
		d.HasShard = true
		return t.index.hot.owners[d.Shard], 0
	case RouteExplicit:
		if q.Destination == "" {
			return 0, MissingDestination
		}
		index, known := t.index.hot.destinations.get(q.Destination)
		if !known {
			return 0, UnknownDestination
		}
		return index, 0
	case RouteGlobal:
		if t.index.activeGZone == nil {
			return 0, NoActiveGZone
		}
		return uint32(t.index.activeGZone.Index), 0
	}
	return 0, UnknownRoute
}
