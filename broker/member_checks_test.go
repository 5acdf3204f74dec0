package broker

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// A master is killed between the checks of a half message. Its replica, which has
// followed all the while, goes on with the wait that was under way, and parks the
// message only after a question of its own: the answer to the last one may have been on
// its way to the master that is gone.
func TestChecksGoOnWithTheNextMaster(t *testing.T) {
	for name, after := range map[string]time.Duration{"after the first": 8 * time.Second, "after the last": 70 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				topo := txSample(t, quickTerms)
				a := openMember(t, disk.NewMem(), topo, testLimits())
				a.promote(1)
				l := newLink(a)
				a.answers()
				l.close()
				b := openMember(t, disk.NewMem(), topo, testLimits())
				b.Close()
				copyStore(t, a, b.fs)
				b = openMember(t, b.fs, topo, testLimits())
				l = newLink(a, b)
				asker := a.producers()
				a.half("pay", "m")
				time.Sleep(after)
				asked := len(asker.soFar())
				l.close()
				b.caughtUp(a.Log().Committed())
				a.Close()
				b.promote(2)
				l = newLink(b)
				b.answers()
				asker.s = b.station
				asker.connect()
				defer func() {
					b.Close()
					l.close()
				}()
				time.Sleep(time.Second)
				if got := asker.soFar(); len(got) != asked || b.Status().Decided.Parked != 0 {
					t.Fatalf("checks %v, decided %+v: the wait that was under way is not over", got, b.Status().Decided)
				}
				time.Sleep(31 * time.Second)
				if got := asker.soFar(); len(got) != asked+1 || b.Status().Decided.Parked != 0 {
					t.Fatalf("checks %v, decided %+v: want one more", got, b.Status().Decided)
				}
				time.Sleep(10 * time.Minute)
				if got := asker.soFar(); len(got) < 3 || len(got) > 4 || b.Status().Decided.Parked != 1 {
					t.Errorf("checks %v, decided %+v", got, b.Status().Decided)
				}
			})
		})
	}
}
