//go:build race

package broker

const defaultRelaySeeds = 4 // the race detector slows the simulation down
