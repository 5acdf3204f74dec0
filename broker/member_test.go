package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
	"github.com/mqrouter/mqrouter/zone"
)

// memberNode is a broker of a group with replicas on a disk of its own.
type memberNode struct {
	*station
	lease  atomic.Bool
	inSync atomic.Int64
	begin  atomic.Uint64
}

// openMember opens a broker that follows.
func openMember(t testing.TB, fs disk.FS, topo *zone.Topology, limits Limits) *memberNode {
	t.Helper()
	m := &memberNode{station: &station{t: t, fs: fs, node: "rz02-a-1", topo: topo, limits: limits}}
	m.lease.Store(true)
	m.inSync.Store(1)
	m.member = &Member{
		Lease: m.lease.Load, InSync: func() int { return int(m.inSync.Load()) },
		Master: func() (zone.Node, uint64) { return "rz02-b-1", 7 },
		Begin:  func() record.Position { return record.Position(m.begin.Load()) },
	}
	begin(m.station)
	return m
}

// promote begins an epoch; lead follows, once something commits.
func (m *memberNode) promote(epoch uint64) {
	m.t.Helper()
	if err := m.Promote(m.t.Context(), epoch, record.LineageID(epoch)<<8|1); err != nil {
		m.t.Fatal(err)
	}
}

// lead returns when the member answers.
func (m *memberNode) answers() {
	m.t.Helper()
	if err := m.Lead(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
}

// caughtUp returns when the fold of the member has got to a position.
func (m *memberNode) caughtUp(p record.Position) {
	m.t.Helper()
	for {
		m.mu.RLock()
		at, cold := m.state.position, m.cold
		m.mu.RUnlock()
		if at >= p && !cold {
			return
		}
		if err := m.failure(); err != nil {
			m.t.Fatal(err)
		}
		runtime.Gosched()
	}
}

// folded returns the member's state as a snapshot has it.
func (m *memberNode) folded() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.encode()
}

// link copies raw bytes from a master to its replicas until it is closed, and
// commits what all of them have: shipping without a network.
type link struct {
	master   *memberNode
	replicas []*memberNode
	stop     chan struct{}
	done     sync.WaitGroup
}

func newLink(master *memberNode, replicas ...*memberNode) *link {
	l := &link{master: master, replicas: replicas, stop: make(chan struct{})}
	moved := make(chan struct{}, 1)
	cancel := master.Log().Notify(moved)
	l.done.Go(func() {
		defer cancel()
		for {
			if err := l.step(); err != nil {
				master.t.Errorf("link: %v", err)
				return
			}
			select {
			case <-moved:
			case <-l.stop:
				return
			}
		}
	})
	return l
}

func (l *link) close() {
	close(l.stop)
	l.done.Wait()
}

// step sends everything that is written, and commits it.
func (l *link) step() error {
	m := l.master.Log()
	p := m.Synced()
	for _, r := range l.replicas {
		if err := follow(m, r.Log()); err != nil {
			return err
		}
		p = min(p, r.Log().Synced())
	}
	m.Acked(p)
	m.Commit(p)
	for _, r := range l.replicas {
		r.Log().Commit(m.Committed())
		r.begin.Store(uint64(m.Begin()))
	}
	return nil
}

// follow makes one log that of another.
func follow(m ship.LeaderLog, r ship.FollowerLog) error {
	ctx := context.Background()
	ms, rs := m.Lineage(), r.Lineage()
	n := 0
	for n < len(ms) && n < len(rs) && ms[n] == rs[n] {
		n++
	}
	to := r.End()
	if n < len(rs) {
		to = min(to, rs[n].First)
	}
	if n < len(ms) {
		to = min(to, ms[n].First)
	}
	if err := r.Truncate(ctx, to); err != nil {
		return err
	}
	for {
		if n := len(r.Lineage()); n < len(ms) && ms[n].First == r.End() {
			if err := r.AddLineage(ctx, ms[n]); err != nil {
				return err
			}
			continue
		}
		s, err := m.ReadRaw(ctx, r.End(), 64<<10, nil)
		if err != nil {
			return err
		}
		if len(s.Frames) == 0 {
			_, err := r.Sync(ctx)
			return err
		}
		if err := r.AppendRaw(ctx, s); err != nil {
			return err
		}
	}
}

