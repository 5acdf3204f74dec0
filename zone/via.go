package zone

import (
	"fmt"
	"strings"
)

// maxVia is how many cities a broadcast may be landed in on its way to another
// (policy.HopLimit allows four hops: two such cities, the crossing to the last, and
// the step to a zone there).
const maxVia = 2

// Via returns the city from whose landings a city is served with a channel of an
// origin in another: the one that its broadcasts_via names, or that one's own when
// the residency of the channel excludes it. nil: the origin serves it, since nothing
// is declared, or the origin is in that very city, or in this one.
func (c *ChannelInfo) Via(city *CityInfo, origin City) *CityInfo {
	if city.Name == origin || !c.Topics[0].ResidentIn(city) {
		return nil
	}
	for via := city.Via; via != nil; via = via.Via {
		switch {
		case via.Name == origin:
			return nil
		case c.Topics[0].ResidentIn(via):
			return via
		}
	}
	return nil
}

// Holders returns the cities that may serve a city with a channel of an origin in
// another, from what they have landed: the one that Via says, then the others, in
// the order of the file. None when the origin itself is to serve it.
func (t *Topology) Holders(c *ChannelInfo, city *CityInfo, origin City) []*CityInfo {
	via := c.Via(city, origin)
	if via == nil {
		return nil
	}
	list := []*CityInfo{via}
	for _, other := range t.Cities {
		if other != via && other != city && other.Name != origin && c.Topics[0].ResidentIn(other) {
			list = append(list, other)
		}
	}
	return list
}

// Relays reports whether any city is served from another's landings.
func (t *Topology) Relays() bool {
	for _, c := range t.Cities {
		if c.Via != nil {
			return true
		}
	}
	return false
}

// linkVias looks up the cities that broadcasts_via names.
func (d *draft) linkVias() {
	for _, c := range d.cities {
		if c.via.name == "" {
			continue
		}
		if c.info.Via = d.topo.index.cities[City(c.via.name)]; c.info.Via == nil {
			unknown(d, c.via, "city", d.topo.index.cities)
		}
	}
	// Cycles are cut here, so that nobody else can follow one.
	for _, c := range d.cities {
		d.checkVia(c)
	}
	for _, c := range d.cities {
		if c.cyclic {
			c.info.Via = nil
		}
	}
}

// checkVia reports a city that is served by way of itself, or of too many others.
func (d *draft) checkVia(c *draftCity) {
	way := []string{string(c.info.Name)}
	for via := c.info.Via; via != nil; via = via.Via {
		way = append(way, string(via.Name))
		switch {
		case via == c.info:
			d.add(c.via.at, fmt.Sprintf("the broadcasts of city %s come by way of itself: %s", c.info.Name, strings.Join(way, " from ")),
				"remove broadcasts_via of the city that is to be served by the origins")
			c.cyclic = true
			return
		case len(way) > len(d.cities):
			return // a circle that the city is not part of; told where it is
		}
	}
	if len(way)-1 > maxVia {
		d.add(c.via.at, fmt.Sprintf("the broadcasts of city %s come by way of %d others: %s", c.info.Name, len(way)-1, strings.Join(way, " from ")),
			fmt.Sprintf("at most %d lie between an origin and a city, by the hop limit; name a city nearer to the origins", maxVia))
	}
}

// viaText says how cities get their broadcasts when not from the origins.
func viaText(t *Topology) string {
	var b strings.Builder
	for _, c := range t.Cities {
		if c.Via != nil {
			fmt.Fprintf(&b, "broadcasts of other cities reach %s from what %s has landed\n", c.Name, c.Via.Name)
		}
	}
	return b.String()
}

func viaName(c *CityInfo) string {
	if c.Via == nil {
		return ""
	}
	return string(c.Via.Name)
}
