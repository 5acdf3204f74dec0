package zone

import "fmt"

// word pairs a value of an enumeration with its word in topology files.
type word[T comparable] struct {
	value T
	text  string
}

// The words of topology files, tables and explanations.
var (
	kindWords = []word[Kind]{{RZone, "RZone"}, {GZone, "GZone"}, {CZone, "CZone"}}

	classWords = []word[Class]{{ClassUrgent, "urgent"}, {ClassBulk, "bulk"}}

	messageKindWords = []word[MessageKind]{
		{KindNormal, "normal"}, {KindFIFO, "fifo"}, {KindDelay, "delay"},
		{KindTransaction, "transaction"}, {KindPriority, "priority"}, {KindLite, "lite"},
	}

	// synced is what a group of one node, and this system before, calls all-in-sync.
	durabilityWords = []word[Durability]{
		{DurabilityAllInSync, "all-in-sync"}, {DurabilityQuorum, "quorum"}, {DurabilityMaster, "master"},
		{DurabilityBuffered, "buffered"}, {DurabilityAllInSync, "synced"},
	}

	budgetEndWords = []word[BudgetEnd]{{BudgetRefuse, "refuse"}, {BudgetGap, "gap"}, {BudgetCompact, "compact"}}

	shardByWords = []word[ShardBy]{
		{ShardByLastDigits, "last-digits"}, {ShardByModulo, "modulo"}, {ShardByXXHash, "xxhash"},
	}

	routeWords = []word[RouteKind]{
		{RouteLocal, "local"}, {RouteShard, "shard"}, {RouteExplicit, "explicit"}, {RouteGlobal, "global"},
		{RouteBroadcastCity, "broadcast: city"}, {RouteBroadcastZone, "broadcast: zone"},
	}

	sourceWords = []word[FieldSource]{{FromNone, "none"},
		{FromProperty, "property"}, {FromKey, "key"}, {FromMessageGroup, "message_group"},
	}

	roleWords = []word[Role]{
		{RoleBroker, "broker"}, {RoleRouter, "router"}, {RoleCacheSync, "cachesync"}, {RoleAdmin, "admin"},
		{RoleCoordinator, "coordinator"},
	}

	reachWords = []word[Reach]{
		{ReachZone, "zone"}, {ReachCity, "city"}, {ReachFar, "far"}, {ReachBroadcast, "broadcast"},
	}
)

func say[T ~uint8](words []word[T], v T) string {
	for _, w := range words {
		if w.value == v {
			return w.text
		}
	}
	return fmt.Sprintf("unknown(%d)", uint8(v))
}

// String returns the word of topology files.
func (k Kind) String() string { return say(kindWords, k) }

// String returns the word of topology files; ClassControl, which no topic may
// ask for, is "control".
func (c Class) String() string {
	if c == ClassControl {
		return "control"
	}
	return say(classWords, c)
}

// String returns the word of topology files.
func (k MessageKind) String() string { return say(messageKindWords, k) }

// String returns the word of topology files.
func (d Durability) String() string { return say(durabilityWords, d) }

// String returns the word of topology files.
func (b BudgetEnd) String() string { return say(budgetEndWords, b) }

// String returns the word of topology files.
func (s ShardBy) String() string { return say(shardByWords, s) }

// String returns the word of topology files.
func (k RouteKind) String() string { return say(routeWords, k) }

// String returns the word of topology files.
func (s FieldSource) String() string { return say(sourceWords, s) }

// String returns the word used in certificates, flags and logs.
func (r Role) String() string { return say(roleWords, r) }

// String returns a word for logs and explanations.
func (r Reach) String() string { return say(reachWords, r) }

// Source says in words from where the route reads its user id or destination,
// such as "property userId" or "key". It is empty for routes that read
// nothing.
func (r Route) Source() string {
	switch r.From {
	case FromProperty:
		return "property " + r.Property
	case FromKey:
		return "the message key"
	case FromMessageGroup:
		return "the message group"
	}
	return ""
}

// String returns the route as topology files write it, such as
// "shard: property userId".
func (r Route) String() string {
	switch r.From {
	case FromProperty:
		return r.Kind.String() + ": property " + r.Property
	case FromKey, FromMessageGroup:
		return r.Kind.String() + ": " + r.From.String()
	}
	return r.Kind.String()
}
