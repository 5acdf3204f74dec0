package ship

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// fullLog is a log on a disk that has no space for some time.
type fullLog struct {
	*simLog
	until time.Time
}

func (l *fullLog) AppendRaw(ctx context.Context, s Stretch) error {
	if time.Now().Before(l.until) {
		return fmt.Errorf("append: %w", ErrFull)
	}
	return l.simLog.AppendRaw(ctx, s)
}

// fullRestore has no space for a snapshot, ever.
type fullRestore struct{ *simRestore }

func (fullRestore) Start(context.Context, []File) error { return fmt.Errorf("start: %w", ErrFull) }

// A replica whose disk is full keeps its log and its place: it asks the master again
// now and then, and goes on by itself when there is space.
func TestAFullDiskEndsASessionAndNothingElse(t *testing.T) {
	run := func(t *testing.T, space time.Duration, first func(*simLog) wire.Frame, restore func(*simLog) Restore) (log *simLog, asked int) {
		log = lonelyLog(t)
		log.Commit(log.Synced())
		full := &fullLog{log, time.Now().Add(space)}
		end := log.End()
		data := newSimFrame(end, 40, 0, 99, 50)
		ship := wire.Ship{From: end, Next: end + record.Position(len(data)), Size: uint32(len(data)), Data: data}
		f, err := NewFollower(FollowerOptions{Self: "b", Group: simGroup, Log: full, Restore: restore(log), Rand: rand.New(rand.NewPCG(1, 1)),
			Dial: func(ctx context.Context, _ zone.Node, _ uint64) (wire.Stream, error) {
				asked++
				mine, theirs := flow.Pipe()
				go func() {
					_ = theirs.Send(ctx, first(log))
					if log.End() == end {
						_ = theirs.Send(ctx, wire.Frame{Type: wire.TypeShip, Payload: ship.Append(nil)})
					}
				}()
				return mine, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		f.Observe(coordinator.Term{Epoch: 4, Master: "a"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := f.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended with %v", err)
		}
		if len(log.w.faults) > 0 {
			t.Error(log.w.faults)
		}
		return log, asked
	}
	lead := func(l *simLog) wire.Frame {
		x := wire.Lead{Incarnation: l.Incarnation(), Epoch: 4, From: l.End(), Committed: l.Committed(), Lineage: l.Lineage()}
		if rows := x.Lineage; rows[len(rows)-1].Epoch < 4 {
			x.Lineage = append(rows, record.LineageStart{Epoch: 4, ID: 40, First: l.End()})
		}
		return wire.Frame{Type: wire.TypeLead, Payload: x.Append(nil)}
	}
	t.Run("append", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			end := lonelyLog(t).End()
			log, _ := run(t, 30*time.Second, lead, func(l *simLog) Restore { return &simRestore{l: l} })
			if log.End() == end {
				t.Error("it does not go on when there is space")
			}
		})
	})
	t.Run("seed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			seed := func(l *simLog) wire.Frame {
				x := wire.Seed{Incarnation: l.Incarnation(), Epoch: 4, Lanes: 4, Begin: l.End() + 8}
				return wire.Frame{Type: wire.TypeSeed, Payload: x.Append(nil)}
			}
			_, asked := run(t, time.Hour, seed, func(l *simLog) Restore { return fullRestore{&simRestore{l: l}} })
			if asked < 5 || asked > 15 {
				t.Errorf("%d snapshots asked for in a minute", asked)
			}
		})
	})
}

// orderedRestore tells the log of which nothing may be written before it was asked to
// forget what it had received.
type orderedRestore struct {
	*simRestore
	forgotten *bool
}

func (r orderedRestore) Forget(context.Context) error {
	*r.forgotten = true
	return nil
}

type carefulLog struct {
	*simLog
	forgotten *bool
	early     *bool
}

func (l carefulLog) AddLineage(ctx context.Context, row record.LineageStart) error {
	*l.early = *l.early || !*l.forgotten
	return l.simLog.AddLineage(ctx, row)
}

// A copy that was received and not put in place must not replace, at a later start,
// what the replica has written since: it is forgotten first.
func TestAReplicaThatGoesOnForgetsWhatItHadReceived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := lonelyLog(t)
		end := log.End()
		var forgotten, early bool
		f, err := NewFollower(FollowerOptions{Self: "b", Group: simGroup, Log: carefulLog{log, &forgotten, &early},
			Restore: orderedRestore{&simRestore{l: log}, &forgotten}, Rand: rand.New(rand.NewPCG(1, 1)),
			Dial: func(ctx context.Context, _ zone.Node, _ uint64) (wire.Stream, error) {
				mine, theirs := flow.Pipe()
				x := wire.Lead{Incarnation: log.Incarnation(), Epoch: 4, From: end, Lineage: append(log.Lineage(), record.LineageStart{Epoch: 4, ID: 40, First: end})}
				data := newSimFrame(end, 40, 0, 99, 50)
				ship := wire.Ship{From: end, Next: end + record.Position(len(data)), Size: uint32(len(data)), Data: data}
				go func() {
					_ = theirs.Send(ctx, wire.Frame{Type: wire.TypeLead, Payload: x.Append(nil)})
					_ = theirs.Send(ctx, wire.Frame{Type: wire.TypeShip, Payload: ship.Append(nil)})
				}()
				return mine, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		f.Observe(coordinator.Term{Epoch: 4, Master: "a"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_ = f.Run(ctx) // ends with the time
		if log.End() == end || early {
			t.Errorf("written: %v; before the copy was forgotten: %v", log.End() > end, early)
		}
	})
}

// What a session ended with in a way that the log must not be written to any more is
// told whatever else happened meanwhile, also when the term has changed.
func TestAReplacedStoreIsToldAlthoughTheTermChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := lonelyLog(t)
		log.Commit(log.Synced())
		var f *Follower
		restore := changingRestore{&simRestore{l: log}, func() { f.Observe(coordinator.Term{Epoch: 5, Master: "c"}) }}
		f, err := NewFollower(FollowerOptions{Self: "b", Group: simGroup, Log: log, Restore: restore, Rand: rand.New(rand.NewPCG(1, 1)),
			Dial: func(ctx context.Context, master zone.Node, _ uint64) (wire.Stream, error) {
				if master != "a" {
					t.Errorf("a session with %s, with a log that is to be replaced", master)
				}
				mine, theirs := flow.Pipe()
				x := wire.Seed{Incarnation: log.Incarnation(), Epoch: 4, Lanes: 4, Begin: log.End() + 8}
				go func() { _ = theirs.Send(ctx, wire.Frame{Type: wire.TypeSeed, Payload: x.Append(nil)}) }()
				return mine, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		f.Observe(coordinator.Term{Epoch: 4, Master: "a"})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := f.Run(ctx); !errors.Is(err, ErrReplaced) {
			t.Errorf("ended with %v", err)
		}
	})
}

// changingRestore has something happen while a copy is installed.
type changingRestore struct {
	*simRestore
	during func()
}

func (r changingRestore) Install(context.Context, Origin) error {
	r.during()
	return nil
}
