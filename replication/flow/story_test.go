package flow

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// story runs fn in a bubble with a world whose net is 15 ms wide.
func story(t *testing.T, lim Limits, fn func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := newWorld(t, ctx, 1, lim)
		fn(w)
		w.stop()
		w.report(1)
	})
}

func (w *world) uniLeg() Leg { return w.src.flows[w.uni[0]].legs[0] }

func (w *world) legStatus(leg Leg) (LegStatus, bool) {
	for _, s := range w.outbox.Status() {
		if s.Leg == leg {
			return s, true
		}
	}
	return LegStatus{}, false
}

// until waits, in simulated time, for ok and returns how long it took.
func (w *world) until(limit time.Duration, ok func() bool) time.Duration {
	w.t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > limit {
			w.t.Errorf("nothing for %v", limit)
			break
		}
		time.Sleep(100 * time.Microsecond)
	}
	return time.Since(start)
}

func TestRecordLeavesAtOnceOnOpenSession(t *testing.T) {
	story(t, Limits{}, func(w *world) {
		leg := w.uniLeg()
		w.src.publish(leg.Flow, "ok", 10)
		w.quiet(time.Second)
		time.Sleep(7 * time.Second) // idle, the session stays open
		for range 5 {
			n := w.src.publish(leg.Flow, "ok", 10)
			took := w.until(time.Second, func() bool { return w.sinks["b"].Resume(leg.Flow).Settled == n })
			if limit := 15*time.Millisecond + time.Millisecond + 200*time.Microsecond; took > limit {
				t.Errorf("committed after %v, the way and the disk take 16 ms", took)
			}
			time.Sleep(time.Second)
		}
	})
}

func TestProgressWithinASecondAfterHeal(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w := newWorld(t, ctx, seed+1, Limits{})
			w.publish()
			for range 10 {
				time.Sleep(time.Duration(w.rng.IntN(1500)) * time.Millisecond)
				w.publish()
				switch w.rng.IntN(4) {
				case 0:
					w.net.reset(0.7, false)
				case 1:
					w.net.set(func() { w.net.down = true })
				case 2:
					w.net.set(func() {
						if d := w.rng.IntN(2); w.net.still[d] == nil {
							w.net.still[d] = make(chan struct{})
						}
					})
				}
			}
			for _, id := range w.all {
				w.src.publish(id, "ok", 10)
			}
			w.heal()
			before := map[Leg]uint64{}
			legs := w.src.Legs()
			for _, l := range legs {
				before[l] = w.src.settled(l)
			}
			time.Sleep(time.Second)
			for _, l := range legs {
				if w.src.settled(l) == before[l] {
					st, _ := w.legStatus(l)
					t.Errorf("seed %d: no progress of %s to %s: %+v", seed+1, FlowName(l.Flow), l.Group, st)
				}
			}
			w.quiet(5 * time.Second)
			w.check()
			w.stop()
			w.report(seed + 1)
		})
	}
}

func TestS8_HeldDestinationWithdrawsCreditAndResumes(t *testing.T) {
	story(t, Limits{}, func(w *world) {
		leg, sink := w.uniLeg(), w.sinks["b"]
		w.src.publish(leg.Flow, "ok", 10)
		w.quiet(time.Second)
		first, _ := w.legStatus(leg)
		sink.set(func(m *memSink) { m.held = &HeldError{Code: wire.CodeHeld, Err: errors.New("disk full")} })
		time.Sleep(2 * time.Second)
		for range 5000 {
			w.src.publish(leg.Flow, "ok", 1000)
		}
		time.Sleep(20 * time.Second)
		st, _ := w.legStatus(leg)
		if st.State != StateHeld || st.Code != wire.CodeHeld || st.Session != first.Session {
			t.Errorf("status %+v, want held in session %x", st, first.Session)
		}
		if st.Backlog != 5000 || st.OldestAge < 20*time.Second {
			t.Errorf("backlog %d of age %v, want 5000 of 20 s", st.Backlog, st.OldestAge)
		}
		if got := w.inbox["b"].MemoryInUse(); got > 1<<20 {
			t.Errorf("%d bytes reserved while nothing can land", got)
		}
		sink.set(func(m *memSink) { m.held = nil })
		took := w.until(5*time.Second, func() bool { return w.src.settled(leg) > 1 })
		if took > 300*time.Millisecond {
			t.Errorf("resumed after %v without a new publish", took)
		}
		w.quiet(5 * time.Second)
		w.check()
	})
}

