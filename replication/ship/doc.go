// Package ship keeps the replicas of a broker group equal to its master's log.
//
// It owns the protocol between master and replica, the state of each replica at
// the master (async, semi-sync, sync), and the commit position of the group. It
// never looks into a record, elects nobody, and keeps nothing on a disk itself:
// the log is behind [LeaderLog] and [FollowerLog], the word on who is master and
// which set is in sync is the coordinator's.
package ship
