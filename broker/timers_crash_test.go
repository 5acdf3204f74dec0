package broker

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// timerModel is what may become of delayed messages, whatever happens to their
// broker and its clock.
type timerModel struct {
	t        *testing.T
	rng      *rand.Rand
	mem      *disk.Mem
	s        *station
	step     atomic.Int64 // nanoseconds of the wall clock from the true time
	next     int
	handles  map[string]string // of what was published, by id
	recalled map[string]bool
	arrived  map[string]bool
}

func (m *timerModel) publish() {
	var msgs []Message
	for range 1 + m.rng.IntN(12) {
		in := time.Duration(m.rng.Int64N(int64(3 * time.Hour)))
		if m.rng.IntN(3) > 0 {
			in = time.Duration(m.rng.Int64N(int64(20 * time.Second)))
		}
		msg := m.s.later("orders", fmt.Sprint(m.next), in)
		msg.Body = make([]byte, m.rng.IntN(2000))
		msgs = append(msgs, msg)
		m.next++
	}
	for i, r := range m.s.publish(msgs...) {
		m.handles[msgs[i].ID] = r.Recall
	}
}

// look notes what has arrived: exactly once, not early by the wall clock that was,
// and nothing that was recalled.
func (m *timerModel) look() {
	m.t.Helper()
	synctest.Wait()
	wall := time.Now().Add(time.Duration(m.step.Load()))
	for id, a := range m.s.arrived("orders") {
		switch {
		case a.count != 1:
			m.t.Fatalf("message %s arrived %d times", id, a.count)
		case m.recalled[id]:
			m.t.Fatalf("message %s arrived and was recalled", id)
		case !m.arrived[id] && a.deliverAt.After(wall):
			m.t.Fatalf("message %s arrived %s early", id, a.deliverAt.Sub(wall))
		}
		m.arrived[id] = true
	}
}

func (m *timerModel) recall() {
	for id, h := range m.handles {
		if h == "" {
			continue
		}
		switch k := m.s.recall("orders", h); {
		case k == 0 && m.arrived[id]:
			m.t.Fatalf("message %s was recalled after it arrived", id)
		case k == 0:
			m.recalled[id] = true
		case k != KindSettled:
			m.t.Fatalf("recall of message %s: %s", id, k)
		case m.recalled[id]:
			delete(m.handles, id) // its hour is over
		default:
			m.look()
			if !m.arrived[id] {
				m.t.Fatalf("message %s is called settled and did not arrive", id)
			}
		}
		return
	}
}

func (m *timerModel) act() {
	switch n := m.rng.IntN(100); {
	case n < 35:
		m.publish()
	case n < 50:
		m.recall()
	case n < 80:
		time.Sleep(time.Duration(m.rng.Int64N(int64(10 * time.Second))))
	case n < 84:
		time.Sleep(time.Duration(m.rng.Int64N(int64(time.Hour))))
	case n < 88:
		m.s.restart()
	case n < 92:
		m.crash()
	case n < 96:
		synctest.Wait()
		m.step.Store(m.rng.Int64N(int64(4*time.Hour)) - int64(2*time.Hour))
	default:
		m.s.drain("orders-billing", "orders")
		m.s.flushProgress(m.t.Context())
		synctest.Wait() // the broker's own snapshot: there is one at a time
		if err := m.s.snapshot(m.t.Context()); err != nil {
			m.t.Fatal(err)
		}
		m.look() // before what arrived is trimmed
		if err := m.s.trim(time.Now().Add(100 * time.Hour)); err != nil {
			m.t.Fatal(err)
		}
	}
	m.look()
}

// crash cuts the power in the middle of whatever the due loop does.
func (m *timerModel) crash() {
	time.Sleep(time.Duration(m.rng.Int64N(int64(3 * time.Second))))
	m.look()
	kept := m.mem.Crash(m.rng)
	if err := m.s.Close(); err != nil {
		m.t.Fatal(err)
	}
	m.mem, m.s.fs = kept, kept
	m.s.start()
}

// TestDelayedMessagesAgreeWithAModel runs random publishes, recalls, restarts, power
// cuts, steps of the wall clock and trims: every delayed message arrives exactly once
// unless it was recalled, and none is early.
func TestDelayedMessagesAgreeWithAModel(t *testing.T) {
	carried, late := uint64(0), 0
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 77))
				mem := disk.NewMem()
				limits := testLimits()
				limits.SnapshotBytes = int64(4<<10 + rng.IntN(60<<10))
				limits.SegmentBytes = 16 << 10
				limits.TrimEvery = time.Minute // hours go by, and the model trims
				m := &timerModel{t: t, rng: rng, mem: mem, handles: map[string]string{}, recalled: map[string]bool{}, arrived: map[string]bool{}}
				m.s = &station{t: t, fs: mem, node: "rz02-a-1", topo: delayed(t), limits: limits,
					wall: func() time.Time { return time.Now().Add(time.Duration(m.step.Load())).Round(0) }}
				m.s.start()
				defer func() { m.s.Close() }()
				for range 300 {
					m.act()
				}
				wantSlots(t, m.s)
				for range 8 { // the longest delay, and twice the longest step of the clock
					time.Sleep(time.Hour)
					m.look()
				}
				for i := range m.next {
					if id := fmt.Sprint(i); m.arrived[id] == m.recalled[id] {
						t.Errorf("message %s: arrived %t, recalled %t", id, m.arrived[id], m.recalled[id])
					}
				}
				m.s.mu.RLock()
				for _, k := range m.s.state.timers.list {
					carried += k.carried
				}
				m.s.mu.RUnlock()
				late += len(m.recalled)
				if st := m.s.Status().Timers; st.Pending != 0 {
					t.Errorf("%d messages wait at the end", st.Pending)
				}
			})
		})
	}
	t.Logf("%d recalled, %d carried in the last buckets", late, carried)
	if late == 0 {
		t.Error("no seed recalled a message")
	}
}

