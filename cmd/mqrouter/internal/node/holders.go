package node

import (
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// holders returns who may serve a channel's flow to a group from what they have
// landed: the city that the topology declares first, then the others in the order of
// the file. None where the flow comes straight from its origin.
func holders(t *zone.Topology, self zone.Group, incarnation record.Incarnation, id record.FlowID) []flow.Leg {
	me, origin, c := t.FindGroup(self), t.FindGroup(id.Origin), channel(t, id)
	if me == nil || origin == nil || c == nil || !lands(me, c) {
		return nil
	}
	ask := record.FlowID{Origin: self, Incarnation: incarnation, Target: id.Target, Channel: true, Class: id.Class}
	var legs []flow.Leg
	for _, h := range t.Holders(c, me.Zone.City, origin.Zone.City.Name) {
		legs = append(legs, flow.Leg{Flow: ask, City: h.Name, Group: h.CZone.SlotOwner(c.Slot).Name})
	}
	return legs
}

func channel(t *zone.Topology, id record.FlowID) *zone.ChannelInfo {
	if !id.Channel {
		return nil
	}
	for _, c := range t.Channels {
		if string(c.Name) == id.Target {
			return c
		}
	}
	return nil
}

// lands reports whether a channel lands in the group for its city.
func lands(g *zone.GroupInfo, c *zone.ChannelInfo) bool {
	return g.Zone == g.Zone.City.CZone && g.Zone.SlotOwner(c.Slot) == g
}

// mayPull reports whether who opened a stream may have a flow that landed here:
// where the channel lands in its city, and only there.
func mayPull(t *zone.Topology, o *wire.Open) bool {
	g, c := t.FindGroup(o.Flow.Origin), channel(t, o.Want)
	return g != nil && c != nil && g.Zone.City.Name == o.OriginCity && lands(g, c) && c.Topics[0].ResidentIn(g.Zone.City)
}
