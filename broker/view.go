package broker

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/mqrouter/mqrouter/zone"
)

// view is the topology in force, prepared for publishing and landing. It is
// immutable but for the counters and is replaced as a whole. The fold never
// looks at it.
type view struct {
	topo   *zone.Topology
	node   zone.Node
	group  *zone.GroupInfo
	zone   *zone.ZoneInfo
	topics map[zone.Topic]*topicView
	once   bool // a topic is idempotent
	homes  bool // messages of a topic have homes, and the zone has several groups
}

type topicView struct {
	info      *zone.TopicInfo
	residency []zone.City
	lands     bool          // in this zone
	turn      atomic.Uint32 // next queue when the client has no wish
}

// newView returns nil when the topology does not have the group.
func newView(t *zone.Topology, node zone.Node, group zone.Group) *view {
	g := t.FindGroup(group)
	if g == nil {
		return nil
	}
	v := &view{topo: t, node: node, group: g, zone: g.Zone, topics: make(map[zone.Topic]*topicView, len(t.Topics))}
	for _, info := range t.Topics {
		tv := &topicView{info: info, lands: t.LandsIn(info, g.Zone)}
		for _, c := range info.Residency {
			tv.residency = append(tv.residency, c.Name)
		}
		v.topics[info.Name] = tv
		v.once = v.once || info.Idempotent > 0
		v.homes = v.homes || info.HasHome()
	}
	v.homes = v.homes && len(g.Zone.Groups) > 1
	return v
}

// body returns what the fold needs of the topology.
func (v *view) body() *topologyBody {
	t := v.topo
	body := &topologyBody{epoch: t.Epoch, digest: t.Digest}
	for _, info := range t.Topics {
		if v.topics[info.Name].lands {
			tb := topicBody{name: info.Name, queues: info.Queues, retention: info.Retention, broadcast: info.Channel != nil}
			if info.Channel != nil {
				tb.channel = string(info.Channel.Name)
			}
			if info.Receipts != nil {
				tb.receipts = info.Receipts.Name
			}
			tb.lite = info.Lite.Topics
			body.topics = append(body.topics, tb)
		}
	}
	for _, g := range t.Groups {
		if !t.ConsumedIn(g, v.zone) {
			continue
		}
		gb := groupBody{name: g.Name, cache: g.Cache}
		for _, info := range g.Topics {
			if v.topics[info.Name].lands {
				gb.topics = append(gb.topics, info.Name)
			}
		}
		body.groups = append(body.groups, gb)
	}
	for _, c := range t.Channels {
		cb := channelBody{name: string(c.Name)}
		for _, city := range t.Cities {
			if city.CZone != nil {
				cb.legs = append(cb.legs, legKey{city.Name, city.CZone.SlotOwner(c.Slot).Name})
			}
		}
		cb.serves, cb.onward = v.onward(c)
		body.channels = append(body.channels, cb)
	}
	body.owners = owners(t)
	return body
}

// onward says whether what lands here of a channel is served onward: to the owner
// of its slot in every other zone of the city, when it is broadcast to zones, and to
// the cities that ask for it, when cities are served from others' landings.
func (v *view) onward(c *zone.ChannelInfo) (serves bool, legs []legKey) {
	city := v.zone.City
	if city.CZone != v.zone || v.zone.SlotOwner(c.Slot) != v.group || !c.Topics[0].ResidentIn(city) {
		return false, nil
	}
	if c.Topics[0].Route.Kind != zone.RouteBroadcastZone {
		return v.topo.Relays(), nil
	}
	for _, z := range city.Zones {
		if z != v.zone {
			legs = append(legs, legKey{city.Name, z.SlotOwner(c.Slot).Name})
		}
	}
	return true, legs
}

// owners hashes what each zone owns.
func owners(t *zone.Topology) []ownerBody {
	list := make([]ownerBody, 0, len(t.Zones())+1)
	sums := make([]*xxhash.Digest, len(t.Zones()))
	for i := range sums {
		sums[i] = xxhash.New()
	}
	var buf [4]byte
	for s := range zone.Shard(t.ShardCount) {
		if z := t.ShardOwner(s); z != nil {
			binary.LittleEndian.PutUint32(buf[:], uint32(s))
			_, _ = sums[z.Index].Write(buf[:]) // never fails
		}
	}
	for i, z := range t.Zones() {
		slots := zone.Slot(zone.Slots)
		if len(z.Groups) == 1 {
			slots = 1 // it owns them all
		}
		for s := range slots {
			_, _ = sums[i].WriteString(string(z.SlotOwner(s).Name)) // never fails
		}
		list = append(list, ownerBody{z.Name, sums[i].Sum64()})
	}
	if z := t.ActiveGZone(); z != nil {
		list = append(list, ownerBody{"", xxhash.Sum64String(string(z.Name))})
	}
	return list
}
