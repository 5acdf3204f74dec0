// Package raft is the embedded driver of package coordinator: the voters of a city
// agree by Raft, with github.com/hashicorp/raft.
//
// It owns: the store of a voter, the replicated state, the way between voters and
// from members to them ([Voter], [Client]). The rules are package coordinator's.
//
// # What is replicated and what is not
//
// The replicated state is the terms, nothing else. Where members stand and which
// leases are out is known to the leader alone, and lost with it: a new leader waits a
// lease and a margin before it takes an epoch from anybody. A lease is given out only
// when, after it was asked for, a quorum has confirmed that the leader still is one;
// so whoever follows it began to wait later than the lease was asked for. Each
// decision carries the leadership (Raft's term) in which it was taken and is void in
// any other.
//
// # Voters
//
// A voter is a node that the topology names as one; its id in the quorum is its name
// and the random id of its store. So a voter whose disk was replaced is not taken for
// the one that voted before: it asks the others, and the leader puts it in the old
// one's place. A quorum begins when every voter named in the topology is up and none
// has a store with content; later a minority may be away. The leader takes voters out
// that the topology does not name any more, once those that it names are in.
//
// # Protocols
//
// Both run over mutual TLS on the node's peer address, told apart by ALPN:
//
//	mqrouter-raft/1         between voters: the library's own, MessagePack
//	mqrouter-coordinator/1  HTTP/1.1, POST /v1/OP with JSON, from members and operators
//
// # Failures
//
// A disk that does not take writes stops the voter, not its node: it leaves the quorum,
// tells why in its status, and tries again. A store with content that was not written
// so is not used and not repaired; moving the folder away lets the voter join anew. A
// lost quorum decides nothing: masters lose their leases, and go on when it is back.
// When a majority of the stores is lost for good, moving the folders of all voters
// away begins a new quorum; the groups' first masters are then elected as if they were
// new, by the longest log of all their nodes.
//
// # Goroutines
//
// Voter.Run starts all, and returns when they have ended.
package raft
