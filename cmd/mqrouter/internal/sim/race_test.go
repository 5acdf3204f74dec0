//go:build race

package sim

import "testing"

// defaultSeeds is small with the race detector, which makes each seed some ten
// times slower.
const defaultSeeds = 2

// slow marks a test that the race detector would make last for minutes: the
// others take the same ways through the code.
func slow(t testing.TB) {
	t.Helper()
	t.Skip("runs without the race detector")
}
