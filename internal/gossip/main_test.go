package gossip

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain fails when goroutines outlive the tests. memberlist's may run on for
// some probe intervals after Shutdown, hence the patience; the synctest tests
// show the same in simulated time.
func TestMain(m *testing.M) {
	code := m.Run()
	giveUp := time.After(3 * time.Minute)
	tick := time.NewTicker(100 * time.Millisecond)
	for code == 0 {
		err := goleak.Find()
		if err == nil {
			break
		}
		select {
		case <-tick.C:
		case <-giveUp:
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
