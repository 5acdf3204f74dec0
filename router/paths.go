package router

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/policy"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// moveAtOnce is how many sessions are asked to change their path with one look:
// at the default of ten looks a second a router's 4096 sessions have moved
// within seven seconds, and nobody sees them all open again together.
const moveAtOnce = 64

// spreadAtOnce is how many sessions are asked with one look to change the
// connection of their link. It is few: what the others should do is judged anew
// when these have moved.
const spreadAtOnce = 4

// pathKey names what a path is chosen for.
type pathKey struct {
	city  zone.City
	class zone.Class
}

// path is what the choice has come to; it is never changed.
type path struct {
	reason  PathReason
	since   time.Time
	best    zone.City
	detours []detour // in the order to try
	good    time.Time
	hold    time.Duration
	changes uint64
	up      bool
	rtt     time.Duration
}

// paths chooses the path to each city. Its loop owns the routes; what they come
// to is read by anybody.
type paths struct {
	timing PathTiming
	routes map[pathKey]*route // only the loop
	now    atomic.Pointer[map[pathKey]path]

	detoured atomic.Uint64 // sessions that took a detour, since the start
	passed   atomic.Uint64 // sessions that were passed on for other cities
	moved    atomic.Uint64 // sessions that were asked to change their path or connection
	spread   atomic.Uint64 // of these: their connection
	astray   atomic.Uint64 // batches that came to be passed on although they may not enter this city
}

func newPaths(t PathTiming) *paths {
	p := &paths{timing: t.withDefaults(), routes: make(map[pathKey]*route)}
	p.now.Store(&map[pathKey]path{})
	return p
}

// to returns the path to a city; the zero value is the direct link.
func (p *paths) to(city zone.City, class zone.Class) path {
	return (*p.now.Load())[pathKey{city, class}]
}

// status returns what people are told of the path.
func (p *path) status(key pathKey) *PathStatus {
	s := &PathStatus{
		City: key.city, Class: key.class, Reason: p.reason, Since: p.since, Up: p.up, RTT: p.rtt,
		Return: p.hold, Changes: p.changes,
	}
	if p.reason != PathDirect {
		s.Via = p.best
	}
	for _, d := range p.detours {
		s.Detours = append(s.Detours, DetourStatus{City: d.city, RTT: d.rtt})
	}
	return s
}

