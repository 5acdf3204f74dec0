// Package transaction keeps the half messages of a broker group: which wait for
// their producers' decision, how often producers were asked, and what was decided
// lately.
//
// A Table is a part of the broker's fold: it follows from the log alone, reads no
// clock, and is a part of snapshots. It keeps where a half message's record is and
// never the message. An Agenda says when each half message is looked at next; it
// is kept beside the fold, on the monotonic clock of the process, and made anew
// at every start, from when each was stored or last asked about. A Sealer makes the transaction ids that clients bring back.
//
// The package never reads or writes a log and never speaks to a client: package
// broker appends the records that a Table folds, and package rocketmq asks
// producers.
//
// # Decisions
//
// A half message is decided once: committed, rolled back or parked. The first
// decision in the log counts, and Decide refuses every later one. The last
// Remembered decisions stay known, so that one that is repeated, or comes too late
// and says otherwise, is told what was decided; older ones are as if they had
// never been.
//
// # Goroutines
//
// None. A Table and its Agenda belong to one lock, which the caller holds; a
// Sealer is safe for concurrent use.
//
// # Bytes
//
// A snapshot of a Table, integers unsigned varints unless marked:
//
//	version u8 = 3 | committed, rolled back, parked, repeated |
//	n topics: length, name |
//	n half messages, ascending by position: position, epoch, where it is, its size,
//	    topic (index in the list), stored ms, immunity ms, checks, last check ms (not in version 1),
//	    checks that are forgiven (not in versions 1 and 2) |
//	n decisions, in order: position, epoch, outcome u8
package transaction
