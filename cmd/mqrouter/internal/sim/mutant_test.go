package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

// The checkers must be able to fail. Each mutant breaks a promise beneath the
// product, where it cannot notice, and the checker of that promise must tell.
func TestCheckersTellBrokenPromises(t *testing.T) {
	mutants := []struct {
		name, want string
		mutate     func(w *world, p *producer)
	}{
		// A store that is an older copy of itself, which nobody is told: what it had
		// acknowledged since, and could not send on, is lost.
		{"acknowledged and lost", "I1", func(w *world, p *producer) {
			m := w.nodes["rz1-a-1"]
			older := m.mem.Crash(w.rng("copy"))
			w.sky.setBoth("east", "west", cut)
			w.sky.setBoth("east", "north", cut)
			p.steady(w.ctx, 40, 10*time.Millisecond, func(int) sending { return sending{topic: "orders", to: "rz2"} })
			m.crash(w.rng("mutant"), false)
			m.replace(older)
			m.start()
			w.sky.fine()
		}},
		// A destination whose store is another one, which nobody is told: what is
		// sent again lands a second time.
		{"landed twice", "I2", func(w *world, p *producer) {
			p.steady(w.ctx, 20, 10*time.Millisecond, func(i int) sending { return sending{topic: "orders", to: "rz2", size: i} })
			w.quiet(time.Minute)
			m := w.nodes["rz2-a-1"]
			m.crash(w.rng("mutant"), false)
			m.replace(disk.NewMem())
			w.sky.setBoth("east", "west", cut)
			w.sky.setBoth("north", "west", cut)
			m.start()
			m.serves()
			w.newProducer(w.ctx, "rz2", "q").steady(w.ctx, 5, 10*time.Millisecond, func(int) sending { return sending{topic: "orders", to: "rz2"} })
			w.sky.fine()
		}},
		// A cache that forgets its newest changes, and its readers are not told.
		{"a cache goes back", "I6", func(w *world, p *producer) {
			key := w.hist.keys[0]
			p.steady(w.ctx, 20, 50*time.Millisecond, func(i int) sending {
				return sending{topic: "member", change: &broadcast.Change{Op: broadcast.OpSet, Key: key, Version: uint64(i + 1), Value: fmt.Appendf(nil, "%s@%d", key, i+1)}}
			})
			time.Sleep(time.Second)
			s := w.caches["west"]
			if err := s.fallBack(s.steps() / 2); err != nil {
				w.t.Error(err)
			}
			s.mu.Lock()
			s.moved = time.Time{}
			s.mu.Unlock()
			time.Sleep(300 * time.Millisecond)
		}},
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			bubble(t, 4, oneZoneEach(), func(t *testing.T, w *world) {
				w.consumers(w.ctx, 0)
				w.readCaches(w.ctx)
				p := w.newProducer(w.ctx, "rz1", "p")
				time.Sleep(settleIn)
				m.mutate(w, p)
				time.Sleep(5 * time.Second)
				_, late := w.await(30 * time.Second)
				all := append(late, w.verdict()...)
				if !strings.Contains(strings.Join(all, "\n"), m.want+":") {
					t.Errorf("no checker tells of %s: %q", m.want, all)
				}
			})
		})
	}
}

// Orders, levels and strangers cannot be broken from beneath: the checkers judge
// invented histories.
func TestCheckersJudgeHistories(t *testing.T) {
	invent := func() *world {
		top, err := zone.Parse((&plan{epoch: 1, cities: oneZoneEach().cities}).text(1), "sim.yaml")
		if err != nil {
			t.Fatal(err)
		}
		w := &world{t: t, top: top, began: time.Now()}
		w.hist = newHistory(w)
		return w
	}
	publish := func(w *world, seq int, text string, err error) {
		p := &published{id: fmt.Sprint("m", seq), topic: "transfer", from: "rz1", to: []zone.Zone{"rz2"}, stream: "s", seq: seq, order: "u"}
		w.hist.begin(p)
		w.hist.end(p, text, err)
	}
	deliver := func(w *world, id string, offset int64) {
		w.hist.deliver(&delivered{id: id, topic: "transfer", zone: "rz2", group: "transfer-credit", broker: "rz2-a", offset: offset})
	}
	const origin = "level=origin zone=rz2"
	for want, history := range map[string]func(w *world){
		"": func(w *world) {
			publish(w, 1, origin, nil)
			publish(w, 2, origin, nil)
			deliver(w, "m1", 0)
			deliver(w, "m2", 1)
			deliver(w, "m1", 0) // again, and no second landing
		},
		"I1": func(w *world) { publish(w, 1, origin, nil) },
		"I2": func(w *world) {
			publish(w, 1, origin, nil)
			deliver(w, "m1", 0)
			deliver(w, "m1", 7)
		},
		"I3": func(w *world) {
			publish(w, 1, origin, nil)
			publish(w, 2, origin, nil)
			deliver(w, "m2", 0)
			deliver(w, "m1", 1)
		},
		"L6": func(w *world) {
			publish(w, 1, "level=stored zone=rz1", nil)
			deliver(w, "m1", 0)
		},
	} {
		w := invent()
		history(w)
		// The clock of a real process moves between two publishes, if it is fine enough.
		for i, p := range w.hist.pubs {
			p.begun, p.ended = time.Duration(2*i)*time.Second, time.Duration(2*i+1)*time.Second
		}
		all := w.hist.open()
		all = append(all, w.verdict()...)
		text := strings.Join(all, "\n")
		if want == "" && text != "" || !strings.Contains(text, want) {
			t.Errorf("want %q, got %q", want, text)
		}
	}
}
