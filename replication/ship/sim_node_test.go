package ship

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// simNode is a node of the group: a disk, and a process that can be killed.
type simNode struct {
	w    *simWorld
	name zone.Node
	rng  *rand.Rand
	rate float64 // of its clock
	disk *simDisk
	log  *slog.Logger

	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	up     bool                // guarded by mu
	store  *simLog             // of the process that runs; guarded by mu
	member *coordinator.Member // likewise; guarded by mu
	leader *Leader             // nil unless it leads; guarded by mu
	follow *Follower           // nil unless it follows; guarded by mu
}

// start begins a process on what the disk holds.
func (n *simNode) start() {
	ctx, cancel := context.WithCancel(n.w.ctx)
	n.cancel = cancel
	n.mu.Lock()
	n.up = true
	n.store = openSimLog(n.w, n.name, n.disk, rand.New(rand.NewPCG(n.rng.Uint64(), 1)))
	n.member = nil
	n.mu.Unlock()
	m := n.newMember()
	n.mu.Lock()
	n.member = m
	n.mu.Unlock()
	n.wg.Go(func() { _ = m.Run(ctx) })
	n.wg.Go(func() { n.run(ctx) })
}

func (n *simNode) newMember() *coordinator.Member {
	began := time.Now()
	return coordinator.NewMember(coordinator.MemberOptions{
		Coordinator: &simClient{w: n.w, node: n.name}, Group: simGroup, Node: n.name, Standing: n.standing,
		Now: func() time.Time { return began.Add(time.Duration(float64(time.Since(began)) * n.rate)) },
	})
}

// kill ends the process at once: what was not synced may be lost.
func (n *simNode) kill() {
	n.mu.Lock()
	n.up = false
	n.mu.Unlock()
	n.w.net.drop(n.name)
	n.cancel()
	n.wg.Wait()
	n.disk.crash(n.rng)
}

func (n *simNode) current() (*simLog, *coordinator.Member) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.store, n.member
}

// standing is what the node tells the coordinator.
func (n *simNode) standing() coordinator.Standing {
	l, m := n.current()
	l.mu.Lock()
	s := coordinator.Standing{
		Incarnation: l.d.inc, Epoch: l.d.epoch(), End: l.d.synced(), Committed: l.committed, Fit: l.failed == nil, Majority: n.w.quorum,
	}
	fresh := l.d.replaced && l.d.inc == 0 // a store is given only to whom nobody counts on
	l.mu.Unlock()
	if fresh && m != nil {
		t, _ := m.Term()
		s.Fit = s.Fit && t.Version > 0 && !slices.Contains(t.InSync, n.name)
	}
	return s
}

