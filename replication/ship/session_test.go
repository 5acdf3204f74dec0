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

// quietSets is a coordinator that has nothing to say.
type quietSets struct{}

func (quietSets) Watch(ctx context.Context, _ zone.Group, _ uint64) (coordinator.Term, error) {
	<-ctx.Done()
	return coordinator.Term{}, ctx.Err()
}

func (quietSets) ChangeSet(ctx context.Context, _ zone.Group, _, _ uint64, _, _ []zone.Node) (coordinator.Term, error) {
	<-ctx.Done()
	return coordinator.Term{}, ctx.Err()
}

// lonelyLog has 20 records of epoch 3, of which nothing is committed.
func lonelyLog(t *testing.T) *simLog {
	t.Helper()
	w := &simWorld{
		t: t, ctx: t.Context(), acks: map[uint64]uint64{}, lines: map[simPlace]string{}, committed: map[record.Position]simCommitted{},
		counts: map[string]int{}, epochs: map[uint64]zone.Node{},
	}
	log := openSimLog(w, "a", &simDisk{}, rand.New(rand.NewPCG(1, 1)))
	log.promote(3, 30)
	for range 20 {
		log.append(w.number(), 100)
	}
	if _, err := log.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	return log
}

// lonely is a master of epoch 3, whose replica b is the test.
func lonely(t *testing.T) (*Leader, *simLog) {
	t.Helper()
	log := lonelyLog(t)
	return leaderOf(t, log), log
}

// leaderOf leads epoch 3 with a log.
func leaderOf(t *testing.T, log *simLog) *Leader {
	t.Helper()
	l, err := NewLeader(LeaderOptions{
		Self: "a", Group: simGroup, Log: log, Snapshots: &simSnapshots{l: log}, Sets: quietSets{},
		Term:    coordinator.Term{Group: simGroup, Epoch: 3, Lineage: 30, Master: "a", InSync: []zone.Node{"a"}, Version: 9},
		Leading: func() bool { return true }, Members: func() []zone.Node { return []zone.Node{"a", "b"} },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("leader ended: %v", err)
		}
	})
	return l
}

// What a certified member says wrongly costs it its session, and nothing else.
func TestALyingReplicaLosesItsSession(t *testing.T) {
	good := wire.Follow{Group: simGroup, Node: "b", Epoch: 3}
	follow := func(change func(*wire.Follow, *simLog)) func(*simLog) []wire.Frame {
		return func(l *simLog) []wire.Frame {
			f := good
			f.Incarnation = l.Incarnation()
			change(&f, l)
			return []wire.Frame{{Type: wire.TypeFollow, Payload: f.Append(nil)}}
		}
	}
	then := func(frames ...wire.Frame) func(*simLog) []wire.Frame {
		return func(l *simLog) []wire.Frame {
			return append(follow(func(*wire.Follow, *simLog) {})(l), frames...)
		}
	}
	ack := func(a wire.ShipAck) wire.Frame { return wire.Frame{Type: wire.TypeShipAck, Payload: a.Append(nil)} }
	cases := []struct {
		name   string
		frames func(*simLog) []wire.Frame
		code   wire.Code
	}{
		{"no Follow", func(*simLog) []wire.Frame { return []wire.Frame{{Type: wire.TypeFollow, Payload: []byte{1}}} }, wire.CodeMalformed},
		{"another node's name", follow(func(f *wire.Follow, _ *simLog) { f.Node = "c" }), wire.CodeWrongIdentity},
		{"another group", follow(func(f *wire.Follow, _ *simLog) { f.Group = "h" }), wire.CodeWrongIdentity},
		{"a later epoch", follow(func(f *wire.Follow, _ *simLog) { f.Epoch = 4 }), wire.CodeNotMaster},
		{"another store", follow(func(f *wire.Follow, _ *simLog) { f.Incarnation++ }), wire.CodeDiverged},
		{"more committed than there is", follow(func(f *wire.Follow, l *simLog) {
			f.Lineage, f.Committed, f.Synced, f.End = l.Lineage(), l.End()+8, l.End()+8, l.End()+8
		}), wire.CodeDiverged},
		{"durable what was not sent", then(ack(wire.ShipAck{Written: 1 << 40, Synced: 1 << 40, Credit: 1 << 20})), wire.CodeMalformed},
		{"half an acknowledgement", then(wire.Frame{Type: wire.TypeShipAck, Payload: []byte{1}}), wire.CodeMalformed},
		{"a master's frame", then(wire.Frame{Type: wire.TypeShip}), wire.CodeMalformed},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, log := lonely(t)
				mine, theirs := flow.Pipe()
				frames := c.frames(log)
				done := make(chan error, 1)
				go func() { done <- l.Serve(t.Context(), "b", theirs, frames[0]) }()
				for _, f := range frames[1:] {
					if err := mine.Send(t.Context(), f); err != nil {
						t.Fatal(err)
					}
				}
				if err := <-done; err == nil {
					t.Error("the session ended well")
				}
				var end *wire.ClosedError
				for end == nil {
					f, err := mine.Recv(t.Context())
					if r, perr := wire.ParseRefuse(f.Payload); f.Type == wire.TypeRefuse && perr == nil && r.Code != c.code {
						t.Errorf("refused with %s, want %s", r.Code, c.code)
					}
					if err != nil && !errors.As(err, &end) {
						t.Fatal(err)
					}
				}
				if end.Code != c.code {
					t.Errorf("ended with %s, want %s", end.Code, c.code)
				}
				if err := log.Err(); err != nil || len(log.w.faults) > 0 {
					t.Errorf("log: %v, %v", err, log.w.faults)
				}
			})
		})
	}
}

