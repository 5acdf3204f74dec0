// Package disk is the only door to the file system for everything that must
// survive a crash.
//
// [FS] and [File] say what durable code may rely on, and no more: bytes written
// are durable after File.Sync, names (create, rename, remove) after FS.SyncDir
// of their folder. Three implementations pass one conformance suite:
//
//   - [OS] is the real file system.
//   - [Mem] lives in memory. Mem.Crash returns what a power cut could leave: of
//     what was not synced, each sector and the tail of the directory changes of
//     each folder is kept or dropped by a seeded source.
//   - [Faulty] wraps another one and makes chosen operations fail.
//
// The package starts no goroutine. Paths use the slash; they are cleaned, and
// relative ones are taken as they are.
package disk
