// Package sim runs whole deployments in simulated time: the nodes as package
// node wires them (brokers with their logs, flows and front ends, routers with
// their QUIC links, cache readers, gossip), on disks in memory and the network
// of package simnet, used by real clients of the RocketMQ protocol. It has no
// code of its own, only tests.
//
// A world is three cities with several zones, two routers each, and routes of
// every kind. A seed decides what clients do and what goes wrong: loss,
// repetition and overtaking, cuts of one direction or both, one of them longer
// than every timer, slow links and machines, connections that are reset, crashes
// of processes and of power (which drop what was not synced), full, slow and
// failing disks, caches that are away, emptied or fall back, topology epochs that
// arrive at different times, stores that are wiped or replaced by older copies.
// Then all is healed, and what was acknowledged must come soon.
//
// The checkers judge what clients saw: every acknowledged message came to every
// consumer group (I1; what a wiped or older store had acknowledged and not
// delivered is excused), each has one place in each store (I2), those of one
// order came in it (I3; of a FIFO topic also to consumers, one of a message group at
// a time), caches never went back and ended with the newest change
// unless they were told of a gap (I6), nothing panics, hangs or stays behind
// (I8), a slow or dead city costs the others no time (I9), and the answer to a
// publish said what was reached.
//
//	go test ./cmd/mqrouter/internal/sim -seeds 300
//	go test ./cmd/mqrouter/internal/sim -run TestWorldKeepsItsPromises -v -seed 17
//
// # What a seed repeats
//
// On Linux, without the race detector, each world has a process of its own and
// replays exactly: every event of the network, to the nanosecond. For that the
// runtime's own randomness is overwritten, its monitor thread stopped, and
// garbage not collected; exact_linux_test.go says how, and TestWorldReplaysExactly
// compares runs. It needs leave to trace a child (ptrace) and holds for one
// binary: another compiler, or another line of code, is another world.
//
// Elsewhere, and with the race detector, a seed repeats what clients do, what goes
// wrong and when, and the fate of each packet between two hosts given what they
// sent. The scheduler, the choice of select and the order of maps may differ.
// Events of the network happen one at a time, so that little hangs on them.
//
// # What is not here
//
// A world has one clock: nodes cannot be given steps of their own. Memory is
// bounded by tests of the packages; here only goroutines are counted.
package sim
