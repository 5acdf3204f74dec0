//go:build !race

package sim

// defaultSeeds is how many seeds the simulation runs, unless it is told.
const defaultSeeds = 20
