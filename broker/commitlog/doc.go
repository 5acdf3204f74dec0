// Package commitlog owns the commit log of a broker group: one endless,
// append-only sequence of entries in segment files, and the store's identity
// (incarnation and lineage).
//
// It never looks into a message, keeps no index, and decides nothing about
// topics, flows or consumers: package broker folds what Deliver and Replay hand
// it. It holds one file descriptor a segment.
//
// # Promises
//
// An entry is committed when it and everything before it is on disk: of a log that
// stands alone on this one, of a log of a group with replicas (Options.Follow) when
// Commit says so. Only committed entries are delivered or can be read. Positions
// ascend, are given
// out once in a lineage, and deliveries follow them without hole. After a crash
// every committed entry is found again; behind them at most entries that were
// given to Append are found (their publishers got no answer), in their order and
// without hole, never half of one.
//
// # Groups with replicas
//
// A log that follows (AppendRaw, Sync, AddLineage, Truncate) is its master's byte
// for byte: frames, marks, positions, segment boundaries, lineage table. Only the
// times in segment headers differ. Promote begins a lineage at its end, and it takes
// appends; to follow again it is closed and opened. A store takes its master's
// incarnation when it is made (Create); one that was never written has none.
//
// Between what is durable here and what counts stands a gate: Deliver and Done wait
// for Commit, early Done (Batch.Ack) for the own sync or for Acked. What is written
// can be read raw by shipping at once, beside the own sync. What is not committed
// is bounded by QueueBytes: then publishers wait. Truncate never goes below what is
// committed. What Open finds behind that is kept, and is delivered once it is
// committed. Halt makes a master's log end where it ends, while it is shipped and
// committed on, for a hand-over. A log that stands alone has none of this on its way.
//
// # Goroutines
//
// Start begins three, Close joins them; of a log that follows it begins the
// deliverer, and Promote the others. The writer takes everything that waits
// (up to MaxBatchBytes), gives positions, stamps own records, does one write and
// one sync, and owns the end of the log. The deliverer calls Deliver and then
// Done, in log order, beside the next write. The preparer keeps one spare
// segment allocated ahead, and is the one that notices a full disk: the segment
// in use then still has room for Reserved batches.
//
// # Positions and files
//
// A position is a byte offset in the log. Segment files are named by the
// position of their first byte (16 hex digits and ".log"), each begins with a
// header that takes part in the counting, so position 0 never names an entry.
// Each segment begins where the one before ends. All integers are little endian.
//
//	segment header, 64 bytes
//	offset size field
//	     0    8 "MQRLOG" 0x00 0x01 (version)
//	     8    8 incarnation
//	    16    8 position of this byte 0
//	    24    8 created at, microseconds since 1970
//	    32   28 zero
//	    60    4 CRC32C of bytes 0..59
//
//	entry frame, 32 bytes, at a multiple of 8
//	     0    8 position of this frame
//	     8    4 payload length
//	    12    4 kind in the lower 8 bits, envelope length in the upper 24
//	    16    4 CRC32C of the payload
//	    20    4 lower half of the lineage id
//	    24    4 distance back to the synced mark: everything before
//	            (position - distance) was durable when this frame was written; in
//	            a group with replicas, everything before it was committed. A
//	            distance that does not fit is written as the greatest that does
//	    28    4 CRC32C of bytes 0..27
//	    32      payload: envelope, record; zeros up to a multiple of 8
//
//	kind 1 = own record, 2 = landing, 3 = mark (no payload; readers pass over it)
//
// The file META holds incarnation, group, lane count, lineage table, the oldest
// position kept and, after a clean Close, the end. Of a log with replicas it may
// also hold what was committed at a clean Close, where a truncation under way cuts,
// and below which position marks prove nothing (see Recovery). It has two slots that are
// written in turn and in place, so that it changes atomically and also on a full
// disk. Open writes a new lineage into both, so that one damaged slot costs nothing.
//
// # Recovery
//
// Open reads the last segment only (to learn what was committed, now and then the
// one before); all older ones were synced before it was
// created. It walks the frames to the first bad one, at position X, and asks
// whether anything proves that X was durable: a later frame whose synced mark is
// above X, a later frame of a lineage that META does not know (META is older than
// the log then), a lineage that began above X, or a clean end above X. If so, it is
// corruption: Open fails with a *CorruptError, since it must be healed from a
// copy. If nothing does, X is a torn tail: the write was not acknowledged, and
// it is cut. While the log is idle the writer adds a mark frame, so that the
// last write has such a proof too; only a write followed by a crash within that
// second has none but its own checksums.
//
// A replica that catches up is given frames whose marks are ahead of its own disk:
// they say what the group has committed, and prove nothing of what was durable here.
// Before such a frame is written META says up to where that is so (Loose). The last
// mark found tells what was surely committed. A truncation that a crash interrupted
// is finished: META named it before the first byte went.
//
// The bytes behind the last synced mark are then written again and synced,
// because a kernel whose fsync failed may show pages that never reached the
// disk. A new lineage begins at the end found, with each Open, or with Promote:
// after a cut, positions may repeat the lost ones, but in another lineage.
//
// Damage in an older segment does not stop Open; it is logged, and reading there
// returns a *CorruptError with the position. A Scrubber finds what nobody reads. Of a log
// with replicas Mend makes such a segment anew from another member's log, in the file
// mend.new, which takes the damaged one's name when it is whole and durable.
package commitlog
