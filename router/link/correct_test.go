package link

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/router/link/fec"
	"github.com/mqrouter/mqrouter/zone"
)

// corrected turns correction on with a seed.
func corrected(o *Options) {
	o.Correction = &fec.Options{Rand: rand.New(rand.NewPCG(3, uint64(o.Incarnation)))}
}

// losing loses a share of all packets, in both directions.
func losing(seed uint64, share float64) func(simnet.Packet) bool {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 0))
	return func(simnet.Packet) bool {
		mu.Lock()
		defer mu.Unlock()
		return rng.Float64() < share
	}
}

// framed reports whether a packet is a frame of the correction layer.
func framed(p simnet.Packet) bool { return p.Data[0]&0xc0 == 0 }

// echoes sends so many frames over a session with the node, one every gap, and
// returns how long each took there and back, in the order of sending.
func echoes(t *testing.T, a *node, to zone.Node, n int, gap time.Duration) []time.Duration {
	t.Helper()
	s, err := a.Open(to, zone.ClassUrgent, 1)
	if err != nil {
		t.Fatal(err)
	}
	sentAt := make([]atomic.Int64, n)
	start := time.Now()
	go func() {
		for i := range n {
			sentAt[i].Store(int64(time.Since(start)))
			if s.Send(t.Context(), frame(1, fmt.Sprint(i))) != nil {
				return
			}
			time.Sleep(gap)
		}
	}()
	took := make([]time.Duration, n)
	for i := range n {
		f, err := s.Recv(t.Context())
		if err != nil || string(f.Payload) != fmt.Sprint(i) {
			t.Fatalf("frame %d: %q, %v", i, f.Payload, err)
		}
		took[i] = time.Since(start) - time.Duration(sentAt[i].Load())
	}
	return took
}

// repeats returns how often something was late by more than bound: all that comes
// behind a packet that has to be sent again waits with it, and is late once. The
// rest is returned sorted.
func repeats(took []time.Duration, bound time.Duration) (n int, rest []time.Duration) {
	late := false
	for _, d := range took {
		if d > bound && !late {
			n++
		}
		if late = d > bound; !late {
			rest = append(rest, d)
		}
	}
	slices.Sort(rest)
	return n, rest
}

// TestCorrectionSparesRoundTrips: of 20,000 packets there and back 200 are lost, and
// correction leaves few of a million, each of which makes all within a round trip
// wait. Which those are the seed does not decide alone; one run in 40 has one.
func TestCorrectionSparesRoundTrips(t *testing.T) {
	const oneWay = 25 * time.Millisecond
	late := func(change func(*Options)) (n int, p99 time.Duration, st Status) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, oneWay)
			defer w.close()
			a, b := w.pair(nil, change)
			w.until(time.Second, "up", up(a, b))
			w.setDrop(losing(5, 0.01))
			echoes(t, a, "b", 3000, 2*time.Millisecond) // the loss is measured
			took := echoes(t, a, "b", 5000, 2*time.Millisecond)
			var rest []time.Duration
			n, rest = repeats(took, 2*oneWay+20*time.Millisecond)
			p99 = rest[len(rest)*99/100] - 2*oneWay
			st = statusOf(a, "b")
		})
		return n, p99, st
	}
	n, p99, st := late(corrected)
	bare, bare99, _ := late(nil)
	t.Logf("more than 20 ms beyond the round trip %d times, the rest p99 %v; without correction %d, %v; %+v", n, p99, bare, bare99, st.Correction)
	if n > 2 || p99 > 10*time.Millisecond {
		t.Errorf("late %d times, p99 %v beyond the round trip, want at most 2 and 10 ms", n, p99)
	}
	if bare < 30 {
		t.Errorf("late %d times without correction: the losses cost nothing", bare)
	}
	c := st.Correction
	if !c.On || c.Recovered == 0 || c.Loss < 0.005 || c.Loss > 0.02 || c.Congested {
		t.Errorf("status %+v, want 1 %% loss, corrected", c)
	}
}

func TestCorrectionOfOneSideChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 10*time.Millisecond)
		defer w.close()
		var frames atomic.Int64
		w.setDrop(func(p simnet.Packet) bool {
			if framed(p) {
				frames.Add(1)
			}
			return false
		})
		a := w.start("a", "amsterdam", 11, nil, corrected)
		b := w.start("b", "berlin", 12, nil, nil)
		a.SetPeers([]Peer{b.peer})
		b.SetPeers([]Peer{a.peer})
		w.until(time.Second, "up", up(a, b))
		echoes(t, a, "b", 100, time.Millisecond)
		if n := frames.Load(); n != 0 {
			t.Errorf("%d frames went to or from a peer that takes none", n)
		}
		if s := statusOf(a, "b"); s.Correction.On {
			t.Errorf("status %+v, want correction off", s.Correction)
		}
	})
}

func TestCleanPathSoonGetsNoParity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 10*time.Millisecond)
		defer w.close()
		a, b := w.pair(nil, corrected)
		w.until(time.Second, "up", up(a, b))
		echoes(t, a, "b", 15000, time.Millisecond) // until what is assumed of a new path is forgotten
		before := statusOf(a, "b").Correction
		echoes(t, a, "b", 2000, time.Millisecond)
		if c := statusOf(a, "b").Correction; !c.On || c.ParitySent != before.ParitySent || c.Sent < before.Sent+2000 {
			t.Errorf("status %+v after %+v, want frames and no parity", c, before)
		}
	})
}

// again is a new start of a node on the socket of the one before, which goes
// without a word.
func again(w *world, old *node, incarnation record.Incarnation) *node {
	w.setDrop(func(p simnet.Packet) bool { return p.From.String() == old.peer.Addr })
	old.cancel()
	old.done <- <-old.done // for close
	w.setDrop(nil)
	n := w.start(old.peer.Node, old.peer.City, incarnation, nil, func(o *Options) {
		corrected(o)
		o.PacketConn = old.sock
	})
	n.peer, n.sock = old.peer, old.sock
	return n
}

// TestRestartedPeerIsNotSpokenToInFramesOfBefore: what the other end still knows
// of an earlier start must not keep the new one from greeting.
func TestRestartedPeerIsNotSpokenToInFramesOfBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 20*time.Millisecond)
		defer w.close()
		a, b := w.pair(nil, corrected)
		w.until(time.Second, "up", func() bool { return up(a, b)() && up(b, a)() })
		if !statusOf(a, "b").Correction.On {
			t.Fatal("correction is off")
		}
		for round := range 3 {
			b = again(w, b, record.Incarnation(13+round))
			b.SetPeers([]Peer{a.peer})
			took := w.until(time.Second, "back", up(b, a))
			t.Logf("the new start was up after %v", took)
			w.until(time.Second, "corrected", func() bool {
				return statusOf(b, "a").Correction.On && statusOf(a, "b").Correction.On
			})
			echoes(t, b, "a", 50, time.Millisecond)
		}
	})
}
