// Package queue keeps the numbered sequences that a broker's fold derives from
// its log: the queues of topics and the numbers of flows. An [Index] says which
// log position carries number i; a [Store] owns all indexes of a broker.
//
// The package never reads the log and never decides what belongs into an
// index: everything that it holds can be derived from the log again. So
// appends are not synced one by one. The owner says when:
//
//   - For a snapshot it calls Store.Flush, notes Next of each index, calls
//     Store.Sync (which may run beside further appends) and writes the
//     snapshot when that returned nil.
//   - After a restart it calls Store.Recover with what the snapshot says.
//     Each index is cut back to that number, whatever a crash left behind it;
//     the rest is appended again from the log. *CorruptError tells that the
//     files hold less than the snapshot says; then Store.Recover(nil) and
//     Index.Reset make room for deriving everything again, or Store.Damaged
//     says which indexes to reset and derive, before another Store.Recover.
//
// # Goroutines
//
// The package starts none. One goroutine at a time (the fold) calls what
// writes: Index.Append, Flush, Shed, Store.ShedIdle, Truncate, Reset, TrimBefore, Store.Flush,
// Recover and Delete. Any number of goroutines may read meanwhile, and call
// Store.Sync. Reading what is still in memory takes no lock.
//
// # Ordering
//
// Positions ascend strictly inside an index. Who has seen a number below Next
// sees every entry from First up to it.
//
// # Bytes
//
// All segments lie in one folder. A segment is a file named
// "label.digest.first.idx": a readable part of the index's name, the first 16
// bytes of the SHA-256 of the whole name in hex, and the segment's first
// number in 20 decimal digits. Integers are little endian.
//
//	header, 512 bytes
//	  0  magic "MQINDEX\n"
//	  8  version u16 = 1
//	 10  entry size u16 = 20
//	 12  length of the name u16
//	 14  zero u16
//	 16  first number u64
//	 24  name of the index (at most 400 bytes), then zeros
//	508  CRC32C of bytes 0 to 507
//	entry of number n at 512 + 20 * (n - first)
//	  0  position, 7 bytes
//	  7  label u8, the owner's own
//	  8  size u32, never 0: a hole that a crash left in a file is told by it
//	 12  hash u32
//	 16  CRC32C of bytes 0 to 15 and the number n (u64)
package queue