// watchPaths looks at the links until ctx ends.
func (r *Router) watchPaths(ctx context.Context) {
	tick := time.NewTicker(r.paths.timing.Look)
	defer tick.Stop()
	for {
		r.look(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// look feeds every route what is seen of it now, and tells the peers when this
// router reaches other cities than before.
func (r *Router) look(now time.Time) {
	top := r.o.Topology()
	before := *r.paths.now.Load()
	next := make(map[pathKey]path, len(before))
	var changed []zone.Class
	for _, class := range classes {
		offers := r.offers(top, class)
		for _, c := range top.Cities {
			if c.Name == r.city {
				continue
			}
			key := pathKey{c.Name, class}
			rt := r.paths.routes[key]
			if rt == nil {
				rt = newRoute(r.paths.timing, now)
				r.paths.routes[key] = rt
			}
			s := r.see(c, class)
			s.detours = offers[c.Name]
			rt.step(now, s)
			p := path{
				reason: rt.reason, since: rt.since, best: rt.best, detours: rt.order(s.detours),
				good: rt.good, hold: rt.hold, changes: rt.changes, up: s.up, rtt: s.rtt,
			}
			next[key] = p
			r.tellPath(key, before[key], p)
			if before[key].up != p.up && !slices.Contains(changed, class) {
				changed = append(changed, class)
			}
		}
	}
	for key := range r.paths.routes {
		if _, ok := next[key]; !ok {
			delete(r.paths.routes, key)
		}
	}
	r.paths.now.Store(&next)
	for _, class := range changed {
		r.links.TellReach(class)
	}
}

// tellPath logs a change of path.
func (r *Router) tellPath(key pathKey, was, is path) {
	if was.reason == is.reason {
		return
	}
	if is.reason == PathDirect {
		r.log.Info("sessions go back to the direct link", "city", key.city, "class", key.class.String(), "after", is.since.Sub(was.since).Round(time.Millisecond).String())
		return
	}
	r.log.Warn("sessions take a detour", "city", key.city, "class", key.class.String(), "via", is.best, "reason", is.reason.String())
}

// classes are the classes that links have.
var classes = [...]zone.Class{zone.ClassUrgent, zone.ClassBulk}

// see looks at the direct links to a city.
func (r *Router) see(to *zone.CityInfo, class zone.Class) sight {
	var s sight
	for _, n := range to.Routers {
		rtt, up := r.links.Up(n.Name, class)
		if !up {
			continue
		}
		if !s.up || rtt > 0 && (s.rtt == 0 || rtt < s.rtt) {
			s.rtt = rtt
		}
		s.up = true
	}
	return s
}

// offers returns the detours to each city, in the topology's order: over the
// third cities whose routers have a working link to here and say that they reach
// it. Each router is asked once a look, however many cities there are.
func (r *Router) offers(top *zone.Topology, class zone.Class) map[zone.City][]detour {
	all := make(map[zone.City][]detour)
	for _, third := range top.Cities {
		if third.Name == r.city {
			continue
		}
		over := make(map[zone.City]time.Duration) // what the third city reaches; 0 = not measured
		for _, n := range third.Routers {
			near, up := r.links.Up(n.Name, class)
			if !up {
				continue
			}
			for _, c := range r.links.Reach(n.Name, class) {
				least := over[c.City]
				if sum := near + c.RTT; near > 0 && c.RTT > 0 && (least == 0 || sum < least) {
					least = sum
				}
				over[c.City] = least
			}
		}
		for city, rtt := range over {
			if city != third.Name && city != r.city {
				all[city] = append(all[city], detour{third.Name, rtt})
			}
		}
	}
	return all
}

// reaches returns the round trip that a router of another city has told for its
// own direct link to the city.
func (r *Router) reaches(node zone.Node, class zone.Class, city zone.City) (time.Duration, bool) {
	for _, c := range r.links.Reach(node, class) {
		if c.City == city {
			return c.RTT, true
		}
	}
	return 0, false
}

// reach is what this router tells its peers: the cities of its direct links,
// nearest first. A router that is about to stop offers no way to anywhere.
func (r *Router) reach(class zone.Class) []wire.Reached {
	if r.draining.Load() {
		return nil
	}
	var out []wire.Reached
	for key, p := range *r.paths.now.Load() {
		if key.class == class && p.up {
			out = append(out, wire.Reached{City: key.city, RTT: p.rtt})
		}
	}
	slices.SortFunc(out, func(a, b wire.Reached) int { return cmp.Or(cmp.Compare(a.RTT, b.RTT), cmp.Compare(a.City, b.City)) })
	return out
}

// moveSessions asks the origins of sessions that are on the wrong path to open
// them again, some with each look, until ctx ends.
func (r *Router) moveSessions(ctx context.Context) {
	tick := time.NewTicker(r.paths.timing.Look)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		d := wire.Drain{}
		payload := d.Append(nil)
		var wg sync.WaitGroup
		for _, s := range r.misplaced() {
			r.paths.moved.Add(1)
			wg.Go(func() { s.drain(payload) })
		}
		wg.Wait() // each send is bounded by its stream
	}
}

// misplaced returns sessions of this city whose path is not the chosen one, or
// whose link has a better connection for them, and marks them. A session whose records may take no detour stays where it is.
func (r *Router) misplaced() []*session {
	now := *r.paths.now.Load()
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*session
	spread := 0
	for s := range r.sessions {
		if len(out) == moveAtOnce {
			break
		}
		if s.asked || !s.outbound {
			continue
		}
		p := now[pathKey{s.city, s.class}]
		switch {
		case s.via != "" && p.reason == PathDirect && p.up:
		case s.via == "" && p.reason == PathWorse && slices.ContainsFunc(p.detours, func(d detour) bool { return policy.MayEnter(s.residency, d.city) }):
		case spread < spreadAtOnce && s.displaced():
			spread++
			r.paths.spread.Add(1)
		default:
			continue
		}
		s.asked = true
		out = append(out, s)
	}
	return out
}
