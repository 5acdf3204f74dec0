package commitlog

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCommittedEntriesAreDeliveredReadAndReplayedInOrder(t *testing.T) {
	mem := disk.NewMem()
	h := open(t, testOptions(mem, 1))
	h.Start()
	first := h.Lineage()
	for n := 1; n <= 60; n += 3 {
		b := &Batch{Entries: []Entry{numbered(n, 10*n), landed(n+1, n, true), landed(n+2, 0, false)}}
		out, err := h.send(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := <-out; err != nil {
			t.Fatal(err)
		}
		if b.Result != h.Committed() {
			t.Fatalf("Done before Deliver: result %v", b.Result)
		}
		for i, e := range b.Entries {
			if numberOf(t, e, h.Incarnation()) != n+i {
				t.Fatalf("entry %d of the batch does not point to the log's copy", i)
			}
		}
	}
	want := sequence(1, 60)
	if got := h.numbers(); !slices.Equal(got, want) {
		t.Fatalf("delivered %v", got)
	}
	if got := scan(t, h.Log, 0); !slices.Equal(got, want) {
		t.Fatalf("scanned %v", got)
	}
	if s := h.Stats(); s.Segments < 5 || s.TailBytes > 2<<10 || s.TailBytes == 0 || s.Writable != nil {
		t.Errorf("stats %+v", s)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}

	h2 := open(t, testOptions(mem, 2))
	var got []int
	if err := h2.Replay(context.Background(), 0, func(e Entry) error {
		if n := numberOf(t, e, h2.Incarnation()); n > 0 {
			got = append(got, n)
		}
		return nil
	}); err != nil || !slices.Equal(got, want) {
		t.Fatalf("replayed %v, %v", got, err)
	}
	rows := h2.Lineage()
	if h2.Incarnation() != h.Incarnation() || len(rows) != 2 || rows[0] != first[0] ||
		rows[1].Epoch != rows[0].Epoch+1 || rows[1].ID == rows[0].ID || rows[1].First != h.writer.synced {
		t.Errorf("lineage %+v after %+v", rows, first)
	}
	h2.Start()
	h2.mustAppend(numbered(61, 5))
	if err := h2.Replay(context.Background(), 0, func(Entry) error { return nil }); !errors.Is(err, ErrNotStarted) {
		t.Errorf("replay after start: %v", err)
	}
	if got := h2.numbers(); !slices.Equal(got, []int{61}) {
		t.Errorf("only the live part is delivered: %v", got)
	}
}

func TestReplayStartsAtAnyEnd(t *testing.T) {
	mem := disk.NewMem()
	h := open(t, testOptions(mem, 1))
	h.Start()
	ends := []record.Position{}
	for n := 1; n <= 30; n++ {
		h.mustAppend(numbered(n, 300))
		ends = append(ends, h.Committed())
	}
	h.Close()
	h = open(t, testOptions(mem, 2))
	for i, end := range ends {
		if got := scan(t, h.Log, end); !slices.Equal(got, sequence(i+2, 30)) {
			t.Fatalf("from %d: %v", end, got)
		}
	}
	if err := h.Replay(context.Background(), h.Committed()+8, nil); !errors.Is(err, ErrBeyondEnd) {
		t.Errorf("snapshot beyond the end: %v", err)
	}
	boom := errors.New("boom")
	if err := h.Replay(context.Background(), 0, func(Entry) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("error of fn: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.Replay(ctx, 0, func(Entry) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("context: %v", err)
	}
}

func TestScanReachesWhatIsCommittedMeanwhile(t *testing.T) {
	for _, tail := range []int64{-1, 1 << 20} {
		o := testOptions(disk.NewMem(), 1)
		o.TailBytes = tail
		h := open(t, o)
		h.Start()
		h.mustAppend(numbered(1, 50))
		var got []int
		err := h.Scan(context.Background(), 0, math.MaxUint64, func(e Entry) error {
			if n := numberOf(t, e, h.Incarnation()); n > 0 {
				got = append(got, n)
				if n < 40 {
					h.mustAppend(numbered(n+1, 50))
				}
			}
			return nil
		})
		if err != nil || !slices.Equal(got, sequence(1, 40)) {
			t.Errorf("tail %d: scanned %v, %v", tail, got, err)
		}
	}
}

func TestReadAtTypedErrors(t *testing.T) {
	h := open(t, testOptions(disk.NewMem(), 1))
	h.Start()
	for n := 1; n <= 30; n++ {
		h.mustAppend(numbered(n, 300))
	}
	var corrupt *CorruptError
	if _, err := h.ReadAt(h.Committed()-8, 0); !errors.As(err, &corrupt) {
		t.Errorf("in the middle of a recent entry: %v", err)
	}
	if _, err := h.ReadAt(headerLen+8, 0); !errors.As(err, &corrupt) || corrupt.Position != headerLen+8 {
		t.Errorf("in the middle of an old entry: %v", err)
	}
	if _, err := h.ReadAt(h.Committed(), 0); !errors.Is(err, ErrBeyondEnd) {
		t.Errorf("at the end: %v", err)
	}
	begin, err := h.Trim(h.Committed())
	if err != nil || begin == 0 {
		t.Fatalf("trim: %d, %v", begin, err)
	}
	if _, err := h.ReadAt(headerLen, 0); !errors.Is(err, ErrTrimmed) {
		t.Errorf("trimmed: %v", err)
	}
	if err := h.Scan(context.Background(), headerLen, 1000, nil); !errors.Is(err, ErrTrimmed) {
		t.Errorf("scan of trimmed: %v", err)
	}
	h.Close()
	if _, err := h.ReadAt(begin+headerLen, 0); !errors.Is(err, ErrClosed) && err != nil {
		t.Errorf("closed: %v", err)
	}
}

func TestAppendRefusesWhatItCannotStore(t *testing.T) {
	h := open(t, testOptions(disk.NewMem(), 1))
	ctx := context.Background()
	if err := h.Append(ctx, &Batch{Entries: []Entry{numbered(1, 1)}}); !errors.Is(err, ErrNotStarted) {
		t.Errorf("before start: %v", err)
	}
	h.Start()
	h.Start()
	bad := map[string][]Entry{
		"no entries":            nil,
		"unknown kind":          {{Kind: 9, Record: numbered(1, 1).Record}},
		"mark":                  {{Kind: kindMark}},
		"own without record":    {{Kind: KindOwn}},
		"own with junk":         {{Kind: KindOwn, Record: make([]byte, 200)}},
		"own with envelope":     {{Kind: KindOwn, Record: numbered(1, 1).Record, Envelope: []byte{1}}},
		"landing, no envelope":  {{Kind: KindLanding, Record: numbered(1, 1).Record}},
		"good followed by junk": {numbered(1, 1), {Kind: KindOwn}},
	}
	for name, entries := range bad {
		if err := h.Append(ctx, &Batch{Entries: entries}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	huge := Entry{Kind: KindLanding, Envelope: []byte{1}, Record: make([]byte, record.MaxRecord+1)}
	if err := h.Append(ctx, &Batch{Entries: []Entry{huge}}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	h.mustAppend(numbered(1, 20<<10)) // larger than a segment
	h.mustAppend(numbered(2, 1))
	h.mustAppend(numbered(3, 40<<10))
	if got := scan(t, h.Log, 0); !slices.Equal(got, []int{1, 2, 3}) {
		t.Errorf("log holds %v", got)
	}
	h.Close()
	if err := h.Append(ctx, &Batch{Entries: []Entry{numbered(4, 1)}}); !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

func TestCloseDrainsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		release := make(chan struct{})
		h := open(t, testOptions(mem, 1))
		h.gate = func() { <-release }
		h.Start()
		var outs []<-chan error
		for n := 1; n <= 20; n++ {
			out, err := h.send(&Batch{Entries: []Entry{numbered(n, 100)}})
			if err != nil {
				t.Fatal(err)
			}
			outs = append(outs, out)
		}
		closed := make(chan error)
		go func() { closed <- h.Close() }()
		synctest.Wait()
		select {
		case <-closed:
			t.Fatal("closed before everything was delivered")
		default:
		}
		close(release)
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		for i, out := range outs {
			if len(out) != 1 {
				t.Fatalf("batch %d: Done called %d times", i, len(out))
			}
			if err := <-out; err != nil {
				t.Errorf("batch %d: %v", i, err)
			}
		}
		h2 := open(t, testOptions(mem, 2))
		if got := scan(t, h2.Log, 0); !slices.Equal(got, sequence(1, 20)) {
			t.Errorf("log holds %v", got)
		}
	})
}

func TestAppendBlocksWhileTheQueueIsFullAndObeysItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(disk.NewMem(), 1)
		o.QueueBytes, o.MaxBatchBytes = 1000, 500
		release := make(chan struct{})
		h := open(t, o)
		h.gate = func() { <-release }
		h.Start()
		accepted, outs := 0, []<-chan error{}
		for n := 1; ; n++ {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			out := make(chan error, 1)
			err := h.Append(ctx, &Batch{Entries: []Entry{numbered(n, 100)}, Done: func(_ *Batch, err error) { out <- err }})
			cancel()
			if err != nil {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				break
			}
			outs = append(outs, out)
			accepted++
			if accepted > 100 {
				t.Fatal("the queue has no bound")
			}
		}
		late := make(chan error)
		go func() { late <- h.append(numbered(accepted+1, 100)) }()
		synctest.Wait()
		close(release)
		if err := <-late; err != nil {
			t.Fatal(err)
		}
		for _, out := range outs {
			if err := <-out; err != nil {
				t.Error(err)
			}
		}
		h.Close()
		if got := h.numbers(); !slices.Equal(got, sequence(1, accepted+1)) {
			t.Errorf("delivered %v", got)
		}
	})
}

