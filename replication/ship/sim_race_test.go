//go:build race

package ship

// simSeeds is how many seeds the simulation runs by default; the race detector makes
// each an order of magnitude dearer.
const simSeeds = 8
