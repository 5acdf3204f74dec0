package commitlog

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// benchBody is the message size that the project's targets name.
const benchBody = 1 << 10

func benchLog(b *testing.B, deliver func(*Committed)) *Log {
	b.Helper()
	l, err := Open(context.Background(), Options{
		FS: disk.OS{}, Dir: b.TempDir(), Group: testGroup, Deliver: deliver,
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	l.Start()
	return l
}

// BenchmarkAppend is the rate of durable appends of one 1 KiB record by
// concurrent appenders who each wait for their own. Compare with BenchmarkRaw,
// the same sizes through a bare loop of pwrite and fdatasync.
func BenchmarkAppend(b *testing.B) {
	for _, appenders := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("appenders=%d", appenders), func(b *testing.B) {
			var left, syncs atomic.Int64
			l := benchLog(b, func(*Committed) { syncs.Add(1) })
			left.Store(int64(b.N))
			b.ReportAllocs()
			b.SetBytes(benchBody)
			b.ResetTimer()
			var wg sync.WaitGroup
			for range appenders {
				wg.Go(func() {
					done := make(chan error, 1)
					batch := &Batch{Entries: make([]Entry, 1), Done: func(_ *Batch, err error) { done <- err }}
					own := numbered(1, benchBody)
					for left.Add(-1) >= 0 {
						batch.Entries[0] = own
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
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
			b.ReportMetric(float64(b.N)/float64(max(syncs.Load(), 1)), "msg/sync")
		})
	}
}

// BenchmarkAppendBatch is BenchmarkAppend with the records in batches of the
// sizes of BenchmarkRaw's groups, from two appenders: one fills its next batch
// while the log writes the other's.
func BenchmarkAppendBatch(b *testing.B) {
	for _, size := range []int{16, 256} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			var left, syncs atomic.Int64
			l := benchLog(b, func(*Committed) { syncs.Add(1) })
			left.Store(int64(b.N))
			b.ReportAllocs()
			b.SetBytes(benchBody)
			b.ResetTimer()
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					done := make(chan error, 1)
					batch := &Batch{Entries: make([]Entry, size), Done: func(_ *Batch, err error) { done <- err }}
					own := numbered(1, benchBody)
					for left.Add(int64(-size)) > int64(-size) {
						for i := range batch.Entries {
							batch.Entries[i] = own
						}
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
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
			b.ReportMetric(float64(b.N)/float64(max(syncs.Load(), 1)), "msg/sync")
		})
	}
}

// BenchmarkRaw writes groups of 1, 16 and 256 frames into a preallocated file,
// each with one pwrite and one fdatasync: what the disk gives to a group commit
// that costs nothing else.
func BenchmarkRaw(b *testing.B) {
	for _, group := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("group=%d", group), func(b *testing.B) {
			const size = 64 << 20
			f, err := disk.OS{}.Create(b.TempDir() + "/raw")
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			if err := f.Preallocate(size); err != nil {
				b.Fatal(err)
			}
			if err := f.Sync(); err != nil {
				b.Fatal(err)
			}
			e := numbered(1, benchBody)
			buf := make([]byte, group*frameSize(len(e.Record)))
			for i := range buf {
				buf[i] = byte(i)
			}
			b.SetBytes(benchBody)
			b.ResetTimer()
			off := int64(0)
			for n := 0; n < b.N; n += group {
				if off+int64(len(buf)) > size {
					if err := f.Truncate(0); err != nil {
						b.Fatal(err)
					}
					if err := f.Preallocate(size); err != nil {
						b.Fatal(err)
					}
					off = 0
				}
				if _, err := f.WriteAt(buf, off); err != nil {
					b.Fatal(err)
				}
				if err := f.Sync(); err != nil {
					b.Fatal(err)
				}
				off += int64(len(buf))
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

// BenchmarkReadAt reads random old entries (page cache) and recent ones (tail).
func BenchmarkReadAt(b *testing.B) {
	l := benchLog(b, func(*Committed) {})
	var positions []Entry
	done := make(chan error, 1)
	for range 200 {
		batch := &Batch{Entries: make([]Entry, 256), Done: func(_ *Batch, err error) { done <- err }}
		for i := range batch.Entries {
			batch.Entries[i] = numbered(1, benchBody)
		}
		if err := l.Append(context.Background(), batch); err != nil {
			b.Fatal(err)
		}
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		for _, e := range batch.Entries {
			positions = append(positions, Entry{Position: e.Position, Size: e.Size})
		}
	}
	for name, part := range map[string][]Entry{"disk": positions[:1000], "tail": positions[len(positions)-1000:]} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for n := range b.N {
				e := part[n*7%len(part)]
				if _, err := l.ReadAt(e.Position, e.Size); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("scan", func(b *testing.B) {
		count := 0
		for count < b.N {
			if err := l.Scan(context.Background(), 0, positions[len(positions)-1].Position, func(Entry) error {
				count++
				return nil
			}); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(count)/b.Elapsed().Seconds(), "entries/s")
	})
}

// An append costs a bounded number of allocations for each write, none for each
// entry.
func TestAppendAllocatesNothingPerEntry(t *testing.T) {
	o := testOptions(disk.NewMem(), 1)
	// Small segments: the next one is made ready beside the appends, and a disk in memory
	// allocates for each KiB of it.
	o.SegmentBytes, o.MaxBatchBytes, o.QueueBytes = 2<<20, 1<<20, 1<<20
	o.Deliver = func(*Committed) {}
	l, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.Start()
	const entries = 200
	done := make(chan error, 1)
	batch := &Batch{Entries: make([]Entry, entries), Done: func(_ *Batch, err error) { done <- err }}
	own := numbered(1, 100)
	append1 := func() {
		for i := range batch.Entries {
			batch.Entries[i] = own
		}
		if err := l.Append(context.Background(), batch); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	append1()
	if got := testing.AllocsPerRun(20, append1); got > 20 {
		t.Errorf("%.0f allocations for a batch of %d entries", got, entries)
	}
}
