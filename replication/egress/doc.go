// Package egress opens the streams on which a flow leaves its broker: straight
// to the destination's broker in the same city, else through a router of this
// city.
//
// It owns: which in-city connections exist ([Pool]: one for each node,
// destination and class), their back-off, and which router a session takes
// ([Egress]). It never reads or writes a frame, and never decides where a
// record lands.
//
// # Spreading
//
// A session takes the healthy router that wins its rendezvous hash. A router
// that leaves the list of routers, whose connection ends, or that cannot be
// dialled loses its sessions at once; their owner opens them again and the hash
// takes another router. A draining router gets no new sessions.
//
// # Goroutines
//
// Pool.Run sweeps idle connections. Each dial has a goroutine of its own, so
// that several sessions wait for one dial and none can cancel it for the
// others; Run joins them.
//
// # Order
//
// None between streams. A connection is shared by the sessions of one
// destination and class only, so that a destination that stalls stops no other.
package egress
