package ship

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
)

// lateSnapshots opens at once and is slow to give up: a disk takes its time.
type lateSnapshots struct {
	Snapshots
	now, most atomic.Int32
}

type lateSnapshot struct {
	Snapshot
	s *lateSnapshots
}

func (s *lateSnapshots) Snapshot(ctx context.Context) (Snapshot, error) {
	if n := s.now.Add(1); n > s.most.Load() {
		s.most.Store(n)
	}
	x, err := s.Snapshots.Snapshot(ctx)
	return &lateSnapshot{x, s}, err
}

func (x *lateSnapshot) Close() error {
	time.Sleep(time.Minute)
	x.s.now.Add(-1)
	return x.Snapshot.Close()
}

// A replica that dials twice more while the first session gives its snapshot back: the
// third waits for the first, too, although the second has left.
func TestASnapshotIsWaitedForThroughThoseWhoLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := lonely(t)
		late := &lateSnapshots{Snapshots: l.o.Snapshots}
		l.o.Snapshots = late
		first, ended := asks(t, l)
		seedAnswer(t, first)
		_, second := asks(t, l)
		synctest.Wait()
		third, last := asks(t, l)
		if err := <-second; !errors.Is(err, errSuperseded) {
			t.Errorf("the second ended with %v", err)
		}
		if err := <-ended; !errors.Is(err, errSuperseded) {
			t.Errorf("the first ended with %v", err)
		}
		seedAnswer(t, third)
		if n := late.most.Load(); n != 1 {
			t.Errorf("%d snapshots were open at a time", n)
		}
		_ = third.Close(wire.CodeShutdown)
		<-last
	})
}
