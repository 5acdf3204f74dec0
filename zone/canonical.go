package zone

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
)

// digest hashes the canonical form: one line for each value, in a fixed order,
// names quoted, durations in nanoseconds, sizes in bytes, every default spelled
// out. Lists whose order means nothing (all but the steps of a retry and the
// nodes of a group) are sorted by name. The first line is the version of the
// form.
func digest(t *Topology) Digest { return sha256.Sum256(canonical(t)) }

func canonical(t *Topology) []byte {
	var b bytes.Buffer
	line := func(args ...any) {
		for i, a := range args {
			if i > 0 {
				b.WriteByte(' ')
			}
			fmt.Fprint(&b, a)
		}
		b.WriteByte('\n')
	}
	line("mqrouter-topology 1")
	line("deployment", quote(t.Deployment))
	line("epoch", t.Epoch.Term, t.Epoch.Number)
	line("unknown-groups-newest", t.UnknownGroupsNewest)
	line("shards", t.ShardCount, t.ShardBy)
	for i, z := range t.index.shardOwners {
		if i == 0 || z != t.index.shardOwners[i-1] {
			line("owner", i, quote(z.Name))
		}
	}
	for _, c := range sortedBy(t.Cities, func(c *CityInfo) City { return c.Name }) {
		line("city", quote(c.Name), c.MaxBody)
		if c.Via != nil {
			line("broadcasts-via", quote(c.Via.Name))
		}
		for _, n := range sortedBy(c.Routers, func(n *NodeInfo) Node { return n.Name }) {
			line("router", quote(n.Name), quote(n.QUIC), quote(n.Peer), quote(n.Gossip), quote(n.WAN), quote(n.Admin))
		}
		for _, n := range sortedBy(c.Caches, func(n *NodeInfo) Node { return n.Name }) {
			line("cache", quote(n.Name), quote(n.Admin))
		}
		canonicalCoordinator(c.Coordinator, line)
		for _, z := range sortedBy(c.Zones, func(z *ZoneInfo) Zone { return z.Name }) {
			canonicalZone(z, line)
		}
	}
	for _, topic := range sortedBy(t.Topics, func(t *TopicInfo) Topic { return t.Name }) {
		canonicalTopic(topic, line)
	}
	for _, g := range sortedBy(t.Groups, func(g *ConsumerGroupInfo) ConsumerGroup { return g.Name }) {
		canonicalConsumers(g, line)
	}
	return b.Bytes()
}

func quote[N ~string](s N) string { return strconv.Quote(string(s)) }

func sortedBy[T any, N cmp.Ordered](list []T, key func(T) N) []T {
	return slices.SortedFunc(slices.Values(list), func(a, b T) int { return cmp.Compare(key(a), key(b)) })
}

func canonicalZone(z *ZoneInfo, line func(...any)) {
	line("zone", quote(z.Name), z.Kind, z.Active, z.MaxBody)
	if z.InCityStandby != nil {
		line("standby in-city", quote(z.InCityStandby.Name))
	}
	if z.RemoteStandby != nil {
		line("standby remote", quote(z.RemoteStandby.Name))
	}
	for s := range Slot(Slots) {
		if s == 0 || z.SlotOwner(s) != z.SlotOwner(s-1) {
			line("slot", s, quote(z.SlotOwner(s).Name))
		}
	}
	for _, g := range sortedBy(z.Groups, func(g *GroupInfo) Group { return g.Name }) {
		line("group", quote(g.Name))
		for _, n := range g.Nodes {
			line("node", quote(n.Name), quote(n.Client), quote(n.Peer), quote(n.Gossip), quote(n.Admin))
			if n.Room != "" {
				line("room", quote(n.Room))
			}
		}
	}
}

func canonicalTopic(t *TopicInfo, line func(...any)) {
	line("topic", quote(t.Name), t.Queues, t.Kind, canonicalDurability(t.Durability), int64(t.Retention), t.Class, t.Budget, t.AtBudget, t.MaxBody)
	if t.Kind == KindDelay {
		line("max-delay", int64(t.MaxDelay))
	}
	line("route", t.Route.Kind, t.Route.From, quote(t.Route.Property))
	if x := t.Transaction; t.Kind == KindTransaction {
		line("transaction", int64(x.Immunity), int64(x.Interval), x.Checks)
	}
	if x := t.Lite; t.Kind == KindLite {
		line("lite", x.Topics, int64(x.TTL), x.Subscriptions)
	}
	for _, c := range sortedBy(t.Residency, func(c *CityInfo) City { return c.Name }) {
		line("residency", quote(c.Name))
	}
	if t.Channel != nil {
		line("channel", quote(t.Channel.Name))
	}
	if t.Receipts != nil {
		line("receipts", quote(t.Receipts.Name))
	}
	if t.Idempotent > 0 {
		line("idempotent", int64(t.Idempotent))
	}
	if t.MinInSync > 1 {
		line("min-in-sync", t.MinInSync)
	}
}

// canonicalDurability returns the form's own word: a file of a deployment without
// replicas has the digest that nodes which know no replicas compute.
func canonicalDurability(d Durability) string {
	if d == DurabilityAllInSync {
		return "synced"
	}
	return d.String()
}

func canonicalCoordinator(x *CoordinatorInfo, line func(...any)) {
	if x == nil {
		return
	}
	line("coordinator", x.Driver, int64(x.Lease), quote(x.Prefix))
	byName := func(n *NodeInfo) Node { return n.Name }
	for _, n := range sortedBy(x.Voters, byName) {
		line("voter", quote(n.Name))
	}
	for _, n := range sortedBy(x.Nodes, byName) {
		line("coordinator-node", quote(n.Name), quote(n.Peer), quote(n.Gossip), quote(n.Admin), quote(n.Room))
	}
}

func canonicalConsumers(g *ConsumerGroupInfo, line func(...any)) {
	line("consumer-group", quote(g.Name), g.FIFO, g.MaxAttempts, g.Cache)
	if g.Hold > 0 {
		line("hold", g.Hold)
	}
	if g.Lite != LiteShared {
		line("lite-mode", g.Lite)
	}
	b := g.Backoff
	line("retry", int64(b.Initial), int64(b.Max), strconv.FormatFloat(b.Multiplier, 'g', -1, 64))
	for _, s := range b.Steps {
		line("step", int64(s))
	}
	for _, t := range sortedBy(g.Topics, func(t *TopicInfo) Topic { return t.Name }) {
		line("subscribes", quote(t.Name))
	}
	for _, z := range sortedBy(g.Zones, func(z *ZoneInfo) Zone { return z.Name }) {
		line("consumes-in", quote(z.Name))
	}
}
