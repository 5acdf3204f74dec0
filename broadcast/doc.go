// Package broadcast keeps caches in every city fresh: what a change is, which of
// two changes wins, how far a cache has come, and the loop that reads a city's
// landings and applies them. Services import it to publish changes (Publisher)
// and, with package broadcast/cache, to keep a cache inside their own process.
//
// It never delivers to consumers, keeps nothing on disk, and does not decide
// where a change goes: a change is an ordinary message on a topic with a
// broadcast route, and every city's CZone lands it.
//
// # The change as a message
//
// Any RocketMQ client in any language can emit a change:
//
//	key               the cache key, the only key of the message (of flush-prefix: the prefix)
//	property          mqr.op       set | delete | flush-prefix
//	property          mqr.version  decimal, 1 to 18446744073709551615
//	property          mqr.ttl      optional, with set: decimal milliseconds
//	property          mqr.empty    optional, with set: true = the value is empty
//	body              the value (set); any one byte otherwise, since RocketMQ refuses empty bodies
//
// Keys are UTF-8, at most 1024 bytes, and do not begin with "mqr:". A message
// that is no change is counted, logged with its id and the reason, and skipped;
// it never stops the stream.
//
// # Versions
//
// The version of a key grows with each of its changes, whoever makes them: a row
// version, or a clock with a tie-breaker. See Rank and Fence for how two changes
// are compared. A flush-prefix is compared with the versions of all keys under
// its prefix: those that are not greater are gone. So the versions of keys that
// are flushed together come from one sequence or clock. Changes of one key may
// therefore arrive in any order, from any city, repeated: all caches end alike.
//
// A delete is remembered for the horizon. A set that is older than the horizon
// and finds nothing is applied as a delete, since what it should lose against
// may be forgotten. The horizon must be larger than the difference of clocks.
//
// # Gaps
//
// A cache knows its place in the landings and, for each origin, the number up to
// which it has applied. A cache that fell back is refilled from the log. What
// the log no longer has, and what an origin declared lost because this city's
// backlog passed its budget, is told as a Gap, and all values are dropped unless
// Options.KeepStale says that somebody else sees to it. A new cache begins with
// an explicit gap: it is filled from the source.
//
// # Goroutines
//
// Sync.Run owns a receiver for each session and joins it. A Publisher owns those
// of its client; Close joins them. Nothing else starts any.
//
// # Order
//
// Changes are applied in the order of the landing group's log, which has the
// changes of one origin's channel in the order of their publishing.
package broadcast