func TestS7_SilentStreamIsTornDown(t *testing.T) {
	story(t, Limits{}, func(w *world) {
		leg := w.uniLeg()
		w.src.publish(leg.Flow, "ok", 10)
		w.quiet(time.Second)
		w.net.reset(1, true)
		n := w.src.publish(leg.Flow, "ok", 10)
		took := w.until(20*time.Second, func() bool { return w.src.settled(leg) == n })
		if took < 4*time.Second || took > 6*time.Second {
			t.Errorf("moved on after %v, the watchdog waits 5 s", took)
		}
	})
}

func TestIdleSessionClosesAndComesBack(t *testing.T) {
	story(t, Limits{}, func(w *world) {
		leg := w.uniLeg()
		w.src.publish(leg.Flow, "ok", 10)
		time.Sleep(29 * time.Second)
		if _, ok := w.legStatus(leg); !ok || len(w.inbox["b"].Status()) != 1 {
			t.Errorf("the session ended before 30 s")
		}
		time.Sleep(3 * time.Second)
		if st, ok := w.legStatus(leg); ok || len(w.inbox["b"].Status()) != 0 || w.inbox["b"].MemoryInUse() != 0 {
			t.Errorf("idle session stays: %+v", st)
		}
		n := w.src.publish(leg.Flow, "ok", 10)
		took := w.until(time.Second, func() bool { return w.src.settled(leg) == n })
		if took > 100*time.Millisecond {
			t.Errorf("a closed leg took %v, dial and two ways are 75 ms", took)
		}
	})
}

func TestSealRefusesForEver(t *testing.T) {
	story(t, Limits{}, func(w *world) {
		leg := w.uniLeg()
		for i := range 100 {
			tag := "ok"
			if i%10 == 0 {
				tag = "bad"
			}
			w.src.publish(leg.Flow, tag, 10)
		}
		through, err := w.outbox.Seal(w.ctx, leg)
		if err != nil || through != w.src.settled(leg) || w.sinks["b"].Resume(leg.Flow).Settled != through {
			t.Errorf("sealed through %d, %v; settled %d", through, err, w.src.settled(leg))
		}
		w.src.publish(leg.Flow, "ok", 10)
		time.Sleep(time.Minute)
		if got := w.src.settled(leg); got != through {
			t.Errorf("settled %d beyond the seal %d", got, through)
		}
		if st, _ := w.legStatus(leg); st.State != StateSealed || st.Settled != through {
			t.Errorf("status %+v", st)
		}
		again, err := w.outbox.Seal(w.ctx, leg)
		if err != nil || again != through {
			t.Errorf("sealed again through %d, %v; want %d", again, err, through)
		}
		w.origin.kill()
		w.src.restart()
		w.startOrigin()
		time.Sleep(2 * time.Second)
		if st, _ := w.legStatus(leg); st.State != StateSealed {
			t.Errorf("after a restart: %+v", st)
		}
	})
}

