package wire

import (
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// Via stands before the first frame of a session that passes a third city. Each
// router that passes the session on to another city writes it anew, and none
// passes it on to a broker: what follows is end to end, this is from router to
// router.
//
//	path (list of texts)
type Via struct {
	Path []zone.City // cities left so far: the origin's first, the sender's last
}

// Append appends the payload to dst.
func (v *Via) Append(dst []byte) []byte { return appendCities(dst, v.Path) }

// ParseVia parses a payload. It keeps no reference to b.
func ParseVia(b []byte) (Via, error) {
	r := reader{typ: TypeVia, b: b}
	v := Via{Path: r.cities("path", MaxPath, nil)}
	if r.err == nil && len(v.Path) == 0 {
		r.fail("path", errRange)
	}
	return v, r.done()
}

// Reach tells on a link's session 0 which cities its sender reaches over its own
// direct links of the link's class, and nothing that it only heard: what is told
// on is never more than one link old, so that no two routers can keep a dead
// path alive for each other. Each Reach replaces the one before.
//
//	cities (list: city (text), round trip (4, microseconds))
type Reach struct {
	Cities []Reached // the sender puts the nearest first
}

// Reached is a city that has a working direct link.
type Reached struct {
	City zone.City
	RTT  time.Duration // whole microseconds; 0 = not measured
}

// Append appends the payload to dst. The cities that do not fit MaxHello are
// left out, since control frames are bounded by it; those are the farthest.
func (x *Reach) Append(dst []byte) []byte {
	start := len(dst)
	dst = le.AppendUint16(dst, 0)
	n := 0
	for _, c := range x.Cities {
		if n == MaxCities || len(dst)-start+2+len(c.City)+4 > MaxHello {
			break
		}
		dst = appendText(dst, string(c.City))
		dst = le.AppendUint32(dst, uint32(min(max(c.RTT.Microseconds(), 0), 1<<32-1)))
		n++
	}
	le.PutUint16(dst[start:], uint16(n))
	return dst
}

// ParseReach parses a payload. It keeps no reference to b.
func ParseReach(b []byte) (Reach, error) {
	r := reader{typ: TypeReach, b: b}
	n := r.count("cities", MaxCities, 2+4)
	var x Reach
	for range n {
		x.Cities = append(x.Cities, Reached{
			City: zone.City(r.name("cities", "")), RTT: time.Duration(r.u32("cities")) * time.Microsecond,
		})
	}
	return x, r.done()
}

// BatchMayEnter reports whether the residency of a batch allows a city, without
// reading its records: a router asks it before a batch enters a third city. It
// fails with a *FrameError and does not allocate unless it does.
func BatchMayEnter(payload []byte, city zone.City) (bool, error) {
	r := reader{typ: TypeBatch, b: payload}
	r.take("numbers", 8+4+8+8+8)
	for range r.count("path", MaxPath, 2) {
		r.raw("path", MaxName)
	}
	n := r.count("residency", MaxCities, 2)
	allowed := n == 0
	for range n {
		if string(r.raw("residency", MaxName)) == string(city) {
			allowed = true
		}
	}
	return allowed && r.err == nil, r.done()
}
