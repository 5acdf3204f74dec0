//go:build race

package sim

// defaultSeeds is small with the race detector, which makes each seed some ten
// times slower.
const defaultSeeds = 3
