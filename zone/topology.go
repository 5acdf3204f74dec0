package zone

import "time"

// Topology is the deployment as one immutable value. All fields and all values
// that they point to are read-only after Parse; it is safe for concurrent use.
type Topology struct {
	Deployment string // name of the deployment; part of every greeting and of the gossip label
	Epoch      Epoch
	Digest     Digest
	ShardCount uint32  // number of shards; 0 when the deployment has no RZone
	ShardBy    ShardBy // how a shard is taken from a user id

	// UnknownGroupsNewest lets a consumer group that the topology does not
	// declare start at the newest message; otherwise it is refused.
	UnknownGroupsNewest bool

	Cities   []*CityInfo          // in file order; Index is the position here
	Topics   []*TopicInfo         // in file order
	Groups   []*ConsumerGroupInfo // consumer groups in file order
	Channels []*ChannelInfo       // in order of first use

	index index // lookups by name; see lookup.go
}

// CityInfo describes a city.
type CityInfo struct {
	Name    City
	Index   int
	Zones   []*ZoneInfo
	CZone   *ZoneInfo
	Routers []*NodeInfo
	Caches  []*NodeInfo // the city's cachesync nodes; may be empty
	// Coordinator says who decides which node of a broker group is its master; nil when
	// the city has none, and then each of its groups has one node.
	Coordinator *CoordinatorInfo
	MaxBody     int       // bytes; the largest message body that the city's routers pass on
	Via         *CityInfo // from whose landings the city is served with broadcasts; nil = by their origins. See ChannelInfo.Via
}

// ZoneInfo describes a zone. What Resolve reads stands first, in one cache
// line.
type ZoneInfo struct {
	Name   Zone
	Index  int // position in Topology.Zones
	City   *CityInfo
	Groups []*GroupInfo

	// slots maps a slot to an index into Groups; nil when there is one group.
	// Zones with the same division share one table, so that resolving among
	// thousands of zones stays in the processor's cache.
	slots *[Slots]uint16

	Kind          Kind
	Active        bool      // for a GZone: the one that receives RouteGlobal; true for other kinds
	InCityStandby *ZoneInfo // nil when none is declared
	RemoteStandby *ZoneInfo // nil when none is declared
	Shards        int       // how many user shards the zone owns; 0 unless an RZone
	MaxBody       int       // bytes; the largest message body that the zone's brokers store
}

// SlotOwner returns the broker group that owns the slot in this zone.
func (z *ZoneInfo) SlotOwner(s Slot) *GroupInfo {
	if z.slots == nil {
		return z.Groups[0]
	}
	return z.Groups[z.slots[s%Slots]]
}

// GroupInfo describes a broker group.
type GroupInfo struct {
	Name  Group
	Zone  *ZoneInfo
	Nodes []*NodeInfo // the members, one to five; the coordinator says which is the master
}

// NodeInfo describes one process and its addresses (host:port): a broker, a
// router, a coordinator, or a cachesync, which has an admin address only.
type NodeInfo struct {
	Name  Node
	Role  Role
	City  *CityInfo
	Zone  *ZoneInfo  // brokers only
	Group *GroupInfo // brokers only
	Room  Room       // where in the city it stands; empty when the file does not say; brokers and coordinators

	Client string // RocketMQ 5 clients connect here; brokers only
	Peer   string // in-city TCP with TLS; brokers, routers and coordinators
	QUIC   string // between cities; routers only
	Gossip string // memberlist of the city's pool; brokers, routers and coordinators
	WAN    string // memberlist of the routers' pool; routers only
	Admin  string // health, metrics and operator calls; may be empty, but not of a cachesync
}

// Route is where a topic's records land and from what that is computed.
type Route struct {
	Kind RouteKind
	// From tells where a user id (RouteShard) or a destination name
	// (RouteExplicit) is read.
	From FieldSource
	// Property is the user property to read when From is FromProperty.
	Property string
}

// FieldSource names a part of a message.
type FieldSource uint8

