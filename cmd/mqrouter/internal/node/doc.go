// Package node wires one node out of the rooms: a broker, a router, a cache
// reader or a voter of a coordinator, from its configuration, a disk and the network. It decides nothing
// that a room could decide.
//
// Each node is a stack of parts that are started from the ground up and
// stopped from the top down: a stop first takes clients and sessions off, then
// lets what is under way end, then makes the log durable, and says farewell to
// gossip last. Whatever part fails ends the node with its error.
package node
