package commitlog

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

var seedFlag = flag.Uint64("seed", 0, "replay the random tests with this seed (0 = several fixed ones)")

func seeds(n uint64) []uint64 {
	if *seedFlag != 0 {
		return []uint64{*seedFlag}
	}
	var s []uint64
	for i := range n {
		s = append(s, i+1)
	}
	return s
}

// image is what one power cut left, with what had been promised before it.
type image struct {
	op      int
	disk    *disk.Mem
	acked   int             // highest number acknowledged
	sent    int             // highest number given to Append
	trimmed record.Position // highest position given to Trim
}

// checkImage opens what a crash left and checks the promises. Recovery itself
// is interrupted too, at a random operation.
func checkImage(t *testing.T, im image, rng *rand.Rand, again bool) {
	t.Helper()
	where := fmt.Sprintf("crash after operation %d", im.op)
	if again {
		stop, ops := 1+rng.IntN(12), 0
		var second *disk.Mem
		im.disk.AfterOp(func(int) {
			if ops++; ops == stop {
				second = im.disk.Crash(rng)
			}
		})
		defer func() {
			if second != nil {
				im.disk = second
				checkImage(t, im, rng, false)
			}
		}()
	}
	h, err := tryOpen(t, testOptions(im.disk, rng.Uint64()))
	if err != nil {
		t.Fatalf("%s: open: %v", where, err)
	}
	im.disk.AfterOp(nil)
	defer h.Close()
	if h.Begin() > im.trimmed {
		t.Fatalf("%s: begin %d, never trimmed above %d", where, h.Begin(), im.trimmed)
	}
	found := scan(t, h.Log, 0)
	if len(found) > 0 && !slices.Equal(found, sequence(found[0], found[len(found)-1])) {
		t.Fatalf("%s: a hole in %v", where, found)
	}
	last := 0
	if len(found) > 0 {
		last = found[len(found)-1]
	}
	if last > im.sent || (im.acked > 0 && last < im.acked) {
		t.Fatalf("%s: log ends with %d, acknowledged %d, sent %d", where, last, im.acked, im.sent)
	}
	if h.Begin() == 0 && last > 0 && found[0] != 1 {
		t.Fatalf("%s: log begins with %d", where, found[0])
	}
	h.Start()
	if err := h.append(numbered(last+1, 20)); err != nil {
		t.Fatalf("%s: append after recovery: %v", where, err)
	}
	if got := scan(t, h.Log, 0); got[len(got)-1] != last+1 || len(got) != len(found)+1 {
		t.Fatalf("%s: after recovery and append: %v", where, got)
	}
}

func TestNothingAcknowledgedIsLostByACrashAfterAnyDiskOperation(t *testing.T) {
	for _, seed := range seeds(3) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			crashStory(t, seed)
		})
	}
}

