// Package source says where a topology comes from and how it becomes live.
//
// It owns the rule that decides whether a topology replaces the running one
// ([Judge]), the place where a node keeps the running one ([Live]), and the
// file as its origin ([File]), followed as other files of a node are ([Follower]).
// It never changes a topology and never decides what a change means for a node:
// rooms take it from Current or Watch.
//
// # Goroutines
//
// Live has none. File and Follower have one, Run, which alone reads the file; the
// default watcher adds those of fsnotify, which Run ends before it returns.
//
// # Ordering
//
// Epochs only rise: whoever calls Watch again after its channel was closed
// sees a topology of a higher epoch. Steps in between may be skipped; nobody
// waits for a slow reader.
package source
