package router

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/replication/egress"
	"github.com/mqrouter/mqrouter/router/link"
	"github.com/mqrouter/mqrouter/zone"
)

// CityStatus is what goes on with another city.
type CityStatus struct {
	City      zone.City
	Up        int // links that take sessions
	Links     int
	Sessions  int           // relayed here
	RTT       time.Duration // least of the links; 0 = not measured
	FramesIn  uint64        // relayed from the city, since the start
	FramesOut uint64        // relayed to it
	BytesIn   uint64        // payload
	BytesOut  uint64
	WireIn    uint64 // on the links, headers of UDP and IP included
	WireOut   uint64
}

// PathStatus is the path that sessions of a class take to a city, and why.
type PathStatus struct {
	City     zone.City
	Class    zone.Class
	Via      zone.City  // third city; empty = the direct link
	Reason   PathReason // why there is a detour
	Since    time.Time  // of the present choice
	Up       bool       // a direct link takes sessions
	RTT      time.Duration
	Detours  []DetourStatus // that work, in the order to try
	Direct   int            // this city's sessions on the direct link
	Detoured int            // those on a detour
	Return   time.Duration  // how long the direct link must have worked before it is used again
	Changes  uint64         // of the choice, since the start
}

// DetourStatus is a third city that reaches a city.
type DetourStatus struct {
	City zone.City
	RTT  time.Duration // of both links; 0 = not measured
}

// Status is what is known of a router.
type Status struct {
	Node     zone.Node
	City     zone.City
	Epoch    zone.Epoch
	Draining bool
	Sessions int
	Opened   uint64 // sessions relayed since the start
	Refused  uint64 // sessions refused since the start
	Detoured uint64 // sessions that took a detour since the start
	Passed   uint64 // sessions passed on between two other cities since the start
	Moved    uint64 // sessions asked to change their path or connection since the start
	Spread   uint64 // of these: the connection of their link
	Astray   uint64 // batches that came to be passed on although their residency forbids this city: a fault of the router before
	Passing  int    // sessions that are passed on between two other cities now
	Brought  []BroughtStatus
	Cities   []CityStatus
	Paths    []PathStatus
	Links    []link.Status
	Brokers  []egress.TargetStatus
}

// Status returns what is known now, sorted by names.
func (r *Router) Status() Status {
	s := Status{
		Node: r.o.Node, City: r.city, Epoch: r.o.Topology().Epoch, Draining: r.draining.Load(),
		Opened: r.opened.Load(), Refused: r.refused.Load(),
		Detoured: r.paths.detoured.Load(), Passed: r.paths.passed.Load(), Moved: r.paths.moved.Load(),
		Spread: r.paths.spread.Load(),
		Astray: r.paths.astray.Load(),
		Links:  r.links.Status(), Brokers: r.brokers.Status(),
	}
	slices.SortFunc(s.Links, func(a, b link.Status) int {
		return cmp.Or(cmp.Compare(a.City, b.City), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Class, b.Class))
	})
	cities := make(map[zone.City]*CityStatus)
	city := func(name zone.City) *CityStatus {
		c := cities[name]
		if c == nil {
			c = &CityStatus{City: name}
			cities[name] = c
		}
		return c
	}
	for _, l := range s.Links {
		c := city(l.City)
		c.Links++
		if l.State == link.StateUp {
			c.Up++
		}
		if l.RTT > 0 && (c.RTT == 0 || l.RTT < c.RTT) {
			c.RTT = l.RTT
		}
		c.WireIn += l.Traffic.BytesIn
		c.WireOut += l.Traffic.BytesOut
	}
	taken := make(map[pathKey]*PathStatus)
	for key, p := range *r.paths.now.Load() {
		taken[key] = p.status(key)
	}
	r.mu.Lock()
	s.Sessions, s.Brought = len(r.sessions), r.broughtStatus()
	for x := range r.sessions {
		city(x.city).Sessions++
		p := taken[pathKey{x.city, x.class}]
		switch {
		case !x.outbound && x.via != "":
			s.Passing++
		case !x.outbound || p == nil:
		case x.via != "":
			p.Detoured++
		default:
			p.Direct++
		}
	}
	for name, t := range r.traffic {
		c := city(name)
		c.FramesIn, c.FramesOut = t.framesIn.Load(), t.framesOut.Load()
		c.BytesIn, c.BytesOut = t.bytesIn.Load(), t.bytesOut.Load()
	}
	r.mu.Unlock()
	for _, c := range cities {
		s.Cities = append(s.Cities, *c)
	}
	for _, p := range taken {
		s.Paths = append(s.Paths, *p)
	}
	slices.SortFunc(s.Paths, func(a, b PathStatus) int {
		return cmp.Or(cmp.Compare(a.City, b.City), cmp.Compare(a.Class, b.Class))
	})
	slices.SortFunc(s.Cities, func(a, b CityStatus) int { return cmp.Compare(a.City, b.City) })
	return s
}

