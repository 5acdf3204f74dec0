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
	code wire.Code
	text string
}

func refuse(code wire.Code, format string, args ...any) *refusal {
	return &refusal{code: code, text: fmt.Sprintf(format, args...)}
}

// retryAfter is the hint of a retryable refusal: routes change within a second.
const retryAfter = 250 * time.Millisecond

// frame returns the Refuse frame in answer to f.
func (x *refusal) frame(f wire.Frame) wire.Frame {
	r := wire.Refuse{Code: x.code, Text: x.text}
	if x.code.Retryable() {
		r.RetryAfter = retryAfter
	}
	return wire.Frame{Type: wire.TypeRefuse, Session: f.Session, Class: f.Class, Payload: r.Append(nil)}
}

// judge decides whether a session that begins with f may pass a router of the
// city: nil means yes. outbound says that it comes from a broker of the city.
// A request that was resolved with a newer topology than the router's is told
// so, because then the router is the one that does not know.
func judge(top *zone.Topology, city zone.City, f wire.Frame, o *wire.Open, outbound bool) *refusal {
	unknown := func(code wire.Code, format string, args ...any) *refusal {
		if o.RouteEpoch.Compare(top.Epoch) > 0 {
			code = wire.CodeTopologyBehind
		}
		return refuse(code, format, args...)
	}
	verdict := policy.Crossing{Hops: f.Hops, Residency: o.Residency, Into: o.City}.Judge()
	switch {
	case f.Class != zone.ClassUrgent && f.Class != zone.ClassBulk:
		return refuse(wire.CodeUnsupported, "class %d has no links", f.Class)
	case f.Session == 0:
		return refuse(wire.CodeMalformed, "session 0 is the connection itself")
	case verdict == policy.OverHopLimit:
		return refuse(wire.CodeNoRoute, "the hop limit of %d is reached", policy.HopLimit)
	case outbound && o.City == city:
		return refuse(wire.CodeNoRoute, "%s is this router's own city: its brokers are reached directly", city)
	case !outbound && o.City != city:
		return refuse(wire.CodeNoRoute, "this router is in %s and passes nothing on to a third city", city)
	case top.FindCity(o.City) == nil:
		return unknown(wire.CodeNoRoute, "the topology %s has no city %q", top.Epoch, o.City)
	case verdict == policy.NotResident:
		return refuse(wire.CodeResidency, "the records may not enter %s", o.City)
	}
	g := top.FindGroup(o.Group)
	if g == nil || g.Zone.City.Name != o.City {
		return unknown(wire.CodeUnknownGroup, "the topology %s has no group %q in %s", top.Epoch, o.Group, o.City)
	}
	return nil
}

// hop is a router of the destination's city as the path choice sees it.
type hop struct {
	node     zone.Node
	up       bool // the link of the class takes sessions
	draining bool // gossip says that it goes away
}

// choose returns the routers to try, in order: those whose link is up, by
// rendezvous hash of the session, draining ones last. Today the direct link is
// the only path.
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
