// Package router is an MQ-router: it passes the sessions of its city's brokers
// to routers of other cities and theirs to its brokers.
//
// It owns: the links (package link), the choice of path, the relay of frames,
// and the connections to brokers on the far side. It keeps nothing on disk,
// never decodes a payload other than that of Open, acknowledges nothing, and
// never remembers a record: whoever loses a session opens it again, over
// another router if need be.
//
// # A session
//
//	origin broker --TCP--> router of its city ==QUIC==> router of the
//	destination's city --TCP--> destination broker
//
// The first frame, Open, names city, group and residency. Each router checks
// them against the topology, and what Open says of its origin against the
// certificate of who sent it: a broker speaks for its own group, a router for
// its own city. It answers with Refuse when it cannot pass the session on; after
// that it passes frames in both directions as they are but
// for the hop count, which is raised where a city is left. When either side
// ends, the other is ended at once with the same code.
//
// # Bounds
//
// A session holds one frame a direction; all of them share Limits.Buffers. A
// side that takes no byte for a second ends the session with slow-peer. See
// [Limits].
//
// # Goroutines
//
// Run owns the links and the loop that follows topology and gossip. A session
// has two goroutines while it is relayed: the one that called ServePeer (or the
// link's handler) and one that it joins.
//
// # Order
//
// Frames of a session keep their order in each direction.
package router
