package commitlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// termBook is the one who keeps a group's term, and does what masters ask.
type termBook struct {
	group coordinator.Group

	mu      sync.Mutex
	term    coordinator.Term // guarded by mu
	changed chan struct{}    // closed at a change; guarded by mu
}

func (b *termBook) Watch(ctx context.Context, _ zone.Group, after uint64) (coordinator.Term, error) {
	for {
		b.mu.Lock()
		t, changed := b.term.Clone(), b.changed
		b.mu.Unlock()
		if t.Version > after {
			return t, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return t, ctx.Err()
		}
	}
}

func (b *termBook) ChangeSet(_ context.Context, _ zone.Group, epoch, version uint64, inSync, proposed []zone.Node) (coordinator.Term, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, err := b.term.Changed(b.group, epoch, version, inSync, proposed)
	if err == nil {
		b.set(t)
	}
	return t, err
}

// set puts a term in force. The caller holds mu.
func (b *termBook) set(t coordinator.Term) {
	b.term = t
	close(b.changed)
	b.changed = make(chan struct{})
}

// shipped is a member of a group: a real log on a simulated disk, and what ships it.
type shipped struct {
	g      *shippedGroup
	name   zone.Node
	disk   sync.Mutex // the power may go while the store is replaced
	fs     *disk.Mem  // guarded by disk
	h      *harness
	leader *ship.Leader
	stop   context.CancelFunc
	wg     sync.WaitGroup
}

type shippedGroup struct {
	t       *testing.T
	rng     *rand.Rand
	book    *termBook
	members []*shipped
	limits  ship.Limits

	mu     sync.Mutex
	master *shipped // guarded by mu
}

func newShippedGroup(t *testing.T, seed uint64) *shippedGroup {
	g := &shippedGroup{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), book: &termBook{changed: make(chan struct{})},
		limits: ship.Limits{Chunk: 1 << 10, Window: 16 << 10, SyncBytes: 4 << 10, Near: 8 << 10},
	}
	for _, n := range []zone.Node{"a", "b", "c"} {
		g.members = append(g.members, &shipped{g: g, name: n, fs: disk.NewMem()})
		g.book.group.Members = append(g.book.group.Members, n)
	}
	return g
}

// elect makes the member with the longest log the master of the next epoch, of those
// that may be; the rest follow it.
func (g *shippedGroup) elect() {
	b := g.book
	b.mu.Lock()
	t := b.term.Clone()
	b.mu.Unlock()
	var best *shipped
	for _, m := range g.members {
		m.h = openFollower(g.t, m.fs, g.rng.Uint64())
		may := t.Epoch == 0 && m.name == "a" || slices.Contains(t.InSync, m.name)
		if may && (best == nil || m.h.Epoch() > best.h.Epoch() || m.h.Epoch() == best.h.Epoch() && m.h.End() > best.h.End()) {
			best = m
		}
	}
	t.Group, t.Epoch, t.Lineage, t.Master, t.Proposed = testGroup, t.Epoch+1, record.LineageID(1000+t.Epoch), best.name, nil
	t.Version++
	if t.InSync == nil {
		t.InSync = []zone.Node{best.name}
	}
	b.mu.Lock()
	b.set(t)
	b.mu.Unlock()
	best.lead(t)
	g.mu.Lock()
	g.master = best
	g.mu.Unlock()
	for _, m := range g.members {
		if m != best {
			m.follow(t)
		}
	}
}

