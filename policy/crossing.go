package policy

import (
	"slices"

	"github.com/mqrouter/mqrouter/zone"
)

// HopLimit is how many city crossings and re-landings a record may see: a
// broadcast over a relay city needs two, and each of them two crossings while
// its direct link is down and a third city passes it on. Nothing honest needs
// more.
const HopLimit = 4

// Verdict is what a decider says of a crossing.
type Verdict uint8

// The verdicts. The zero value allows.
const (
	Allowed      Verdict = iota
	OverHopLimit         // it has crossed too often: a loop
	NotResident          // its residency excludes the city
)

// Crossing is a record, or a session of records of one residency, about to
// enter a city.
type Crossing struct {
	Hops      uint8       // crossings and re-landings so far, this one not included
	Residency []zone.City // cities that it may enter; empty means all
	Into      zone.City
}

// Judge says whether the crossing is allowed. The hop limit is judged first: a
// loop is the graver fault.
func (c Crossing) Judge() Verdict {
	switch {
	case c.Hops >= HopLimit:
		return OverHopLimit
	case !MayEnter(c.Residency, c.Into):
		return NotResident
	}
	return Allowed
}

// MayEnter reports whether a residency allows a city; an empty one allows all.
func MayEnter(residency []zone.City, into zone.City) bool {
	return len(residency) == 0 || slices.Contains(residency, into)
}
