package zone

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Change is one difference between two topologies.
type Change struct {
	Kind ChangeKind
	What string // such as "zone rz06" or "topic orders: retention"
	From string // the old value; empty when added
	To   string // the new value; empty when removed
}

// ChangeKind says how something differs.
type ChangeKind uint8

// The kinds of change.
const (
	Added ChangeKind = iota + 1
	Removed
	Changed
)

// String returns one line: "+ zone rz06", "- topic audit", or
// "~ topic orders: retention: 72h -> 24h".
func (c Change) String() string {
	switch c.Kind {
	case Added:
		return strings.TrimSuffix("+ "+c.What+": "+c.To, ": ")
	case Removed:
		return strings.TrimSuffix("- "+c.What+": "+c.From, ": ")
	}
	return fmt.Sprintf("~ %s: %s -> %s", c.What, c.From, c.To)
}

// differ collects changes.
type differ struct{ changes []Change }

func (d *differ) value(what, from, to string) {
	if from != to {
		d.changes = append(d.changes, Change{Kind: Changed, What: what, From: orDash(from), To: orDash(to)})
	}
}

// Diff returns what changes when b takes the place of a: settings of the
// deployment, owners of shards and slots, then cities, zones, broker groups,
// nodes, topics and consumer groups. Lists are compared by name, so the order
// in the files does not matter. It is empty exactly when the digests are
// equal.
func Diff(a, b *Topology) []Change {
	d := &differ{}
	d.value("deployment", a.Deployment, b.Deployment)
	d.value("epoch", a.Epoch.String(), b.Epoch.String())
	d.value("unknown_groups", unknownText(a), unknownText(b))
	d.value("shards: count", fmt.Sprint(a.ShardCount), fmt.Sprint(b.ShardCount))
	d.value("shards: by", byText(a), byText(b))
	d.owners(a, b)
	compare(d, "city", a.Cities, b.Cities, func(c *CityInfo) City { return c.Name }, diffCity)
	compare(d, "router", routers(a), routers(b), func(n *NodeInfo) Node { return n.Name }, diffNode)
	compare(d, "cache", caches(a), caches(b), func(n *NodeInfo) Node { return n.Name }, diffNode)
	compare(d, "coordinator node", coordinators(a), coordinators(b), func(n *NodeInfo) Node { return n.Name }, diffNode)
	compare(d, "zone", a.index.zoneList, b.index.zoneList, func(z *ZoneInfo) Zone { return z.Name }, diffZone)
	compare(d, "broker group", groups(a), groups(b), func(g *GroupInfo) Group { return g.Name }, diffGroup)
	compare(d, "node", brokers(a), brokers(b), func(n *NodeInfo) Node { return n.Name }, diffNode)
	compare(d, "topic", a.Topics, b.Topics, func(t *TopicInfo) Topic { return t.Name }, diffTopic)
	compare(d, "consumer group", a.Groups, b.Groups, func(g *ConsumerGroupInfo) ConsumerGroup { return g.Name }, diffConsumers)
	return d.changes
}

func unknownText(t *Topology) string {
	if t.UnknownGroupsNewest {
		return "newest"
	}
	return "refuse"
}

func byText(t *Topology) string {
	if t.ShardCount == 0 {
		return ""
	}
	return t.ShardBy.String()
}

// compare reports names that only one side has, and compares those of both.
func compare[T any, N ~string](d *differ, what string, a, b []*T, name func(*T) N, same func(d *differ, what string, a, b *T)) {
	old := make(map[N]*T, len(a))
	for _, x := range a {
		old[name(x)] = x
	}
	now := make(map[N]bool, len(b))
	for _, x := range b {
		now[name(x)] = true
	}
	for _, x := range a {
		if !now[name(x)] {
			d.changes = append(d.changes, Change{Kind: Removed, What: what + " " + string(name(x))})
		}
	}
	for _, x := range b {
		title := what + " " + string(name(x))
		if o := old[name(x)]; o != nil {
			same(d, title, o, x)
		} else {
			d.changes = append(d.changes, Change{Kind: Added, What: title})
		}
	}
}

// owners reports the shards that move, gathered by their old and new zone.
func (d *differ) owners(a, b *Topology) {
	if a.ShardCount != b.ShardCount {
		return
	}
	type move struct{ from, to Zone }
	var order []move
	moved := map[move][]uint32{}
	for s := range a.index.shardOwners {
		m := move{a.index.shardOwners[s].Name, b.index.shardOwners[s].Name}
		if m.from == m.to {
			continue
		}
		if moved[m] == nil {
			order = append(order, m)
		}
		moved[m] = append(moved[m], uint32(s))
	}
	for _, m := range order {
		d.value("shards "+rangesText(moved[m]), string(m.from), string(m.to))
	}
}

func diffCity(d *differ, what string, a, b *CityInfo) {
	d.value(what+": max_body", formatSize(int64(a.MaxBody)), formatSize(int64(b.MaxBody)))
	d.value(what+": broadcasts_via", viaName(a), viaName(b))
	d.value(what+": coordinator", a.Coordinator.text(), b.Coordinator.text())
}

func diffZone(d *differ, what string, a, b *ZoneInfo) {
	d.value(what+": city", string(a.City.Name), string(b.City.Name))
	d.value(what+": kind", a.Kind.String(), b.Kind.String())
	d.value(what+": active", fmt.Sprint(a.Active), fmt.Sprint(b.Active))
	d.value(what+": max_body", formatSize(int64(a.MaxBody)), formatSize(int64(b.MaxBody)))
	d.value(what+": standby.in_city", zoneName(a.InCityStandby), zoneName(b.InCityStandby))
	d.value(what+": standby.remote", zoneName(a.RemoteStandby), zoneName(b.RemoteStandby))
}