func TestBufferedIsAcknowledgedBeforeTheSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := disk.NewFaulty(disk.NewMem())
		h := open(t, testOptions(f, 1))
		h.Start()
		h.mustAppend(numbered(1, 10))
		hold := make(chan struct{})
		f.Set(func(op disk.Op, _ string) error {
			if op == disk.OpSync {
				<-hold
			}
			return nil
		})
		before := h.Committed()
		buffered, err := h.send(&Batch{Entries: []Entry{numbered(2, 10)}, Buffered: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := <-buffered; err != nil {
			t.Fatal(err)
		}
		if h.Committed() != before || len(h.numbers()) != 1 {
			t.Error("a buffered batch is committed before its sync")
		}
		synced, err := h.send(&Batch{Entries: []Entry{numbered(3, 10)}})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(synced) != 0 {
			t.Error("acknowledged without a sync")
		}
		close(hold)
		if err := <-synced; err != nil {
			t.Fatal(err)
		}
		h.Close()
		if len(buffered) != 0 || !slices.Equal(h.numbers(), []int{1, 2, 3}) {
			t.Errorf("%d more acknowledgements, delivered %v", len(buffered), h.numbers())
		}
	})
}

func TestOneSyncServesAllWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(nil, 1)
		o.SegmentBytes, o.MaxBatchBytes, o.QueueBytes = 1<<20, 1<<20, 1<<20
		f := disk.NewFaulty(disk.NewMem())
		o.FS = f
		h := open(t, o)
		h.Start()
		h.mustAppend(numbered(1, 10))
		synctest.Wait()
		syncs, hold := 0, make(chan struct{})
		f.Set(func(op disk.Op, _ string) error {
			if op == disk.OpSync {
				if syncs++; syncs == 1 {
					<-hold
				}
			}
			return nil
		})
		var outs []<-chan error
		for n := 2; n <= 101; n++ {
			out, err := h.send(&Batch{Entries: []Entry{numbered(n, 10)}})
			if err != nil {
				t.Fatal(err)
			}
			outs = append(outs, out)
			synctest.Wait()
		}
		close(hold)
		for _, out := range outs {
			if err := <-out; err != nil {
				t.Fatal(err)
			}
		}
		if syncs != 2 {
			t.Errorf("%d syncs for 1 + 99 waiting batches", syncs)
		}
		f.Set(nil)
		h.Close()
	})
}

