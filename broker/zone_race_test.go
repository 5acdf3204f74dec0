//go:build race

package broker

// zoneSeeds is how many histories of a zone are compared with the model; the race
// detector slows them down.
const zoneSeeds = 15
