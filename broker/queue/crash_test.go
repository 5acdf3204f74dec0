package queue

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// TestRecoverAfterPowerCut works on several indexes and cuts the power after
// random changes of the disk, in the middle of a call included: what the last
// snapshot says is always there, and nothing else.
func TestRecoverAfterPowerCut(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 6))
		mem := disk.NewMem()
		snapshot := map[string]uint64{}
		floor := map[string]uint64{}
		for range 6 {
			var after *disk.Mem
			cut := 1 + rng.IntN(60)
			start := 0
			mem.AfterOp(func(op int) {
				if start == 0 {
					start = op
				}
				if op-start == cut {
					after = mem.Crash(rng)
				}
			})
			s, err := Open(Options{FS: mem, Dir: "/q", SegmentEntries: 40, TailEntries: 10, MaxOpenFiles: 1 + rng.IntN(20)})
			if err != nil {
				t.Fatal(err)
			}
			life(t, seed, rng, s, snapshot, floor, func() bool { return after != nil })
			if after == nil {
				after = mem.Crash(rng)
			}
			mem = after
		}
	}
}

// life is one process: recovery, then random work until the power is cut.
func life(t *testing.T, seed uint64, rng *rand.Rand, s *Store, snapshot, floor map[string]uint64, cut func() bool) {
	t.Helper()
	if err := s.Recover(snapshot); err != nil {
		t.Fatalf("seed %d: recover %v: %v", seed, snapshot, err)
	}
	for name, next := range snapshot {
		x := index(t, s, name)
		if x.First() > floor[name] {
			t.Fatalf("seed %d: %q begins at %d, %d was kept", seed, name, x.First(), floor[name])
		}
		check(t, x, x.First(), next)
	}
	if names, err := s.List(); err != nil || !slices.Equal(names, slices.Sorted(maps.Keys(snapshot))) {
		t.Fatalf("seed %d: lists %q, %v; the snapshot has %v", seed, names, err, snapshot)
	}
	for range rng.IntN(40) {
		if cut() {
			return
		}
		name := fmt.Sprint("q", rng.IntN(3))
		x := index(t, s, name)
		switch rng.IntN(8) {
		case 0:
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
			next := map[string]uint64{}
			for _, name := range []string{"q0", "q1", "q2"} {
				next[name] = index(t, s, name).Next()
			}
			if err := s.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !cut() { // else the snapshot was never written
				maps.Copy(snapshot, next)
			}
		case 1:
			// The log is trimmed behind the snapshot only.
			floor[name] = max(floor[name], min(rng.Uint64N(x.Next()+1), snapshot[name]))
			if err := x.TrimBefore(floor[name]); err != nil {
				t.Fatal(err)
			}
		default:
			fill(t, x, x.Next()+rng.Uint64N(30))
		}
	}
}

func TestFullDiskLosesNothing(t *testing.T) {
	mem := disk.NewMem()
	s := open(t, Options{FS: mem, Dir: "/q", SegmentEntries: 1000, TailEntries: 100})
	x := index(t, s, "q")
	fill(t, x, 500)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	mem.SetLimit(mem.Used() + 100)
	fill(t, x, 1500)
	if err := s.FlushError(); !disk.IsFull(err) {
		t.Fatalf("flush error is %v", err)
	}
	check(t, x, 0, 1500)
	if err := s.Flush(); !disk.IsFull(err) {
		t.Fatalf("flush: %v", err)
	}
	mem.SetLimit(0)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.FlushError(); err != nil {
		t.Fatal(err)
	}
	check(t, x, 0, 1500)
	fill(t, x, 3000)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Options{FS: mem, Dir: "/q", SegmentEntries: 1000})
	if err := s.Recover(map[string]uint64{"q": 3000}); err != nil {
		t.Fatal(err)
	}
	check(t, index(t, s, "q"), 0, 3000)
}

func TestFailedSyncEndsSyncing(t *testing.T) {
	for _, op := range []disk.Op{disk.OpSync, disk.OpSyncDir} {
		faulty := disk.NewFaulty(disk.NewMem())
		s := open(t, Options{FS: faulty, Dir: "/q"})
		x := index(t, s, "q")
		fill(t, x, 10)
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		faulty.Set(func(o disk.Op, _ string) error {
			if o == op {
				return syscall.EIO
			}
			return nil
		})
		var failed *SyncError
		if err := s.Sync(t.Context()); !errors.As(err, &failed) || !errors.Is(err, syscall.EIO) {
			t.Fatalf("%s: sync: %v", op, err)
		}
		faulty.Set(nil)
		if err := s.Sync(t.Context()); !errors.As(err, &failed) {
			t.Fatalf("%s: a later sync says %v", op, err)
		}
		fill(t, x, 20) // reading and appending go on
		check(t, x, 0, 20)
	}
}

// TestFailedOperationsCanBeRepeated makes every operation of the disk fail
// once, at each place, and repeats what failed.
func TestFailedOperationsCanBeRepeated(t *testing.T) {
	mem := disk.NewMem()
	s := open(t, Options{FS: mem, Dir: "/q", SegmentEntries: 50, TailEntries: 20})
	fill(t, index(t, s, "q"), 210)
	fill(t, index(t, s, "gone"), 60)
	s.Close()
	for fail := 1; ; fail++ {
		faulty := disk.NewFaulty(mem.Crash(rand.New(rand.NewPCG(1, 1)))) // all is synced: a copy
		count := 0
		fault := func(op disk.Op, _ string) error {
			if op == disk.OpSync || op == disk.OpSyncDir {
				return nil // these end the store's syncing for good
			}
			if count++; count == fail {
				return syscall.EIO
			}
			return nil
		}
		faulty.Set(fault)
		sound := func(x *Index, first, next uint64) {
			t.Helper()
			faulty.Set(nil)
			check(t, x, first, next)
			faulty.Set(fault)
		}
		again := func(what string, do func() error) {
			t.Helper()
			err := do()
			if err != nil && count < fail {
				t.Fatalf("fault %d: %s: %v", fail, what, err)
			}
			if err != nil {
				if err = do(); err != nil {
					t.Fatalf("fault %d: %s again: %v", fail, what, err)
				}
			}
		}
		var s *Store
		var x *Index
		again("open", func() (err error) {
			s, err = Open(Options{FS: faulty, Dir: "/q", SegmentEntries: 50, TailEntries: 20, MaxOpenFiles: 2})
			return err
		})
		again("recover", func() error { return s.Recover(map[string]uint64{"q": 170}) })
		again("index", func() (err error) { x, err = s.Index("q"); return err })
		fill(t, x, 260)
		again("flush", s.Flush)
		again("trim", func() error { return x.TrimBefore(120) })
		again("read", func() error { _, err := x.Get(130); return err })
		again("sync", func() error { return s.Sync(t.Context()) })
		sound(x, 120, 260)
		again("reset", func() error { return x.Reset(3) })
		fill(t, x, 100)
		sound(x, 3, 100)
		again("close", s.Close)
		if count < fail {
			break
		}
	}
}