// A replica takes nothing from a master that contradicts itself, what the replica
// knows, or what it has on its disk.
func TestALyingMasterHarmsNothing(t *testing.T) {
	lead := func(change func(*wire.Lead)) func(*simLog) []wire.Frame {
		return func(l *simLog) []wire.Frame {
			x := wire.Lead{Incarnation: l.Incarnation(), Epoch: 4, From: l.End(), Committed: l.Committed(), Lineage: append(l.Lineage(), record.LineageStart{Epoch: 4, ID: 40, First: l.End()})}
			change(&x)
			return []wire.Frame{{Type: wire.TypeLead, Payload: x.Append(nil)}}
		}
	}
	ship := func(change func(*wire.Ship)) func(*simLog) []wire.Frame {
		return func(l *simLog) []wire.Frame {
			data := newSimFrame(l.End(), 40, 0, 99, 50)
			x := wire.Ship{From: l.End(), Next: l.End() + record.Position(len(data)), Size: uint32(len(data)), Data: data}
			change(&x)
			return append(lead(func(*wire.Lead) {})(l), wire.Frame{Type: wire.TypeShip, Payload: x.Append(nil)})
		}
	}
	var diverged *DivergedError
	cases := []struct {
		name     string
		frames   func(*simLog) []wire.Frame
		diverged bool
	}{
		{"an older epoch", lead(func(x *wire.Lead) { x.Epoch = 3 }), false},
		{"a later epoch", lead(func(x *wire.Lead) { x.Epoch = 5 }), false},
		{"another store", lead(func(x *wire.Lead) { x.Incarnation++ }), true},
		{"from behind the end", lead(func(x *wire.Lead) { x.From += 8 }), false},
		{"from below what is committed", lead(func(x *wire.Lead) { x.From = 8 }), true},
		{"from elsewhere than the lineages say", lead(func(x *wire.Lead) { x.From -= 8 }), false},
		{"another last frame", lead(func(x *wire.Lead) { x.HasLast, x.Last = true, wire.LogFingerprint{Position: 64, Checksum: 1} }), true},
		{"bytes for elsewhere", ship(func(x *wire.Ship) { x.From, x.Next = x.From+8, x.Next+8 }), false},
		{"bytes that end elsewhere", ship(func(x *wire.Ship) { x.Next += 8 }), false},
		{"damaged bytes", ship(func(x *wire.Ship) { x.Data = slices.Clone(x.Data); x.Data[60]++ }), false},
		{"the second part first", ship(func(x *wire.Ship) { x.Offset, x.Size, x.Next = 8, x.Size+8, x.Next+8 }), false},
		{"a replica's frame", func(l *simLog) []wire.Frame {
			return append(lead(func(*wire.Lead) {})(l), wire.Frame{Type: wire.TypeShipAck, Payload: (&wire.ShipAck{}).Append(nil)})
		}, false},
		{"a store that would take back what is committed", func(l *simLog) []wire.Frame {
			return []wire.Frame{{Type: wire.TypeSeed, Payload: (&wire.Seed{Incarnation: l.Incarnation(), Epoch: 4, Lanes: 4}).Append(nil)}}
		}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := lonelyLog(t)
				log.Commit(log.Synced() - 300)
				end, rows := log.End(), len(log.Lineage())
				var answered int
				f, err := NewFollower(FollowerOptions{
					Self: "b", Group: simGroup, Log: log, Restore: &simRestore{l: log}, Rand: rand.New(rand.NewPCG(1, 1)),
					Dial: func(ctx context.Context, _ zone.Node, _ uint64) (wire.Stream, error) {
						mine, theirs := flow.Pipe()
						answered++
						go func() {
							for _, f := range c.frames(log) {
								_ = theirs.Send(ctx, f)
							}
						}()
						return mine, nil
					},
				})
				if err != nil {
					t.Fatal(err)
				}
				f.Observe(coordinator.Term{Epoch: 4, Master: "a"})
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				err = f.Run(ctx)
				if errors.As(err, &diverged) != c.diverged {
					t.Errorf("ended with %v", err)
				}
				if !c.diverged && answered < 3 {
					t.Errorf("%d attempts in 5 s", answered)
				}
				if log.End() != end || len(log.Lineage()) > rows+1 || len(log.w.faults) > 0 {
					t.Errorf("the log ends at %d with %d lineages, was %d and %d; %v", log.End(), len(log.Lineage()), end, rows, log.w.faults)
				}
			})
		})
	}
}

func TestPaceBoundsTheRateOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(1 << 20)
		begin := time.Now()
		done := make(chan struct{})
		for range 2 {
			go func() {
				for range 16 {
					if err := p.take(t.Context(), 64<<10); err != nil {
						t.Error(err)
					}
				}
				done <- struct{}{}
			}()
		}
		<-done
		<-done
		if took := time.Since(begin); took < 1800*time.Millisecond || took > 2100*time.Millisecond {
			t.Errorf("2 MiB at 1 MiB/s took %s", took)
		}
	})
}
