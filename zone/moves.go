package zone

import "fmt"

// Moves lists what would change its owner when next takes the place of old, a
// sentence each: shards between zones, slots between broker groups, the active
// GZone. What is new in next, or gone from it, is no move. A move needs a
// protocol of its own, since records are under way to the old owner: a topology
// with one is not applied. Members of a broker group and voters of a coordinator
// come and go without one, as long as enough of those that know stay; what breaks
// that is listed too.
func Moves(old, next *Topology) []string {
	var list []string
	if old.ShardCount != next.ShardCount || old.ShardBy != next.ShardBy {
		return append(list, "the number of shards, or how a shard is taken from a user id")
	}
	moved := 0
	for s := range Shard(old.ShardCount) {
		if a, b := old.ShardOwner(s), next.ShardOwner(s); a != nil && (b == nil || a.Name != b.Name) {
			moved++
		}
	}
	if moved > 0 {
		list = append(list, fmt.Sprintf("%d shards change their zone", moved))
	}
	for _, z := range old.Zones() {
		n := next.FindZone(z.Name)
		if n == nil {
			continue
		}
		slots := 0
		for s := range Slot(Slots) {
			if z.SlotOwner(s).Name != n.SlotOwner(s).Name {
				slots++
			}
		}
		if slots > 0 {
			list = append(list, fmt.Sprintf("zone %s: %d slots change their broker group", z.Name, slots))
		}
	}
	if a, b := old.ActiveGZone(), next.ActiveGZone(); a != nil && (b == nil || a.Name != b.Name) {
		list = append(list, fmt.Sprintf("the active GZone is no longer %s", a.Name))
	}
	return append(list, memberMoves(old, next)...)
}
