// Package consul is the driver of package coordinator for those who run Consul: the
// terms lie in its KV store, and the members of a group elect among themselves, by the
// same rule as elsewhere, with compare-and-set.
//
// It owns: the keys below the city's prefix, and how leases are read from them. It
// uses no session: Consul keeps a session alive for twice its TTL, which is 10 s at
// least.
//
// # Keys
//
//	PREFIX/GROUP/term            the term, JSON; its Version ascends by one
//	PREFIX/GROUP/lease           who renewed last: epoch, node, what is committed
//	PREFIX/GROUP/order           an operator's fail-over, for one version of the term
//	PREFIX/GROUP/standing/NODE   what a member said last
//
// Every change is one transaction of Consul:
//
//	renew    the term is unchanged     -> set lease
//	vacate   the lease is unchanged, and was for a lease and a margin, or an operator
//	         orders it                 -> the term without a master
//	elect    the term has no master, the lease is unchanged, and was for a lease and a
//	         margin, or is not there   -> the next epoch; no lease
//	resign   the term is unchanged     -> the next epoch, or no master; no lease
//
// A master's lease runs from before it sent the renewal; a member counts from when it
// saw the key change, which is later. As long as the term has no master nobody can
// renew. So at the moment of an election the last lease is over by the clock of whoever
// elects, margin included, and no other one can have been given.
//
// # What it promises, and in which time
//
// The same as the raft driver, as long as Consul's KV store is linearizable for
// transactions. A dead master is missed after a lease and a margin (2 s and 0.3 s by
// default), and replaced within another renewal and two transactions: under 3 s with a
// Consul that has a leader. While Consul has none, nobody renews: masters lose their
// leases 2 s after their last renewal and stop to answer, and go on, in a new epoch,
// when Consul is back; Consul's own fail-over takes 1 to 3 s with raft_multiplier 1,
// and up to 15 s with its default of 5. Who may write below the prefix may appoint
// masters: Consul's ACL is all that guards it. When the KV store is restored from a
// backup, stop all brokers of the city first: the terms in it are old, and a term that
// is taken back is not seen by members that knew a newer version.
//
// # Cost
//
// Each master writes its lease every half second, each member its standing every two
// seconds, and at once while there is no master: some two writes a second for a group
// of three.
//
// # Goroutines
//
// Run has one for each group of which this node is a member.
package consul
