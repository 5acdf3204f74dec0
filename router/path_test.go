package router

import (
	"bytes"
	"testing"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// TestNobodySpeaksForOthers holds the claims of an Open against the identity of
// who brought it: a stolen broker must not be able to number records in another
// group's name, nor a router in another city's.
func TestNobodySpeaksForOthers(t *testing.T) {
	parse := func(text []byte) *zone.Topology {
		top, err := zone.Parse(text, "sample.yaml")
		if err != nil {
			t.Fatal(err)
		}
		return top
	}
	top := parse(sample.YAML)
	without := parse(bytes.ReplaceAll(sample.YAML, []byte("rt-sh-2"), []byte("rt-sh-9")))
	broker := caller{node: "rz01-a-1", city: "shanghai", outbound: true}
	link := caller{node: "rt-sh-2", city: "shanghai", class: zone.ClassBulk}
	for _, c := range []struct {
		what   string
		top    *zone.Topology
		city   zone.City // of the router
		from   caller
		change func(*wire.Open)
		want   wire.Code // 0: it passes
	}{
		{"a broker's own flow", top, "shanghai", broker, nil, 0},
		{"another group's flow", top, "shanghai", broker, func(o *wire.Open) { o.Flow.Origin = "rz02-a" }, wire.CodeWrongIdentity},
		{"a group of another city", top, "shanghai", broker, func(o *wire.Open) { o.Flow.Origin = "rz05-a" }, wire.CodeWrongIdentity},
		{"a city that is not the broker's", top, "shanghai", broker, func(o *wire.Open) { o.OriginCity = "shenzhen" }, wire.CodeWrongIdentity},
		{"a router in place of a broker", top, "shanghai", caller{node: "rt-sh-2", city: "shanghai", outbound: true}, nil, wire.CodeWrongIdentity},
		{"a broker that is gone", top, "shanghai", caller{node: "rz01-x-1", city: "shanghai", outbound: true}, nil, wire.CodeWrongIdentity},
		{"a flow of the link's city", top, "hangzhou", link, nil, 0},
		{"a flow of a third city", top, "hangzhou", link, func(o *wire.Open) { o.OriginCity, o.Flow.Origin = "shenzhen", "rz05-a" }, wire.CodeWrongIdentity},
		{"a group of a third city", top, "hangzhou", link, func(o *wire.Open) { o.Flow.Origin = "rz05-a" }, wire.CodeWrongIdentity},
		{"a group that only the destination knows", top, "hangzhou", link, func(o *wire.Open) { o.Flow.Origin = "rz09-a" }, 0},
		{"a router that was taken out", without, "hangzhou", link, nil, wire.CodeWrongIdentity},
		{"a broker at a link", top, "hangzhou", caller{node: "rz01-a-1", city: "shanghai", class: zone.ClassBulk}, nil, wire.CodeWrongIdentity},
		{"a class that is not the link's", top, "hangzhou", caller{node: "rt-sh-2", city: "shanghai", class: zone.ClassUrgent}, nil, wire.CodeMalformed},
	} {
		o := wire.Open{
			Flow: record.FlowID{Origin: "rz01-a", Incarnation: 1, Target: "rz03-a", Class: zone.ClassBulk},
			City: "hangzhou", Group: "rz03-a", OriginCity: "shanghai", RouteEpoch: top.Epoch,
		}
		if c.change != nil {
			c.change(&o)
		}
		x := judge(c.top, c.city, c.from, wire.Frame{Type: wire.TypeOpen, Session: 1, Class: zone.ClassBulk}, &o)
		switch {
		case c.want == 0 && x != nil:
			t.Errorf("%s: refused with %s: %s", c.what, x.code, x.text)
		case c.want != 0 && (x == nil || x.code != c.want):
			t.Errorf("%s: %+v; want %s", c.what, x, c.want)
		}
	}
}
