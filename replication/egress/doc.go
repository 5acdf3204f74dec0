// Package egress opens the streams on which a flow leaves its broker: straight
// to the destination's broker in the same city, else through a router of this
// city.
//
// It owns: for what an in-city connection is made ([Target]), the back-off from
// those that cannot be reached ([Pool]), and which router a session takes
// ([Egress]). The connections themselves are package peer's. It never reads or
// writes a frame, and never decides where a record lands.
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
// None of its own.
//
// # Order
//
// None between streams; that of a stream is its connection's.
package egress
