// Package coordinator decides who is master of a broker group, in which epoch, and
// which of its nodes are in sync.
//
// It owns: the interface ([Coordinator]), the terms, the rule of election and the
// arithmetic of leases, as deciders without clock or I/O. Drivers are in the packages
// below: raft (embedded, the default) and consul. It never sees a record or a log:
// members tell where they stand.
//
// # Goroutines
//
// None.
package coordinator
