// Package queue keeps the numbered sequences that a broker's fold derives from
// its log: the queues of topics and the numbers of flows. An Index says which
// log position carries number i; a Store owns all indexes of a broker.
//
// The package never reads the log and never decides what belongs into an
// index: everything it holds can be derived from the log again, so appends are
// not synced one by one. The owner says when (Store.Sync, before a snapshot),
// and after a restart cuts each index back to what its snapshot names
// (Index.Truncate) and appends the rest again.
//
// # Goroutines
//
// The package starts none. One goroutine at a time (the fold) calls the
// writing methods: Append, Flush, Truncate, Reset, TrimBefore, Store.Flush and
// Store.Delete. Any number of goroutines may call the reading methods meanwhile, and
// Store.Sync as well. Reading what is still in memory takes no lock.
//
// # Ordering
//
// Positions ascend strictly inside an index. A reader that has seen number i
// through Next sees every number from First to i.
//
// # Bytes
//
// An index is a directory of segments named by their first number, 20 decimal
// digits and ".idx". All integers are little endian.
//
//	header, 512 bytes
//	  0  magic "MQINDEX\n"
//	  8  version u16 = 1
//	 10  entry size u16 = 16
//	 12  length of the name u16
//	 14  zero u16
//	 16  first number u64
//	 24  name of the index, zero padded (at most 400 bytes)
//	424  zero
//	508  CRC32C of bytes 0 to 507
//	entry i - first, 16 bytes each, from byte 512 on
//	  0  position u64
//	  8  size u32, never 0: a hole that a crash left in a file is told by it
//	 12  hash u32
package queue
