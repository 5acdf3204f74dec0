package commitlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/ship"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// benchGroup is a master and its replicas with logs on this machine's disk and
// connections over loopback, without TLS.
type benchGroup struct {
	b        *testing.B
	book     *termBook
	master   *Log
	leader   *ship.Leader
	listener *peer.Listener
	addr     string
	stop     context.CancelFunc
	ctx      context.Context
	wg       sync.WaitGroup
}

func benchOptions(dir string) Options {
	return Options{FS: disk.OS{}, Dir: dir, Group: testGroup, Follow: true, Deliver: func(*Committed) {}}
}

func benchNode(i int) zone.Node { return zone.Node(fmt.Sprintf("n%d", i)) }

func benchIdentity(n zone.Node) peer.Identity {
	return peer.Identity{Deployment: "d", City: "c", Zone: "z", Role: zone.RoleBroker, Name: n}
}

func benchPeer(n zone.Node) peer.Options {
	return peer.Options{Self: benchIdentity(n), Group: testGroup, Incarnation: 1, Fellow: func(peer.Identity) bool { return true }}
}

func newBenchGroup(b *testing.B, copies int) *benchGroup {
	b.Helper()
	g := &benchGroup{b: b, book: &termBook{changed: make(chan struct{})}}
	g.ctx, g.stop = context.WithCancel(context.Background())
	for i := range copies {
		g.book.group.Members = append(g.book.group.Members, benchNode(i))
	}
	t := coordinator.Term{Group: testGroup, Epoch: 1, Lineage: 77, Master: benchNode(0), InSync: []zone.Node{benchNode(0)}, Version: 1}
	g.book.term = t
	var err error
	if g.master, err = Open(g.ctx, benchOptions(b.TempDir())); err != nil {
		b.Fatal(err)
	}
	g.master.Start()
	if err := g.master.Promote(g.ctx, t.Epoch, t.Lineage); err != nil {
		b.Fatal(err)
	}
	g.leader, err = ship.NewLeader(ship.LeaderOptions{
		Self: benchNode(0), Group: testGroup, Term: t, Log: g.master, Snapshots: noFiles{g.master}, Sets: g.book,
		Leading: func() bool { return true }, Members: func() []zone.Node { return g.book.group.Members },
	})
	if err != nil {
		b.Fatal(err)
	}
	g.wg.Go(func() { _ = g.leader.Run(g.ctx) })
	g.listener, err = peer.NewListener(benchPeer(benchNode(0)), func(ctx context.Context, s *peer.Session) {
		if first, err := s.Recv(ctx); err == nil {
			_ = g.leader.Serve(ctx, s.Peer().Node, s, first)
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	g.addr = ln.Addr().String()
	g.wg.Go(func() { _ = g.listener.Serve(ln) })
	return g
}

// join adds a replica with an empty log.
func (g *benchGroup) join(i int) *Log {
	o := benchOptions(g.b.TempDir())
	if err := Create(o, ship.Origin{Incarnation: g.master.Incarnation(), Lanes: g.master.Lanes(), Begin: g.master.Begin()}); err != nil {
		g.b.Fatal(err)
	}
	l, err := Open(g.ctx, o)
	if err != nil {
		g.b.Fatal(err)
	}
	l.Start()
	d, err := peer.NewDialer(benchPeer(benchNode(i)))
	if err != nil {
		g.b.Fatal(err)
	}
	f, err := ship.NewFollower(ship.FollowerOptions{
		Self: benchNode(i), Group: testGroup, Log: l, Restore: &emptyStore{}, Rand: rand.New(rand.NewPCG(1, uint64(i))),
		Dial: func(ctx context.Context, m zone.Node, session uint64) (wire.Stream, error) {
			return d.Open(ctx, peer.Target{Identity: benchIdentity(m), Addr: g.addr, Class: zone.ClassBulk}, session)
		},
	})
	if err != nil {
		g.b.Fatal(err)
	}
	f.Observe(coordinator.Term{Epoch: 1, Master: benchNode(0)})
	g.wg.Go(func() {
		if err := f.Run(g.ctx); !errors.Is(err, context.Canceled) {
			g.b.Errorf("follower ended: %v", err)
		}
		_ = d.Close()
		_ = l.Close()
	})
	return l
}

// awaitInSync waits until as many copies are in sync. The master counts them from when
// it asks for that, so all that it is given from now on waits for them.
func (g *benchGroup) awaitInSync(copies int) {
	ctx, cancel := context.WithTimeout(g.ctx, time.Minute)
	defer cancel()
	for t := (coordinator.Term{}); len(t.InSync) < copies; {
		var err error
		if t, err = g.book.Watch(ctx, testGroup, t.Version); err != nil {
			g.b.Fatalf("not in sync after a minute: %+v", g.leader.Status())
		}
	}
}

// awaitSynced waits until a replica has on its disk what the master has committed.
func (g *benchGroup) awaitSynced(l *Log) {
	moved := make(chan struct{}, 1)
	stop := l.Notify(moved)
	defer stop()
	late := time.After(time.Minute)
	for l.Synced() < g.master.Committed() {
		select {
		case <-moved:
		case <-late:
			g.b.Fatalf("not caught up after a minute: %+v", g.leader.Status())
		}
	}
}

func (g *benchGroup) close() {
	g.stop()
	_ = g.listener.Close()
	g.wg.Wait()
	_ = g.master.Close()
}

// publish appends n entries of 1 KiB by as many publishers as there are, each of
// which waits for its last one.
func publish(b *testing.B, l *Log, n, publishers int) {
	entry := numbered(7, 1024)
	var wg sync.WaitGroup
	for p := range publishers {
		wg.Go(func() {
			done := make(chan error, 1)
			for i := p; i < n; i += publishers {
				batch := &Batch{Entries: []Entry{entry}, Done: func(_ *Batch, err error) { done <- err }}
				if err := l.Append(context.Background(), batch); err != nil {
					b.Error(err)
					return
				}
				if err := <-done; err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkShippedAppend measures a committed append of 1 KiB with one, two and
// three copies, for one publisher (its latency) and for many (their rate).
func BenchmarkShippedAppend(b *testing.B) {
	for _, publishers := range []int{1, 64} {
		for copies := 1; copies <= 3; copies++ {
			b.Run(fmt.Sprintf("publishers=%d/copies=%d", publishers, copies), func(b *testing.B) {
				g := newBenchGroup(b, copies)
				defer g.close()
				for i := 1; i < copies; i++ {
					g.join(i)
				}
				g.awaitInSync(copies)
				b.ReportAllocs()
				b.SetBytes(1024)
				b.ResetTimer()
				publish(b, g.master, b.N, publishers)
				b.StopTimer()
			})
		}
	}
}

// BenchmarkCatchUp measures how fast a replica without anything gets a log of 128
// MiB, syncs included, with the rate that Limits.CatchUp allows.
func BenchmarkCatchUp(b *testing.B) {
	const size = 128 << 20
	g := newBenchGroup(b, 2)
	defer g.close()
	publish(b, g.master, size>>10, 256)
	b.SetBytes(size)
	b.ResetTimer()
	for range b.N {
		l := g.join(1)
		g.awaitSynced(l)
		if b.N > 1 {
			b.Skip("once is enough")
		}
	}
	b.StopTimer()
}
