//go:build race

package router

// simSeeds is smaller with the race detector, which makes each seed some ten
// times as slow.
const simSeeds = 2
