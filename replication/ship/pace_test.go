package ship

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// shortReads gives one frame at a time, however many are asked for.
type shortReads struct{ *simLog }

func (l shortReads) ReadRaw(ctx context.Context, from record.Position, _ int, dst []byte) (Stretch, error) {
	return l.simLog.ReadRaw(ctx, from, 1, dst)
}

// The pace of catching up counts the bytes that are sent, not those asked for: else a
// replica far behind is sent a small stretch at the price of a large one, and one whose
// master writes as fast as that never comes near.
func TestPaceCountsWhatIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := lonelyLog(t)
		l, err := NewLeader(LeaderOptions{
			Self: "a", Group: simGroup, Log: shortReads{log}, Snapshots: &simSnapshots{l: log}, Sets: quietSets{},
			Term:    coordinator.Term{Group: simGroup, Epoch: 3, Lineage: 30, Master: "a", InSync: []zone.Node{"a"}, Version: 9},
			Leading: func() bool { return true }, Members: func() []zone.Node { return []zone.Node{"a", "b"} },
			Limits: Limits{Near: 1, CatchUp: 1 << 20},
		})
		if err != nil {
			t.Fatal(err)
		}
		mine, theirs := flow.Pipe()
		go func() {
			for {
				if _, err := mine.Recv(t.Context()); err != nil {
					return
				}
			}
		}()
		s := newSender(l, func() {}, "b", theirs, log.Begin())
		s.credit.Store(1 << 30)
		began, stretches := time.Now(), 0
		for s.pos < log.End() {
			n, err := s.next(t.Context())
			if err != nil || n == 0 {
				t.Fatalf("sent %d bytes at %d of %d: %v", n, s.pos, log.End(), err)
			}
			stretches++
		}
		if took := time.Since(began); stretches < 20 || took > 100*time.Millisecond {
			t.Errorf("%d bytes in %d stretches took %s at 1 MiB/s", s.bytes, stretches, took)
		}
		_ = theirs.Close(0)
		_ = mine.Close(0)
	})
}