// crashStory runs a random workload and takes an image of every power cut that
// could have happened in it.
func crashStory(t *testing.T, seed uint64) {
	rng, cut := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
	mem := disk.NewMem()
	var (
		mu      sync.Mutex
		images  []image
		acked   atomic.Int64
		sent    atomic.Int64
		trimmed atomic.Uint64
	)
	mem.AfterOp(func(op int) {
		mu.Lock()
		defer mu.Unlock()
		im := image{op: op, acked: int(acked.Load())} // before the cut: these must survive it
		im.disk = mem.Crash(cut)
		im.sent, im.trimmed = int(sent.Load()), record.Position(trimmed.Load()) // after it
		images = append(images, im)
	})
	next := 0
	for life := range 2 {
		h := open(t, testOptions(mem, seed*10+uint64(life)))
		h.Start()
		for range 10 {
			var outs []<-chan error
			var lasts []int
			for range 1 + rng.IntN(4) {
				var entries []Entry
				for range 1 + rng.IntN(4) {
					next++
					if rng.IntN(4) == 0 {
						entries = append(entries, landed(next, rng.IntN(700), rng.IntN(2) == 0))
					} else {
						entries = append(entries, numbered(next, rng.IntN(900)))
					}
				}
				sent.Store(int64(next))
				out, err := h.send(&Batch{Entries: entries})
				if err != nil {
					t.Fatal(err)
				}
				outs, lasts = append(outs, out), append(lasts, next)
			}
			for i, out := range outs {
				if err := <-out; err != nil {
					t.Fatal(err)
				}
				acked.Store(int64(lasts[i]))
			}
			if rng.IntN(8) == 0 {
				to := h.Begin() + (h.Committed()-h.Begin())/3
				trimmed.Store(uint64(to))
				if _, err := h.Trim(to); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
	mem.AfterOp(nil)
	if len(images) < 100 {
		t.Fatalf("only %d images", len(images))
	}
	for _, im := range images {
		checkImage(t, im, cut, true)
	}
}

// After a crash the log goes on at the cut: positions repeat only in another
// lineage.
func TestPositionsAreNeverGivenTwiceInALineage(t *testing.T) {
	for _, seed := range seeds(4) {
		rng := rand.New(rand.NewPCG(seed, 3))
		mem := disk.NewMem()
		type place struct {
			epoch uint64
			id    record.LineageID
			pos   record.Position
		}
		given, next := map[place]int{}, 0
		for life := range 12 {
			h := open(t, testOptions(mem, seed*100+uint64(life)))
			h.Start()
			row := h.Lineage()[len(h.Lineage())-1]
			image := mem.Crash(rng)
			for range rng.IntN(8) {
				next++
				b := &Batch{Entries: []Entry{numbered(next, rng.IntN(600))}}
				out, err := h.send(b)
				if err != nil {
					t.Fatal(err)
				}
				if err := <-out; err != nil {
					t.Fatal(err)
				}
				p := place{row.Epoch, row.ID, b.Entries[0].Position}
				if given[p] != 0 {
					t.Fatalf("seed %d: %+v given to %d and %d", seed, p, given[p], next)
				}
				given[p] = next
				if rng.IntN(3) == 0 {
					image = mem.Crash(rng)
				}
			}
			h.Close()
			mem = image // lives on from an older state, as a restored copy does
		}
	}
}

func TestFailedSyncStopsTheLogForGood(t *testing.T) {
	boom := errors.New("boom")
	mem := disk.NewMem()
	f := disk.NewFaulty(mem)
	h := open(t, testOptions(f, 1))
	h.Start()
	h.mustAppend(numbered(1, 100))
	committed := h.Committed()
	f.Set(func(op disk.Op, name string) error {
		if op == disk.OpSync && name == testDir+"/"+segmentName(0) {
			return boom
		}
		return nil
	})
	if err := h.append(numbered(2, 100)); !errors.Is(err, ErrStopped) || !errors.Is(err, boom) {
		t.Fatalf("append: %v", err)
	}
	f.Set(nil) // a later sync would succeed: it must not be tried
	if err := h.append(numbered(3, 100)); !errors.Is(err, ErrStopped) {
		t.Errorf("append after: %v", err)
	}
	if _, err := h.send(&Batch{Entries: []Entry{numbered(3, 100)}, Reserved: true}); !errors.Is(err, ErrStopped) {
		t.Errorf("reserved append after: %v", err)
	}
	if err := h.Writable(); !errors.Is(err, ErrStopped) {
		t.Errorf("writable: %v", err)
	}
	if h.Committed() != committed || !slices.Equal(h.numbers(), []int{1}) {
		t.Error("something was committed by the failed sync")
	}
	if got := scan(t, h.Log, 0); !slices.Equal(got, []int{1}) {
		t.Errorf("reads while stopped: %v", got)
	}
	if err := h.Close(); !errors.Is(err, boom) {
		t.Errorf("close: %v", err)
	}
	for seed := range uint64(40) { // whatever of the failed write is there, the acknowledged part is
		h, err := tryOpen(t, testOptions(mem.Crash(rand.New(rand.NewPCG(seed, 1))), seed))
		if err != nil {
			t.Fatal(err)
		}
		if got := scan(t, h.Log, 0); len(got) == 0 || got[0] != 1 || len(got) > 2 {
			t.Errorf("seed %d: %v", seed, got)
		}
		h.Close()
	}
}

func TestOpenWritesAgainWhatMayNotHaveReachedTheDisk(t *testing.T) {
	mem := disk.NewMem()
	f := disk.NewFaulty(mem)
	h := open(t, testOptions(f, 1))
	h.Start()
	h.mustAppend(numbered(1, 100))
	f.Set(func(op disk.Op, name string) error {
		if op == disk.OpSync && name == testDir+"/"+segmentName(0) {
			return errors.New("boom")
		}
		return nil
	})
	_ = h.append(numbered(2, 700))
	h.Close()
	// The process starts again; the page cache still shows record 2. Forget
	// which pages are dirty, as a kernel does after a failed fsync.
	mem.ForgetDirty()
	f.Set(nil)
	h = open(t, testOptions(f, 2))
	if got := scan(t, h.Log, 0); !slices.Equal(got, []int{1, 2}) {
		t.Fatalf("log holds %v", got)
	}
	for seed := range uint64(20) {
		c := open(t, testOptions(mem.Crash(rand.New(rand.NewPCG(seed, 1))), seed))
		if got := scan(t, c.Log, 0); !slices.Equal(got, []int{1, 2}) {
			t.Fatalf("seed %d: power cut after open: %v", seed, got)
		}
		c.Close()
	}
}

func TestFullDiskRefusesKeepsReadsAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		h := open(t, testOptions(mem, 1))
		h.Start()
		h.mustAppend(numbered(1, 100))
		synctest.Wait()
		mem.SetLimit(mem.Used() + 2000) // no room for another spare segment
		last := 1
		var full error
		for full == nil {
			last++
			if full = h.append(numbered(last, 500)); full == nil {
				synctest.Wait()
			}
		}
		last--
		if !errors.Is(full, ErrFull) || !errors.Is(full, syscall.ENOSPC) || !errors.Is(h.Writable(), ErrFull) {
			t.Fatalf("append: %v, writable: %v", full, h.Writable())
		}
		reserved := func(n int) error {
			out, err := h.send(&Batch{Entries: []Entry{numbered(n, 100)}, Reserved: true})
			if err != nil {
				return err
			}
			return <-out
		}
		last++
		if err := reserved(last); err != nil {
			t.Fatalf("the reserve does not serve: %v", err)
		}
		for full = nil; full == nil; {
			last++
			full = reserved(last)
		}
		last--
		if !errors.Is(full, ErrFull) {
			t.Fatalf("reserve used up: %v", full)
		}
		if got := scan(t, h.Log, 0); !slices.Equal(got, sequence(1, last)) {
			t.Fatalf("reads while full: %v", got)
		}
		time.Sleep(10 * time.Second)
		if err := h.append(numbered(99, 10)); !errors.Is(err, ErrFull) {
			t.Fatalf("still full: %v", err)
		}
		if _, err := h.Trim(h.Committed()); err != nil {
			t.Fatalf("trim on a full disk: %v", err)
		}
		mem.SetLimit(0)
		time.Sleep(2 * probeEvery)
		if err := h.Writable(); err != nil {
			t.Fatalf("did not recover: %v", err)
		}
		h.mustAppend(numbered(last+1, 500))
		h.Close()
		h = open(t, testOptions(mem, 2))
		if got := scan(t, h.Log, 0); got[len(got)-1] != last+1 {
			t.Errorf("after restart %v", got)
		}
	})
}

func TestFullDiskInAWriteLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		f := disk.NewFaulty(mem)
		h := open(t, testOptions(f, 1))
		h.Start()
		h.mustAppend(numbered(1, 100))
		time.Sleep(2 * idleMark) // no later mark frame shifts what follows
		f.Set(func(op disk.Op, _ string) error {
			if op == disk.OpWrite {
				return syscall.ENOSPC // half of it is written
			}
			return nil
		})
		err := h.append(numbered(2, 100), numbered(3, 100), numbered(4, 400), numbered(5, 100))
		if !errors.Is(err, ErrFull) {
			t.Fatalf("append: %v", err)
		}
		f.Set(nil)
		time.Sleep(2 * probeEvery)
		h.mustAppend(numbered(2, 100)) // ends where the refused entry 3 begins
		want := []int{1, 2}
		if got := scan(t, h.Log, 0); !slices.Equal(got, want) {
			t.Fatalf("log holds %v", got)
		}
		image := mem.Crash(rand.New(rand.NewPCG(1, 1)))
		h2 := open(t, testOptions(image, 2))
		if got := scan(t, h2.Log, 0); !slices.Equal(got, want) {
			t.Errorf("recovery finds refused entries: %v", got)
		}
	})
}

func TestOpenOnAFullDiskServesReadsAndStartsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		h := open(t, testOptions(mem, 1))
		h.Start()
		// A full last segment and no room at all.
		last := 0
		for room := math.MaxInt; room >= 200; {
			last++
			h.mustAppend(numbered(last, 10))
			list := *h.segments.Load()
			room = 4<<10 - int(h.Committed()-list[len(list)-1].base)
		}
		h.Close()
		f := disk.NewFaulty(mem)
		mem.SetLimit(mem.Used())
		f.Set(func(op disk.Op, name string) error {
			if op == disk.OpPreallocate || op == disk.OpCreate {
				return syscall.ENOSPC
			}
			return nil
		})
		h = open(t, testOptions(f, 2))
		h.Start()
		synctest.Wait()
		if got := scan(t, h.Log, 0); !slices.Equal(got, sequence(1, last)) {
			t.Fatalf("reads: %v", got)
		}
		if err := h.append(numbered(last+1, 10)); !errors.Is(err, ErrFull) {
			t.Fatalf("append: %v", err)
		}
		mem.SetLimit(0)
		f.Set(nil)
		time.Sleep(3 * probeEvery)
		h.mustAppend(numbered(last+1, 10))
		if got := scan(t, h.Log, 0); !slices.Equal(got, sequence(1, last+1)) {
			t.Fatalf("reads: %v", got)
		}
		starts := 0
		if err := h.Scan(context.Background(), h.Lineage()[1].First, math.MaxUint64, func(e Entry) error {
			if v, err := record.Parse(e.Record); err == nil && v.Type() == record.TypeLineageStart {
				starts++
			}
			return nil
		}); err != nil || starts != 1 {
			t.Errorf("%d lineage starts, %v", starts, err)
		}
	})
}

