package render

import (
	"fmt"

	"github.com/mqrouter/mqrouter/zone"
)

// mark says how a thing differs from the older topology of a diff.
type mark uint8

const (
	same mark = iota
	added
	removed
	changed
)

// String returns the class name in pictures.
func (m mark) String() string { return [...]string{"same", "added", "removed", "changed"}[m] }

// scene is what a picture shows, without places.
type scene struct {
	title, note string
	cities      []*city
	links       []link
	standbys    []standby
	topic       *topicView // nil: no topic is highlighted
	diff        bool
}

type city struct {
	name    string
	zones   []*zoneView
	routers []nodeView
	caches  []nodeView
	// coordinators are nodes that do nothing but vote on masters.
	coordinators []nodeView
	mark         mark
}

type nodeView struct {
	name string
	mark mark
}

type zoneView struct {
	name, kind string // kind of the topology file
	idle       bool   // a GZone that is not the active one
	shards     string // "" unless an RZone
	groups     []groupView
	mark       mark

	origin    bool     // records of the topic may be published here
	lands     bool     // records of the topic land here
	consumers []string // consumer groups of the topic that consume here
}

type groupView struct {
	name, slots string
	nodes       []nodeView
	mark        mark
}

// standby is where a zone fails over to.
type standby struct {
	from, to string // zones
	remote   bool   // in another city
	mark     mark
}

// link joins two cities with routers.
type link struct {
	a, b   int  // index into scene.cities, a < b
	ab, ba bool // the topic's records take it from a to b, from b to a
	mark   mark
}

type topicView struct {
	name, route, from string
}

// newScene collects what a picture of t shows.
func newScene(t *zone.Topology, o Options) *scene {
	s := &scene{
		title: fmt.Sprintf("deployment %s, epoch %s", t.Deployment, t.Epoch),
		note:  fmt.Sprintf("digest %x", t.Digest[:8]),
	}
	shards := zone.OwnedShards(t)
	for _, c := range t.Cities {
		v := &city{name: string(c.Name), routers: nodeViews(c.Routers), caches: nodeViews(c.Caches), coordinators: nodeViews(c.CoordinatorNodes())}
		for _, z := range c.Zones {
			v.zones = append(v.zones, newZone(z, shards[z.Index]))
			s.addStandbys(z)
		}
		s.cities = append(s.cities, v)
	}
	for a, ca := range t.Cities {
		for b := a + 1; b < len(t.Cities); b++ {
			if len(ca.Routers) > 0 && len(t.Cities[b].Routers) > 0 {
				s.links = append(s.links, link{a: a, b: b})
			}
		}
	}
	if o.Topic != nil {
		s.highlight(t, o)
	}
	return s
}

func newZone(z *zone.ZoneInfo, shards string) *zoneView {
	v := &zoneView{name: string(z.Name), kind: z.Kind.String(), idle: z.Kind == zone.GZone && !z.Active}
	if z.Kind == zone.RZone {
		v.shards = shards
	}
	slots := zone.OwnedSlots(z)
	for i, g := range z.Groups {
		v.groups = append(v.groups, groupView{name: string(g.Name), slots: slots[i], nodes: nodeViews(g.Nodes)})
	}
	return v
}

func nodeViews(nodes []*zone.NodeInfo) []nodeView {
	var all []nodeView
	for _, n := range nodes {
		all = append(all, nodeView{name: string(n.Name)})
	}
	return all
}

func (s *scene) addStandbys(z *zone.ZoneInfo) {
	if o := z.InCityStandby; o != nil {
		s.standbys = append(s.standbys, standby{from: string(z.Name), to: string(o.Name)})
	}
	if o := z.RemoteStandby; o != nil {
		s.standbys = append(s.standbys, standby{from: string(z.Name), to: string(o.Name), remote: true})
	}
}

// highlight marks where the topic's records go: from the zone asked for, else
// from every zone that may publish it.
func (s *scene) highlight(t *zone.Topology, o Options) {
	topic := o.Topic
	s.topic = &topicView{name: string(topic.Name), route: topic.Route.String()}
	if o.From != nil {
		s.topic.from = string(o.From.Name)
	}
	origins := make([]bool, len(t.Cities))
	lands := make([]bool, len(t.Cities))
	for ci, c := range t.Cities {
		for zi, z := range c.Zones {
			v := s.cities[ci].zones[zi]
			v.origin = topic.ResidentIn(c) && (o.From == nil || o.From == z)
			v.lands = t.LandsIn(topic, z) && (topic.Route.Kind != zone.RouteLocal || v.origin)
			origins[ci] = origins[ci] || v.origin
			lands[ci] = lands[ci] || v.lands
			for _, g := range topic.Groups {
				if v.lands && t.ConsumedIn(g, z) {
					v.consumers = append(v.consumers, string(g.Name))
				}
			}
		}
	}
	if topic.Route.Kind == zone.RouteLocal {
		return
	}
	for i := range s.links {
		l := &s.links[i]
		l.ab = crosses(t, topic, origins, lands, l.a, l.b)
		l.ba = crosses(t, topic, origins, lands, l.b, l.a)
	}
}

// crosses reports whether the topic's records go from one city straight to another:
// a broadcast of any origin comes from the city that Via says, else from its origin.
func crosses(t *zone.Topology, topic *zone.TopicInfo, origins, lands []bool, from, to int) bool {
	if !lands[to] {
		return false
	}
	if topic.Channel == nil {
		return origins[from]
	}
	for o, origin := range t.Cities {
		if !origins[o] || o == to {
			continue
		}
		via := topic.Channel.Via(t.Cities[to], origin.Name)
		if (via == nil && o == from) || via == t.Cities[from] {
			return true
		}
	}
	return false
}

// zonesByName returns where each zone is.
func (s *scene) zonesByName() map[string]*zoneView {
	all := map[string]*zoneView{}
	for _, c := range s.cities {
		for _, z := range c.zones {
			all[z.name] = z
		}
	}
	return all
}
