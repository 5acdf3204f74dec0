// Package node wires one node out of the rooms: a broker, a router, a cache
// reader or a voter of a coordinator, from its configuration, a disk and the network. It decides nothing
// that a room could decide.
//
// Each node is a stack of parts that are started from the ground up and
// stopped from the top down: a stop first takes clients and sessions off, then
// lets what is under way end, then makes the log durable, and says farewell to
// gossip last. Whatever part fails ends the node with its error.
//
// # A broker of a group with several nodes
//
// Its addresses, gossip and the way to the coordinator last as long as the process, and
// clients are passed on to the master whenever it is not the master itself.
// What stands on the store is a life, from one opening to the next, with a stack of its
// own:
//
//	open as a replica: follow the master's log
//	elected:           stop following, Promote, lead (ship), Lead, then serve
//	                   sessions, flows and clients
//	master no more:    answer nothing, end the life, open anew as a replica
//
// A life ends when the lease is over or another term is in force, when its log fails,
// and when the store was replaced by a copy of the master's. Promotion needs no new
// life. Clients that wait for a master while this node becomes it go on to itself. A
// node that stops while it is master commits what it holds and gives its epoch back, so
// that another member is elected at once. A log that has diverged is set aside: the
// node neither follows nor is elected until an operator has decided. Where an operator's
// fail-over explains it, the decision was made: what the group does not have is saved
// as a tail, the store removed, and the next life is given a copy of the master's.
//
// Operators' questions are answered by the master alone; replicas have nothing of their
// own to tell, and say who decides where an order was meant for a master. A master hands
// over by order of an operator in the loop of its reign: it answers nothing more, waits
// until the other node has all of the log, and only then gives its epoch to it. Any
// member passes an ordered fail-over to the coordinator.
package node