func zoneName(z *ZoneInfo) string {
	if z == nil {
		return ""
	}
	return string(z.Name)
}

func diffGroup(d *differ, what string, a, b *GroupInfo) {
	d.value(what+": zone", string(a.Zone.Name), string(b.Zone.Name))
	d.value(what+": slots", ownSlots(a), ownSlots(b))
	d.value(what+": nodes", nodeNames(a.Nodes), nodeNames(b.Nodes))
}

func ownSlots(g *GroupInfo) string {
	for i, s := range slotRanges(g.Zone) {
		if g.Zone.Groups[i] == g {
			return s
		}
	}
	return ""
}

func nodeNames(nodes []*NodeInfo) string {
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = string(n.Name)
	}
	return strings.Join(names, ", ")
}

func diffNode(d *differ, what string, a, b *NodeInfo) {
	d.value(what+": city", string(a.City.Name), string(b.City.Name))
	d.value(what+": room", string(a.Room), string(b.Room))
	d.value(what+": client", a.Client, b.Client)
	d.value(what+": peer", a.Peer, b.Peer)
	d.value(what+": quic", a.QUIC, b.QUIC)
	d.value(what+": gossip", a.Gossip, b.Gossip)
	d.value(what+": wan", a.WAN, b.WAN)
	d.value(what+": admin", a.Admin, b.Admin)
}

func diffTopic(d *differ, what string, a, b *TopicInfo) {
	d.value(what+": route", a.Route.String(), b.Route.String())
	d.value(what+": queues", fmt.Sprint(a.Queues), fmt.Sprint(b.Queues))
	d.value(what+": kind", a.Kind.String(), b.Kind.String())
	d.value(what+": max_delay", delayText(a.MaxDelay), delayText(b.MaxDelay))
	d.value(what+": transaction", transactionText(a), transactionText(b))
	d.value(what+": lite", liteText(a), liteText(b))
	d.value(what+": durability", a.Durability.String(), b.Durability.String())
	d.value(what+": min_in_sync", fmt.Sprint(a.MinInSync), fmt.Sprint(b.MinInSync))
	d.value(what+": retention", FormatDuration(a.Retention), FormatDuration(b.Retention))
	d.value(what+": class", a.Class.String(), b.Class.String())
	d.value(what+": residency", a.EncodeResidency(), b.EncodeResidency())
	d.value(what+": budget", formatSize(a.Budget), formatSize(b.Budget))
	d.value(what+": at_budget", a.AtBudget.String(), b.AtBudget.String())
	d.value(what+": max_body", formatSize(int64(a.MaxBody)), formatSize(int64(b.MaxBody)))
	d.value(what+": channel", channelName(a.Channel), channelName(b.Channel))
	d.value(what+": receipts", receiptsName(a), receiptsName(b))
	d.value(what+": idempotent", windowText(a.Idempotent), windowText(b.Idempotent))
}

// delayText is empty for topics without delayed messages.
func delayText(max time.Duration) string {
	if max == 0 {
		return ""
	}
	return FormatDuration(max)
}

func receiptsName(t *TopicInfo) string {
	if t.Receipts == nil {
		return ""
	}
	return string(t.Receipts.Name)
}

func channelName(c *ChannelInfo) string {
	if c == nil {
		return ""
	}
	return string(c.Name)
}

func diffConsumers(d *differ, what string, a, b *ConsumerGroupInfo) {
	d.value(what+": topics", names(a.Topics, topicNameOf), names(b.Topics, topicNameOf))
	d.value(what+": zones", names(a.Zones, zoneName), names(b.Zones, zoneName))
	d.value(what+": fifo", fmt.Sprint(a.FIFO), fmt.Sprint(b.FIFO))
	d.value(what+": lite", a.Lite.String(), b.Lite.String())
	d.value(what+": max_attempts", fmt.Sprint(a.MaxAttempts), fmt.Sprint(b.MaxAttempts))
	d.value(what+": hold", holdText(a.Hold), holdText(b.Hold))
	d.value(what+": retry", a.Backoff.whole(), b.Backoff.whole())
	d.value(what+": cache", fmt.Sprint(a.Cache), fmt.Sprint(b.Cache))
}

func topicNameOf(t *TopicInfo) string { return string(t.Name) }

// names returns the sorted names of a list.
func names[T any](list []*T, name func(*T) string) string {
	out := make([]string, len(list))
	for i, x := range list {
		out[i] = name(x)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// whole returns the policy with every step.
func (p Backoff) whole() string {
	out := fmt.Sprintf("%s x%g to %s", FormatDuration(p.Initial), p.Multiplier, FormatDuration(p.Max))
	for i, s := range p.Steps {
		if i == 0 {
			out = ""
		} else {
			out += ", "
		}
		out += FormatDuration(s)
	}
	return out
}

func routers(t *Topology) []*NodeInfo {
	var out []*NodeInfo
	for _, c := range t.Cities {
		out = append(out, c.Routers...)
	}
	return out
}

func caches(t *Topology) []*NodeInfo {
	var out []*NodeInfo
	for _, c := range t.Cities {
		out = append(out, c.Caches...)
	}
	return out
}

func groups(t *Topology) []*GroupInfo {
	var out []*GroupInfo
	for _, z := range t.index.zoneList {
		out = append(out, z.Groups...)
	}
	return out
}

func brokers(t *Topology) []*NodeInfo {
	var out []*NodeInfo
	for _, g := range groups(t) {
		out = append(out, g.Nodes...)
	}
	return out
}

// holdText says how much a consumer group may hold back.
func holdText(n int64) string {
	if n == 0 {
		return "no bound"
	}
	return formatSize(n)
}
