// Package ship keeps the replicas of a broker group equal to its master's log, and
// says what the group has committed.
//
// It owns the protocol between master and replica, the state of each replica at its
// master, the changes of the in-sync set that it asks the coordinator for, and the
// commit position. It never looks into a record, elects nobody, and keeps nothing on
// a disk itself: the log is behind [LeaderLog] and [FollowerLog], the snapshot
// behind [Snapshots] and [Restore], the term and the lease are the coordinator's
// (package coordinator). Who may open a session is package peer's business.
//
// # Protocol
//
// The replica dials the master that the coordinator names. One session carries one
// of two things, by frames of package wire:
//
//	replica                              master
//	Follow: incarnation, lineage, end -->
//	                                 <-- Lead: lineage, end of what both have, last frame below it
//	(drops what it has beyond)
//	ShipAck: written, synced, credit -->
//	                                 <-- Ship: stretch of the log, commit position
//	...
//
//	Follow: nothing to go on from    -->
//	                                 <-- Seed: incarnation, begin, files
//	ShipAck: credit                  -->
//	                                 <-- Part: bytes of a file
//	(installs, ends, opens its store again)
//
// Any member, master or replica, also gives another what that one's disk has damaged of the
// sealed and committed log ([ServeFetch], [Fetch]): stretch by stretch, as it is asked.
//
// Two logs that have a lineage in common are equal up to where the one that leaves
// it first does: one master writes a lineage and gives each of its positions once.
// That end is the common prefix, which both sides compute and the last frame below it
// confirms. A replica that would have to give up what it knows to be committed does
// not: it is diverged, and stops with a [DivergedError], which says where the logs part
// when both lineage tables tell. What it drops, or gives up with its whole store, its
// log saves first (FollowerLog.Keep), or it does not follow.
//
// A replica acknowledges what is on its disk, of the epoch that it knows to be the
// highest, through the session that it wrote it by. One that acknowledges more than
// it was sent loses the session.
//
// # Phases
//
//	absent -> async -> semi-sync -> sync
//
// An async replica catches up and is waited for by nobody. When little is left that it
// has not made durable, or it has been near the end of the log for a while, it is
// semi-sync: it is proposed for the set, and acknowledgements wait for
// it, for a bounded time. When the proposal is in force and it has everything that
// was ever acknowledged, it is confirmed, and is sync. It leaves when it is gone,
// silent or slow for a stated time (see [Limits]), or lacks what it acknowledged; it
// is waited for until the set without it is in force. One that was slow is kept async
// for a while.
//
// The commit position is the least that any node has made durable which is in the
// in-sync set, in the proposed one, or in one that was asked for and may yet come to
// be in force; the position of a majority is the least of the majorities of those
// sets. It is never held back by a set that is too small: publishes are refused
// instead (see [Leader.InSync]). The lease is checked before each step; whoever
// answers a publisher checks it again.
//
// # Order and memory
//
// Bytes reach a replica in log order, right after the master has written them and
// beside its sync. A replica takes in what has come, syncs once, and acknowledges.
// What is on its way to it is bounded by credit (Limits.Window), what a session of
// the master holds by eight times Limits.Chunk or one entry that is larger. Replicas that are far
// behind share a bounded rate, so that live traffic and publishes come first.
//
// # Goroutines
//
// Leader.Run has two besides its caller's: one that puts requests to the coordinator
// and one that waits for terms. Each session is its caller's goroutine, which sends,
// and one that listens. Follower.Run has one that listens while it has a session. All
// are joined by what started them. [keeper] decides and is pure; it is called under
// the leader's lock.
package ship
