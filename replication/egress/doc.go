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
// whose connection ends, that cannot be dialled, or that leaves the list of
// routers while its connection is silent, loses its sessions at once; their owner
// opens them again and the hash takes another router. Leaving the list alone
// moves no session. A draining router gets no new ones.
//
// # Masters
//
// A session to a group of several nodes goes to its master as package masters knows
// it, and the answer is listened to: a refusal leads the next session on.
//
// # Goroutines
//
// None of its own.
//
// # Order
//
// None between streams; that of a stream is its connection's.
package egress
