// Package gossip keeps the membership of a pool of nodes: who is alive, where
// it can be reached and a few small facts about it. It wraps memberlist so
// that no other package needs to know that library's rules.
//
// It owns: one memberlist per [Pool], its sockets, the encoding of the
// metadata, the retrying of seeds, and the counting of what was refused. It
// never decides anything: what it tells are hints. Ownership of flows, slots
// and shards is fenced elsewhere, by epochs checked at the destination, so
// that a storm of suspicions can never move it.
//
// A pool is fenced from every other pool twice: by a label (made of deployment
// and city, or deployment and "wan"), which is also authenticated data of the
// encryption, and by the key. A packet or stream with another label or key is
// dropped and counted in [Stats]. Keys are changed while the pool runs
// ([Pool.SetKeys]), in steps of the caller: a new one has to be accepted
// everywhere before anybody uses it.
//
// # Names and starts
//
// The name in memberlist is "<node>~<start>", where start is the time of the
// process start in Unix nanoseconds, in hexadecimal. A process that is killed
// and started again under another address is therefore a new member at once:
// memberlist alone would refuse the name until the old entry had died. Of
// several living starts of one node only the newest is shown by
// [Pool.Members].
//
// # Metadata
//
//	offset size
//	0      1    version: 1, 2 or 3 with one or two of the last fields (a later version only
//	            appends fields)
//	1      1    role (zone.Role)
//	2      1    flags: bit 0 draining, bit 1 master of its broker group
//	3      8    start, Unix nanoseconds of the process start
//	11     8    topology epoch, term
//	19     8    topology epoch, number
//	27     1+n  city
//	       1+n  zone, empty for routers
//	       1+n  broker group, empty for routers
//	       1+n  peer address (host:port of in-city TCP)
//	       1+n  QUIC address (host:port), empty for brokers
//	       8    epoch of the broker group's term, of members of groups with several
//	            nodes; the flag of the master is of this epoch
//	       1+n  nodes of the group that do not follow it, joined by commas, of a master
//
// Integers are big endian; each text is preceded by its length in one byte.
// The whole is at most 512 bytes, memberlist's limit; a larger one is an error
// of [Meta.Encode], before anything starts.
//
// # Goroutines
//
// A Pool owns one goroutine that joins seeds for ever, and its transport's
// readers; Close joins them all. memberlist does not join its own goroutines:
// after Close its transport refuses every call and the delegates are deaf, so
// that what still runs (at most a few probe intervals) can touch nothing.
//
// # Order
//
// There is none between nodes. For one node a newer start never gives way to
// an older one while the newer lives.
package gossip
