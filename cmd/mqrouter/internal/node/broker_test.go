package node

import (
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

func TestBrokerSpeaksForItsOwnGroupOnly(t *testing.T) {
	top := parse(t, sample.YAML)
	id := func(name zone.Node) peer.Identity { return peer.IdentityFor(top.Deployment, top.FindNode(name)) }
	open := func(origin zone.Group) wire.Frame {
		o := wire.Open{Flow: record.FlowID{Origin: origin, Incarnation: 1, Target: "rz02-a", Class: zone.ClassBulk},
			City: "shanghai", Group: "rz02-a", OriginCity: "shanghai"}
		return wire.Frame{Type: wire.TypeOpen, Session: 1, Class: zone.ClassBulk, Payload: o.Append(nil)}
	}
	zonal := parse(t, []byte(strings.Replace(string(sample.YAML), "route: {broadcast: city}", "route: {broadcast: zone}", 1)))
	onward := func(origin zone.Group, channel string) wire.Frame {
		o := wire.Open{Flow: record.FlowID{Origin: origin, Incarnation: 1, Target: channel, Channel: true, Class: zone.ClassUrgent},
			City: "shanghai", Group: "rz02-a", OriginCity: "shanghai", Role: wire.OpenHolder}
		return wire.Frame{Type: wire.TypeOpen, Session: 1, Class: zone.ClassUrgent, Payload: o.Append(nil)}
	}
	gone := id("rz01-a-1")
	gone.Name = "rz01-x-1"
	for _, c := range []struct {
		what  string
		id    peer.Identity
		first wire.Frame
		ok    bool
	}{
		{"its own flow", id("rz01-a-1"), open("rz01-a"), true},
		{"the flow of another group of its zone", id("rz01-a-1"), open("rz01-b"), false},
		{"the flow of another city's group", id("rz01-a-1"), open("rz03-a"), false},
		{"a broker that the topology does not have", gone, open("rz01-a"), false},
		{"what a router brings", id("rt-sh-1"), open("rz03-a"), true},
		{"a frame that is no Open", id("rz01-a-1"), wire.Frame{Type: wire.TypeWant}, true},
		{"a malformed Open", id("rz01-a-1"), wire.Frame{Type: wire.TypeOpen, Payload: []byte{1}}, true},
		{"what its city has landed, to the city's zones", id("cz-sh-a-1"), onward("rz03-a", "member"), true},
		{"what its city has landed of a channel that there is not", id("cz-sh-a-1"), onward("rz03-a", "other"), false},
		{"another group, by a zone that lands for nobody", id("rz01-a-1"), onward("rz03-a", "member"), false},
	} {
		if err := speaksForItself(zonal, c.id, c.first); (err == nil) != c.ok {
			t.Errorf("%s: %v; want ok %v", c.what, err, c.ok)
		}
	}
}
