package broker

import (
	"flag"
	"fmt"
	"path"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

var retained = flag.Int("retained", 100_000, "messages that BenchmarkRestart finds in the store")

// BenchmarkPublish stores messages of 1 KiB on the real disk, durably, from
// several publishers at once, one and several messages in a call.
func BenchmarkPublish(b *testing.B) {
	for _, publishers := range []int{1, 16, 256} {
		for _, batch := range []int{1, 32} {
			b.Run(fmt.Sprintf("publishers=%d/batch=%d", publishers, batch), func(b *testing.B) {
				s := openBench(b)
				var left atomic.Int64
				var wg sync.WaitGroup
				left.Store(int64(b.N))
				b.SetBytes(int64(1024 * batch))
				b.ResetTimer()
				for range publishers {
					wg.Go(func() {
						msgs, out := benchMessages(s, batch, 1024), make([]PublishResult, batch)
						for left.Add(-1) >= 0 {
							if err := s.Publish(b.Context(), msgs, out); err != nil || out[0].Err != nil {
								b.Error(err, out[0].Err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "messages/s")
			})
		}
	}
}

// A publish allocates for itself nothing that grows with its messages: what is
// left is the log's buffer and what the fold keeps now and then.
func TestPublishAllocatesLittle(t *testing.T) {
	s := openBench(t)
	for _, batch := range []int{1, 32} {
		msgs, out := benchMessages(s, batch, 1024), make([]PublishResult, batch)
		got := testing.AllocsPerRun(200, func() {
			if err := s.Publish(t.Context(), msgs, out); err != nil || out[0].Err != nil {
				t.Fatal(err, out[0].Err)
			}
		})
		// A publication takes six, which a pool may forget at any time.
		if limit := 20.0; got > limit {
			t.Errorf("%d messages: %v allocations, the limit is %v", batch, got, limit)
		}
	}
}

func openBench(b testing.TB) *station { return openBenchOf(b, sample(b)) }

func openBenchOf(b testing.TB, topo *zone.Topology) *station {
	s := &station{t: b, fs: disk.OS{}, node: "rz02-a-1", topo: topo}
	o := s.options()
	o.Dir, o.Logger = b.TempDir(), nil
	broker, err := Open(b.Context(), o)
	if err != nil {
		b.Fatal(err)
	}
	s.Broker = broker
	b.Cleanup(func() { broker.Close() })
	return s
}

func benchMessages(s *station, n, size int) []Message {
	msgs := make([]Message, n)
	for i := range msgs {
		msgs[i] = s.message("orders", fmt.Sprintf("01AABBCCDDEEFF%020d", i))
		msgs[i].Body = make([]byte, size)
	}
	return msgs
}

// BenchmarkRestart opens a store with many retained messages of 200 bytes:
// closed in good order, and killed (the log behind the newest snapshot is
// folded again). The number of retained messages is a flag, -retained.
func BenchmarkRestart(b *testing.B) {
	s := openBench(b)
	o := s.options()
	o.Dir, o.Logger = s.dir, nil
	fillStore(b, s, *retained)
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	reopen := func(b *testing.B, before func()) {
		for range b.N {
			b.StopTimer()
			before()
			b.StartTimer()
			began := time.Now()
			broker, err := Open(b.Context(), o)
			if err != nil {
				b.Fatal(err)
			}
			took := time.Since(began)
			b.StopTimer()
			if err := broker.Close(); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			b.ReportMetric(took.Seconds(), "s/open")
		}
	}
	newest, err := s.snapshotNames()
	if err != nil || len(newest) < 2 {
		b.Fatalf("snapshots %v, %v: too few messages", newest, err)
	}
	b.Run("killed", func(b *testing.B) {
		// Without the snapshot of the good close it is as after a kill: what came
		// since the one before is folded again.
		reopen(b, func() {
			names, err := s.snapshotNames()
			for _, n := range names {
				if n >= newest[0] && err == nil {
					err = s.fs.Remove(path.Join(s.dir, n))
				}
			}
			if err != nil {
				b.Fatal(err)
			}
		})
	})
	b.Run("closed", func(b *testing.B) { reopen(b, func() {}) })
}

func fillStore(b *testing.B, s *station, n int) {
	const batch, ahead = 1000, 8
	began := time.Now()
	errs := make(chan error, ahead)
	var left atomic.Int64
	left.Store(int64(n))
	for range ahead {
		go func() {
			msgs, out := benchMessages(s, batch, 200), make([]PublishResult, batch)
			for left.Add(-batch) >= 0 {
				if err := s.Publish(b.Context(), msgs, out); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range ahead {
		if err := <-errs; err != nil {
			b.Fatal(err)
		}
	}
	b.Logf("%d messages stored in %s, log of %d bytes", n, time.Since(began).Round(time.Millisecond), s.log.Committed())
}

// BenchmarkPublishOnce compares messages of an idempotent topic, each with an id of
// its own, with those of another topic.
func BenchmarkPublishOnce(b *testing.B) {
	for _, c := range []struct {
		name string
		topo *zone.Topology
	}{{"plain", sample(b)}, {"idempotent", onceSample(b)}} {
		for _, batch := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/batch=%d", c.name, batch), func(b *testing.B) {
				s := openBenchOf(b, c.topo)
				var n atomic.Int64
				var wg sync.WaitGroup
				b.ReportAllocs()
				b.ResetTimer()
				for range 16 {
					wg.Go(func() {
						msgs, out := benchMessages(s, batch, 1024), make([]PublishResult, batch)
						for {
							first := n.Add(int64(batch)) - int64(batch)
							if first >= int64(b.N*batch) {
								return
							}
							for i := range msgs {
								msgs[i].ID = fmt.Sprintf("01AABBCCDDEEFF%020d", first+int64(i))
							}
							if err := s.Publish(b.Context(), msgs, out); err != nil || out[0].Err != nil {
								b.Error(err, out[0].Err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "messages/s")
			})
		}
	}
}
