package router

import (
	"testing"

	"github.com/mqrouter/mqrouter/policy"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// TestP5_NoSessionGoesRoundInACircle gives routers of every city on the way every
// kind of path: only the one that a detour takes passes, and each fault is told
// by its own code.
func TestP5_NoSessionGoesRoundInACircle(t *testing.T) {
	top := simTopology(t, 5, 1)
	type city = zone.City
	for _, c := range []struct {
		what      string
		at, from  city
		path      []city
		hops      uint8
		to        city
		residency []city
		want      wire.Code // 0: it passes
	}{
		{"straight", "basil", "amber", nil, 1, "basil", nil, 0},
		{"first half", "cedar", "amber", []city{"amber"}, 1, "basil", nil, 0},
		{"second half", "basil", "cedar", []city{"amber", "cedar"}, 2, "basil", nil, 0},
		{"allowed all the way", "basil", "cedar", []city{"amber", "cedar"}, 2, "basil", []city{"amber", "basil", "cedar"}, 0},
		{"to a third city, unsaid", "cedar", "amber", nil, 1, "basil", nil, wire.CodeNoRoute},
		{"back to where it was", "amber", "cedar", []city{"amber", "cedar"}, 2, "basil", nil, wire.CodeHops},
		{"back to its origin", "cedar", "basil", []city{"amber", "basil"}, 2, "amber", nil, wire.CodeHops},
		{"past its destination", "cedar", "basil", []city{"amber", "basil"}, 2, "basil", nil, wire.CodeHops},
		{"a city twice", "basil", "amber", []city{"amber", "amber"}, 2, "basil", nil, wire.CodeHops},
		{"a second third city", "dune", "cedar", []city{"amber", "cedar"}, 2, "basil", nil, wire.CodeHops},
		{"three cities on the way", "basil", "dune", []city{"amber", "cedar", "dune"}, 3, "basil", nil, wire.CodeHops},
		{"too many hops", "basil", "cedar", []city{"amber", "cedar"}, policy.HopLimit, "basil", nil, wire.CodeHops},
		{"fewer hops than cities", "basil", "cedar", []city{"amber", "cedar"}, 1, "basil", nil, wire.CodeMalformed},
		{"another city than the link's", "basil", "dune", []city{"amber", "cedar"}, 2, "basil", nil, wire.CodeWrongIdentity},
		{"another city than the origin's", "basil", "cedar", []city{"dune", "cedar"}, 2, "basil", nil, wire.CodeWrongIdentity},
		{"of another city, straight", "basil", "cedar", []city{"cedar"}, 1, "basil", nil, wire.CodeWrongIdentity},
		{"forbidden here", "cedar", "amber", []city{"amber"}, 1, "basil", []city{"amber", "basil"}, wire.CodeResidency},
		{"forbidden on the way", "basil", "cedar", []city{"amber", "cedar"}, 2, "basil", []city{"amber", "basil"}, wire.CodeResidency},
		{"forbidden there", "cedar", "amber", []city{"amber"}, 1, "basil", []city{"amber", "cedar"}, wire.CodeResidency},
	} {
		o := wire.Open{
			Flow: record.FlowID{Origin: "g-amber", Incarnation: 1, Target: string(groupOf(c.to)), Class: zone.ClassBulk},
			City: c.to, Group: groupOf(c.to), OriginCity: "amber", RouteEpoch: top.Epoch, Residency: c.residency,
		}
		from := caller{node: zone.Node("rt-" + c.from + "-1"), city: c.from, class: zone.ClassBulk, path: c.path}
		x := judge(top, c.at, from, wire.Frame{Type: wire.TypeOpen, Session: 1, Class: zone.ClassBulk, Hops: c.hops}, &o)
		switch {
		case c.want == 0 && x != nil:
			t.Errorf("%s: refused with %s: %s", c.what, x.code, x.text)
		case c.want != 0 && (x == nil || x.code != c.want):
			t.Errorf("%s: %+v; want %s", c.what, x, c.want)
		}
	}
}

// TestNoDetourFromAnUnlistedCity: a router's certificate lets nobody invent a city
// to speak for, and a topology that is behind says so.
func TestNoDetourFromAnUnlistedCity(t *testing.T) {
	top := simTopology(t, 3, 1)
	newer := top.Epoch
	newer.Number++
	for epoch, want := range map[zone.Epoch]wire.Code{top.Epoch: wire.CodeNoRoute, newer: wire.CodeTopologyBehind} {
		o := wire.Open{
			Flow: record.FlowID{Origin: "g-atlantis", Incarnation: 1, Target: "g-basil", Class: zone.ClassBulk},
			City: "basil", Group: "g-basil", OriginCity: "atlantis", RouteEpoch: epoch,
		}
		from := caller{node: "rt-cedar-1", city: "cedar", class: zone.ClassBulk, path: []zone.City{"atlantis", "cedar"}}
		x := judge(top, "basil", from, wire.Frame{Type: wire.TypeOpen, Session: 1, Class: zone.ClassBulk, Hops: 2}, &o)
		if x == nil || x.code != want {
			t.Errorf("a session from atlantis over cedar, route epoch %s: %+v; want %s", epoch, x, want)
		}
	}
}
