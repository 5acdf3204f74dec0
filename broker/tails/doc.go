// Package tails keeps what a member of a broker group had in its log and the group has
// not: the tail of an old master's log, from the end of what it has in common with the
// present master's on, before it is dropped.
//
// It owns the files of a folder ("tails" in a broker's folder), one for each tail, and
// their bytes. It does not know what a record means: package broker says which tails
// are worth keeping, what is in them, and how they are offered again.
//
// A tail is there whole or not at all: it is written under another name, synced, and
// given its own. It never changes after that; Save of one that is there does nothing. What
// became of its messages when they were offered again stands in a file beside it, in JSON,
// that is replaced as a whole (SetProgress) and goes with it. It
// goes by Drop alone, which an operator orders. What all of them hold together is
// bounded; a tail for which there is no room is refused ([ErrRoom]), and so is one for
// which the disk has none: whoever wanted to drop it from the log must not, then.
//
// The package starts no goroutine. A [Store] is safe for concurrent use; readers see the
// tails in the order of their names, and the entries of one in log order.
//
// # Name
//
//	<incarnation, 16 hex digits>-<epoch>-<from>-<end>.tail
//
// of the log, of its last lineage, and where the tail begins and ends. Without
// incarnation and suffix it is the tail's id. Two members that drop the same bytes keep
// tails of the same id, or such that one has the beginning of the other.
//
// # File, version 1
//
// All integers are little endian.
//
//	magic   8  "MQRTAIL" and the version
//	length  4  of the head, at most 1 MiB
//	sum     4  CRC32C of the head
//	head       JSON: Head
//	blocks, each:
//	  from   8  of the stretch: where a frame or a segment begins
//	  next   8  behind its last frame
//	  length 4  of the frames; 0 in the last block, whose from and next are the end
//	  base   4  1 = from is the base of a segment
//	  sum    4  CRC32C of the five fields before
//	  frames    as in the log (package commitlog), with their own checksums
package tails
