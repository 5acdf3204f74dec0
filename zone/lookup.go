package zone

// index holds the lookups of a topology. It is filled once, by Parse.
type index struct {
	cities         map[City]*CityInfo
	zones          map[Zone]*ZoneInfo
	groups         map[Group]*GroupInfo
	nodes          map[Node]*NodeInfo
	topics         map[Topic]*TopicInfo
	consumerGroups map[ConsumerGroup]*ConsumerGroupInfo
	channels       map[Channel]*ChannelInfo

	// destinations maps the names that RouteExplicit accepts, zones and
	// cities alike (one namespace), to the zone where the record lands.
	destinations map[string]*ZoneInfo

	zoneList    []*ZoneInfo // by ZoneInfo.Index
	shardOwners []*ZoneInfo // by shard
	activeGZone *ZoneInfo   // nil when the deployment has none

	hot hot // what Resolve reads
}

// FindCity returns the city of that name, or nil.
func (t *Topology) FindCity(name City) *CityInfo { return t.index.cities[name] }

// FindZone returns the zone of that name, or nil.
func (t *Topology) FindZone(name Zone) *ZoneInfo { return t.index.zones[name] }

// FindGroup returns the broker group of that name, or nil.
func (t *Topology) FindGroup(name Group) *GroupInfo { return t.index.groups[name] }

// FindNode returns the broker or router of that name, or nil.
func (t *Topology) FindNode(name Node) *NodeInfo { return t.index.nodes[name] }

// FindTopic returns the topic of that name, or nil.
func (t *Topology) FindTopic(name Topic) *TopicInfo { return t.index.topics[name] }

// FindConsumerGroup returns the consumer group of that name, or nil.
func (t *Topology) FindConsumerGroup(name ConsumerGroup) *ConsumerGroupInfo {
	return t.index.consumerGroups[name]
}

// FindChannel returns the broadcast channel of that name, or nil.
func (t *Topology) FindChannel(name Channel) *ChannelInfo { return t.index.channels[name] }

// FindDestination returns the zone where a record lands that names a zone or a
// city as its explicit destination: that zone, or the city's CZone. It returns
// nil when the name is neither.
func (t *Topology) FindDestination(name string) *ZoneInfo { return t.index.destinations[name] }

// Zones returns every zone of the deployment in file order; ZoneInfo.Index is
// the position. The caller does not change the slice.
func (t *Topology) Zones() []*ZoneInfo { return t.index.zoneList }

// ActiveGZone returns the zone that receives RouteGlobal, or nil when the
// deployment has no GZone.
func (t *Topology) ActiveGZone() *ZoneInfo { return t.index.activeGZone }

// ShardOwner returns the zone that owns the shard, or nil when the shard does
// not exist.
func (t *Topology) ShardOwner(s Shard) *ZoneInfo {
	if uint64(s) >= uint64(len(t.index.shardOwners)) {
		return nil
	}
	return t.index.shardOwners[s]
}
