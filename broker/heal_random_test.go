package broker

import (
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/flow"
)

// TestHealingIsExactOrRefused runs random stores whose topics gain and lose
// queues, loses random files of their indexes and finds each entry under its
// number again, or a broker that does not open.
func TestHealingIsExactOrRefused(t *testing.T) {
	healed, refused := 0, 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		mem, limits := disk.NewMem(), testLimits()
		limits.SegmentBytes, limits.SnapshotEvery, limits.TrimEvery = 64<<10, time.Hour, 1000*time.Hour
		s := open(t, mem, "rz02-a-1", sample(t), limits)
		for round := range 8 {
			randomRound(s, rng, round, seed%2 == 0)
		}
		begin := s.log.Begin()
		if begin == 0 {
			t.Fatalf("seed %d: nothing was trimmed", seed)
		}
		want := inLog(t, s, begin)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		kept := copyOf(t, mem)
		files, err := kept.List("store/index")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if seed%3 != 0 && rng.IntN(3) > 0 {
				continue
			}
			if how := remove(t, kept); rng.IntN(2) == 0 {
				how(path.Join("store/index", f))
			} else {
				resize(t, kept, func(n int64) int64 { return rng.Int64N(n) })(path.Join("store/index", f))
			}
		}
		c := &station{t: t, fs: kept, node: s.node, topo: s.topo, limits: limits}
		b, err := Open(t.Context(), c.options())
		if err != nil {
			if !strings.Contains(err.Error(), "changed the queues") && !strings.Contains(err.Error(), "cannot be made anew") {
				t.Fatalf("seed %d: %v", seed, err)
			}
			refused++
			continue
		}
		c.Broker = b
		healed += min(b.healed, 1)
		got := inLog(t, c, begin)
		for at, e := range want {
			if got[at] != e {
				t.Errorf("seed %d: %s is %+v, was %+v", seed, at, got[at], e)
				break
			}
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d healed, %d refused", healed, refused)
	if healed == 0 || refused == 0 {
		t.Error("the stores do not differ enough to prove anything")
	}
}

// randomRound publishes, consumes, may apply a topology with other queues, and
// takes a snapshot and trims.
func randomRound(s *station, rng *rand.Rand, round int, changes bool) {
	s.t.Helper()
	for i := range 20 + rng.IntN(60) {
		id := fmt.Sprintf("%d-%d", round, i)
		m := s.message("orders", id)
		if rng.IntN(3) > 0 {
			m = s.message("transfer", id, "userId", []string{"20", "50"}[rng.IntN(2)])
		}
		m.Body = make([]byte, rng.IntN(1000))
		s.publish(m)
	}
	s.drain("orders-billing", "orders")
	s.drain("transfer-credit", "transfer")
	if changes && rng.IntN(3) == 0 {
		e := epoch(round + 2)
		s.topo = sample(s.t, e[0], e[1], "queues: 8", fmt.Sprintf("queues: %d", 1+rng.IntN(8)))
		if err := s.ApplyTopology(s.t.Context(), s.topo); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, o := range s.Status().Outgoing { // as if they had landed
		if o.Head > o.Cursor && (round < 6 || rng.IntN(2) == 0) {
			leg := flow.Leg{Flow: o.Flow, City: o.City, Group: o.Group}
			if err := s.Settle(s.t.Context(), leg, flow.Settlement{Through: o.Head}); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	s.flushProgress(s.t.Context())
	if err := s.snapshot(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	if err := s.trim(time.Now().Add(10_000 * time.Hour)); err != nil {
		s.t.Fatal(err)
	}
}