func TestDirectoryIsLocked(t *testing.T) {
	mem := disk.NewMem()
	h := open(t, testOptions(mem, 1))
	if _, err := tryOpen(t, testOptions(mem, 2)); !errors.Is(err, disk.ErrLocked) {
		t.Fatalf("second open: %v", err)
	}
	h.Close()
	open(t, testOptions(mem, 2)).Close()
}

func TestOpenRefusesWhatIsNotItsStore(t *testing.T) {
	var store *StoreError
	for name, breakIt := range map[string]func(m *disk.Mem, o *Options) error{
		"another group": func(_ *disk.Mem, o *Options) error { o.Group = "other"; return nil },
		"META gone":     func(m *disk.Mem, _ *Options) error { return m.Remove(testDir + "/" + metaName) },
		"segments gone": func(m *disk.Mem, _ *Options) error { return m.Remove(testDir + "/" + segmentName(0)) },
		"META overwritten": func(m *disk.Mem, _ *Options) error {
			f, err := m.Create(testDir + "/" + metaName)
			f.Close()
			return err
		},
		"no deliver": func(_ *disk.Mem, o *Options) error { o.Lanes = 256; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			mem := disk.NewMem()
			h := open(t, testOptions(mem, 1))
			h.Start()
			h.mustAppend(numbered(1, 10))
			h.Close()
			o := testOptions(mem, 2)
			if err := breakIt(mem, &o); err != nil {
				t.Fatal(err)
			}
			if _, err := tryOpen(t, o); !errors.As(err, &store) {
				t.Errorf("open: %v", err)
			}
			if l, err := mem.Lock(testDir + "/" + lockName); err != nil {
				t.Errorf("the failed open kept the lock: %v", err)
			} else {
				l.Close()
			}
		})
	}
}

