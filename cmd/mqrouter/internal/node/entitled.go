package node

import (
	"fmt"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// speaksForItself refuses a broker that opens a flow of another group, but for one
// that serves onward what its city has landed; what a router brings, routers have
// checked. A frame that is no Open, or a malformed one, is for others to refuse.
func speaksForItself(t *zone.Topology, id peer.Identity, first wire.Frame) error {
	if id.Role != zone.RoleBroker || first.Type != wire.TypeOpen {
		return nil
	}
	o, err := wire.ParseOpen(first.Payload)
	if err != nil {
		return nil //nolint:nilerr // the inbox answers it
	}
	node := t.FindNode(id.Name)
	switch {
	case node == nil || node.Group == nil:
	case o.Role == wire.OpenHolder && landsFor(t, node.Group, &o):
		return nil
	case node.Group.Name == o.Flow.Origin:
		return nil
	}
	return fmt.Errorf("broker %s may not speak for group %q", id.Name, o.Flow.Origin)
}

// landsFor reports whether the channel of the flow lands in the group for its city
// and goes onward from there to the city's zones.
func landsFor(t *zone.Topology, g *zone.GroupInfo, o *wire.Open) bool {
	c := channel(t, o.Flow)
	return c != nil && lands(g, c) && c.Topics[0].Route.Kind == zone.RouteBroadcastZone
}
