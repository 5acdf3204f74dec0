package commitlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
)

// groupImage is what a power cut left of a replica, with what it had said before.
type groupImage struct {
	op        int
	disk      *disk.Mem
	synced    record.Position // acknowledged as durable, of the lineage that follows
	committed record.Position
	phase     int
}

// TestFollowerKeepsWhatItAcknowledgedThroughAnyPowerCut cuts the power after every
// change of a replica's disk: while it follows, is cut back to another master's
// log, follows that, is promoted, and writes.
func TestFollowerKeepsWhatItAcknowledgedThroughAnyPowerCut(t *testing.T) {
	for _, seed := range seeds(4) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			followerStory(t, seed)
		})
	}
}

func followerStory(t *testing.T, seed uint64) {
	rng, cut := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
	ma, mb, mem := disk.NewMem(), disk.NewMem(), disk.NewMem()
	a := openMaster(t, ma, 1)
	for n := range 10 { // who catches up sees marks that are ahead of it
		a.write(n+1, 100+rng.IntN(600))
		a.Commit(a.Synced())
	}
	adopt(t, mb, a)
	adopt(t, mem, a)
	b := openFollower(t, mb, 2) // which is promoted while the replica is behind it
	shipAll(t, a, b)
	common := b.Synced()
	a.Close()
	a = openFollower(t, ma, 4)
	a.promote(2, 22)
	for n := range 20 { // what b never gets
		a.write(n+11, 100+rng.IntN(600))
	}
	b.Commit(common)
	b.promote(5, 55)
	for n := range 20 {
		b.write(n+11, 100+rng.IntN(600))
	}
	b.settle()

	var mu sync.Mutex
	var images []groupImage
	var synced, committed atomic.Uint64
	var phase atomic.Int64
	mem.AfterOp(func(op int) {
		mu.Lock()
		defer mu.Unlock()
		im := groupImage{op: op, synced: record.Position(synced.Load()), committed: record.Position(committed.Load()), phase: int(phase.Load())}
		im.disk = mem.Crash(cut)
		images = append(images, im)
	})
	c := openFollower(t, mem, 3)
	pump := func(from *harness, commit record.Position) {
		for {
			more, err := ship1(t, from, c, 100+rng.IntN(3000))
			if err != nil {
				t.Fatal(err)
			}
			if !more || rng.IntN(3) == 0 {
				p, err := c.Sync(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				synced.Store(uint64(p))
				c.Commit(commit)
			}
			if !more {
				return
			}
		}
	}
	pump(a, common)
	synced.Store(uint64(common)) // what is above was acknowledged to a master that is gone
	committed.Store(uint64(common))
	phase.Store(1)
	if !align(t, b, c) {
		t.Fatal("not to be cut back")
	}
	phase.Store(2)
	pump(b, common)
	phase.Store(3)
	c.promote(9, 99)
	for n := range 8 {
		c.write(n+31, 300)
		synced.Store(uint64(c.Synced()))
	}
	c.Commit(c.Synced())
	c.Close()
	mem.AfterOp(nil)
	if len(images) < 60 {
		t.Fatalf("only %d images", len(images))
	}
	want := [4][]byte{between(t, a, 0, a.End()), nil, between(t, b, 0, b.End()), nil}
	last := open(t, followOptions(mem, 8))
	want[3] = between(t, last, 0, last.End())
	for _, im := range images {
		checkGroupImage(t, &im, want, cut)
	}
}

// checkGroupImage opens what a crash left: what was acknowledged is there, and all
// that is there is of the log that was followed then.
func checkGroupImage(t *testing.T, im *groupImage, want [4][]byte, rng *rand.Rand) {
	t.Helper()
	stop, ops := 1+rng.IntN(6), 0
	var second *disk.Mem
	im.disk.AfterOp(func(int) {
		if ops++; ops == stop {
			second = im.disk.Crash(rng) // in the middle of the recovery
		}
	})
	for i := range 2 {
		h, err := tryOpen(t, followOptions(im.disk, rng.Uint64()))
		if err != nil {
			t.Fatalf("crash after operation %d in phase %d, opened %d times: %v", im.op, im.phase, i, err)
		}
		im.disk.AfterOp(nil)
		if h.End() < im.synced || h.Synced() < im.synced {
			t.Fatalf("crash after operation %d in phase %d: end %d, acknowledged %d", im.op, im.phase, h.End(), im.synced)
		}
		if h.Committed() > h.End() || (im.phase == 3 && h.Committed() < im.committed) {
			t.Fatalf("crash after operation %d in phase %d: committed %d of %d, end %d", im.op, im.phase, h.Committed(), im.committed, h.End())
		}
		got := between(t, h, 0, h.End())
		same := false
		for _, w := range want {
			same = same || bytes.HasPrefix(w, got)
		}
		if !same {
			t.Fatalf("crash after operation %d in phase %d: %d bytes are of no master's log", im.op, im.phase, len(got))
		}
		h.Close()
		if im.disk = second; second == nil {
			return
		}
	}
}

// Every kind of failing operation at every moment: what a replica acknowledges is
// there when it is opened again.
func TestAnyFailingOperationOfAFollowerLosesNothing(t *testing.T) {
	a := openMaster(t, disk.NewMem(), 1)
	for n := range 30 {
		a.write(n+1, 500)
	}
	for _, cause := range []error{syscall.ENOSPC, syscall.EIO} {
		for nth := 1; nth < 60; nth++ {
			mem := disk.NewMem()
			adopt(t, mem, a)
			f := disk.NewFaulty(mem)
			var count atomic.Int64
			f.Set(func(op disk.Op, name string) error {
				if op != disk.OpRead && op != disk.OpSize && count.Add(1) == int64(nth) {
					return cause
				}
				return nil
			})
			h, err := tryOpen(t, followOptions(f, 1))
			if err != nil {
				continue
			}
			h.Start()
			synced := h.Synced()
			for {
				more, err := ship1(t, a, h, 900)
				if errors.Is(err, ErrFull) {
					continue // as shipping does: it tries again
				}
				if err != nil && !errors.Is(err, ErrStopped) {
					t.Fatalf("operation %d (%v): %v", nth, cause, err)
				}
				if err != nil || !more {
					break
				}
				if p, err := h.Sync(context.Background()); err == nil {
					synced = p
				}
			}
			end := h.End()
			if h.Err() == nil && end != a.End() {
				t.Fatalf("operation %d (%v): stuck at %d of %d", nth, cause, end, a.End())
			}
			h.Close()
			f.Set(nil)
			again := open(t, followOptions(mem.Crash(rand.New(rand.NewPCG(uint64(nth), 9))), 2))
			if again.Synced() < synced || !bytes.HasPrefix(between(t, a, 0, a.End()), between(t, again, 0, again.End())) {
				t.Fatalf("operation %d (%v): durable %d, found %d", nth, cause, synced, again.Synced())
			}
			again.Close()
		}
	}
}

// FuzzAppendRaw gives a replica a stretch of other bytes: it takes what its master
// wrote, and refuses anything else without keeping a byte of it.
func FuzzAppendRaw(f *testing.F) {
	a := openMaster(f, disk.NewMem(), 1)
	for n := range 6 {
		a.write(n+1, 40)
	}
	s, err := a.ReadRaw(context.Background(), 0, 4096, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(s.Frames, uint64(s.From), uint64(s.Next), true)
	f.Add(s.Frames[:len(s.Frames)/2], uint64(s.From), uint64(s.Next), true)
	f.Add([]byte{}, uint64(0), uint64(0), false)
	f.Add(make([]byte, frameLen), uint64(headerLen), uint64(headerLen+frameLen), false)
	f.Fuzz(func(t *testing.T, b []byte, from, next uint64, base bool) {
		mem := disk.NewMem()
		adopt(t, mem, a)
		h := openFollower(t, mem, 2)
		before := h.End()
		got := ship.Stretch{From: record.Position(from), Base: base, Next: record.Position(next), Frames: b}
		err := h.AppendRaw(context.Background(), got)
		switch {
		case err == nil && !bytes.HasPrefix(s.Frames, b):
			// Whoever makes frames with right checksums of this lineage is a master.
			if _, end, err := checkStretch(b, headerLen, h.Present(), h.Incarnation()); err != nil || end != got.Next {
				t.Fatalf("took %d bytes that are no frames: %v", len(b), err)
			}
		case err != nil && (!errors.Is(err, ship.ErrRefused) || h.End() != before || h.Err() != nil):
			t.Fatalf("%v: end %d, was %d; %v", err, h.End(), before, h.Err())
		}
	})
}
