// Package broker is the core of a zone's broker: the deterministic fold of its
// commit log, and what clients and other sites ask of it.
//
// It owns the fold (queue indexes, flows and their numbers, cursors, prefixes,
// consumer progress, dead letters, delayed and half messages), its snapshots,
// publishing, receiving, both ends of the group's flows, and the reading of landings.
// The log itself is package commitlog, index files are package queue, what consumers
// have in hands is package consumer, SQL filters are package filter, the clock of
// delayed messages is package timer, which half messages wait is package
// transaction, the client protocol is package rocketmq.
//
// A channel that is broadcast to zones lands in the CZone of each city and goes
// onward from there: the fold keeps for each such flow where its numbers landed
// (relay), the origin's lineage table as far as the landings prove it, and a cursor
// for each zone. Source serves these flows like the group's own, under the
// origin's flow, lineages and numbers.
//
// What only another group of the zone can do is asked of it by a call (call.go).
//
// It never speaks a client's protocol, dials nobody, and never reads a clock or
// the live topology while it folds: what the fold needs of a topology is in the
// record that says that it was applied.
//
//	Publish ---\                                       /--> topics: queue indexes --> Receive, ServeWant
//	Sink.Land --> commit log --> committed --> fold --+---> flows out: number -> position, cursors --> Source.Read
//	acks, cursors, dead letters --/                    \--> flows in: settled prefix, lineages, outcomes
//
// # Groups with replicas
//
// A member of such a group (Options.Member, member.go) opens as a replica: its log
// follows, the fold goes on with what is committed, snapshots are written, and
// nothing else happens. Every call is refused with KindNotMaster, which names the
// master. Promote and Lead make it the master: its lineage begins, all that was there
// before is committed and folded, the topology is applied, and the loops start. A
// master looks at its lease after each commit and before each answer; without one it
// answers nothing any more (Deposed), also what was committed: others know what
// counts. Drain makes it ready to hand over.
//
// A new replica is given the key of handles, the newest snapshot and the indexes that
// it names (Snapshot, Restore), and the log from its beginning by shipping. It folds
// on when its log has got to the snapshot; before, it cannot be promoted.
//
// # Goroutines
//
// Open starts nine, which Close joins: one expires deliveries and appends
// progress and cursors (at most once each Limits.ProgressDelay), one writes
// snapshots, one trims, one does what topics declare for backlogs that have
// reached their budgets, one (the due loop) delivers delayed messages, one looks at
// half messages whose time has come, one writes receipts, one forgets lite
// topics that are not used any more, one reads the sealed part of the log, slowly, to
// find what its disk has damaged (scrub.go), which a member mends from another's (mend.go). Of a replica only snapshots, trims and
// that check run; Lead starts the others. The log calls the fold on its own goroutine.
// Everything else runs on the caller's: a Receive that waits costs a timer and a place in
// a line, no goroutine. ServeWant starts one for its session and joins it.
//
// # What is promised
//
//   - Publish returns when its records are committed and folded, and says what
//     was truly reached (Level); only a buffered topic is answered before, and in a
//     group with replicas one of durability master or quorum.
//   - The fold alone decides what a committed record means. A landing that does
//     not continue the settled prefix of its flow is ignored by it, so a number
//     settles once, whatever was appended. A dead-letter copy and what it
//     settles are one record; so are a dead letter that Replay brings back and
//     the mark that it was.
//   - A half message is in no queue, has no number and leaves this group for
//     nowhere. What decides it is one record: the message again, which delivers and
//     settles, a rollback, or a dead letter. The first in the log counts.
//   - A half message that nobody decides is asked about at most as often as its topic
//     says, on the monotonic clock of this process: a step of the wall clock changes
//     nothing. A restart goes on with the present wait, by the wall clock.
//   - On an idempotent topic a message counts once in its window: the fold ignores a
//     copy, and its sender is answered like the first one's (package once). Its home
//     group decides, so Publish passes it on (home.go).
//   - Acknowledgements and cursors become durable a little later, and so do counts
//     of checks. A kill repeats what was not yet logged; Close logs it all.
//   - A consumer group has one progress in a queue. Acknowledgements move it, and
//     SetOffset and ResetGroup put it elsewhere: one record, durable at nil, whose
//     position marks the reset. What the group did before it, logged or in hands,
//     cannot undo a part of it.
//   - A message of a topic with receipts gets one when all declared groups here have
//     settled it: receipt and marks are one record, appended by a loop and judged by
//     the fold. Those for a destination whose backlog has reached its budget wait, and
//     hold up none for others (receipts_loop.go).
//   - A backlog passes its budget by one record for each append: what the loops of due
//     messages and receipts append is counted before it is folded. A Publish judges its
//     batch by what was folded before, so by at most MaxBatch records.
//   - What a destination is not sent (declared lost, or made needless by a newer
//     change) is decided in the log first, told to the destination, and shown to
//     readers of its landings. The cursor moves when the destination has settled it.
//   - Retention passes no destination and no declared group in silence: what is
//     given up for a bound is counted and logged.
//   - An operator may decide about what waits, as a client may: the record says who
//     and why (Order), and the first decision in the log counts.
//   - What the group lost with the tail of a log and is offered again (OfferTail) counts
//     once for the place where it stood (fold_again.go). A destination that landed it there
//     settles its number without landing it; consumer groups that are known to have settled
//     it there do not get it.
//   - A delayed message waits in the log of the group that took it, and in the index
//     of the hour in which it is due. The due loop appends it again, with a cause
//     that names where it waited; the fold lets the first of such a copy and a
//     recall count and ignores what follows. So no crash and no restart delivers it
//     twice or never. Nothing of it leaves the zone before: its route is resolved
//     when it is due, and it has no place in the order of its flow until then. One
//     whose topic is gone ten minutes after that, and for as long, is a dead letter.
//   - Offsets of a queue are in log order. A broadcast topic has one order:
//     that of its landings, in queue 0.
//
// # Message groups
//
// Messages of a FIFO topic stand in queue 0, in the order of the log, at the group
// that owns the slot of their message group. Who takes one in the zone where it is
// published passes it on to the home there (home.go), so that all of a message group
// leave on one flow, in the order of its lane. Their index entries hold the hash of
// the message group. Consumer groups get one message of each message group at a
// time (package consumer). A change of order by the topology takes over what is in
// hands. Of a topic of kind priority, a queue is a level, and the highest number
// goes first.
//
// # Lite topics
//
// Messages of a topic of kind lite are kept like those of a FIFO topic, with a lite
// topic in place of the message group. The fold gives a lite topic a number with its
// first message (lite_fold.go), which index entries have in place of a hash: consumers
// are promised the lite topics that they named. Which client wants which is not in the
// log: clients tell it (lite.go), and again every 30 s; a broker passes it on to the
// homes of the lite topics. A group's progress in a lite topic is that in the queue, as
// for every topic. A loop forgets lite topics that had no message for their time, by a
// record that the fold takes only if none came meanwhile, and settles what is left of
// them. Messages on their way that will make new lite topics take their places before
// (lite_room.go), so that no more come than may live. A subscription may say where its
// group goes on in a lite topic (lite_move.go): records of one append, before which all
// progress is logged while nobody takes or settles.
//
// # Files
//
// The broker's directory holds log/ (package commitlog), index/ (package
// queue), handle.key (32 random bytes that seal receipt handles) and the newest
// two snapshot-<log position> files, whose bytes snapshot_codec.go describes.
// A snapshot names incarnation, lineage and position and is refused unless the
// log has them; the one before is used then, or the whole log, if it was never
// trimmed. If it was, indexes that are lost or damaged are made anew from what
// the log still holds, under the numbers that the newest snapshot says, unless
// the log leaves open which those are. While a replica is given its store, the files
// incoming-* hold it; once they are all there, INSTALL says so, and Open makes them
// the store. A log that is damaged is moved aside to log.damaged-<time> (SetAside). What a
// member's log had and its group has not is in tails/ (package tails), saved before the
// log drops it (keep.go). The
// bodies of control records are described in control.go and
// cause.go.
//
// A flow's index keeps entries longer than the log their records: as long as a
// fold that begins at the older snapshot counts the bytes of a backlog from them.
package broker
