package ship

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// slowSnapshots takes its time to open a snapshot, and counts those that are open.
type slowSnapshots struct {
	Snapshots
	open  time.Duration
	now   atomic.Int32
	most  atomic.Int32
	begun atomic.Int32
}

type countedSnapshot struct {
	Snapshot
	s *slowSnapshots
}

func (s *slowSnapshots) Snapshot(ctx context.Context) (Snapshot, error) {
	s.begun.Add(1)
	if n := s.now.Add(1); n > s.most.Load() {
		s.most.Store(n)
	}
	pause(ctx, s.open, nil)
	x, err := s.Snapshots.Snapshot(ctx)
	if err = errors.Join(err, ctx.Err()); err != nil {
		s.now.Add(-1)
		return nil, err
	}
	return &countedSnapshot{x, s}, nil
}

func (c *countedSnapshot) Close() error {
	c.s.now.Add(-1)
	return c.Snapshot.Close()
}

// slowly makes the master's snapshots slow to open.
func slowly(l *Leader, open time.Duration) *slowSnapshots {
	s := &slowSnapshots{Snapshots: l.o.Snapshots, open: open}
	l.o.Snapshots = s
	return s
}

// bare asks for a store: the first frame of a replica that has none.
func bare() wire.Frame {
	f := wire.Follow{Group: simGroup, Node: "b", Epoch: 3}
	return wire.Frame{Type: wire.TypeFollow, Payload: f.Append(nil)}
}

// asks opens a session as a replica without a store; ended gets what Serve returns.
func asks(t *testing.T, l *Leader) (mine wire.Stream, ended chan error) {
	t.Helper()
	mine, theirs := flow.Pipe()
	ended = make(chan error, 1)
	go func() { ended <- l.Serve(t.Context(), "b", theirs, bare()) }()
	return mine, ended
}

// seedAnswer returns the Seed frame that comes, whatever beats come before.
func seedAnswer(t *testing.T, s wire.Stream) wire.Seed {
	t.Helper()
	for {
		f, err := s.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if f.Type != wire.TypeSeed {
			continue
		}
		x, err := wire.ParseSeed(f.Payload)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
}

// A store that takes long to open is given all the same, and opened once.
func TestASnapshotThatIsSlowToOpenIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, log := lonely(t)
		slow := slowly(l, 20*time.Second)
		w := log.w
		empty := openSimLog(w, "b", &simDisk{}, rand.New(rand.NewPCG(1, 2)))
		f, err := NewFollower(FollowerOptions{
			Self: "b", Group: simGroup, Log: empty, Restore: &simRestore{n: &simNode{w: w, name: "b"}, l: empty}, Rand: rand.New(rand.NewPCG(1, 1)),
			Dial: func(_ context.Context, _ zone.Node, _ uint64) (wire.Stream, error) {
				mine, theirs := flow.Pipe()
				go func() {
					if first, err := theirs.Recv(t.Context()); err == nil {
						_ = l.Serve(t.Context(), "b", theirs, first)
					}
				}()
				return mine, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		f.Observe(coordinator.Term{Epoch: 3, Master: "a"})
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		if err := f.Run(ctx); !errors.Is(err, ErrReplaced) {
			t.Errorf("the replica was not given the store: %v", err)
		}
		if n := slow.begun.Load(); n != 1 {
			t.Errorf("the snapshot was opened %d times", n)
		}
	})
}

// A replica that dials again ends its session of before: a master holds one snapshot
// open for each.
func TestAReplicaIsGivenOneSnapshotAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := lonely(t)
		slow := slowly(l, 2*time.Second)
		var ends []chan error
		var last wire.Stream
		for range 5 {
			mine, ended := asks(t, l)
			last, ends = mine, append(ends, ended)
			time.Sleep(time.Second)
		}
		seedAnswer(t, last)
		for i, ended := range ends[:4] {
			if err := <-ended; !errors.Is(err, errSuperseded) {
				t.Errorf("session %d ended with %v", i, err)
			}
		}
		if n := slow.most.Load(); n != 1 {
			t.Errorf("%d snapshots were open at a time", n)
		}
		_ = last.Close(wire.CodeShutdown)
		<-ends[4]
	})
}

// retained is what the master asks its log to keep.
func retained(l *Leader) record.Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.needed(time.Now())
}

// A replica whose disk hangs takes nothing: it does not hold up what the master trims.
func TestAReplicaThatTakesNothingIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := lonely(t)
		l.o.Limits.SeedGrace = time.Second
		slow := slowly(l, 0)
		mine, ended := asks(t, l)
		x := seedAnswer(t, mine)
		began := time.Now()
		if got := retained(l); got != x.Begin {
			t.Errorf("the log is kept from %d on, want %d", got, x.Begin)
		}
		if err := <-ended; !errors.Is(err, errStalled) {
			t.Errorf("the session ended with %v", err)
		}
		if took := time.Since(began); took != l.o.Limits.SeedStall {
			t.Errorf("after %s", took)
		}
		if n := slow.now.Load(); n != 0 {
			t.Errorf("%d snapshots are open", n)
		}
		time.Sleep(2 * time.Second)
		if got := retained(l); got != nothing {
			t.Errorf("the log is kept from %d on", got)
		}
	})
}

// The more a replica is given, the longer the log waits for it: it makes a store of
// that first.
func TestALargeStoreIsWaitedForLonger(t *testing.T) {
	o := Limits{}.WithDefaults()
	if small, large := o.grace(1<<20), o.grace(8<<30); small > o.SeedGrace+time.Second || large < o.SeedGrace+8*time.Minute {
		t.Errorf("1 MiB: %s, 8 GiB: %s", small, large)
	}
}

// A master that never gets on in time does not wait for a dead member for ever.
func TestAStarvedMasterJudges(t *testing.T) {
	names := []zone.Node{"a", "b"}
	term := coordinator.Term{Group: simGroup, Epoch: 1, Master: "a", InSync: names, Version: 7}
	o := Limits{}.WithDefaults()
	for _, gap := range []time.Duration{o.Silent / 2, o.Silent, 3 * time.Second} {
		k := newKeeper(simStart, "a", term, o, names, fixedView{})
		k.joined(simStart, "b", 1, 0)
		k.step(simStart, true)
		now, steps := simStart, 0
		for ; k.find("b").fault == FaultNone && steps < 100; steps++ {
			now = now.Add(gap)
			k.step(now, true)
		}
		if steps == 1 {
			t.Errorf("steps of %s: judged for one pause of the master", gap)
		}
		if passed := now.Sub(simStart); passed > 2*o.Silent+2*gap {
			t.Errorf("steps of %s: judged after %s", gap, passed)
		}
	}
}
