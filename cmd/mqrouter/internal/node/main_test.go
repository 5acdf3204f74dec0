package node

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails when goroutines outlive the tests; memberlist's own do for a moment,
// since its Shutdown does not wait for them, which package gossip knows.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).triggerFunc"),
		goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).pushPullTrigger"))
}