// Every kind of failing operation at every moment: the log refuses, stops or
// carries on, but never loses or repeats what it acknowledged.
func TestAnyFailingOperationLosesNothing(t *testing.T) {
	for _, cause := range []error{syscall.ENOSPC, syscall.EIO} {
		for nth := 1; nth < 90; nth++ {
			mem := disk.NewMem()
			f := disk.NewFaulty(mem)
			var count atomic.Int64
			f.Set(func(op disk.Op, name string) error {
				if op != disk.OpRead && op != disk.OpSize && count.Add(1) == int64(nth) {
					return cause
				}
				return nil
			})
			var acked []int
			refused := map[int]bool{}
			h, err := tryOpen(t, testOptions(f, 1))
			if err == nil {
				h.Start()
				for n := 1; n <= 20; n++ {
					switch err := h.append(numbered(n, 500)); {
					case err == nil:
						acked = append(acked, n)
					case errors.Is(err, ErrFull):
						refused[n] = true
					case !errors.Is(err, ErrStopped):
						t.Fatalf("operation %d: %v", nth, err)
					}
				}
				if got := scan(t, h.Log, 0); !slices.Equal(got, acked) {
					t.Fatalf("operation %d: acknowledged %v, reads %v", nth, acked, got)
				}
				h.Close()
			}
			f.Set(nil)
			left := mem.Crash(rand.New(rand.NewPCG(uint64(nth), 9))) // the power fails as well
			checkAfterFailure(t, fmt.Sprintf("operation %d (%v), opened again", nth, cause), mem, acked, refused)
			checkAfterFailure(t, fmt.Sprintf("operation %d (%v), power cut", nth, cause), left, acked, refused)
		}
	}
}

func checkAfterFailure(t *testing.T, what string, mem *disk.Mem, acked []int, refused map[int]bool) {
	t.Helper()
	h, err := tryOpen(t, testOptions(mem, 2))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	defer h.Close()
	got := scan(t, h.Log, 0)
	for _, n := range got {
		if refused[n] {
			t.Fatalf("%s: %d was refused and is in the log", what, n)
		}
	}
	if len(got) < len(acked) || !slices.Equal(got[:len(acked)], acked) || !slices.IsSorted(got) {
		t.Fatalf("%s: acknowledged %v, found %v", what, acked, got)
	}
}