// Delayed messages that fall due while the broker restarts, in good order and by a
// power cut.
func TestD2_RestartWhileMessagesFallDueRepeatsNone(t *testing.T) {
	for _, cut := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			mem := disk.NewMem()
			s := open(t, mem, "rz02-a-1", delayed(t), testLimits())
			defer func() { s.Close() }()
			var ids []string
			var msgs []Message
			for i := range 10_000 {
				ids = append(ids, fmt.Sprint(i))
				msgs = append(msgs, s.later("orders", ids[i], 10*time.Second+time.Duration(i%5000)*time.Millisecond))
				if len(msgs) == 1000 {
					s.publish(msgs...)
					msgs = msgs[:0]
				}
			}
			time.Sleep(11 * time.Second)
			for round := range 8 {
				time.Sleep(430 * time.Millisecond)
				if cut {
					time.Sleep(7 * time.Microsecond)
					kept := mem.Crash(rand.New(rand.NewPCG(uint64(round), 1)))
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					mem, s.fs = kept, kept
					s.start()
				} else {
					s.restart()
				}
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			s.wantArrived("orders", ids...)
		})
	}
}

// TestCrashAtAnyOperationOfDueMessages cuts the power after every change of the disk
// while messages are published, recalled, carried and fall due.
func TestCrashAtAnyOperationOfDueMessages(t *testing.T) {
	type moment struct {
		op        int
		kept      *disk.Mem
		published int
		recalled  int // of the last of each publish
	}
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var moments []moment
		mem, rng, topo := disk.NewMem(), rand.New(rand.NewPCG(5, 6)), delayed(t)
		time.Sleep(59*time.Minute + 50*time.Second) // the story goes over the end of an hour
		limits := Limits{SegmentBytes: 16 << 10}
		s := open(t, mem, "rz02-a-1", topo, limits)
		published, recalled := 0, 0
		mem.AfterOp(func(op int) {
			mu.Lock()
			defer mu.Unlock()
			moments = append(moments, moment{op, mem.Crash(rng), published, recalled})
		})
		for range 6 {
			var msgs []Message
			for i := range 6 {
				m := s.later("orders", fmt.Sprint(published+i), time.Duration(1+i)*700*time.Millisecond)
				m.Body = make([]byte, 500)
				if i == 5 {
					m.DeliverAt = m.DeliverAt.Add(time.Minute)
				}
				msgs = append(msgs, m)
			}
			out := s.publish(msgs...)
			mu.Lock()
			published += len(msgs)
			mu.Unlock()
			if published%12 == 0 {
				if k := s.recall("orders", out[5].Recall); k != 0 {
					t.Fatal(k)
				}
				mu.Lock()
				recalled = published
				mu.Unlock()
			}
			time.Sleep(2 * time.Second)
			s.drain("orders-billing", "orders")
			s.flushProgress(t.Context())
			if err := s.snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := s.trim(time.Now().Add(100 * time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second)
		mem.AfterOp(nil)
		s.Close()
		mu.Lock()
		defer mu.Unlock()
		t.Logf("%d power cuts", len(moments))
		for n, m := range moments {
			if n%4 != 0 && n > 60 {
				continue // the story repeats itself
			}
			after := open(t, m.kept, "rz02-a-1", topo, limits)
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			st := after.Status()
			if st.Timers.Pending != 0 {
				t.Fatalf("after operation %d: %d messages wait: %+v", m.op, st.Timers.Pending, st.Timers)
			}
			// What arrived before may be consumed and trimmed; what is counted is all.
			if c := st.Counts; int(c.Fired+c.Recalled) < m.published || int(c.Recalled) < m.recalled/12 {
				t.Fatalf("after operation %d: %d fired and %d recalled of %d", m.op, c.Fired, c.Recalled, m.published)
			}
			for id, a := range after.arrived("orders") {
				if a.count != 1 || a.stored.Before(a.deliverAt) {
					t.Fatalf("after operation %d: message %s arrived %+v", m.op, id, a)
				}
			}
			if err := after.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
