//go:build !race

package router

// simSeeds is how many seeds the simulation runs by default.
const simSeeds = 20
