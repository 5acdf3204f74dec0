// Package freeport gives tests ports of the loopback that are theirs until they end: also
// while nobody listens, and against the tests of other packages, which run at the same
// time in other processes.
//
// A port is below the range from which the kernel takes the ports of outgoing connections
// and of listeners that do not mind, so that neither takes one before its owner listens,
// or while that is being started again. A file with a lock stands for each, in a folder of
// the user below that for temporary files; locks end with their process. Only tests import
// this package. It has no goroutines.
package freeport
