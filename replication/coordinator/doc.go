// Package coordinator decides who is master of a broker group, in which epoch, and
// which of its nodes are in sync.
//
// It owns: the interface ([Coordinator]), the terms, the rule of election and the
// arithmetic of leases, as deciders without clock or I/O. Drivers are in the packages
// below: raft (embedded, the default), where an [Office] decides in the process that leads
// the voters, and consul, where each member decides by compare-and-set. It never sees a
// record or a log: members tell where they stand.
//
// # Goroutines
//
// None.
package coordinator
