package flow

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// flatSource is an endless flow of one record again and again.
type flatSource struct {
	id      record.FlowID
	leg     Leg
	rec     []byte
	head    uint64
	settled atomic.Uint64
	end     uint64
	done    chan struct{}
	changed chan struct{}
}

func (s *flatSource) Topology() *zone.Topology     { return nil }
func (s *flatSource) LegsChanged() <-chan struct{} { return s.changed }
func (s *flatSource) Legs() []Leg {
	if s.settled.Load() < s.head {
		return []Leg{s.leg}
	}
	return nil
}
func (s *flatSource) Origin(record.FlowID) (OriginState, bool) {
	return OriginState{Oldest: 1, Head: s.head, Lineage: []Mark{{1, 7, 1}}}, true
}
func (s *flatSource) Cursor(Leg) (uint64, Fingerprint) { return s.settled.Load(), Fingerprint{} }
func (s *flatSource) FingerprintAt(record.FlowID, uint64) (Fingerprint, bool) {
	return Fingerprint{}, false
}
func (s *flatSource) Read(_ Leg, from uint64, count, bytes int, dst []Item) ([]Item, error) {
	for n := from; n <= s.head && count > 0; n++ {
		if bytes -= len(s.rec); bytes < 0 && n > from {
			break
		}
		dst = append(dst, Item{Number: n, Record: s.rec})
		count--
	}
	return dst, nil
}
func (s *flatSource) Wait(record.FlowID, uint64) <-chan struct{} { return nil }
func (s *flatSource) Settle(_ context.Context, _ Leg, x Settlement) error {
	s.settled.Store(x.Through)
	if x.Through == s.end {
		close(s.done)
	}
	return nil
}

// flatSink commits in groups, as a log does, and keeps nothing.
type flatSink struct {
	settled atomic.Uint64
	queue   chan queued
}

func (s *flatSink) Group() zone.Group               { return "b" }
func (s *flatSink) Topology() *zone.Topology        { return nil }
func (s *flatSink) Incarnation() record.Incarnation { return 1 }
func (s *flatSink) Epoch() uint64                   { return 1 }
func (s *flatSink) Writable() error                 { return nil }
func (s *flatSink) Resume(record.FlowID) SinkState {
	n := s.settled.Load()
	return SinkState{Known: n > 0, Settled: n}
}
func (s *flatSink) Land(l Landing, done func(error)) error {
	s.queue <- queued{l, done}
	return nil
}
func (s *flatSink) Seal(context.Context, record.FlowID) (uint64, error) { return 0, nil }
func (s *flatSink) run() {
	for q := range s.queue {
		s.settled.Store(q.l.Through)
		q.done(nil)
	}
}

// dialFunc is a Dialer.
type dialFunc func(ctx context.Context, leg Leg, session uint64) (wire.Stream, error)

func (f dialFunc) Open(ctx context.Context, leg Leg, session uint64) (wire.Stream, error) {
	return f(ctx, leg, session)
}

// BenchmarkFlow sends records over one flow through a pipe; one op is one
// record settled at the origin.
func BenchmarkFlow(b *testing.B) {
	for _, size := range []int{100, 1024} {
		for _, far := range []bool{false, true} {
			b.Run(fmt.Sprintf("size=%d/compress=%v", size, far), func(b *testing.B) { benchmarkFlow(b, size, far, Limits{}) })
		}
	}
}

// BenchmarkFrameShare says what a record costs by how many share a frame.
func BenchmarkFrameShare(b *testing.B) {
	for _, n := range []int{1, 4, 16} {
		b.Run(fmt.Sprintf("records=%d", n), func(b *testing.B) { benchmarkFlow(b, 200, true, Limits{BatchNumbers: n}) })
	}
}

func benchmarkFlow(b *testing.B, size int, far bool, lim Limits) {
	id := record.FlowID{Origin: "a", Incarnation: 1, Target: "b", Class: zone.ClassBulk}
	body := make([]byte, size)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range body {
		body[i] = "0123456789abcdef"[rng.IntN(16)]
	}
	rec, err := record.AppendRecord(nil, &record.Record{
		Type: record.TypeMessage, Topic: "t", Kind: zone.KindNormal, Class: zone.ClassBulk, Target: "b", MessageID: "m", Body: body, Stored: time.Now(), Born: time.Now(),
	})
	if err != nil {
		b.Fatal(err)
	}
	src := &flatSource{id: id, leg: Leg{id, "B", "b"}, rec: rec, head: uint64(b.N), end: uint64(b.N), done: make(chan struct{}), changed: make(chan struct{}, 1)}
	sink := &flatSink{queue: make(chan queued, 1024)}
	in, err := NewInbox(InboxOptions{Sink: sink, City: "B", Limits: lim})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	p := start(ctx)
	go sink.run()
	own := zone.City("B")
	if far {
		own = "A"
	}
	o, err := NewOutbox(OutboxOptions{Source: src, City: own, Rand: rng, Limits: lim, Dialer: dialFunc(func(context.Context, Leg, uint64) (wire.Stream, error) {
		x, y := Pipe()
		p.wg.Go(func() { _ = in.Serve(ctx, y) })
		return x, nil
	})})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(rec)))
	b.ResetTimer()
	p.wg.Go(func() { _ = o.Run(ctx) })
	<-src.done
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
	cancel()
	p.wg.Wait()
	close(sink.queue)
}

// BenchmarkSmallChange says what it costs to pack and unpack a batch of one record
// with a dictionary, and what is sent of it then.
func BenchmarkSmallChange(b *testing.B) {
	enc, err := newEncoder()
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{200, 500, 1000} {
		d, err := train(memberSamples(b, 1, 64<<10/(size+300), size), enc)
		if err != nil {
			b.Fatal(err)
		}
		dec, err := newDictionaryDecoder(d.content)
		if err != nil {
			b.Fatal(err)
		}
		samples := memberSamples(b, 2, 256, size)
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			var raw, with, without int
			var buf, back []byte
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s := samples[i%len(samples)]
				buf = d.encoder.EncodeAll(s, buf[:0])
				if back, err = dec.DecodeAll(buf, slices.Grow(back[:0], len(s))); err != nil {
					b.Fatal(err)
				}
			}
			for _, s := range samples {
				raw, with = raw+len(s), with+len(d.encoder.EncodeAll(s, buf[:0]))
				without += sizeWithout(s, enc, &back)
			}
			n := float64(len(samples))
			b.ReportMetric(float64(raw)/n, "raw-B")
			b.ReportMetric(float64(without)/n, "without-B")
			b.ReportMetric(float64(with)/n, "with-B")
		})
		dec.Close()
	}
}