func TestDivergedIsRefusedAndShown(t *testing.T) {
	story(t, Limits{}, func(w *world) {
		leg := w.uniLeg()
		for range 10 {
			w.src.publish(leg.Flow, "ok", 10)
		}
		w.quiet(time.Second)
		w.origin.kill()
		f := w.src.flows[leg.Flow]
		f.records[9] = f.records[8] // other content under a number that was sent
		w.src.legs[leg].durable = 0
		w.src.restart()
		w.src.publish(leg.Flow, "ok", 10)
		w.startOrigin()
		time.Sleep(10 * time.Second)
		if st, _ := w.legStatus(leg); st.State != StateDiverged || st.Code != wire.CodeDiverged {
			t.Errorf("status %+v, want diverged", st)
		}
		if got := w.sinks["b"].Resume(leg.Flow).Settled; got != 10 {
			t.Errorf("%d settled, want the 10 of before", got)
		}
	})
}

func TestLargeRecordGetsAWindow(t *testing.T) {
	lim := Limits{MemoryBytes: 32 << 20}
	story(t, lim, func(w *world) {
		leg := w.uniLeg()
		for _, size := range []int{10, 3 << 20, 10, 7 << 20, 10, 400 << 10} {
			w.src.publish(leg.Flow, "ok", size)
		}
		if !w.quiet(5 * time.Second) {
			st, _ := w.legStatus(leg)
			t.Errorf("stuck: %+v", st)
		}
		w.check()
	})
}

func TestTooLargeForAFrameIsParked(t *testing.T) {
	story(t, Limits{}, func(w *world) {
		leg := w.uniLeg()
		w.src.publish(leg.Flow, "ok", 10)
		n := w.src.publish(leg.Flow, "ok", 9<<20)
		w.src.publish(leg.Flow, "ok", 10)
		if !w.quiet(5 * time.Second) {
			t.Errorf("one record stopped the flow")
		}
		if got := w.src.parked(leg)[n]; got != 1 {
			t.Errorf("%d dead letters, want 1", got)
		}
	})
}

func TestTrimmedNumbersBecomeAnExplicitGap(t *testing.T) {
	story(t, Limits{}, func(w *world) {
		leg := w.uniLeg()
		for range 30 {
			w.src.publish(leg.Flow, "ok", 10)
		}
		w.quiet(time.Second)
		w.origin.kill()
		w.src.restart() // so that the gap crosses a lineage
		for range 30 {
			w.src.publish(leg.Flow, "ok", 10)
		}
		w.src.trim(leg.Flow, 41)
		w.stopDest("b")
		w.sinks["b"].wipe()
		w.startDest("b")
		w.startOrigin()
		w.quiet(5 * time.Second)
		gaps := 0
		log, _ := w.sinks["b"].logOf(leg.Flow)
		for _, e := range log {
			if e.outcome == record.OutcomeGap {
				gaps++
			}
		}
		if gaps != 40 {
			t.Errorf("%d numbers declared lost, want 40", gaps)
		}
		w.check()
	})
}

func (c *packedCache) inUse() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

func TestOneCompressedFormServesEveryFarCity(t *testing.T) {
	story(t, Limits{}, func(w *world) {
		ch := w.all[2]
		w.stopDest("c")
		w.origin.kill() // so that no batch is cut by the head
		for range 600 {
			w.src.publish(ch, "ok", 100) // within the first window; zeros pack well
		}
		w.src.restart()
		w.startOrigin()
		time.Sleep(2 * time.Second)
		before := w.outbox.cache.inUse()
		if before == 0 {
			t.Errorf("no compressed batch is kept")
		}
		w.startDest("c")
		if !w.quiet(5 * time.Second) {
			t.Errorf("not settled")
		}
		if after := w.outbox.cache.inUse(); after != before {
			t.Errorf("the second city was compressed for again: %d bytes kept, then %d", before, after)
		}
		log, _ := w.sinks["c"].logOf(ch)
		for _, e := range log {
			if len(e.path) != 1 || e.path[0] != "A" {
				t.Fatalf("path %v, want [A]", e.path)
			}
		}
		w.check()
	})
}

