// Package once remembers which messages of idempotent topics a broker group has
// stored, as long as their windows last: a part of the fold of the group's log.
//
// It owns the table and its bytes in snapshots. It never reads a clock: every
// moment is that of a record. It starts no goroutine; the fold guards it.
//
// # Rule
//
// A message is another one unless a message of its topic with the same key was
// stored less than the window before it. The window runs from that first copy, and a
// copy that comes again does not make it longer. It is the one that the first copy
// was stored with. A copy with other content is a conflict, whoever is right: it is
// neither stored nor taken for the first one.
//
// # Memory
//
// A message takes [EntrySize] bytes and its place in a map. Those whose window is
// over go when others come, at most [maxForget] at a time, of the topic at hand and
// of one other one, so that no record makes the fold stand still. Windows that an
// edited topology made shorter end in time, and give their memory back behind the
// longer ones before them.
//
// # Bytes
//
// In a snapshot: n topics, each name str, n entries, each key 16 bytes | until ms
// u64 | content u64 | offset u64 | extra u64 | queue u16 | flags u8, in order of
// entering. Integers are little endian, counts and lengths unsigned varints.
package once
