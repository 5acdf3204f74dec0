// Package conformance is the suite that every coordinator.Coordinator passes: the
// model in memory, raft and consul. It drives the members of a broker group (each with
// a log of its own, a clock that drifts, crashes and pauses) against a coordinator
// under faults that a seed draws, and checks what the interface promises:
//
//   - never two valid leases for one group at a time, by true time;
//   - epochs and versions ascend;
//   - an elected master has every record that was acknowledged, unless a loss was
//     ordered.
//
// # Goroutines
//
// Those of a run end with it.
package conformance