// copyStore gives a master's store but for its log to an empty disk.
func copyStore(t testing.TB, from *memberNode, fs disk.FS) {
	t.Helper()
	s, err := from.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := fs.MkdirAll("store"); err != nil {
		t.Fatal(err)
	}
	r := NewRestore(fs, "store")
	if err := r.Start(t.Context(), s.Files()); err != nil {
		t.Fatal(err)
	}
	for i, f := range s.Files() {
		for off := int64(0); off < f.Size; {
			p := make([]byte, min(f.Size-off, 777))
			if _, err := s.ReadAt(i, p, off); err != nil {
				t.Fatalf("%s at %d: %v", f.Name, off, err)
			}
			if err := r.Write(t.Context(), i, off, p); err != nil {
				t.Fatal(err)
			}
			off += int64(len(p))
		}
	}
	m := from.Log()
	o := ship.Origin{Incarnation: m.Incarnation(), Lanes: m.Lanes(), Begin: m.Begin()}
	for _, row := range m.Lineage() {
		if row.First <= o.Begin {
			o.Lineage = append(o.Lineage, row)
		}
	}
	if err := r.Install(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func TestReplicaAnswersNobodyAndSaysWhoIsMaster(t *testing.T) {
	m := openMember(t, disk.NewMem(), sample(t), testLimits())
	out := make([]PublishResult, 1)
	err := m.Publish(t.Context(), []Message{m.message("orders", "1")}, out)
	var e *Error
	if !errors.As(err, &e) || e.Kind != KindNotMaster || e.Master != "rz02-b-1" || e.MasterEpoch != 7 || !e.Retryable() {
		t.Errorf("publish: %v", err)
	}
	if node, epoch := MasterOf(fmt.Errorf("x: %w", &Error{Kind: KindNotMaster, Err: err})); node != "rz02-b-1" || epoch != 7 {
		t.Errorf("master: %s, %d", node, epoch)
	}
	if _, err := m.Receive(t.Context(), ReceiveRequest{Group: "orders-billing", Topic: "orders"}); KindOf(err) != KindNotMaster {
		t.Errorf("receive: %v", err)
	}
	if _, err := m.ServeCall(t.Context(), CallRecall, nil); KindOf(err) != KindNotMaster {
		t.Errorf("call: %v", err)
	}
	if err := m.Sink().Writable(); KindOf(err) != KindNotMaster {
		t.Errorf("landing: %v", err)
	}
	if legs := m.Legs(); len(legs) > 0 {
		t.Errorf("legs: %v", legs)
	}
	if m.Role() != RoleReplica {
		t.Errorf("role %s", m.Role())
	}
}

// A power cut of the master under load: its replica goes on with everything that
// was acknowledged, in the same state as a fold from the beginning makes.
func TestReplicaGoesOnWithAllThatWasAcknowledged(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { takeOver(t, rand.New(rand.NewPCG(seed, 8))) })
	}
}

func takeOver(t *testing.T, rng *rand.Rand) {
	topo, limits := sample(t), Limits{SegmentBytes: 16 << 10, ProgressDelay: time.Millisecond}
	da, db := disk.NewMem(), disk.NewMem()
	a := openMember(t, da, topo, limits)
	a.promote(1)
	first := newLink(a)
	a.answers()
	before := a.publishN("orders", "before", 30)
	first.close()
	copyStore(t, a, db)
	b := openMember(t, db, topo, limits)
	l := newLink(a, b)
	load := startLoad(a, rng.Uint64())
	load.wait(20 + rng.IntN(60))
	list := a.receive("orders-billing", "orders", 10, time.Hour)
	a.ack("orders-billing", list...)
	load.wait(20 + rng.IntN(60))
	image := da.Crash(rng)
	l.close()
	a.Depose()
	load.stop()
	a.Close()
	b.promote(2)
	l = newLink(b)
	b.answers()
	b.publish(b.message("orders", "after"))

	// The old master returns as a replica, from what the power cut left.
	l.close()
	c := openMember(t, image, topo, limits)
	l = newLink(b, c)
	got := b.drain("orders-billing", "orders")
	for _, d := range list {
		got[string(d.Record.MessageID())]++ // settled before, or delivered again
	}
	for _, id := range append(append(before, "after"), load.acked()...) {
		if got[id] == 0 {
			t.Errorf("message %s was acknowledged and is gone", id)
		}
	}
	if err := b.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	end := b.Log().Committed()
	b.caughtUp(end)
	c.caughtUp(end)
	l.close()
	x, y := b.folded(), c.folded()
	if !slices.Equal(x, y) {
		t.Errorf("the states of both differ: %d and %d bytes", len(x), len(y))
	}
	c.Close()
	b.Close()
	for _, d := range []*disk.Mem{db, image} { // a fold from the beginning
		if err := errors.Join(removeAll(d, "store", func(n string) bool { return n != secretName }),
			removeAll(d, "store/index", func(string) bool { return true })); err != nil {
			t.Fatal(err)
		}
		anew := openMember(t, d, topo, limits)
		anew.caughtUp(end)
		if z := anew.folded(); !slices.Equal(x, z) {
			t.Errorf("a fold from the beginning differs: %d and %d bytes", len(x), len(z))
		}
	}
}

// load publishes until it is stopped.
type load struct {
	mu      sync.Mutex
	ids     map[string]bool // acknowledged
	count   atomic.Int64
	stopped chan struct{}
	done    sync.WaitGroup
}

func startLoad(m *memberNode, seed uint64) *load {
	l := &load{ids: map[string]bool{}, stopped: make(chan struct{})}
	for p := range 4 {
		l.done.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-l.stopped:
					return
				default:
				}
				id := fmt.Sprintf("%d-%d-%d", seed, p, n)
				out := make([]PublishResult, 1)
				err := m.Publish(m.t.Context(), []Message{m.message("orders", id)}, out)
				switch {
				case err == nil && out[0].Err == nil:
					l.mu.Lock()
					l.ids[id] = true
					l.mu.Unlock()
				case KindOf(err) != KindNotMaster:
					m.t.Errorf("publish: %v, %v", err, out[0].Err)
					return
				}
				l.count.Add(1)
			}
		})
	}
	return l
}

// wait returns when n more publishes were answered.
func (l *load) wait(n int) {
	for until := l.count.Load() + int64(n); l.count.Load() < until; {
		runtime.Gosched()
	}
}

func (l *load) stop() {
	close(l.stopped)
	l.done.Wait()
}

func (l *load) acked() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.ids))
}
