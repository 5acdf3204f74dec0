package broker

import (
	"fmt"
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

// A master that hands over while somebody undoes progress waits for that: what was
// collected before must not be appended behind it, and settle again.
func TestAMasterDrainsBehindWhoUndoesProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := openMember(t, disk.NewMem(), sample(t), testLimits())
		a.promote(1)
		l := newLink(a)
		defer func() {
			a.Close()
			l.close()
		}()
		a.answers()
		a.publishN("orders", "m", 1)
		a.ack("orders-billing", a.receive("orders-billing", "orders", 1, time.Hour)...)
		if err := a.deltas.lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		at := a.Log().End()
		drained := make(chan error, 1)
		go func() { drained <- a.Drain(t.Context()) }()
		synctest.Wait()
		if a.Role() != RoleDraining || len(drained) > 0 || a.Log().End() != at {
			t.Errorf("role %s, drained: %v, the log grew from %d to %d", a.Role(), len(drained) > 0, at, a.Log().End())
		}
		a.deltas.unlock()
		if err := <-drained; err != nil || a.Log().End() == at {
			t.Errorf("%v; the log ends at %d", err, a.Log().End())
		}
	})
}

// A master that hands over leaves what falls due to the next one, which could not get to
// the end of the log else.
func TestAMasterThatDrainsDeliversNothingThatFallsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := openMember(t, disk.NewMem(), delayed(t), testLimits())
		a.promote(1)
		l := newLink(a)
		defer func() {
			a.Close()
			l.close()
		}()
		a.answers()
		for i := range 100 {
			a.publish(a.later("orders", fmt.Sprint(i), time.Second+time.Duration(i)*100*time.Millisecond))
		}
		time.Sleep(5 * time.Second)
		if n := a.Status().Counts.Fired; n < 30 || n > 50 {
			t.Fatalf("%d have fallen due", n)
		}
		if err := a.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // what was on its way, and the log's mark behind it
		end := a.Log().End()
		time.Sleep(2 * time.Second)
		if got := a.Log().End(); got != end {
			t.Errorf("the log grew from %d to %d", end, got)
		}
	})
}