// run leads or follows as the term says, until the process ends.
func (n *simNode) run(ctx context.Context) {
	for ctx.Err() == nil {
		l, m := n.current()
		if l.Err() != nil {
			n.reopen(ctx, true)
			continue
		}
		t, changed := m.Term()
		if t.Master != n.name || t.Epoch <= locked(l, l.d.epoch) {
			n.followUntil(ctx, t, changed)
			continue
		}
		if !m.Holds(t.Epoch) {
			select {
			case <-changed:
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		n.lead(ctx, t)
		m.StepDown(t.Epoch)
		n.reopen(ctx, false)
	}
}

// reopen opens the log again; broken says that the disk failed and the process with
// it.
func (n *simNode) reopen(ctx context.Context, broken bool) {
	if broken {
		n.disk.crash(n.rng)
		pause(ctx, 200*time.Millisecond, nil)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.store = openSimLog(n.w, n.name, n.disk, rand.New(rand.NewPCG(n.rng.Uint64(), 1)))
}

// followUntil follows until the node is named master or its log is of no more use.
func (n *simNode) followUntil(ctx context.Context, t coordinator.Term, changed <-chan struct{}) {
	l, m := n.current()
	f, err := NewFollower(FollowerOptions{
		Self: n.name, Group: simGroup, Log: l, Restore: &simRestore{n: n, l: l}, Limits: n.w.limits, Logger: n.log,
		Rand: rand.New(rand.NewPCG(n.rng.Uint64(), 2)),
		Dial: func(ctx context.Context, master zone.Node, _ uint64) (wire.Stream, error) {
			return n.w.net.dial(ctx, n.name, master)
		},
	})
	if err != nil {
		n.w.fault("%s: %v", n.name, err)
		return
	}
	n.mu.Lock()
	n.follow = f
	n.mu.Unlock()
	fctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- f.Run(fctx) }()
	defer func() {
		n.mu.Lock()
		n.follow = nil
		n.mu.Unlock()
	}()
	for {
		f.Observe(t)
		select {
		case <-changed:
			t, changed = m.Term()
			if t.Master == n.name && t.Epoch > locked(l, l.d.epoch) {
				cancel()
				<-done
				return
			}
		case err := <-done:
			cancel()
			n.stopped(ctx, err)
			return
		}
	}
}

// stopped judges why a follower gave up.
func (n *simNode) stopped(ctx context.Context, err error) {
	var diverged *DivergedError
	switch {
	case errors.As(err, &diverged):
		n.w.fault("%s: %v", n.name, err)
		<-ctx.Done()
	case errors.Is(err, ErrReplaced):
		n.w.count("replaced")
		n.reopen(ctx, false)
	case ctx.Err() == nil && !errors.Is(err, errSimDisk):
		n.w.fault("%s: follower ended: %v", n.name, err)
		n.reopen(ctx, true)
	}
}

// lead is the node as master of an epoch.
func (n *simNode) lead(ctx context.Context, t coordinator.Term) {
	l, m := n.current()
	l.promote(t.Epoch, t.Lineage)
	leader, err := NewLeader(LeaderOptions{
		Self: n.name, Group: simGroup, Term: t, Log: l, Snapshots: &simSnapshots{l: l}, Sets: &simClient{w: n.w, node: n.name},
		Leading: func() bool { return m.Holds(t.Epoch) },
		Members: func() []zone.Node { return n.w.names },
		Limits:  n.w.limits, Logger: n.log,
	})
	if err != nil {
		n.w.fault("%s: %v", n.name, err)
		return
	}
	n.mu.Lock()
	n.leader = leader
	n.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { n.write(ctx, l) })
	for p := range 3 {
		rng := rand.New(rand.NewPCG(n.rng.Uint64(), uint64(p)))
		wg.Go(func() { n.publish(ctx, l, m, t.Epoch, p, rng) })
	}
	err = leader.Run(ctx)
	n.log.Debug("leader ended", "err", err)
	cancel()
	n.mu.Lock()
	n.leader = nil
	n.mu.Unlock()
	wg.Wait()
}

// write syncs what publishers have written.
func (n *simNode) write(ctx context.Context, l *simLog) {
	moved := make(chan struct{}, 1)
	defer l.Notify(moved)()
	for ctx.Err() == nil {
		if l.Synced() == l.End() {
			select {
			case <-moved:
			case <-ctx.Done():
			}
			continue
		}
		if _, err := l.Sync(ctx); err != nil {
			return
		}
	}
}

// publish appends records and notes which are acknowledged: those that are committed,
// or that a majority has, or, of the second publisher, that are durable here; all
// while the lease holds.
func (n *simNode) publish(ctx context.Context, l *simLog, m *coordinator.Member, epoch uint64, p int, rng *rand.Rand) {
	moved := make(chan struct{}, 1)
	defer l.Notify(moved)()
	have := l.Committed
	switch {
	case n.w.quorum && p == 0:
		have = func() record.Position { return locked(l, func() record.Position { return l.acked }) }
	case p == 1:
		have = l.Synced
	}
	for ctx.Err() == nil {
		pause(ctx, time.Duration(rng.Int64N(int64(40*time.Millisecond))), nil)
		if n.w.quiet.Load() {
			continue
		}
		size := rng.IntN(200)
		if rng.IntN(40) == 0 {
			size = 10 << 10 // in several frames
		}
		id := n.w.number()
		if ctx.Err() != nil || l.Err() != nil {
			return
		}
		end := l.append(id, size)
		for {
			if have() >= end {
				if m.Holds(epoch) {
					n.w.acknowledged(n.name, epoch, id, p != 1)
				}
				break
			}
			select {
			case <-moved:
			case <-ctx.Done():
				return
			}
		}
	}
}

// serveAt takes a session that another node has opened here.
func (n *simNode) serve(from zone.Node, s wire.Stream) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.up || n.leader == nil {
		return false
	}
	leader := n.leader
	n.wg.Go(func() {
		ctx, cancel := context.WithCancel(n.w.ctx)
		defer cancel()
		first, err := s.Recv(ctx)
		if err != nil {
			return
		}
		if err := leader.Serve(ctx, from, s, first); err != nil {
			n.log.Debug("session served", "peer", string(from), "err", err)
		}
	})
	return true
}

// simSnapshots gives a snapshot of which a replica can tell that it is whole.
type simSnapshots struct{ l *simLog }

func (s *simSnapshots) Lanes() int { return 4 }

func (s *simSnapshots) Snapshot(context.Context) (Snapshot, error) {
	x := &simSnapshot{}
	for i := range 2 {
		x.files = append(x.files, simFile(i))
	}
	return x, nil
}

func simFile(i int) []byte { return bytes.Repeat([]byte{byte(i + 1), 7}, 1500*(i+1)) }

type simSnapshot struct{ files [][]byte }

func (s *simSnapshot) Files() []File {
	var files []File
	for i, b := range s.files {
		files = append(files, File{Name: fmt.Sprintf("file-%d", i), Size: int64(len(b))})
	}
	return files
}

func (s *simSnapshot) ReadAt(file int, p []byte, off int64) (int, error) {
	return bytes.NewReader(s.files[file]).ReadAt(p, off)
}

func (s *simSnapshot) Close() error { return nil }

// simRestore takes a snapshot.
type simRestore struct {
	n     *simNode
	l     *simLog
	files [][]byte
}

func (r *simRestore) Start(_ context.Context, files []File) error {
	r.files = make([][]byte, len(files))
	return nil
}

func (r *simRestore) Forget(context.Context) error { return nil } // Install is done at once

func (r *simRestore) Write(_ context.Context, file int, off int64, p []byte) error {
	if int(off) != len(r.files[file]) {
		r.n.w.fault("%s: hole in a file", r.n.name)
	}
	r.files[file] = append(r.files[file], p...)
	return nil
}

func (r *simRestore) Install(ctx context.Context, o Origin) error {
	pause(ctx, 20*time.Millisecond, nil) // copying takes a while
	if err := ctx.Err(); err != nil {
		return err
	}
	for i, b := range r.files {
		if !bytes.Equal(b, simFile(i)) {
			r.n.w.fault("%s: file %d is not what was sent", r.n.name, i)
		}
	}
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	d := r.l.d
	d.inc, d.begin, d.rows, d.frames, d.durable, d.clean = o.Incarnation, o.Begin, o.Lineage, nil, 0, 0
	return nil
}
