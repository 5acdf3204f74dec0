package ship

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// wallSeeds is how many worlds each wall is tried in.
const wallSeeds = 4

// TestWallsHold leads groups into what only a rule of the coordinator keeps them out of.
// Each rule that is left out must fail here (TestMutantsAreCaught).
func TestWallsHold(t *testing.T) {
	for _, wall := range []struct {
		name string
		tell func(w *simWorld, m *simNode)
	}{
		{"a shorter lease", shorterLease},
		{"one node for a while", oneNodeForAWhile},
		{"a majority gone", majorityGone},
		{"a disk set back", diskSetBack},
	} {
		t.Run(wall.name, func(t *testing.T) {
			for seed := range uint64(wallSeeds) {
				t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
					story(t, 100+seed, wall.tell)
				})
			}
		})
	}
}

// shorterLease: the master has a lease of long, granted by a coordinator that the next
// one, of shorter leases, must wait for.
func shorterLease(w *simWorld, _ *simNode) {
	w.lease = 8 * time.Second
	w.takeOver()
	time.Sleep(2 * w.lease)
	before := w.term()
	m := w.master()
	if m == nil {
		w.t.Fatalf("no master: %s", w.describe())
	}
	w.net.set(m.name, "", true)
	w.net.set("", m.name, true)
	w.lease = 0
	w.takeOver()
	time.Sleep(15 * time.Second)
	if after := w.term(); after.Epoch == before.Epoch || after.Master == "" {
		w.t.Errorf("the master was not replaced: %+v", after)
	}
}

// oneNodeForAWhile: the topology takes all nodes but the master out, which goes on
// alone, without a term; then the others come back, with their old disks, before it.
func oneNodeForAWhile(w *simWorld, m *simNode) {
	for _, n := range w.nodes {
		n.kill()
	}
	w.alone.Store(&m.name)
	time.Sleep(3 * time.Second)
	w.mu.Lock()
	o := w.office
	w.mu.Unlock()
	if terms, err := o.Terms(w.ctx); err != nil || len(terms) != 1 || terms[0].Alone != m.name {
		w.t.Fatalf("the only node is not noted: %+v, %v", terms, err)
	}
	m.goOnAlone(w.ctx)
	w.alone.Store(nil)
	startOthersFirst(w, m)
}

func (w *simWorld) aloneIn(zone.Group) (zone.Node, bool) {
	if n := w.alone.Load(); n != nil {
		return *n, true
	}
	return "", false
}

// goOnAlone acknowledges records as a group of one node does, and dies.
func (n *simNode) goOnAlone(ctx context.Context) {
	l := openSimLog(n.w, n.name, n.disk, rand.New(rand.NewPCG(n.rng.Uint64(), 1)))
	epoch := locked(l, l.d.epoch) + 1
	l.promote(epoch, record.LineageID(n.w.number()))
	for range 20 {
		id := n.w.number()
		end := l.append(id, n.rng.IntN(200))
		if _, err := l.Sync(ctx); err != nil {
			n.w.fault("%s: alone: %v", n.name, err)
			return
		}
		l.Commit(end)
		n.w.acknowledged(n.name, epoch, id, true)
	}
	n.disk.crash(n.rng)
}

// startOthersFirst starts all but one, which must not do without it, and then that one.
func startOthersFirst(w *simWorld, last *simNode) {
	for _, n := range w.nodes {
		if n != last {
			n.start()
		}
	}
	time.Sleep(5 * time.Second)
	if x := w.term(); x.Master != "" {
		w.t.Errorf("%s leads epoch %d without %s", x.Master, x.Epoch, last.name)
	}
	last.start()
	time.Sleep(5 * time.Second)
}

// majorityGone: those that have what a majority acknowledged die at once, and one is
// left that has not, though it is in the set.
func majorityGone(w *simWorld, m *simNode) {
	if !w.quorum {
		return
	}
	left := w.nodes[0]
	if left == m {
		left = w.nodes[1]
	}
	for _, other := range w.names {
		w.net.set(left.name, other, true)
		w.net.set(other, left.name, true)
	}
	time.Sleep(150 * time.Millisecond) // it is not yet judged to be silent
	if !slices.Contains(w.term().InSync, left.name) {
		w.t.Fatalf("%s is out of the set already: %s", left.name, w.describe())
	}
	for _, n := range w.nodes {
		if n != left {
			n.kill()
		}
	}
	w.net.heal()
	time.Sleep(8 * time.Second)
	if x := w.term(); x.Master != "" && x.Master != m.name {
		w.t.Errorf("%s leads epoch %d", x.Master, x.Epoch)
	}
	for _, n := range w.nodes {
		if n != left {
			n.start()
		}
	}
	time.Sleep(5 * time.Second)
}

// diskSetBack: a replica comes back with the disk that it had some time ago, before the
// others do, to a coordinator that has heard of nothing since.
func diskSetBack(w *simWorld, m *simNode) {
	back := w.nodes[0]
	if back == m {
		back = w.nodes[1]
	}
	old := back.disk.copied()
	time.Sleep(25 * time.Second) // what is committed is noted each 10 s
	for _, n := range w.nodes {
		n.kill()
	}
	if noted := w.term().Committed; old.synced() >= noted {
		w.t.Fatalf("the old disk ends at %d, %d is noted: the story is too short", old.synced(), noted)
	}
	back.disk = old
	w.takeOver()
	back.start()
	time.Sleep(8 * time.Second)
	if x := w.term(); x.Master == back.name {
		w.t.Errorf("%s leads epoch %d with its old disk", x.Master, x.Epoch)
	}
	for _, n := range w.nodes {
		if n != back {
			n.start()
		}
	}
	time.Sleep(5 * time.Second)
}

// copied is what a copy of the disk holds that was made now: what was durable.
func (d *simDisk) copied() *simDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &simDisk{inc: d.inc, begin: d.begin, rows: slices.Clone(d.rows), frames: slices.Clone(d.frames[:d.durable]), durable: d.durable}
}
