// Package flow moves the records of a broker group to other groups: the only
// way on which a record leaves its group.
//
// It owns the session protocol of a flow over a wire.Stream: numbering is the
// origin's, settlement the destination's, and this package sees to it that the
// two agree. It never keeps a record: the origin's log (Source) and the
// destination's (Sink) do, so that any process between or around them may die.
//
//	Source --- Outbox: one lane a leg            Inbox: one session a flow --- Sink
//	              sender (pure)  --- wire.Stream ---  receiver (pure)
//	                                Open -->
//	                                                <-- Accept (next, fingerprint, outcomes, credit)
//	            Batch, Skip, Gap, Probe -->
//	                                                <-- Ack (committed prefix, outcomes, credit)
//
// sender and receiver are state machines without clock, network or randomness:
// a state, an event and the time go in, decisions come out. reconcile and
// verify decide where a session begins when origin or destination came back
// from a crash, a wipe or an old copy.
//
// A source may also serve what landed here, under the origin's flow and numbers
// (OriginState.Landed). Its Open says so. Its destination may be ahead of it, which
// is no disagreement then: the cursor follows when the source gets there. A change
// of the lineages under it ends the session, and the next one tells them anew.
//
// # Relay by landing
//
// A destination may be told (PullOptions) to take a channel's flow from another
// city that has landed it. It opens a stream to that holder and asks (OpenPull);
// from the holder's Open on, the holder is the sender and who asked the receiver.
//
//	origin ------ Open (owner) --> child       no credit: "relayed"; Acks name what
//	        <----- Accept, Ack ---             the child has settled from anybody
//	holder <----- Open (pull) ---- child
//	        ------ Open (holder) ->            then an ordinary session
//
// One session of a flow may land at a time. A holder's takes the place of the
// origin's, which is asked to open again and waits without credit; when no holder
// serves, the waiting session is asked to open again and gets credit. supply and
// lagging decide whose turn it is: the declared holder, the others, the origin;
// back to the declared one after a rest that grows with each failure. A holder
// serves nothing that it settled without landing it, that has passed too many
// cities, or that may not pass all that the child named.
//
// # Promises
//
//   - A number counts as settled at the origin only after an Ack, and an Ack
//     names only what the destination has committed.
//   - Numbers of a flow are handed to the Sink in order, each once, whatever
//     sessions come and go: the newest session of a flow supersedes the older,
//     whose landings are waited for before the newer begins.
//   - A record that cannot land is settled with another outcome by the Sink and
//     stops nothing behind it.
//   - Origin and destination that disagree about what a number is are refused as
//     diverged, counted and logged on every attempt; nothing is reset silently.
//   - Destinations of settled legs are asked about once a minute, and as soon as
//     their store is found to have started anew, whether they still have what they
//     settled: what they lost is sent again, or told as a gap, without a new record.
//   - Legs that have lost their way to a destination wait for one of them, which
//     tries within the bound of the back-off.
//   - A record leaves as soon as its origin has it; one that comes in company may
//     wait a millisecond for more (file linger.go), once.
//   - What waits in memory at a destination is bounded by one budget for all
//     flows; what an origin holds is one batch a lane and a bounded cache.
//
// What is not built is refused as unsupported, never ignored: the outcome
// moved, unknown codecs, frames of readers of landings.
//
// # Dictionaries
//
// A batch of a few KiB has little to refer back to. An Outbox learns what the small
// batches of a topic look like and packs them with a dictionary, when samples that it
// was not made of say that it pays (files library.go and dictionary.go). A session
// brings it, before the first batch that needs it and once it would have paid for
// itself there, to a destination whose Accept takes some. Both ends of a session know
// by the same rule which it has; nothing outlives it. A destination that refuses such
// a session gets the same records without one, for an hour. Records whose residency
// is restricted are never a part of one, since it goes to every city.
//
// An Outbox holds at most 8 topics of 1.7 MB, an Inbox 64 dictionaries of 0.2 MB.
//
// # Goroutines
//
// Outbox.Run starts one goroutine that trains dictionaries, one at a time, and one a
// leg (lane) that has something to send, and one more for each open session (reading
// its stream). Inbox.Serve runs on its
// caller's goroutine and starts two (reading, writing). All are joined before
// Run and Serve return. Outbox.ServePull is a lane on its caller's goroutine.
// Inbox.Run starts one goroutine for each flow that is pulled, and that one a
// session. Callbacks of Sink.Land never block.
package flow
