package zone

// OwnedShards returns the user shards that each zone owns, as text such as
// "0-19,40" and by ZoneInfo.Index; "-" for a zone that owns none.
func OwnedShards(t *Topology) []string { return shardRanges(t) }

// OwnedSlots returns the slots that each broker group of the zone owns, as text
// such as "0-511" and in the order of Groups; "-" for a group that owns none.
func OwnedSlots(z *ZoneInfo) []string { return slotRanges(z) }
