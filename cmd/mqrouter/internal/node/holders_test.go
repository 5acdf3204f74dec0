package node

import (
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// TestWhoMayPull: what landed here is given to where the channel lands in its city,
// and to nobody else.
func TestWhoMayPull(t *testing.T) {
	top := parse(t, []byte(strings.Replace(string(sample.YAML), "  - name: shenzhen\n", "  - name: shenzhen\n    broadcasts_via: hangzhou\n", 1)))
	of := func(origin zone.Group, target string) record.FlowID {
		return record.FlowID{Origin: origin, Incarnation: 1, Target: target, Channel: true, Class: zone.ClassUrgent}
	}
	for _, c := range []struct {
		what  string
		group zone.Group
		city  zone.City
		want  record.FlowID
		ok    bool
	}{
		{"where the channel lands", "cz-sz-a", "shenzhen", of("rz01-a", "member"), true},
		{"another group of that city", "rz05-a", "shenzhen", of("rz01-a", "member"), false},
		{"in the name of another city", "cz-sz-a", "hangzhou", of("rz01-a", "member"), false},
		{"a group that there is not", "cz-xx-a", "shenzhen", of("rz01-a", "member"), false},
		{"a channel that there is not", "cz-sz-a", "shenzhen", of("rz01-a", "other"), false},
		{"a flow that is no channel's", "cz-sz-a", "shenzhen", record.FlowID{Origin: "rz01-a", Incarnation: 1, Target: "cz-sz-a"}, false},
	} {
		o := wire.Open{Flow: of(c.group, "member"), OriginCity: c.city, City: "hangzhou", Group: "cz-hz-a", Role: wire.OpenPull, Want: c.want}
		if got := mayPull(top, &o); got != c.ok {
			t.Errorf("%s: %v", c.what, got)
		}
		f := wire.Frame{Type: wire.TypeOpen, Payload: o.Append(nil)}
		if !asksToPull(f) {
			t.Errorf("%s: not taken for a pull", c.what)
		}
	}
	legs := holders(top, "cz-sz-a", 5, of("rz01-a", "member"))
	if len(legs) != 1 || legs[0].City != "hangzhou" || legs[0].Group != "cz-hz-a" || legs[0].Flow.Origin != "cz-sz-a" || legs[0].Flow.Incarnation != 5 {
		t.Errorf("holders %+v", legs)
	}
	for what, id := range map[string]record.FlowID{"an origin in the declared city": of("rz03-a", "member"), "an origin of its own": of("rz05-a", "member"), "an unknown channel": of("rz01-a", "x")} {
		if legs := holders(top, "cz-sz-a", 5, id); len(legs) != 0 {
			t.Errorf("%s: holders %+v", what, legs)
		}
	}
	if legs := holders(top, "rz05-a", 5, of("rz01-a", "member")); len(legs) != 0 {
		t.Errorf("a group where the channel does not land: %+v", legs)
	}
}
