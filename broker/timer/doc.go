// Package timer holds what delayed messages need besides a log: the clock by
// which they fall due, sets of settled numbers that cost a bit each, and the
// bounded window of those that are next.
//
// It never reads a log or an index and decides nothing about messages: the fold
// and the due loop of package broker do.
//
// # Goroutines
//
// The package starts none. A [Clock] is safe for concurrent use; a [Set] and a
// [Window] belong to one goroutine, or to whoever holds the owner's lock.
//
// # Ordering
//
// A [Window] gives what it holds in the order of due times; of equal times what
// was stored first comes first.
//
// # Bytes
//
// A Set in a snapshot is: n uvarint, then n chunks of 4096 numbers, ascending:
// distance from the chunk before uvarint, form u8 (1 all, 2 bits), and for bits
// 64 words u64, little endian.
package timer
