package consumer

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestParallelTakesShareTheMessages lets receivers with filters that answer
// everything run beside a publisher, a timekeeper and a collector: each message
// is settled exactly once.
func TestParallelTakesShareTheMessages(t *testing.T) {
	const queues, each = 3, 1500
	var alive atomic.Bool
	d := fresh(Options{MaxAttempts: 1 << 20, MaxInFlight: 500, Alive: func(string, uint64) bool { return alive.Load() }}, queues, 0)
	var clock atomic.Int64
	var settles [queues][each]int // as told by deltas
	var left atomic.Int64
	left.Store(queues * each)
	var wg sync.WaitGroup
	for seed := range uint64(4) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 5))
			var got []Taken
			for left.Load() > 0 {
				now := Instant(clock.Load())
				got, _ = d.Take(TakeRequest{Now: now, Max: 16, Invisible: time.Minute, Renew: seed%2 == 0, Client: "c",
					Match: func(q uint16, o uint64) Verdict {
						switch rng.IntN(20) {
						case 0:
							return Skip
						case 1:
							return Later
						case 2:
							return Stop
						}
						return Deliver
					}}, got[:0])
				for _, m := range got {
					switch rng.IntN(8) {
					case 0: // forgotten: comes back
					case 1:
						d.ChangeInvisible(now, m.Queue, m.Offset, m.Delivery, time.Second)
					default:
						d.Ack(now, m.Queue, m.Offset, m.Delivery) // may be late
					}
				}
				runtime.Gosched()
			}
		})
	}
	wg.Go(func() {
		for n := range uint64(each) {
			for q := range queues {
				d.Advance(uint16(q), n+1)
			}
		}
	})
	p := NewProgress()
	wg.Go(func() {
		for left.Load() > 0 {
			now := Instant(clock.Add(int64(10 * time.Second)))
			alive.Store(now/minute%2 == 0)
			d.Expire(now)
			g, _ := d.Collect(now, wall0)
			p.Apply(Delta{Groups: []GroupDelta{g}})
			for _, c := range g.Queues {
				for _, r := range c.Acked {
					for o := r.From; o < r.To; o++ {
						settles[c.Queue][o]++
						left.Add(-1)
					}
				}
			}
			runtime.Gosched()
		}
	})
	wg.Wait()
	for q := range queues {
		for o := range each {
			if n := settles[q][o]; n != 1 {
				t.Errorf("%d/%d was settled %d times", q, o, n)
			}
		}
		if lag := p.Lag("g", "t", uint16(q), each); lag != 0 {
			t.Errorf("lag of queue %d is %d", q, lag)
		}
	}
	if s := d.Stats(); s != (Stats{}) {
		t.Errorf("left: %+v", s)
	}
}

// TestTakeAndAckDoNotAllocate holds the hot path to its promise.
func TestTakeAndAckDoNotAllocate(t *testing.T) {
	d := fresh(Options{}, 8, 0)
	end := uint64(0)
	var got []Taken
	round := func() {
		end += 4
		for q := range uint16(8) {
			d.Advance(q, end)
		}
		got, _ = d.Take(TakeRequest{Max: 32, Invisible: time.Minute}, got[:0])
		for _, m := range got {
			if err := d.Ack(0, m.Queue, m.Offset, m.Delivery); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(100, round); n > 0 {
		t.Errorf("%v allocations a round of 32 messages", n)
	}
}

func BenchmarkTakeAndAck(b *testing.B) {
	for name, held := range map[string]int{"idle": 0, "90000 in flight": 90_000} {
		b.Run(name, func(b *testing.B) {
			d := fresh(Options{}, 8, uint64(held))
			for range held / 1000 {
				take(d, 0, 1000)
			}
			end := uint64(held)
			var got []Taken
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				end += 4
				for q := range uint16(8) {
					d.Advance(q, end)
				}
				got, _ = d.Take(TakeRequest{Now: 1, Max: 32, Invisible: time.Minute}, got[:0])
				for _, m := range got {
					if err := d.Ack(1, m.Queue, m.Offset, m.Delivery); err != nil {
						b.Fatal(err)
					}
				}
				if n += len(got); n%4096 == 0 {
					d.Collect(1, wall0)
				}
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

func BenchmarkApply(b *testing.B) {
	p := NewProgress()
	var buf []byte
	var at uint64
	b.ReportAllocs()
	for b.Loop() {
		d := Delta{Groups: []GroupDelta{{Group: "g", Topic: "t", Queues: []QueueDelta{{Queue: 1, Acked: []Range{{at, at + 30}, {at + 31, at + 33}}}}}}}
		buf = d.Append(buf[:0])
		d, err := ParseDelta(buf)
		if err != nil {
			b.Fatal(err)
		}
		p.Apply(d)
		at += 32
	}
}
