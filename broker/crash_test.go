package broker

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// moment is a power cut: what the disk kept, and what was acknowledged before.
type moment struct {
	op        int
	kept      *disk.Mem
	published int
	settled   map[string]bool // durable by a good close
}

// TestCrashAfterEveryOperation cuts the power after every change of the disk
// of a short story, and finds every acknowledged publish and nothing twice.
func TestCrashAfterEveryOperation(t *testing.T) {
	var mu sync.Mutex
	var moments []moment
	published, settled := 0, map[string]bool{}
	mem, rng, topo := disk.NewMem(), rand.New(rand.NewPCG(5, 6)), sample(t)
	limits := Limits{SegmentBytes: 16 << 10}
	mem.AfterOp(func(op int) {
		mu.Lock()
		defer mu.Unlock()
		if op > 40 && op%3 != 0 {
			return // the rest of the story repeats itself
		}
		moments = append(moments, moment{op, mem.Crash(rng), published, maps.Clone(settled)})
	})
	s := open(t, mem, "rz02-a-1", topo, limits)
	for round := range 4 {
		for range 4 {
			var msgs []Message
			for range 5 {
				m := s.message("orders", fmt.Sprint(published+len(msgs)))
				m.Body = make([]byte, 200)
				msgs = append(msgs, m)
			}
			s.publish(msgs...)
			mu.Lock()
			published += len(msgs)
			mu.Unlock()
		}
		list := s.receive("orders-billing", "orders", 12, time.Hour)
		s.ack("orders-billing", list[:6]...)
		if round%2 == 0 {
			if err := s.snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		s.restart()
		mu.Lock()
		for _, d := range list[:6] {
			settled[string(d.Record.MessageID())] = true
		}
		mu.Unlock()
	}
	mem.AfterOp(nil)
	s.Close()
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d power cuts", len(moments))
	for _, m := range moments {
		after := open(t, m.kept, "rz02-a-1", topo, limits)
		// In hands at a good close: it comes back an hour later, so look at the queues.
		at := map[string]int{}
		for id := range m.published {
			found, err := after.FindMessage(t.Context(), fmt.Sprint(id))
			if err != nil || len(found) != 1 || !found[0].Queued {
				t.Fatalf("after operation %d: message %d: %+v, %v", m.op, id, found, err)
			}
			if m.settled[fmt.Sprint(id)] && !found[0].Groups[0].Settled {
				t.Fatalf("after operation %d: message %d was settled and no longer is", m.op, id)
			}
			at[fmt.Sprintf("%d/%d", found[0].Queue, found[0].Offset)]++
		}
		if len(at) != m.published {
			t.Fatalf("after operation %d: %d messages at %d places", m.op, m.published, len(at))
		}
		if err := after.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
