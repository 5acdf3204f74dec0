//go:build !race

package broker

// zoneSeeds is how many histories of a zone are compared with the model.
const zoneSeeds = 50
