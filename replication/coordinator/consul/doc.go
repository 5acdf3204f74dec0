// Package consul is the driver of package coordinator for those who run Consul: the
// terms lie in its KV store, and the members of a group elect among themselves, by the
// same rule as elsewhere, with compare-and-set.
//
// It owns: the keys below the city's prefix, how leases are read from them, and when it
// is that Consul has forgotten a term. It uses no session: Consul keeps a session alive
// for twice its TTL, which is 10 s at least.
//
// # Keys
//
//	PREFIX/GROUP/term            the term, JSON; its Version ascends by one
//	PREFIX/GROUP/lease           who renewed last, for how long, what is committed; or that
//	                             the master gave it back
//	PREFIX/GROUP/order           an operator's fail-over, for one version of the term
//	PREFIX/GROUP/standing/NODE   what a member said last, and the newest term it ever knew
//
// Every change is one transaction of Consul:
//
//	renew    the term is unchanged     -> set lease
//	mark     the term is unchanged     -> longest lease, majority, what is committed
//	vacate   the lease is unchanged, and was for a lease and a margin, or an operator
//	         orders it                 -> the term without a master
//	elect    the term has no master, the lease is unchanged, and was for a lease and a
//	         margin, or was given back -> the next epoch
//	resign   the term is unchanged     -> the next epoch, or no master; lease given back
//	put back the term is the older one that was read -> the term that its master knows, and
//	         its lease
//
// A master's lease runs from before it sent the renewal; a member counts from when it
// saw the key change, which is later. As long as the term has no master nobody can
// renew. So at the moment of an election the last lease is over by the clock of whoever
// elects, margin included, and no other one can have been given. A lease key that is not
// there is no lease that was given back: it is waited for like any other, as long as the
// longest that the term or the observer knows of.
//
// # A term that is gone
//
// The key may be deleted, the store emptied, or restored from a backup. Each member keeps
// the newest term that it knew in memory and on its disk ([Memory]), saves it before it
// acts upon it, and says so with its standing. A term in Consul that is older than one
// that some member knew, or is not there although one was, elects nobody:
//
//   - its master puts it back with its next renewal, while its lease runs: nobody else can
//     have been elected. Publishers do not notice. The version is some numbers higher, since
//     changes may have been made whose answers did not come;
//   - else the group has no master, says why, and an operator's fail-over decides, after
//     a lease and a margin. Without loss: all nodes answer, each with a log of one store,
//     and the one that is to lead has the longest; so it has what was acknowledged, whoever
//     was in sync. The next epoch is above every one that a log or a member knows.
//
// Only a group of which no node knows a term is a new one, whose first master is elected
// by itself. What no member that answers can know is lost: a backup with a term whose only
// member in sync had left the set later, with all the others away. After a restore delete
// the keys below the prefix.
//
// A broker that the topology has alone, and whose log may be its group's only one, notes
// that in the term before it writes to it ([Coordinator.Alone]); no process sees it for
// it. Who was master then leads no longer than its lease, and the next is elected when
// that node answers.
//
// # What it promises, and in which time
//
// The same as the raft driver, as long as Consul's KV store is linearizable for
// transactions. A dead master is missed after a lease and a margin (2 s and 0.3 s by
// default), and replaced within another renewal and two transactions: under 3 s with a
// Consul that has a leader. While Consul has none, nobody renews: masters lose their
// leases 2 s after their last renewal and stop to answer, and go on, in a new epoch,
// when Consul is back; Consul's own fail-over takes 1 to 3 s with raft_multiplier 1,
// and up to 15 s with its default of 5. A node whose agent is away is a node that Consul
// does not hear: another one leads after its lease. Clocks may differ in rate by the margin
// to the lease, 15 %, and need no common time. Who may write below the prefix may appoint
// masters: Consul's ACL is all that guards it.
//
// # Cost
//
// Each master writes its lease every half second and a mark every ten while records come,
// each member its standing every two seconds, and at once while there is no master: some
// two writes a second for a group of three.
//
// # Goroutines
//
// Run has two for each group of which this node is a member.
package consul
