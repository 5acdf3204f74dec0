// Package e2e tries mqrouter the way its users do: the built binary, real
// processes that are killed, the official RocketMQ clients, a real Redis for
// each city, and the commands of the README as they are written there. It has
// no code of its own, only tests.
//
// A cluster is two cities of processes that the test starts itself; a ground is
// the sample under `mqrouter dev --processes`. A network puts a relay before
// every door between their nodes, to cut it. A ledger is what clients saw:
// what was acknowledged, and where each message arrived; its verdict is the
// promises I1 to I3, a cacheWatch has I6.
//
// A clientRelay stands between an official client and the servers; it loses answers
// and changes what the client sends.
//
// An arena is a deployment whose middle is a broker group of three nodes. It is broken
// in rounds, one or two drawn faults at a time, healed, and held against what clients
// saw of it (TestRoundsOfFaults). Its relays know which process has dialled them, so that
// a pair of nodes is cut in one direction, streams as well as datagrams; that takes
// Linux and no rights. A cut stream stands still, as one whose packets are lost does
// until its sender gives up; what was sent comes when the cut is over, and a dial
// succeeds into silence, where a real one would get no answer. When it fails, it prints
// the seed and what was done, and keeps the nodes' logs.
//
// Tests named after a key, such as TestD3_, are the scenarios by which systems of
// this kind have hurt people. TestFaultsLoseAndDoubleNothing draws its faults from
// a seed, which it prints; -seed replays them. With MQROUTER_LONG set (make soak)
// everything goes on for longer, and from another seed each time.
package e2e
