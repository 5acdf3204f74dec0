package sim

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// stepsPlan has a FIFO topic that is routed by its message groups, beside the usual
// ones, in several zones and groups.
func stepsPlan() plan {
	p := threeCities()
	p.topics = []string{"{name: steps, queues: 3, kind: fifo, budget: 64MiB, route: {shard: message_group}}"}
	p.groups = []string{"{name: steps-work, topics: [steps], max_attempts: 1000, retry: {steps: [1s]}}"}
	return p
}

// TestMessageGroupsKeepTheirOrder is I3 to the end: producers in zones of one group
// and of two publish messages of message groups at home in all cities, while
// brokers, routers, disks and paths fail. Each consumer group gets each message
// group in the order of publishing, and nothing of it before what is in front was
// acknowledged.
func TestMessageGroupsKeepTheirOrder(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			bubble(t, 100+seed, stepsPlan(), func(t *testing.T, w *world) {
				ctx, cancel := context.WithCancel(w.ctx)
				w.consumers(w.ctx, 0.02) // each hides its message group for ten seconds
				var pubs sync.WaitGroup
				for i, z := range []zone.Zone{"rz1", "rz2", "rz3"} {
					pubs.Go(func() {
						p := w.newProducer(ctx, z, "p-"+string(z))
						if p == nil {
							return
						}
						rng := w.rng("steps " + p.name)
						for wait(ctx, time.Duration(1+rng.IntN(150))*time.Millisecond) {
							p.publish(ctx, sending{topic: "steps", group: fmt.Sprint(1000*(i+1) + 11*rng.IntN(9)), size: rng.IntN(400)})
						}
					})
				}
				time.Sleep(settleIn)
				x := newTrouble(w)
				x.wipes, x.long = false, false
				x.rage(12 * time.Second)
				time.Sleep(time.Second)
				cancel()
				pubs.Wait()
				took := w.quiet(5 * time.Minute)
				w.check()
				n := w.checkMessageGroups()
				t.Logf("%d published, %d delivered, %d message groups at brokers, quiet after %v", len(w.hist.pubs), len(w.hist.got), n, took)
				if n < 20 {
					t.Errorf("only %d message groups were seen", n)
				}
				if t.Failed() {
					for _, text := range x.told {
						t.Log(text)
					}
				}
			})
		})
	}
}

// checkMessageGroups judges what consumers got of message groups, in the order of
// getting, and returns how many there were.
func (w *world) checkMessageGroups() int {
	type where struct {
		broker string
		life   int64
		group  string
	}
	type front struct {
		offset int64
		id     string
		acked  bool
	}
	h := w.hist
	h.mu.Lock()
	defer h.mu.Unlock()
	fronts := map[where]*front{}
	for _, d := range h.got {
		p := h.byID[d.id]
		if p == nil || p.group == "" || d.life < 0 {
			continue
		}
		k := where{d.broker, d.life, p.group}
		f := fronts[k]
		switch {
		case f == nil:
			f = &front{offset: d.offset, id: d.id}
			fronts[k] = f
		case d.offset > f.offset && !f.acked:
			w.t.Errorf("I3: %s got %s of message group %s while %s was not acknowledged", d.group, d.id, p.group, f.id)
			fallthrough
		case d.offset > f.offset:
			*f = front{offset: d.offset, id: d.id}
		case d.offset < f.offset && h.first[arrival{d.id, d.zone, d.group}] == d.at:
			w.t.Errorf("I3: %s got %s of message group %s for the first time after %s", d.group, d.id, p.group, f.id)
		}
		f.acked = f.acked || d.acked && d.offset == f.offset
	}
	return len(fronts)
}
