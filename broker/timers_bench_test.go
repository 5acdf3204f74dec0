package broker

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// BenchmarkDelayed publishes b.N messages of 1 KiB with random delays up to 30 days,
// which then all fall due at once. It reports messages a second of both, and the
// memory while all wait. Run it with -benchtime=1000000x for what the README says.
func BenchmarkDelayed(b *testing.B) {
	var step atomic.Int64
	o := Options{FS: disk.OS{}, Dir: b.TempDir(), Topology: delayed(b), Limits: Limits{},
		Wall: func() time.Time { return time.Now().Add(time.Duration(step.Load())).Round(0) }}
	o.Node = o.Topology.FindNode("rz02-a-1")
	s, err := Open(b.Context(), o)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	topic := s.Topology().FindTopic("orders")
	body := make([]byte, 1<<10)
	b.ResetTimer()
	began := time.Now()
	var next atomic.Int64
	var wg sync.WaitGroup
	for worker := range uint64(8) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(worker, 1))
			msgs, out := make([]Message, 32), make([]PublishResult, 32)
			for {
				n := min(int(next.Add(32)-32), b.N)
				n = min(32, b.N-n)
				if n <= 0 {
					return
				}
				for i := range n {
					at := time.Now().Add(time.Minute + time.Duration(rng.Int64N(int64(29*24*time.Hour))))
					msgs[i] = Message{Topic: topic, ID: fmt.Sprintf("01%032X", rng.Uint64()), Queue: AnyQueue, Body: body, DeliverAt: at}
				}
				if err := s.Publish(b.Context(), msgs[:n], out); err != nil || out[0].Err != nil {
					b.Error(err, out[0].Err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "published/s")
	if err := s.snapshot(b.Context()); err != nil {
		b.Fatal(err)
	}
	heap, rss := memory()
	b.ReportMetric(float64(heap)/1e6, "heap-MB")
	b.ReportMetric(float64(rss)/1e6, "rss-MB")
	step.Store(int64(30 * 24 * time.Hour))
	for !pollUntil(func() bool { _, n := s.clock.Trial(); return n > 0 }) {
	}
	began = time.Now()
	for !pollUntil(func() bool { return s.Status().Timers.Pending == 0 }) {
	}
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "due/s")
	_, rss = memory()
	b.ReportMetric(float64(rss)/1e6, "rss-after-MB")
	b.ReportMetric(0, "ns/op")
}

// pollUntil looks once, a little later.
func pollUntil(done func() bool) bool {
	if done() {
		return true
	}
	<-time.After(10 * time.Millisecond)
	return false
}

// BenchmarkDelayedLateness reports how late messages are of which one falls due every
// few milliseconds, on a real clock and disk.
func BenchmarkDelayedLateness(b *testing.B) {
	o := Options{FS: disk.OS{}, Dir: b.TempDir(), Topology: delayed(b)}
	o.Node = o.Topology.FindNode("rz02-a-1")
	s, err := Open(b.Context(), o)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	st := &station{Broker: s, t: b}
	for i := range b.N {
		st.publish(st.later("orders", fmt.Sprint(i), 2*time.Second+time.Duration(i)*5*time.Millisecond))
	}
	for !pollUntil(func() bool { return s.Status().Timers.Pending == 0 }) {
	}
	var late []time.Duration
	for _, a := range st.arrived("orders") {
		late = append(late, a.stored.Sub(a.deliverAt))
	}
	slices.Sort(late)
	b.ReportMetric(float64(late[len(late)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(late[len(late)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(late[len(late)-1].Microseconds())/1000, "max-ms")
	b.ReportMetric(0, "ns/op")
}

// memory returns the live heap and the resident set in bytes; 0 where there is none.
func memory() (heap uint64, rss uint64) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	text, _ := os.ReadFile("/proc/self/status") // Linux only
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			_, _ = fmt.Sscanf(strings.TrimSpace(n), "%d", &rss)
		}
	}
	return m.HeapAlloc, rss << 10
}
