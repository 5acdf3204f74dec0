package flow

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// arrivals sends n records of one flow that come at a rate, and tells what became
// of them.
type arrivals struct {
	frames  int
	bytes   int             // payloads of the batches
	waited  []time.Duration // of each record from its commit to its frame, ascending
	records int
}

func (a *arrivals) p(part float64) time.Duration { return a.waited[int(float64(len(a.waited)-1)*part)] }

// watched tells of the frames that are sent on a stream, and lets them be changed.
type watched struct {
	wire.Stream
	sent func(f *wire.Frame)
}

func (s *watched) Send(ctx context.Context, f wire.Frame) error {
	s.sent(&f)
	return s.Stream.Send(ctx, f)
}

func arrive(t *testing.T, class zone.Class, city zone.City, every func(i int) time.Duration, n int) *arrivals {
	a := &arrivals{}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorld(t, ctx, 1, Limits{MinWindow: 8 << 20})
		w.origin.kill()
		w.net.set(func() { w.net.depth, w.net.delay = 4096, 50*time.Millisecond })
		leg := Leg{Flow: record.FlowID{Origin: "a", Incarnation: 1, Target: "b", Class: class}, City: "B", Group: "b"}
		w.src.addFlow(leg.Flow, leg)
		w.src.restart()
		at := make([]time.Time, 0, n)
		o, err := NewOutbox(OutboxOptions{Source: w.src, City: city, Rand: rand.New(rand.NewPCG(1, 4)),
			Dialer: dialFunc(func(ctx context.Context, leg Leg, session uint64) (wire.Stream, error) {
				s, err := w.net.Open(ctx, leg, session)
				return &watched{s, func(f *wire.Frame) {
					if f.Type != wire.TypeBatch {
						return
					}
					b, err := wire.ParseBatch(f.Payload)
					if err != nil {
						t.Error(err)
					}
					w.mu.Lock()
					defer w.mu.Unlock()
					a.frames++
					a.bytes += len(f.Payload)
					for i := range b.Count {
						a.waited = append(a.waited, time.Since(at[b.First-1+uint64(i)]))
					}
				}}, err
			})})
		if err != nil {
			t.Fatal(err)
		}
		p := start(ctx)
		p.wg.Go(func() { _ = o.Run(p.ctx) })
		publish := func() {
			w.mu.Lock()
			at = append(at, time.Now())
			w.mu.Unlock()
			w.src.publish(leg.Flow, "ok", 100)
		}
		publish()
		time.Sleep(time.Second) // the session is open
		w.mu.Lock()
		a.frames, a.bytes, a.waited = 0, 0, nil
		w.mu.Unlock()
		for i := range n {
			publish()
			time.Sleep(every(i))
		}
		w.until(time.Second, func() bool { return w.src.settled(leg) == uint64(n+1) })
		p.kill()
		cancel()
		w.stop()
	})
	a.records = len(a.waited)
	slices.Sort(a.waited)
	return a
}

// poisson returns gaps of random arrivals, so many a second.
func poisson(rate float64) func(int) time.Duration {
	rng := rand.New(rand.NewPCG(9, 9))
	return func(int) time.Duration { return time.Duration(rng.ExpFloat64() / rate * 1e9) }
}

func TestRecordsThatComeOftenShareFrames(t *testing.T) {
	for _, c := range []struct {
		rate   float64
		join   float64       // records a frame, at least
		atMost time.Duration // that a record waits
	}{
		{500, 1, 0},
		{1000, 1, lingerFor},
		{4000, 4, lingerFor},
		{8000, 7, lingerFor},
		{20000, 14, lingerFor},
	} {
		a := arrive(t, zone.ClassBulk, "A", poisson(c.rate), 3000)
		t.Logf("%.0f records/s: %.2f records and %d bytes a frame; waited p50 %v p99 %v max %v",
			c.rate, float64(a.records)/float64(a.frames), a.bytes/a.frames, a.p(.5), a.p(.99), a.p(1))
		if got := float64(a.records) / float64(a.frames); got < c.join {
			t.Errorf("%.0f records/s: %.2f records a frame, want %.2f", c.rate, got, c.join)
		}
		if a.p(1) > c.atMost {
			t.Errorf("%.0f records/s: a record waited %v", c.rate, a.p(1))
		}
		if c.rate <= 1000 && a.p(.9) > 0 {
			t.Errorf("%.0f records/s: records waited for what hardly comes, p90 %v", c.rate, a.p(.9))
		}
	}
}

func TestUrgentAndNearRecordsWaitOnlyBehindManyOthers(t *testing.T) {
	for _, c := range []struct {
		class  zone.Class
		city   zone.City
		rate   float64
		atMost time.Duration
	}{
		{zone.ClassUrgent, "A", 2000, 0},
		{zone.ClassBulk, "B", 2000, 0},
		{zone.ClassUrgent, "A", 8000, lingerFor}, // 800 batches in 100 ms, if each had one record
	} {
		a := arrive(t, c.class, c.city, poisson(c.rate), 3000)
		if a.p(1) > c.atMost {
			t.Errorf("class %v from %s, %.0f a second: a record waited %v", c.class, c.city, c.rate, a.p(1))
		}
		if c.atMost > 0 && a.p(1) == 0 {
			t.Errorf("class %v, %.0f a second: nothing waited, and %d frames left", c.class, c.rate, a.frames)
		}
	}
}

func TestLoneRecordsAndCommitsOfManyDoNotWait(t *testing.T) {
	// After a burst that taught the lane to wait: one a second.
	a := arrive(t, zone.ClassBulk, "A", func(i int) time.Duration {
		if i < 3999 {
			return 100 * time.Microsecond
		}
		return time.Second
	}, 4010)
	late := 0
	for _, w := range a.waited {
		if w > 0 {
			late++
		}
	}
	if late == 0 || late > 4000 {
		t.Errorf("%d of %d records waited; the last ten came alone", late, a.records)
	}
	// A log that commits every 2 ms: nothing comes in between.
	if a := arrive(t, zone.ClassBulk, "A", func(i int) time.Duration {
		if i%20 == 19 {
			return 2 * time.Millisecond
		}
		return 0
	}, 4000); a.p(1) > 0 {
		t.Errorf("a record waited %v for a commit that was not near", a.p(1))
	}
}

func TestLingerStopsWhenWaitingFindsNothing(t *testing.T) {
	now := time.Unix(1, 0)
	var g linger
	for range 200 {
		now = now.Add(200 * time.Microsecond)
		g.sent(now, false)
	}
	if !g.worth(now) {
		t.Fatal("records every 200 µs are not waited for")
	}
	if g.worth(now.Add(3 * lingerFor)) {
		t.Error("a record after a silence waits")
	}
	waits := 0
	for g.on && waits < 100 {
		waits++
		g.begin(now, 1)
		now = now.Add(lingerFor)
		g.end(1, uint64(waits))
		g.sent(now, false)
	}
	if waits > lingerPart {
		t.Errorf("%d waits in vain", waits)
	}
}
