package router

import (
	"context"
	"strings"

	"github.com/mqrouter/mqrouter/policy"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// across opens a stream to a router of the destination's city, or of a third one
// that passes the session on: which of them first is the path choice's, and the
// other is what is left when the first does not take the session.
func (r *Router) across(s *session, f wire.Frame, o *wire.Open) *refusal {
	p := r.paths.to(o.City, f.Class)
	if p.reason == PathDirect {
		// A detour is the path loop's to begin: what was down for a moment only
		// would scatter the sessions, and the loop had to gather them again.
		return r.direct(s, f, o)
	}
	y := r.detour(s, f, o, p)
	if y == nil {
		return nil
	}
	x := r.direct(s, f, o)
	if x != nil && y.code == wire.CodeResidency {
		return y // not the missing link alone: that another way is forbidden
	}
	return x
}

// direct opens a stream to a router of the destination's city.
func (r *Router) direct(s *session, f wire.Frame, o *wire.Open) *refusal {
	city := r.o.Topology().FindCity(o.City) // judged a moment ago, but the topology may be another
	if city == nil {
		return refuse(wire.CodeNoRoute, "the topology has no city %q any more", o.City)
	}
	return r.toCity(s, city, f, nil)
}

// detour opens a stream to a router of a third city.
func (r *Router) detour(s *session, f wire.Frame, o *wire.Open, p path) *refusal {
	top := r.o.Topology()
	x := refuse(wire.CodeNoRoute, "no city reaches %s", o.City)
	forbidden := 0
	for _, d := range p.detours {
		city := top.FindCity(d.city)
		switch {
		case city == nil:
			continue
		case !policy.MayEnter(o.Residency, d.city):
			forbidden++
			continue
		}
		reaches := func(n zone.Node) bool {
			_, ok := r.reaches(n, f.Class, o.City)
			return ok
		}
		if x = r.toCity(s, city, f, reaches); x != nil {
			continue
		}
		if x = r.sayVia(s, f, []zone.City{r.city}); x == nil {
			s.via = d.city
			r.paths.detoured.Add(1)
			return nil
		}
	}
	if forbidden > 0 && forbidden == len(p.detours) {
		x = refuse(wire.CodeResidency, "%s to %s, and the records may not enter %s, which would pass them on", p.reason, o.City, cities(p.detours))
		x.later = true
	}
	return x
}

// passOn opens the second half of another city's detour: a direct link and
// nothing else, so that a cut-through has one next hop and cannot go in circles.
func (r *Router) passOn(s *session, from caller, f wire.Frame, o *wire.Open) *refusal {
	if x := r.direct(s, f, o); x != nil {
		return x
	}
	x := r.sayVia(s, f, append(from.path, r.city))
	if x == nil {
		r.paths.passed.Add(1)
	}
	return x
}

// sayVia writes the path before the first frame.
func (r *Router) sayVia(s *session, f wire.Frame, path []zone.City) *refusal {
	v := wire.Via{Path: path}
	// No context: the stream bounds its own writes.
	err := s.dest.stream.Send(context.Background(), wire.Frame{
		Type: wire.TypeVia, Session: f.Session, Class: f.Class, Hops: f.Hops, Payload: v.Append(nil),
	})
	if err != nil {
		_ = s.dest.stream.Close(codeOf(err))
		return refuse(codeOf(err), "link to %s: %v", s.dest.node, err)
	}
	return nil
}

// toCity opens a stream to a router of the city that fits (nil = any does).
func (r *Router) toCity(s *session, city *zone.CityInfo, f wire.Frame, fits func(zone.Node) bool) *refusal {
	draining := make(map[zone.Node]bool)
	for _, m := range r.o.Peers.Routers() {
		draining[m.Node] = m.Draining
	}
	var hops []hop
	for _, n := range city.Routers {
		_, up := r.links.Up(n.Name, f.Class)
		if up && fits != nil {
			up = fits(n.Name)
		}
		hops = append(hops, hop{node: n.Name, up: up, draining: draining[n.Name]})
	}
	x := refuse(wire.CodeNoRoute, "no link to any of %d routers of %s", len(hops), city.Name)
	for _, node := range choose(f.Session, hops) {
		stream, err := r.links.Open(node, f.Class, f.Session)
		if err == nil {
			s.dest = newEnd(stream)
			return nil
		}
		x = refuse(codeOf(err), "link to %s: %v", node, err)
	}
	return x
}

func cities(all []detour) string {
	names := make([]string, len(all))
	for i, d := range all {
		names[i] = string(d.city)
	}
	return strings.Join(names, ", ")
}
