package broker

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// TestManyStartsOfTheOriginStrandNobody: an origin forgets the oldest rows of a
// lineage table. A destination that was away for longer than the table, and one
// whose store is new, are served all the same.
func TestManyStartsOfTheOriginStrandNobody(t *testing.T) {
	for _, wiped := range []bool{false, true} {
		t.Run(fmt.Sprintf("wiped=%v", wiped), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, sample(t), testLimits(), "rz02-a-1", "rz03-a-1")
				defer w.close()
				from, to := w.sites["rz02-a"], w.sites["rz03-a"]
				from.publish(from.message("transfer", "first", "userId", "50"))
				w.settled()
				got := to.drain("transfer-credit", "transfer")
				to.down()
				var ids []string
				for i := range maxMarks + 10 {
					from.bounce()
					if i == maxMarks/2 && wiped {
						to.up() // so that the cursor holds no row back
						w.settled()
						to.down()
					}
					ids = append(ids, fmt.Sprint(i))
					from.publish(from.message("transfer", ids[i], "userId", "50"))
				}
				if wiped {
					to.up()
					w.settled()
					to.down()
					from.bounce()
					to.mem = disk.NewMem()
					to.fs = to.mem
					got = map[string]int{}
					ids = append(ids, "last")
					from.publish(from.message("transfer", "last", "userId", "50"))
				}
				to.up()
				w.settled()
				for id, n := range to.drain("transfer-credit", "transfer") {
					got[id] += n
				}
				wantOnce(t, got, append(ids, "first"))
			})
		})
	}
}
