// Package cache holds the caches that broadcast.Sync keeps fresh: Memory, inside
// the own process, and Redis. Both follow broadcast.Fence and pass one suite of
// tests.
//
// It never reads landings and decides nothing about them.
//
// # Layout in Redis
//
// Readers in any language use an ordinary GET. With the prefix of the options
// before every name:
//
//	<key>                  string: the value, to the byte; absent when there is none
//	mqr:v:<key>            string, 41 decimal digits: version (20), 0 = set or 1 = delete,
//	                       checksum of the value (20); see broadcast.Rank. It outlives a
//	                       deleted or expired value by the horizon
//	mqr:flush              hash: prefix -> "<version, 20 digits> <unix milliseconds>", the
//	                       generation of each flushed namespace
//	mqr:state:<topic>      hash: where the cache stands in the landings of the topic
//	    group              landing group
//	    incarnation        of its store, 16 hex digits
//	    offset             20 decimal digits; everything below is applied
//	    wm|<origin>|...    watermark of an origin's flow; see broadcast.Mark
//
// Data, versions, place and watermarks of a batch move in one script, which runs
// only when the cache stands where the batch begins. A Redis that falls back to
// a lagging replica, or is emptied, falls back as a whole and shows it.
//
// The script compares versions as text of fixed length: numbers in Lua are
// doubles and would lose the low bits of a uint64.
//
// In a Redis cluster the prefix must contain a hash tag, such as "{member}:", so
// that one master holds the cache and its watermarks together. Divide a cache
// that is too large for one master by topic, each with its own prefix.
//
// The generations of 4096 namespaces are remembered; one more within a horizon
// forgets the oldest.
//
// Set maxmemory-policy noeviction: evicting a version beside a value that stays
// would let an older change win. An eviction of values alone is harmless.
//
// # Goroutines
//
// None of its own; go-redis owns those of its connections, and Close ends them.
//
// # Order
//
// Apply does the changes of a batch in order.
package cache
