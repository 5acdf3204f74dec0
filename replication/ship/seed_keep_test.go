package ship

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// noted is a log and a restore that note what is asked of them, in order.
type noted struct {
	*simLog
	simRestore
	calls []string
	from  record.Position // that was to be kept
	room  error           // what saving it ends with
}

func (n *noted) Keep(_ context.Context, from record.Position) error {
	n.calls, n.from = append(n.calls, "keep"), from
	return n.room
}

func (n *noted) Start(ctx context.Context, files []File) error {
	n.calls = append(n.calls, "start")
	return n.simRestore.Start(ctx, files)
}

// A member whose log the master has trimmed away beyond their common end is given a new
// store. What it has beyond that end is saved before anything is touched; if it cannot be,
// the store stays.
func TestWhatTheGroupHasNotIsSavedBeforeTheStoreIsReplaced(t *testing.T) {
	for name, room := range map[string]error{"saved": nil, "no room": ErrFull} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				master := lonelyLog(t)
				w := master.w
				common := master.d.frames[9].next
				// Both begin with epoch 2; the master of epoch 3 went on without its end.
				had := &simDisk{inc: master.d.inc, rows: []record.LineageStart{{Epoch: 2, ID: 20}}, frames: slices.Clone(master.d.frames), durable: len(master.d.frames)}
				master.d.rows = []record.LineageStart{{Epoch: 2, ID: 20}, {Epoch: 3, ID: 30, First: common}}
				for range 100 {
					master.append(w.number(), 100)
				}
				if _, err := master.Sync(t.Context()); err != nil {
					t.Fatal(err)
				}
				master.d.trim(master.d.end())
				leader := leaderOf(t, master)
				n := &noted{simLog: openSimLog(w, "b", had, rand.New(rand.NewPCG(1, 2))), room: room}
				n.simRestore = simRestore{n: &simNode{w: w, name: "b"}, l: n.simLog}
				f, err := NewFollower(FollowerOptions{
					Self: "b", Group: simGroup, Log: n, Restore: n, Rand: rand.New(rand.NewPCG(1, 1)),
					Dial: func(context.Context, zone.Node, uint64) (wire.Stream, error) {
						mine, theirs := flow.Pipe()
						go func() {
							if first, err := theirs.Recv(t.Context()); err == nil {
								_ = leader.Serve(t.Context(), "b", theirs, first)
							}
						}()
						return mine, nil
					},
				})
				if err != nil {
					t.Fatal(err)
				}
				f.Observe(coordinator.Term{Epoch: 3, Master: "a"})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err = f.Run(ctx)
				if n.from != common {
					t.Errorf("what is kept begins at %d, and the group has it up to %d", n.from, common)
				}
				switch {
				case room == nil && (!errors.Is(err, ErrReplaced) || !slices.Equal(n.calls, []string{"keep", "start"})):
					t.Errorf("it did %v: %v", n.calls, err)
				case room != nil && (slices.Contains(n.calls, "start") || len(n.calls) == 0 || len(had.frames) != 21):
					t.Errorf("without room it did %v, and has %d frames: %v", n.calls, len(had.frames), err)
				}
			})
		})
	}
}
