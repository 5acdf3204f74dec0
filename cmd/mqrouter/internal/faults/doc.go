// Package faults breaks the disk and sets the clock of a real node, at the orders of a
// test. Only binaries that are built with the tag `faults` have it in them (package cli),
// and these are for the fault suite of package e2e alone.
//
// A Layer lies between a broker and what it is given: the file system of its store, and
// the wall clock. Orders are a file in its data folder, in JSON, read anew when they are
// needed and a few milliseconds have passed. It owns no goroutines.
//
// What it does not model:
//
//   - A failed sync loses nothing here: the kernel still has the bytes, and shows them
//     after the process has ended. A real kernel may drop them, or keep showing what never
//     reached the disk. Lost bytes are for the simulated disk (internal/disk, package
//     replication/ship).
//   - A full disk refuses what takes space, by kind of file: to make or reserve a file,
//     and to write where nothing was reserved. It counts no bytes.
//   - A slow disk is slow for each write and sync, alike and one after another as far as
//     the broker waits for them. A real one queues.
//   - A disk that acknowledges a sync it did not do, and one that returns other bytes
//     than it stores: a test flips bits in files instead.
//   - The coordinator's own store is on the real disk, and the monotonic clock, which
//     leases count by, cannot be set. Certificates are judged by the real wall clock.
package faults
