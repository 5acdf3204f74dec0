package wire

import (
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// FeatureCorrection in Hello says that it ends with the tag that corrected packets
// to the node carry (package router/link/fec), and that the node takes them.
const FeatureCorrection uint64 = 1 << 1

// Hello is the greeting: the first frame of a connection, in both directions,
// on session 0.
//
//	version min (2), version max (2), features (8),
//	deployment (text), role (1), city, zone, group, node (texts),
//	incarnation (8), max frame (4), max sessions (4),
//	epoch (16), digest (32), destination city (text), class (1)
//	and with FeatureCorrection: correction (4)
//	and with FeatureExtras: extra (1), extras (1)
//	and with FeatureSides: sides (1)
type Hello struct {
	// VersionMin and VersionMax are the protocol versions that the node speaks.
	VersionMin, VersionMax uint16
	Features               uint64 // what the node offers; the connection uses the common ones
	Deployment             string
	Role                   zone.Role
	City                   zone.City
	Zone                   zone.Zone  // empty for routers
	Group                  zone.Group // empty for routers
	Node                   zone.Node
	Incarnation            record.Incarnation // of the node's store; of its start for a router
	MaxFrame               uint32             // largest payload that the node takes, bytes
	MaxSessions            uint32             // sessions that the node takes on this connection
	Epoch                  zone.Epoch
	Digest                 zone.Digest
	DestinationCity        zone.City // where the connection's flows go; empty = the answering node's city
	Class                  zone.Class
	Correction             uint32 // the tag; only with FeatureCorrection
	// Extra is 0 on a link's own connection, which carries its probes; else this is
	// one more for its sessions, and the dialler's number for it. Extras is how many
	// of these the node takes from the peer. Both are 0 without FeatureExtras.
	Extra, Extras uint8
	// Sides is how many side streams the node takes on this connection at a time; 0
	// without FeatureSides.
	Sides uint8
}

// FeatureExtras in Hello says that the node takes more connections than one for
// the sessions of a link.
const FeatureExtras uint64 = 1 << 3

// FeatureSides in Hello says that the node takes frames of sessions on side streams,
// see Aside.
const FeatureSides uint64 = 1 << 4

// Append appends the payload to dst.
func (h *Hello) Append(dst []byte) []byte {
	dst = le.AppendUint16(dst, h.VersionMin)
	dst = le.AppendUint16(dst, h.VersionMax)
	dst = le.AppendUint64(dst, h.Features)
	dst = appendText(dst, h.Deployment)
	dst = append(dst, byte(h.Role))
	dst = appendText(dst, string(h.City))
	dst = appendText(dst, string(h.Zone))
	dst = appendText(dst, string(h.Group))
	dst = appendText(dst, string(h.Node))
	dst = le.AppendUint64(dst, uint64(h.Incarnation))
	dst = le.AppendUint32(dst, h.MaxFrame)
	dst = le.AppendUint32(dst, h.MaxSessions)
	dst = appendEpoch(dst, h.Epoch)
	dst = append(dst, h.Digest[:]...)
	dst = appendText(dst, string(h.DestinationCity))
	dst = append(dst, byte(h.Class))
	if h.Features&FeatureCorrection != 0 {
		dst = le.AppendUint32(dst, h.Correction)
	}
	if h.Features&FeatureExtras != 0 {
		dst = append(dst, h.Extra, h.Extras)
	}
	if h.Features&FeatureSides != 0 {
		dst = append(dst, h.Sides)
	}
	return dst
}

// ParseHello parses a payload. It keeps no reference to b.
func ParseHello(b []byte) (Hello, error) {
	r := reader{typ: TypeHello, b: b}
	var h Hello
	h.VersionMin, h.VersionMax = r.u16("version"), r.u16("version")
	if h.VersionMin == 0 || h.VersionMax < h.VersionMin {
		r.fail("version", errRange)
	}
	h.Features = r.u64("features")
	h.Deployment = r.name("deployment", "")
	h.Role = zone.Role(r.u8("role"))
	h.City = zone.City(r.name("city", ""))
	h.Zone = zone.Zone(r.name("zone", ""))
	h.Group = zone.Group(r.name("group", ""))
	h.Node = zone.Node(r.name("node", ""))
	h.Incarnation = record.Incarnation(r.u64("incarnation"))
	h.MaxFrame = r.u32("max frame")
	h.MaxSessions = r.u32("max sessions")
	h.Epoch = r.epoch("epoch")
	copy(h.Digest[:], r.take("digest", len(h.Digest)))
	h.DestinationCity = zone.City(r.name("destination city", ""))
	h.Class = zone.Class(r.u8("class"))
	if h.Features&FeatureCorrection != 0 {
		h.Correction = r.u32("correction")
	}
	if h.Features&FeatureExtras != 0 {
		h.Extra, h.Extras = r.u8("extra"), r.u8("extras")
	}
	if h.Features&FeatureSides != 0 {
		h.Sides = r.u8("sides")
	}
	return h, r.done()
}