func (m *shipped) lead(t coordinator.Term) {
	m.h.promote(t.Epoch, t.Lineage)
	l, err := ship.NewLeader(ship.LeaderOptions{
		Self: m.name, Group: testGroup, Term: t, Log: m.h.Log, Snapshots: noFiles{m.h.Log}, Sets: m.g.book,
		Leading: func() bool { return true }, Members: func() []zone.Node { return m.g.book.group.Members }, Limits: m.g.limits,
	})
	if err != nil {
		m.g.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.leader, m.stop = l, cancel
	m.wg.Go(func() {
		if err := l.Run(ctx); !errors.Is(err, context.Canceled) {
			m.g.t.Errorf("%s: leader ended: %v", m.name, err)
		}
	})
}

func (m *shipped) follow(t coordinator.Term) {
	ctx, cancel := context.WithCancel(context.Background())
	m.stop, m.leader = cancel, nil
	seed := m.g.rng.Uint64()
	m.wg.Go(func() {
		for ctx.Err() == nil {
			f, err := ship.NewFollower(ship.FollowerOptions{
				Self: m.name, Group: testGroup, Log: m.h.Log, Restore: &emptyStore{m: m}, Dial: m.dial,
				Rand: rand.New(rand.NewPCG(seed, 2)), Limits: m.g.limits,
			})
			if err != nil {
				m.g.t.Error(err)
				return
			}
			f.Observe(t)
			switch err := f.Run(ctx); {
			case errors.Is(err, ship.ErrReplaced):
				m.disk.Lock()
				if ctx.Err() == nil { // else the power is gone
					m.h = openFollower(m.g.t, m.fs, seed)
				}
				m.disk.Unlock()
			case !errors.Is(err, context.Canceled):
				m.g.t.Errorf("%s: follower ended: %v", m.name, err)
				return
			}
		}
	})
}

func (m *shipped) dial(ctx context.Context, _ zone.Node, _ uint64) (wire.Stream, error) {
	m.g.mu.Lock()
	defer m.g.mu.Unlock() // a crash waits for nobody new
	at := m.g.master
	if at == nil {
		return nil, errors.New("the power is gone")
	}
	mine, theirs := flow.Pipe()
	at.wg.Go(func() {
		first, err := theirs.Recv(ctx)
		if err == nil {
			_ = at.leader.Serve(context.Background(), m.name, theirs, first)
		}
	})
	return mine, nil
}

// noFiles is a snapshot of nothing: the log alone is what the test looks at.
type noFiles struct{ l *Log }

func (n noFiles) Lanes() int                                      { return n.l.Lanes() }
func (n noFiles) Snapshot(context.Context) (ship.Snapshot, error) { return n, nil }
func (n noFiles) Files() []ship.File                              { return nil }
func (n noFiles) ReadAt(int, []byte, int64) (int, error)          { return 0, errors.New("no file") }
func (n noFiles) Close() error                                    { return nil }

// emptyStore makes a member's store a copy that begins where the master says.
type emptyStore struct{ m *shipped }

func (e *emptyStore) Start(context.Context, []ship.File) error        { return nil }
func (e *emptyStore) Write(context.Context, int, int64, []byte) error { return nil }
func (e *emptyStore) Forget(context.Context) error                    { return nil }
func (e *emptyStore) Install(ctx context.Context, o ship.Origin) error {
	if err := e.m.h.Close(); err != nil {
		return err
	}
	e.m.disk.Lock()
	defer e.m.disk.Unlock()
	if err := ctx.Err(); err != nil { // the power is gone
		return err
	}
	e.m.fs = disk.NewMem()
	return Create(followOptions(e.m.fs, 0), o)
}

// crash ends all members; each disk keeps what was synced and some of the rest.
func (g *shippedGroup) crash() {
	g.mu.Lock()
	g.master = nil
	g.mu.Unlock()
	for _, m := range g.members {
		m.disk.Lock()
		m.stop()
		m.fs = m.fs.Crash(g.rng)
		m.disk.Unlock()
	}
	for _, m := range g.members {
		m.wg.Wait()
		m.h.Close()
	}
}

// TestShippedLogsSurviveTheirMembers ships real logs by the real protocol, takes the
// power of all members again and again, and lets the longest log in sync lead: what
// was acknowledged stays, in order, once, and the copies are equal.
func TestShippedLogsSurviveTheirMembers(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { shipAndCrash(t, newShippedGroup(t, seed)) })
		})
	}
}

func shipAndCrash(t *testing.T, g *shippedGroup) {
	var acked []int
	next := 1
	for round := range 12 {
		g.elect()
		m := g.master
		for range 5 + g.rng.IntN(40) {
			if g.rng.IntN(10) == 0 {
				time.Sleep(time.Duration(g.rng.IntN(300)) * time.Millisecond)
			}
			out, err := m.h.send(&Batch{Entries: []Entry{numbered(next, g.rng.IntN(900))}})
			if err != nil {
				t.Fatalf("append: %v", err)
			}
			if g.rng.IntN(4) > 0 { // else its fate is open when the power goes
				select {
				case err := <-out:
					if err != nil {
						t.Fatalf("record %d: %v", next, err)
					}
				case <-time.After(10 * time.Second):
					t.Fatalf("record %d is not acknowledged: %+v", next, m.leader.Status())
				}
				acked = append(acked, next)
			}
			next++
		}
		if round == 11 {
			g.rest(t, acked)
		}
		g.crash()
	}
}

// rest waits until all members have everything, and compares them.
func (g *shippedGroup) rest(t *testing.T, acked []int) {
	m := g.master
	m.h.mustAppend(numbered(1<<20, 10))
	for range 600 {
		time.Sleep(100 * time.Millisecond)
		if t, _ := g.book.Watch(context.Background(), testGroup, 0); len(t.InSync) == len(g.members) && g.level() {
			break
		}
	}
	want := scan(t, m.h.Log, 0)
	for _, n := range acked {
		if i := slices.Index(want, n); i < 0 || slices.Contains(want[i+1:], n) {
			t.Errorf("record %d was acknowledged, and is not in the log once", n)
		}
	}
	if !slices.IsSorted(want) {
		t.Error("records changed their order")
	}
	for _, other := range g.members {
		if got := scan(t, other.h.Log, 0); !slices.Equal(got, want) {
			t.Errorf("%s and %s differ: %d and %d records, status %+v", m.name, other.name, len(want), len(got), m.leader.Status())
		}
	}
}

func (g *shippedGroup) level() bool {
	for _, m := range g.members {
		if m.h.Committed() != g.master.h.Committed() || m.h.End() != g.master.h.End() {
			return false
		}
	}
	return g.master.h.Synced() == g.master.h.Committed()
}