// measure registers the metrics; they are read from Status when asked for.
func (r *Router) measure(m metric.Meter) error {
	var first error
	gauge := func(name, unit, text string) metric.Int64ObservableGauge {
		g, err := m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(text))
		first = cmp.Or(first, err)
		return g
	}
	counter := func(name, unit, text string) metric.Int64ObservableCounter {
		c, err := m.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(text))
		first = cmp.Or(first, err)
		return c
	}
	sessions := gauge("mqrouter.router.sessions", "{session}", "Sessions that are being relayed.")
	opened := counter("mqrouter.router.sessions.opened", "{session}", "Sessions relayed since the start.")
	refused := counter("mqrouter.router.sessions.refused", "{session}", "Sessions refused since the start.")
	up := gauge("mqrouter.link.up", "{link}", "1 when the link takes sessions.")
	rtt, err := m.Float64ObservableGauge("mqrouter.link.rtt", metric.WithUnit("s"), metric.WithDescription("Smoothed round trip of probes; 0 = not measured."))
	first = cmp.Or(first, err)
	turnedAway := counter("mqrouter.link.refused", "{connection}", "Incoming connections refused before or in their greeting.")
	reconnects := counter("mqrouter.link.reconnects", "{connection}", "Connections that replaced a lost one.")
	shape, err := newLinkShape(m)
	first = cmp.Or(first, err)
	wireBytes := counter("mqrouter.link.wire", "By", "Bytes on the wire, headers of UDP and IP included.")
	lost := counter("mqrouter.link.packets.lost", "{packet}", "Packets that loss detection declared lost.")
	detouring := gauge("mqrouter.router.path.detour", "{path}", "1 when sessions to the city take a detour over a third one.")
	ways := gauge("mqrouter.router.path.ways", "{city}", "Ways to the city that work now: the direct link and the third cities that reach it.")
	changes := counter("mqrouter.router.path.changes", "{change}", "Changes between the direct link and a detour.")
	detoured := counter("mqrouter.router.sessions.detoured", "{session}", "Sessions that took a detour since the start.")
	passed := counter("mqrouter.router.sessions.passed", "{session}", "Sessions passed on between two other cities since the start.")
	brought := counter("mqrouter.router.sessions.brought", "{session}", "Sessions of another city that routers of a third one brought since the start.")
	astray := counter("mqrouter.router.astray", "{batch}", "Batches that came to be passed on although their residency forbids this city.")
	payload := counter("mqrouter.router.payload", "By", "Payload bytes relayed.")
	if first != nil {
		return first
	}
	in, out := attribute.String("direction", "in"), attribute.String("direction", "out")
	_, err = m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := r.Status()
		o.ObserveInt64(sessions, int64(s.Sessions))
		o.ObserveInt64(opened, int64(s.Opened))
		o.ObserveInt64(refused, int64(s.Refused))
		o.ObserveInt64(turnedAway, int64(r.links.Refusals()))
		for _, l := range s.Links {
			attrs := []attribute.KeyValue{
				attribute.String("city", string(l.City)), attribute.String("peer", string(l.Node)),
				attribute.String("class", l.Class.String()),
			}
			all := metric.WithAttributes(attrs...)
			o.ObserveInt64(up, one(l.State == link.StateUp), all)
			o.ObserveFloat64(rtt, l.RTT.Seconds(), all)
			o.ObserveInt64(reconnects, int64(l.Reconnects), all)
			o.ObserveInt64(lost, int64(l.Traffic.PacketsLost), all)
			shape.observe(o, &l, attrs)
			o.ObserveInt64(wireBytes, int64(l.Traffic.BytesIn), all, metric.WithAttributes(in))
			o.ObserveInt64(wireBytes, int64(l.Traffic.BytesOut), all, metric.WithAttributes(out))
		}
		shape.observeCorrection(o, s.Links)
		o.ObserveInt64(detoured, int64(s.Detoured))
		o.ObserveInt64(passed, int64(s.Passed))
		o.ObserveInt64(shape.spread, int64(s.Spread))
		o.ObserveInt64(astray, int64(s.Astray))
		for _, b := range s.Brought {
			o.ObserveInt64(brought, int64(b.Sessions), metric.WithAttributes(attribute.String("city", string(b.Origin)), attribute.String("via", string(b.Via))))
		}
		for _, p := range s.Paths {
			attrs := metric.WithAttributes(attribute.String("city", string(p.City)), attribute.String("class", p.Class.String()))
			o.ObserveInt64(detouring, one(p.Reason != PathDirect), attrs)
			o.ObserveInt64(ways, one(p.Up)+int64(len(p.Detours)), attrs)
			o.ObserveInt64(changes, int64(p.Changes), attrs)
		}
		for _, c := range s.Cities {
			city := attribute.String("city", string(c.City))
			o.ObserveInt64(payload, int64(c.BytesIn), metric.WithAttributes(city, in))
			o.ObserveInt64(payload, int64(c.BytesOut), metric.WithAttributes(city, out))
		}
		return nil
	}, append(shape.all(), sessions, opened, refused, turnedAway, up, rtt, reconnects, wireBytes, lost, payload, detouring, ways, changes, detoured, passed, brought, astray)...)
	return err
}

func one(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
