//go:build !linux

package e2e

// whoDialled cannot tell on this system: streams are not cut between pairs.
func whoDialled(map[string]int, int, int) string { return "" }
