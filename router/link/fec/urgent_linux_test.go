package fec

import (
	"io"
	mrand "math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// wait is what changes waited beyond the one-way delay, and what they cost.
type wait struct {
	p50, p99, p999 time.Duration
	bytes          float64 // on the wire, for each byte that QUIC alone had sent
	sent, got      Status
}

// changes sends 1,000 changes a second of 1 KiB over a path that loses what lose
// says of the datagrams there, and a share of those back; the first warm ones are
// not counted.
func changes(t *testing.T, oneWay time.Duration, n, warm int, lose func() bool, back float64) wait {
	t.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true")
	var out wait
	synctest.Test(t, func(t *testing.T) {
		out = sendChanges(t, oneWay, n, warm, lose, back)
	})
	return out
}

func sendChanges(t *testing.T, oneWay time.Duration, n, warm int, lose func() bool, back float64) wait {
	there := &bottleneck{rate: 1e9, delay: oneWay, queue: time.Second}
	rng := mrand.New(mrand.NewPCG(8, 8))
	home := &bottleneck{rate: 1e9, delay: oneWay, queue: time.Second, before: func() bool { return rng.Float64() < back }}
	var wire atomic.Int64
	l := &simLink{from: newSimUDP(1), to: newSimUDP(2)}
	l.from.route = func(_ *net.UDPAddr, size int, deliver func(*simUDP)) {
		wire.Add(int64(size))
		there.send(size, func() { deliver(l.to) })
	}
	l.to.route = func(_ *net.UDPAddr, size int, deliver func(*simUDP)) { home.send(size, func() { deliver(l.from) }) }
	a, b := l.correct(1)
	client, server := dial(t, a, b, l.to.addr)
	there.mu.Lock()
	there.before = lose
	there.mu.Unlock()

	took := make([]time.Duration, 0, n)
	start := time.Now().Add(time.Second)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s, err := server.AcceptStream(t.Context())
		msg := make([]byte, 1024)
		for err == nil && len(took) < n {
			if _, err = io.ReadFull(s, msg); err == nil {
				took = append(took, time.Since(start.Add(time.Duration(len(took))*time.Millisecond))-oneWay)
			}
		}
	}()
	s, err := client.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	var before Status
	var wireBefore int64
	for i := range n {
		time.Sleep(time.Until(start.Add(time.Duration(i) * time.Millisecond)))
		if i == warm {
			before, wireBefore = l.leases[0].Status(), wire.Load()
		}
		if _, err := s.Write(make([]byte, 1024)); err != nil {
			t.Fatal(err)
		}
	}
	after, spent := l.leases[0].Status(), wire.Load()-wireBefore
	<-done
	out := wait{sent: after, got: l.leases[1].Status()}
	extra := int64(after.Extra-before.Extra) + 28*int64(after.ParitySent-before.ParitySent)
	out.bytes = float64(spent) / float64(spent-extra)
	took = took[warm:]
	slices.Sort(took)
	out.p50, out.p99, out.p999 = took[len(took)/2], took[len(took)*99/100], took[len(took)*999/1000]
	_ = a.Close()
	_ = b.Close()
	for _, layer := range l.layers {
		layer.Close()
	}
	_, _ = l.from.Close(), l.to.Close()
	time.Sleep(time.Minute) // timers of quic-go that nobody joins
	synctest.Wait()
	return out
}

// losingRandomly loses a share of all datagrams.
func losingRandomly(seed uint64, share float64) func() bool {
	rng := mrand.New(mrand.NewPCG(seed, 1))
	return func() bool { return rng.Float64() < share }
}

// losingRuns loses so many datagrams in a row every so often.
func losingRuns(run int, every time.Duration) func() bool {
	var next time.Time
	left := 0
	return func() bool {
		if now := time.Now(); !now.Before(next) {
			if !next.IsZero() {
				left = run
			}
			next = now.Add(every)
		}
		left--
		return left >= 0
	}
}

func TestChangesDoNotWaitForWhatWasLost(t *testing.T) {
	w := changes(t, 15*time.Millisecond, 7000, 2000, losingRandomly(1, 0.01), 0.01)
	t.Logf("p50 %v, p99 %v, p99.9 %v, %.2f times the bytes; %+v", w.p50, w.p99, w.p999, w.bytes, w.sent)
	if w.p50 > time.Millisecond || w.p99 > 10*time.Millisecond || w.p999 > 20*time.Millisecond || w.bytes > 2.2 {
		t.Errorf("p50 %v, p99 %v, p99.9 %v beyond the one-way delay for %.2f times the bytes, want 1, 10 and 20 ms for 2.2", w.p50, w.p99, w.p999, w.bytes)
	}
	if w.sent.Loss < 0.005 || w.sent.ParitySent == 0 {
		t.Errorf("status %+v, want 1 %% loss, corrected", w.sent)
	}
}

// TestChangesDoNotWaitForARun: five datagrams lost in a row take a block's parity
// with it, if all of that follows at once.
func TestChangesDoNotWaitForARun(t *testing.T) {
	const oneWay = 15 * time.Millisecond
	lost, left := 0.0, 0.0
	var took []time.Duration
	for i := range 3 {
		w := changes(t, oneWay, 6000, 2000, losingRuns(5, time.Second+time.Duration(i)*333*time.Microsecond), 0)
		t.Logf("p50 %v, p99 %v, p99.9 %v, %.2f times the bytes; %+v", w.p50, w.p99, w.p999, w.bytes, w.sent)
		took = append(took, oneWay+w.p999)
		lost, left = lost+w.sent.Loss, left+w.sent.Residual
	}
	slices.Sort(took)
	if took[1] > 4*oneWay {
		t.Errorf("p99.9 %v, want at most two round trips", took[1])
	}
	if left > 0.45*lost {
		t.Errorf("of a share of %v lost %v stayed lost: the runs are not repaired", lost, left)
	}
}