func TestRestoredCopyIsAnotherLineage(t *testing.T) {
	mem := disk.NewMem()
	h := open(t, testOptions(mem, 1))
	h.Start()
	h.mustAppend(numbered(1, 10))
	h.Close()
	copied := mem.Crash(rand.New(rand.NewPCG(1, 1)))
	a, b := open(t, testOptions(mem, 2)), open(t, testOptions(copied, 3))
	ra, rb := a.Lineage()[1], b.Lineage()[1]
	if a.Incarnation() != b.Incarnation() || ra.Epoch != rb.Epoch || ra.First != rb.First || ra.ID == rb.ID {
		t.Errorf("lineages %+v and %+v", ra, rb)
	}
	if a.Lanes() != 4 || b.Epoch() != rb.Epoch {
		t.Errorf("lanes %d, epoch %d", a.Lanes(), b.Epoch())
	}
}

func TestLineageTableIsBounded(t *testing.T) {
	mem := disk.NewMem()
	o := testOptions(mem, 1)
	for range maxLineage + 20 {
		open(t, o).Close()
	}
	h := open(t, o)
	rows := h.Lineage()
	if len(rows) != maxLineage || rows[len(rows)-1].Epoch != maxLineage+21 {
		t.Errorf("%d rows, last %+v", len(rows), rows[len(rows)-1])
	}
}

func TestTrimRemovesWholeSegmentsAndSurvivesRestart(t *testing.T) {
	mem := disk.NewMem()
	h := open(t, testOptions(mem, 1))
	h.Start()
	at := map[int]record.Position{}
	for n := 1; n <= 40; n++ {
		b := &Batch{Entries: []Entry{numbered(n, 300)}}
		out, err := h.send(b)
		if err != nil {
			t.Fatal(err)
		}
		<-out
		at[n] = b.Entries[0].Position
	}
	used := mem.Used()
	begin, err := h.Trim(at[20])
	if err != nil || begin == 0 || begin > at[20] || begin != h.Begin() {
		t.Fatalf("trim: %d, %v", begin, err)
	}
	if mem.Used() >= used {
		t.Error("no space was given back")
	}
	if again, err := h.Trim(at[20]); again != begin || err != nil {
		t.Errorf("second trim: %d, %v", again, err)
	}
	kept := scan(t, h.Log, 0)
	if kept[len(kept)-1] != 40 || kept[0] > 20 || kept[0] < 2 {
		t.Errorf("kept %v", kept)
	}
	if _, err := h.Trim(math.MaxUint64); err != nil {
		t.Fatal(err)
	}
	kept = scan(t, h.Log, 0)
	h.Close()
	if _, err := h.Trim(math.MaxUint64); !errors.Is(err, ErrClosed) {
		t.Errorf("trim after close: %v", err)
	}
	h = open(t, testOptions(mem, 2))
	if got := scan(t, h.Log, 0); !slices.Equal(got, kept) || len(kept) == 0 || h.Begin() == 0 {
		t.Errorf("kept %v, after restart %v from %d", kept, got, h.Begin())
	}
}

func TestSegmentTimesFrameTheirEntries(t *testing.T) {
	h := open(t, testOptions(disk.NewMem(), 1))
	h.Start()
	for n := 1; n <= 40; n++ {
		h.mustAppend(numbered(n, 300))
	}
	times, err := h.SegmentTimes(context.Background())
	if err != nil || len(times) < 3 {
		t.Fatalf("%v, %v", times, err)
	}
	for i, s := range times[1:] {
		first, err := h.ReadAt(s.Base+headerLen, 0)
		if err != nil {
			t.Fatal(err)
		}
		if want := time.UnixMilli(int64(numberOf(t, first, h.Incarnation()))); !s.First.Equal(want) || !times[i].Last.Equal(want) || times[i].End != s.Base {
			t.Errorf("segment %d: %+v after %+v, want %v", i+1, s, times[i], want)
		}
	}
	if last := times[len(times)-1]; last.End != h.Committed() || !last.Last.IsZero() {
		t.Errorf("segment in use: %+v", last)
	}
}

// The log also runs on the real disk: everything above is in memory.
func TestRealDisk(t *testing.T) {
	o := testOptions(disk.OS{}, 1)
	o.Dir = t.TempDir() + "/new/log"
	h := open(t, o)
	h.Start()
	for n := 1; n <= 50; n++ {
		h.mustAppend(numbered(n, 500))
	}
	if _, err := h.Trim(h.Committed() / 2); err != nil {
		t.Fatal(err)
	}
	want := scan(t, h.Log, 0)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := disk.OS.Open(disk.OS{}, o.Dir+"/"+spareName); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the spare segment stays: %v", err)
	}
	h = open(t, o)
	if got := scan(t, h.Log, 0); !slices.Equal(got, want) || len(got) == 0 {
		t.Errorf("after restart %v, want %v", got, want)
	}
}
