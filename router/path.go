package router

import (
	"fmt"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/policy"
	"github.com/mqrouter/mqrouter/replication/egress"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// refusal is why a session is not passed on.
type refusal struct {
	code  wire.Code
	text  string
	later bool // it may be otherwise soon, whatever the code's rule
}

func refuse(code wire.Code, format string, args ...any) *refusal {
	return &refusal{code: code, text: fmt.Sprintf(format, args...)}
}

// retryAfter is the hint of a retryable refusal: routes change within a second.
const retryAfter = 250 * time.Millisecond

// frame returns the Refuse frame in answer to f.
func (x *refusal) frame(f wire.Frame) wire.Frame {
	r := wire.Refuse{Code: x.code, Text: x.text}
	if x.code.Retryable() || x.later {
		r.RetryAfter = retryAfter
	}
	return wire.Frame{Type: wire.TypeRefuse, Session: f.Session, Class: f.Class, Payload: r.Append(nil)}
}

// caller is who opened a session, as its certificate says.
type caller struct {
	node     zone.Node
	city     zone.City
	class    zone.Class // of the link; 0 for brokers, whose destination judges it
	outbound bool       // a broker of the router's city; else a router of another
	// path is the cities that a session has left on its way to this link, the
	// origin's first and the link's last; nil = it comes straight from its origin.
	path []zone.City
}

// maxPath is how many cities a session may have left when it arrives: its own,
// and one that it was passed on in. A detour over two cities would need all of
// the direct links between three cities to be down, and every router more on the
// way could only guess at what the next one reaches.
const maxPath = 2

// unlisted returns a city of the path that the topology does not have; "" = none.
func unlisted(top *zone.Topology, path []zone.City) zone.City {
	i := slices.IndexFunc(path, func(c zone.City) bool { return top.FindCity(c) == nil })
	if i < 0 {
		return ""
	}
	return path[i]
}

// trail decides whether the way that a session says it came is one that a
// session can come: nil means yes.
func trail(city zone.City, from caller, hops uint8, o *wire.Open) *refusal {
	n := len(from.path)
	if n == 0 {
		return nil
	}
	visited := make(map[zone.City]bool, n)
	for _, c := range from.path {
		if visited[c] || c == city || c == o.City {
			return refuse(wire.CodeHops, "the session to %s has gone round in a circle: %v", o.City, append(slices.Clone(from.path), city))
		}
		visited[c] = true
	}
	switch {
	case n > maxPath || o.City != city && n >= maxPath:
		return refuse(wire.CodeHops, "the session has passed %d cities and may pass one", n-1)
	case from.path[n-1] != from.city:
		return refuse(wire.CodeWrongIdentity, "%s is in %s and says that the session comes from %s", from.node, from.city, from.path[n-1])
	case from.path[0] != o.OriginCity:
		return refuse(wire.CodeWrongIdentity, "the session begins in %s and its origin is %s", from.path[0], o.OriginCity)
	case int(hops) < n:
		return refuse(wire.CodeMalformed, "%d hops over %d cities", hops, n)
	}
	for _, c := range from.path[1:] {
		if !policy.MayEnter(o.Residency, c) {
			return refuse(wire.CodeResidency, "the records were in %s, which they may not enter", c)
		}
	}
	return nil
}

// entitled decides whether the caller may open the session: it is in the
// topology as it is now, not only as it was at the handshake, and speaks for
// itself. A broker opens its own group's flows, a router those of its city and
// those that it says it passes on (see trail): with a router's certificate one
// may speak for the groups of every other city, which noteBrought shows.
func entitled(top *zone.Topology, from caller, o *wire.Open) *refusal {
	n := top.FindNode(from.node)
	role := zone.RoleRouter
	if from.outbound {
		role = zone.RoleBroker
	}
	switch {
	case n == nil || n.Role != role || n.City.Name != from.city:
		return refuse(wire.CodeWrongIdentity, "the topology %s has no %s %q in %s", top.Epoch, role, from.node, from.city)
	case o.OriginCity != from.city && len(from.path) < maxPath:
		return refuse(wire.CodeWrongIdentity, "%s is in %s and passes nothing on from %q", from.node, from.city, o.OriginCity)
	case from.outbound && o.Flow.Origin != n.Group.Name:
		return refuse(wire.CodeWrongIdentity, "broker %s is of group %s and may not speak for %q", from.node, n.Group.Name, o.Flow.Origin)
	}
	// A group that this topology does not have is the destination's to judge.
	if g := top.FindGroup(o.Flow.Origin); g != nil && g.Zone.City.Name != o.OriginCity {
		return refuse(wire.CodeWrongIdentity, "group %s is not in %s", o.Flow.Origin, o.OriginCity)
	}
	return nil
}

// judge decides whether a session that begins with f may pass a router of the
// city: nil means yes. A request that was resolved with a newer topology than
// the router's is told so, because then the router is the one that does not know.
func judge(top *zone.Topology, city zone.City, from caller, f wire.Frame, o *wire.Open) *refusal {
	unknown := func(code wire.Code, format string, args ...any) *refusal {
		if o.RouteEpoch.Compare(top.Epoch) > 0 {
			code = wire.CodeTopologyBehind
		}
		return refuse(code, format, args...)
	}
	verdict := policy.Crossing{Hops: f.Hops, Residency: o.Residency, Into: o.City}.Judge()
	passing := !from.outbound && o.City != city
	switch {
	case f.Class != zone.ClassUrgent && f.Class != zone.ClassBulk:
		return refuse(wire.CodeUnsupported, "class %d has no links", f.Class)
	case from.class != 0 && f.Class != from.class:
		return refuse(wire.CodeMalformed, "class %d on a link of class %d", f.Class, from.class)
	case f.Session == 0:
		return refuse(wire.CodeMalformed, "session 0 is the connection itself")
	case verdict == policy.OverHopLimit:
		return refuse(wire.CodeHops, "the hop limit of %d is reached", policy.HopLimit)
	case from.outbound && o.City == city:
		return refuse(wire.CodeNoRoute, "%s is this router's own city: its brokers are reached directly", city)
	case passing && len(from.path) == 0:
		return refuse(wire.CodeNoRoute, "this router is in %s and passes on to %s only what says which way it came", city, o.City)
	case top.FindCity(o.City) == nil:
		return unknown(wire.CodeNoRoute, "the topology %s has no city %q", top.Epoch, o.City)
	case unlisted(top, from.path) != "":
		return unknown(wire.CodeNoRoute, "the topology %s has no city %q, which the session says it has left", top.Epoch, unlisted(top, from.path))
	case verdict == policy.NotResident:
		return refuse(wire.CodeResidency, "the records may not enter %s", o.City)
	case passing && !policy.MayEnter(o.Residency, city):
		return refuse(wire.CodeResidency, "the records may not enter %s on their way to %s", city, o.City)
	}
	if x := trail(city, from, f.Hops, o); x != nil {
		return x
	}
	if x := entitled(top, from, o); x != nil {
		return x
	}
	g := top.FindGroup(o.Group)
	if g == nil || g.Zone.City.Name != o.City {
		return unknown(wire.CodeUnknownGroup, "the topology %s has no group %q in %s", top.Epoch, o.Group, o.City)
	}
	return nil
}

// hop is a router of the next city as the path choice sees it.
type hop struct {
	node     zone.Node
	up       bool // the link of the class takes sessions
	draining bool // gossip says that it goes away
}

// choose returns the routers to try, in order: those whose link is up, by
// rendezvous hash of the session, draining ones last.
func choose(session uint64, hops []hop) []zone.Node {
	hops = slices.DeleteFunc(slices.Clone(hops), func(h hop) bool { return !h.up })
	egress.Rank(hops, session, func(h hop) zone.Node { return h.node })
	slices.SortStableFunc(hops, func(a, b hop) int {
		switch {
		case a.draining == b.draining:
			return 0
		case b.draining:
			return -1
		}
		return 1
	})
	out := make([]zone.Node, len(hops))
	for i, h := range hops {
		out[i] = h.node
	}
	return out
}
