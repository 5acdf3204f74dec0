package broker

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// TestDestinationThatLostItsStoreIsNoticedIdle: a destination that was wiped, or
// came back as an older copy, while everything was settled is sent again what it
// lost, with no new record to show it.
func TestDestinationThatLostItsStoreIsNoticedIdle(t *testing.T) {
	for _, wiped := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, sample(t), testLimits(), "rz02-a-1", "rz03-a-1")
			defer w.close()
			from, to := w.sites["rz02-a"], w.sites["rz03-a"]
			publish := func(prefix string, n int) (ids []string) {
				for i := range n {
					ids = append(ids, fmt.Sprintf("%s-%d", prefix, i))
					from.publish(from.message("transfer", ids[i], "userId", "50"))
				}
				w.settled()
				return ids
			}
			ids := publish("before", 20)
			to.drain("transfer-credit", "transfer")
			to.bounce()
			older := to.mem.Crash(rand.New(rand.NewPCG(1, 1)))
			lost := publish("lost", 10)
			to.drain("transfer-credit", "transfer")
			time.Sleep(10 * time.Minute) // every session is closed
			to.down()
			want := lost
			if to.mem = older; wiped {
				to.mem, want = disk.NewMem(), append(ids, lost...)
			}
			to.fs = to.mem
			to.up()
			time.Sleep(2 * time.Minute)
			wantOnce(t, to.drain("transfer-credit", "transfer"), want)
			if in := to.Status().Incoming; len(in) != 1 || in[0].Settled != 30 {
				t.Fatalf("incoming %+v, want 30 settled", in)
			}
			time.Sleep(5 * time.Minute)
			wantOnce(t, to.drain("transfer-credit", "transfer"), nil)
		})
	}
}

// TestDestinationBeyondTheHorizonIsToldOfTheGap: what the origin no longer keeps
// is told to a destination that lost it, and nothing is passed in silence.
func TestDestinationBeyondTheHorizonIsToldOfTheGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.SegmentBytes, limits.SnapshotBytes, limits.TrimEvery = 64<<10, 32<<10, time.Minute
		w := newWorld(t, sample(t), limits, "rz02-a-1", "rz03-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz03-a"]
		const n = 300
		for i := range n {
			m := from.message("transfer", fmt.Sprint(i), "userId", "50")
			m.Body = make([]byte, 1<<10)
			from.publish(m)
			time.Sleep(time.Minute)
		}
		w.settled()
		if from.log.Begin() == 0 {
			t.Fatal("nothing was trimmed")
		}
		to.down()
		to.mem = disk.NewMem()
		to.fs = to.mem
		to.up()
		time.Sleep(2 * time.Minute)
		got := to.drain("transfer-credit", "transfer")
		in := to.Status().Incoming
		if len(in) != 1 || in[0].Settled != n || len(got) == 0 || len(got) == n {
			t.Fatalf("%d records came again, incoming %+v; want the newest, and %d settled", len(got), in, n)
		}
		for i := n - len(got); i < n; i++ {
			if got[fmt.Sprint(i)] != 1 {
				t.Fatalf("record %d of the newest %d is missing", i, len(got))
			}
		}
	})
}
