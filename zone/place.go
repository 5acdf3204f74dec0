package zone

import "fmt"

// City is the unique name of a city in the deployment.
type City string

// Zone is the unique name of a zone (a logical data centre) in the deployment.
type Zone string

// Group is the unique name of a broker group in the deployment. A broker
// group is a master and its replicas and belongs to one zone.
type Group string

// Node is the unique, stable name of one process: a broker, router, cachesync or
// coordinator. A
// restarted process keeps its name.
type Node string

// Room is the name of a part of a city that one fault can take: a room, a rack, a
// building. Two rooms of one name are one room, in whatever zone.
type Room string

// Topic is the name of a topic.
type Topic string

// ConsumerGroup is the name of a consumer group.
type ConsumerGroup string

// Channel is the name of a broadcast channel: the topics that share one
// audience and therefore one numbering.
type Channel string

// Shard is the index of a user shard, from 0 to the topology's shard count.
type Shard uint32

// Slot is one of the Slots parts into which a zone divides what it stores;
// each slot is owned by one broker group of the zone.
type Slot uint16

// Slots is the number of slots of every zone. It is part of the wire
// contract: origin and destination compute the same slot for a record.
const Slots = 1024

// Epoch orders topologies: a higher term wins, inside a term the higher
// number. The zero value is "none" and is lower than any valid epoch.
type Epoch struct {
	Term   uint64
	Number uint64
}

// Compare returns -1, 0 or 1 when e is older than, equal to or newer than o.
func (e Epoch) Compare(o Epoch) int {
	switch {
	case e.Term != o.Term:
		if e.Term < o.Term {
			return -1
		}
		return 1
	case e.Number < o.Number:
		return -1
	case e.Number > o.Number:
		return 1
	}
	return 0
}

// String returns "term.number", the form used in files, logs and metrics.
func (e Epoch) String() string { return fmt.Sprintf("%d.%d", e.Term, e.Number) }

// Digest is the SHA-256 of a topology's canonical form. Two topologies with
// one epoch and two digests are a configuration fault.
type Digest [32]byte

// Kind is the kind of a zone.
type Kind uint8

// The zone kinds.
const (
	RZone Kind = iota + 1 // sharded by user
	GZone                 // global: one active in the deployment
	CZone                 // one per city: data that the whole city shares
)

// Class is a priority class. Classes never share a queue, a window or a
// connection.
type Class uint8

// The classes, in falling priority.
const (
	ClassControl Class = iota + 1 // probes and control frames only, never records
	ClassUrgent                   // broadcast and topics declared urgent
	ClassBulk                     // everything else
)

// MessageKind is what a topic carries; it maps to the RocketMQ 5 message types.
type MessageKind uint8

// The message kinds.
const (
	KindNormal MessageKind = iota + 1
	KindFIFO
	KindDelay
	KindTransaction
	KindPriority
	KindLite
)

// Durability says what an acknowledgement to a publisher promises. In a broker group
// of one node all but DurabilityBuffered are the same. The numbers stand in records.
type Durability uint8

// The durabilities. The default of a topology file is DurabilityAllInSync.
const (
	// DurabilityAllInSync: committed, on the disks of all members that are in sync,
	// before the acknowledgement. No fail-over to one of them loses it.
	DurabilityAllInSync Durability = iota + 1
	// DurabilityBuffered: acknowledged when handed to the master's operating system;
	// a power loss or a fail-over may lose the last moments.
	DurabilityBuffered
	// DurabilityMaster: on the master's disk; a fail-over may lose the last moments.
	DurabilityMaster
	// DurabilityQuorum: on the disks of most of the members that are in sync; a
	// fail-over in which most of them answer loses nothing.
	DurabilityQuorum
)

// RouteKind says where a topic's records land.
type RouteKind uint8

// The route kinds.
const (
	RouteLocal         RouteKind = iota + 1 // the zone where it was published
	RouteShard                              // the zone that owns the user's shard
	RouteExplicit                           // the zone or city that a property names
	RouteGlobal                             // the active GZone
	RouteBroadcastCity                      // the CZone of every city
	RouteBroadcastZone                      // every zone of every city
)

// BudgetEnd says what happens when a destination's backlog has reached its budget.
type BudgetEnd uint8

// The choices at the end of a backlog budget.
const (
	BudgetRefuse  BudgetEnd = iota + 1 // refuse new publishes of the topic
	BudgetGap                          // drop the oldest and tell the receiver of the gap
	BudgetCompact                      // keep the newest record of each key
)

// Role is what a node does, as its certificate and the topology state it.
type Role uint8

// The roles.
const (
	RoleBroker Role = iota + 1
	RoleRouter
	RoleCacheSync   // reads landings and applies them to a cache
	RoleAdmin       // operators' command line
	RoleCoordinator // votes on who is master of broker groups, and does nothing else
)
