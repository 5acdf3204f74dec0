package commitlog

import (
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// A replica that catches up syncs when it is told to, not with each stretch, though
// the marks in them are ahead of what it has on its disk.
func TestCatchingUpSyncsWhenItIsToldTo(t *testing.T) {
	master := openMaster(t, disk.NewMem(), 1)
	defer master.Close()
	adopted := disk.NewMem()
	adopt(t, adopted, master)
	replica := openFollower(t, adopted, 2)
	defer replica.Close()
	for i := range 100 {
		master.write(i+1, 100)
		master.settle()
		master.Commit(master.Synced())
	}
	if _, err := ship1(t, master, replica, 1); err != nil { // the lineage, which syncs
		t.Fatal(err)
	}
	synced, stretches, moves := replica.Synced(), 0, 0
	for {
		more, err := ship1(t, master, replica, 200)
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			break
		}
		stretches++
		if at := replica.Synced(); at != synced {
			synced, moves = at, moves+1
		}
	}
	if segments := len(*replica.segments.Load()); moves >= segments { // each ends with a sync
		t.Errorf("%d syncs unasked, with %d segments", moves, segments)
	}
	if stretches < 50 {
		t.Errorf("%d stretches only", stretches)
	}
	if at, err := replica.Sync(t.Context()); err != nil || at != master.End() {
		t.Errorf("synced up to %d of %d: %v", at, master.End(), err)
	}
}
