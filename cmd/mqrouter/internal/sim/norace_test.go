//go:build !race

package sim

import "testing"

// defaultSeeds is how many seeds the simulation runs, unless it is told.
const defaultSeeds = 20

// slow marks a test that the race detector would make last for minutes.
func slow(testing.TB) {}
