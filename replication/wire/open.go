package wire

import (
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Open begins a flow's session. A router passes it on by City and Group.
//
//	flow (flow id), city, group, origin city (texts),
//	lineage (list: epoch (8), id (8), first (8)),
//	cursor (8), oldest (8), head (8), route epoch (16),
//	residency (list of texts), max record (4), role (1; left out when it is 0),
//	wanted (flow id; with the role OpenPull only)
type Open struct {
	Flow       record.FlowID
	City       zone.City  // destination
	Group      zone.Group // destination
	OriginCity zone.City
	Lineage    []Mark // ascending, at most MaxMarks
	Cursor     uint64 // the origin's durable cursor of this leg
	Oldest     uint64 // lowest number that can still be read
	Head       uint64 // highest number given
	RouteEpoch zone.Epoch
	Residency  []zone.City // cities that the first records to come may enter; empty = all. Each Batch says its own
	MaxRecord  uint32      // bytes of the largest record that will be sent
	Role       OpenRole
	Want       record.FlowID // with OpenPull: the flow that is asked for
}

// OpenRole says as what the opener speaks. A reader that does not know the field,
// or the role, takes the opener for the origin, and refuses by identity who is not.
type OpenRole uint8

// The roles.
const (
	OpenOrigin OpenRole = iota // it numbered the records
	OpenHolder                 // it has landed them and serves them onward
	OpenOwner                  // as OpenOrigin, and it can do without credit while another serves: an Ack may pass what it sent
	// OpenPull: a destination asks one that has landed the flow Want to serve it.
	// The Flow is the destination's own name; Oldest is the number that it expects,
	// Lineage the lineage of that number, if it is known, and Residency bounds what may
	// come. The answer is Refuse, or an Open with the role OpenHolder, from which on
	// the two have changed sides.
	OpenPull
	openRoleEnd
)

// Append appends the payload to dst.
func (o *Open) Append(dst []byte) []byte {
	dst = appendFlow(dst, &o.Flow)
	dst = appendText(dst, string(o.City))
	dst = appendText(dst, string(o.Group))
	dst = appendText(dst, string(o.OriginCity))
	dst = appendMarks(dst, o.Lineage)
	dst = le.AppendUint64(dst, o.Cursor)
	dst = le.AppendUint64(dst, o.Oldest)
	dst = le.AppendUint64(dst, o.Head)
	dst = appendEpoch(dst, o.RouteEpoch)
	dst = appendCities(dst, o.Residency)
	dst = le.AppendUint32(dst, o.MaxRecord)
	if o.Role == OpenOrigin {
		return dst
	}
	dst = append(dst, byte(o.Role))
	if o.Role == OpenPull {
		dst = appendFlow(dst, &o.Want)
	}
	return dst
}

// ParseOpen parses a payload. It keeps no reference to b.
func ParseOpen(b []byte) (Open, error) {
	r := reader{typ: TypeOpen, b: b}
	var o Open
	r.flow(&o.Flow)
	o.City = zone.City(r.name("city", ""))
	o.Group = zone.Group(r.name("group", ""))
	o.OriginCity = zone.City(r.name("origin city", ""))
	o.Lineage = r.marks(nil)
	o.Cursor = r.u64("cursor")
	o.Oldest = r.u64("oldest")
	o.Head = r.u64("head")
	o.RouteEpoch = r.epoch("route epoch")
	o.Residency = r.cities("residency", MaxCities, nil)
	o.MaxRecord = r.u32("max record")
	if len(r.b) > 0 {
		if o.Role = OpenRole(r.u8("role")); o.Role >= openRoleEnd {
			o.Role = OpenOrigin
		}
		if o.Role == OpenPull {
			r.flow(&o.Want)
		}
	}
	return o, r.done()
}
