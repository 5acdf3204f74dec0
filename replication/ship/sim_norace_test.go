//go:build !race

package ship

// simSeeds is how many seeds the simulation runs by default.
const simSeeds = 60
