// Package policy holds the deciders that more than one room asks: how far a
// record may travel, which cities it may enter, and how much one destination
// may hold back.
//
// Deciders are pure: state and event in, verdict out. They touch no clock, disk
// or network, have no goroutines, and are safe for concurrent use. What follows
// from a verdict (a refusal, a parked record) is the asking room's business.
package policy
