package broker

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

// Whoever appends while a master hands over, be it one of its own loops, gets nothing
// into the log any more, and takes nothing away from the hand-over: the master stays what
// it is until it is deposed, and its member gets level.
func TestALogThatIsHandedOverEndsWhereItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := openMember(t, disk.NewMem(), sample(t), testLimits())
		b := openMember(t, disk.NewMem(), sample(t), testLimits())
		b.Close()
		copyStore(t, promoted(a), b.fs)
		b = openMember(t, b.fs, sample(t), testLimits())
		l := newLink(a, b)
		defer func() {
			a.Close()
			l.close()
		}()
		a.publishN("orders", "m", 3)
		if err := a.Halt(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.publishN("orders", "n", 1) // it does not drain: nothing has changed
		if err := a.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := a.Halt(t.Context()); err != nil {
			t.Fatal(err)
		}
		end := a.Log().End()
		e, err := a.control(record.TypeProgress, nil)
		if err == nil {
			err = a.appendWait(t.Context(), &op{batch: commitlog.Batch{Entries: []commitlog.Entry{e}, Reserved: true}})
		}
		if KindOf(err) != KindNotMaster || a.Role() != RoleDraining {
			t.Errorf("appended: %v; role %s", err, a.Role())
		}
		time.Sleep(10 * time.Second) // a mark would be due
		if got := a.Log().End(); got != end {
			t.Errorf("the log grew from %d to %d", end, got)
		}
		b.caughtUp(end)
		if b.Log().End() != end || a.Log().Committed() != end {
			t.Errorf("the member is at %d, committed is %d, the log ends at %d", b.Log().End(), a.Log().Committed(), end)
		}
		b.Close()
	})
}
