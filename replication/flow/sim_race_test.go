//go:build race

package flow

// simSeeds is smaller with the race detector, which makes each seed some eight
// times slower.
const simSeeds = 40
