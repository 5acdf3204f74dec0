//go:build !race

package flow

// simSeeds is how many seeds the simulation runs by default.
const simSeeds = 300
