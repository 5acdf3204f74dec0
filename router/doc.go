// Package router is an MQ-router: it passes the sessions of its city's brokers
// to routers of other cities and theirs to its brokers.
//
// It owns: the links (package link), the choice of path, the relay of frames,
// and the connections to brokers on the far side. It keeps nothing on disk,
// never decodes a payload other than that of Open (and the residency of a Batch
// on a detour, and the trace context behind one), acknowledges nothing, and never remembers a record: whoever
// loses a session opens it again, over another router if need be.
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
// Which node of a destination's group is its master, package masters tells from gossip
// and from what refusals on their way to the origin say; a router asks nobody itself
// and holds no session back. The origin opens the next one, which finds the master.
//
// # Cut-through
//
// When the direct links to a city are down, or clearly slower than a way round,
// its sessions pass a third city that their records' residency allows:
//
//	router of the origin's city ==Via [O], Open==> router of a third city
//	                            ==Via [O T], Open==> router of the destination's
//
// Which city reaches which, and how far it is, routers tell each other on the
// links' control streams, at once when it changes and with every probe: only
// what they reach directly, so that nobody passes on hearsay. A cut-through has
// one next hop and one third city, is a session like any other, and keeps
// nothing. Each router on the way checks the path that Via tells (no city twice,
// the sender's own at its end), the hop count, and the residency: of the first
// record in Open, of the others in each Batch, whose head it reads without its
// records. What a path may not carry ends the session with residency; the origin
// opens the next one for that record, which waits for the direct link.
//
// Router certificates are trusted with this: a router may say that it passes on
// the session of any other city, and nothing but its word says so. What bounds
// it: the path ends with the link's own city, each city of it is in the topology
// (and the origin's group, which the destination's broker checks), and what comes
// over a third city is counted by origin and third city and told in the log.
//
// [PathTiming] says when the path changes: half a second without a direct link,
// or ten of its being slower than twice the detour; and back after ten seconds
// of its working without a break, which double up to five minutes while it fails
// again soon after. Sessions that are on the wrong path then get Drain, some at
// a time, and open again; nothing is lost, since the destination knows what it
// has. Of several detours the fastest is taken, and left for another only when
// it is gone or clearly slower. The choice is pure (route.go). Sessions whose link
// has a better connection for them are asked in the same way, fewer at a time.
//
// # Bounds
//
// A session holds one frame a direction; all of them share Limits.Buffers. A
// side that takes no byte for a second ends the session with slow-peer. See
// [Limits].
//
// # Goroutines
//
// Run owns the links, the loop that follows topology and gossip, the one that
// looks at the paths and the one that moves sessions. A session has two
// goroutines while it is relayed: the one that called ServePeer (or the link's
// handler) and one that it joins.
//
// # Order
//
// Frames of a session keep their order in each direction.
package router