// The field sources.
const (
	FromNone FieldSource = iota
	FromProperty
	FromKey
	FromMessageGroup
)

// TopicInfo describes a topic.
type TopicInfo struct {
	Name       Topic
	Queues     int
	Kind       MessageKind
	Durability Durability
	// MinInSync is how many members of the group where it is published must be in sync,
	// else the publish is refused; at least 1.
	MinInSync int
	Retention time.Duration // consumed records are kept at least this long
	Class     Class
	Residency []*CityInfo // cities that a record may enter; empty means all
	Budget    int64       // bytes of backlog that one destination may hold back
	AtBudget  BudgetEnd
	MaxBody   int           // bytes
	MaxDelay  time.Duration // how far ahead delivery times may be; 0 unless Kind is KindDelay
	// Idempotent is how long after its first copy a message id that comes again is
	// the same message; 0 = ids are not looked at.
	Idempotent time.Duration
	Route      Route
	// Receipts is where a receipt goes, in the zone where a message was published, once
	// all groups of its destination have settled it; nil = none are written.
	Receipts *TopicInfo
	// Transaction is set for topics of kind transaction, else zero.
	Transaction Transaction
	// Lite is set for topics of kind lite, else zero.
	Lite    Lite
	Channel *ChannelInfo // set for broadcast routes, else nil
	Groups  []*ConsumerGroupInfo

	resident []bool         // by city index; nil means all
	faults   *resolveFaults // what Resolve returns; see resolve_error.go
	topology *Topology      // to which the value belongs
}

// ResidentIn reports whether records of the topic may enter the city.
func (t *TopicInfo) ResidentIn(c *CityInfo) bool {
	return t.resident == nil || (c.Index < len(t.resident) && t.resident[c.Index])
}

// ChannelInfo describes a broadcast channel.
type ChannelInfo struct {
	Name   Channel
	Topics []*TopicInfo
	Slot   Slot // picks the landing group in each CZone
	Class  Class
}

// ConsumerGroupInfo describes a declared consumer group.
type ConsumerGroupInfo struct {
	Name        ConsumerGroup
	Topics      []*TopicInfo
	Zones       []*ZoneInfo // where it consumes; empty means every zone in which its topics land
	FIFO        bool        // its clients consume one after the other; see InOrder
	MaxAttempts int         // deliveries before the dead-letter topic; at least 1
	Backoff     Backoff
	// Hold is how many bytes of a broker's log messages that the group has not
	// settled may hold back; beyond it the oldest of them may go unread, which is
	// told. 0 = no bound: they are kept until the disk is full.
	Hold  int64
	Lite  LiteMode // of its topics of kind lite
	Cache bool     // a cachesync subscription: read by Want, not by clients
}

// Backoff is the retry policy of a consumer group: attempt n waits
// min(Initial * Multiplier^(n-1), Max), or Steps[n-1] when Steps is not empty
// (the last step repeats).
type Backoff struct {
	Initial    time.Duration
	Max        time.Duration
	Multiplier float64
	Steps      []time.Duration
}

// Query is what resolving needs to know of a message.
type Query struct {
	Topic        *TopicInfo
	From         *ZoneInfo // where it was published
	User         string    // the user id; used by RouteShard
	Destination  string    // a zone or city name; used by RouteExplicit
	MessageGroup string    // picks the slot when not empty; of a topic of kind lite, the lite topic
	MessageID    string    // picks the slot when there is neither message group nor shard
}

// Reach is how far a record travels.
type Reach uint8

// The reaches.
const (
	ReachZone      Reach = iota + 1 // stays in the zone where it was published
	ReachCity                       // another zone of the same city
	ReachFar                        // a zone of another city
	ReachBroadcast                  // every city (or every zone)
)

// Destination is the answer of Resolve.
type Destination struct {
	Reach    Reach
	Zone     *ZoneInfo    // nil for a broadcast
	Group    *GroupInfo   // owner of Slot in Zone; nil for a broadcast
	Channel  *ChannelInfo // set for a broadcast
	Slot     Slot
	Shard    Shard
	HasShard bool
}
