// Package acl follows the file that says which clients may do what.
//
// It owns reading the file, the check of its mode, and what happens when it is
// broken: the last good content stays in force and the fault is logged and shown.
// Content is taken when it rests (rest.go): a writer that pauses in the middle should
// write another file and rename it.
// What the content means is package policy's.
//
// # Goroutines
//
// Run is one, of its caller; the watcher adds those of fsnotify, which Run ends
// before it returns. Watch and Problem are safe for concurrent use.
package acl