func TestSlowDestinationCostsOthersNothing(t *testing.T) {
	story(t, Limits{}, func(w *world) {
		ch := w.all[2]
		w.sinks["c"].set(func(m *memSink) { m.delay = time.Minute })
		legB := w.src.flows[ch].legs[1]
		for range 3 {
			for range 2000 {
				w.src.publish(ch, "ok", 1000)
			}
			head := w.headOf(ch)
			took := w.until(5*time.Second, func() bool { return w.src.settled(legB) == head })
			if took > time.Second {
				t.Errorf("the fast city took %v", took)
			}
		}
	})
}

func TestDrainMovesAtOnce(t *testing.T) {
	story(t, Limits{}, func(w *world) {
		leg := w.uniLeg()
		w.src.publish(leg.Flow, "ok", 10)
		w.quiet(time.Second)
		st, _ := w.legStatus(leg)
		w.mu.Lock()
		w.inbox["b"].mu.Lock()
		x := w.inbox["b"].flows[leg.Flow].current
		w.inbox["b"].mu.Unlock()
		w.mu.Unlock()
		n := w.src.publish(leg.Flow, "ok", 10)
		d := wire.Drain{}
		x.out.control(wire.TypeDrain, x.session, x.class, d.Append(nil))
		w.until(time.Second, func() bool {
			now, ok := w.legStatus(leg)
			return ok && now.Session != 0 && now.Session != st.Session
		})
		took := w.until(time.Second, func() bool { return w.src.settled(leg) == n })
		if took > 100*time.Millisecond {
			t.Errorf("the flow stood still for %v", took)
		}
	})
}

func TestResidencyIsKeptInTheBatch(t *testing.T) {
	story(t, Limits{}, func(w *world) {
		ch := w.all[2]
		for i := range 50 {
			if i%3 == 0 {
				w.src.publish(ch, "ok", 10, "A", "B")
			} else {
				w.src.publish(ch, "ok", 10)
			}
		}
		w.quiet(5 * time.Second)
		w.check()
	})
}

func TestWindowGrowsToFillALongPath(t *testing.T) {
	story(t, Limits{}, func(w *world) {
		leg := w.uniLeg()
		for range 30000 {
			w.src.publish(leg.Flow, "ok", 1000)
		}
		if took := w.until(5*time.Second, func() bool { return w.src.settled(leg) == 30000 }); took > 600*time.Millisecond {
			t.Errorf("30,000 records took %v; a window that stays small needs 3.5 s", took)
		}
	})
}

func TestManyParkedRecordsAreSettledInSteps(t *testing.T) {
	story(t, Limits{}, func(w *world) {
		leg := w.uniLeg()
		for i := range 3000 {
			tag := "bad"
			if i%1000 < 100 {
				tag = "ok"
			}
			w.src.publish(leg.Flow, tag, 10)
		}
		if !w.quiet(5 * time.Second) {
			t.Errorf("not settled")
		}
		if n := len(w.src.parked(leg)); n != 2700 {
			t.Errorf("%d dead letters, want 2700", n)
		}
		w.check()
	})
}

func TestLegThatTheSourceDropsIsNotDialledForEver(t *testing.T) {
	story(t, Limits{}, func(w *world) {
		leg := w.uniLeg()
		w.net.set(func() { w.net.down = true })
		w.src.publish(leg.Flow, "ok", 10)
		time.Sleep(5 * time.Second)
		if st, ok := w.legStatus(leg); !ok || st.Backlog != 1 {
			t.Errorf("status %+v, want a backlog of 1", st)
		}
		w.src.mu.Lock()
		w.src.hidden = map[Leg]bool{leg: true}
		signal(w.src.changed)
		w.src.mu.Unlock()
		time.Sleep(2 * time.Second)
		if st, ok := w.legStatus(leg); ok {
			t.Errorf("still there: %+v", st)
		}
		w.src.mu.Lock()
		w.src.hidden = nil
		signal(w.src.changed)
		w.src.mu.Unlock()
		w.net.set(func() { w.net.down = false })
		if !w.quiet(2 * time.Second) {
			t.Errorf("the leg does not come back")
		}
	})
}
