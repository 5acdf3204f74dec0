// Package consumer decides which messages a consumer group gets. It has three
// parts:
//
//   - Progress: what is settled for each (group, topic, queue). It is durable
//     by being folded: the broker logs a Delta, the fold applies it, a snapshot
//     encodes it.
//   - Dispatcher: who has which message in hands, volatile, one for each
//     (group, topic). It picks redeliveries and new messages, counts attempts,
//     expires and renews, and collects the Delta of what changed.
//   - Sealer: receipt handles, self-contained and sealed with a secret.
//
// The package reads no clock, no log and no disk. Instants are monotonic and
// passed in, so that a step of the wall clock neither hurries nor delays a
// redelivery; the wall clock is used only for what has to outlive the process.
//
// # Goroutines
//
// The package starts none. Progress belongs to the fold. Dispatcher and Sealer
// are safe for concurrent use; a dispatcher calls none of its callbacks while
// it holds its mutex.
//
// # When an acknowledgement counts
//
// An acknowledgement counts as long as the message is not settled and nobody
// else can have it: its delivery is still in hands, or has run out but the
// message was neither delivered again, nor given a new handle, nor condemned
// to the dead-letter topic. Afterwards it is refused with *HandleError. An
// acknowledgement of a message that is settled already is answered as success,
// except when this process lately brought it to the dead-letter topic. After a
// restart the deliveries before it are not known; a handle of that time counts
// until the message is delivered again.
//
// A reset puts a group elsewhere in a queue (see reset.go): what was in hands counts
// no more, and deltas from before it are void.
//
// # Order
//
// Redeliveries come before new messages. Inside a queue new messages come in
// offset order; between queues the dispatcher goes round.
//
// By priority (Options.Priority) the queue of the highest number goes first, its
// redeliveries before its new messages; after 15 messages of the highest level that
// has some, one of a lower level follows, if any waits, each level in turn.
//
// A dispatcher that keeps order (Options.InOrder) hands out one message of a
// message group at a time, in offset order: the next one when the former is
// settled, be it acknowledged, dead-lettered, excluded by a filter or trimmed. A
// message that waits for a retry, or cannot be read, holds its message group and no
// other. Which message group an offset is of, the caller says from its index
// (TakeRequest.Key); one Take at a time sorts the offsets that follow, and a message
// group is remembered only while one of its messages is in flight. Those behind it
// cost 8 bytes each; when a million of them wait (Options.MaxWaiting), nothing
// behind them is looked at until some go.
//
// Where clients choose message groups (Options.Chosen), each gets only messages of those
// that it has chosen, those first that were ready first. One that nobody has chosen
// sleeps: only its first unsettled offset is known, and it holds up nobody, however much
// waits in it. When it is chosen the index is read anew from there on (lite_scan.go); so
// is the tail of one behind which more waits than MaxWaiting allows. Whoever waits is
// woken for its own message groups, one client at a time of those that share one, and
// one of all to look at the index.
//
// In order, each delivery is told by the next delta: a crash then forgets only
// deliveries of the last moments, and what is in hands, its attempts and its attempt
// id are known to the next process. It holds the message group until its invisible
// time is over; renewal ends with the process. A batch never has two messages of one
// message group: official clients work a batch off in its order, but an application
// that fails on one message and acknowledges the next would have the first one come
// after it.
package consumer
