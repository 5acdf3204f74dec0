//go:build !race

package broker

const defaultRelaySeeds = 20
