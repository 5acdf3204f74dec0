package link

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

const sideWindow = 128 << 10 // bytes; small, so that little has to be sent to fill many

// sidePair starts two nodes with bulk links and small windows; memory is
// Limits.WindowMemory of b. A stream may stand still for an hour.
func sidePair(w *world, memory int64, handle func(context.Context, *Session)) (a, b *node) {
	start := func(name zone.Node, city zone.City, memory int64) *node {
		return w.start(name, city, 11, handle, func(o *Options) {
			o.Classes = []zone.Class{zone.ClassBulk}
			o.Limits.StreamWindow, o.Limits.Sessions, o.Limits.WindowMemory = sideWindow, 4, memory
			o.Limits.Parallel = 1 // sessions stay where they are
			o.Timing.Write = time.Hour
		})
	}
	a, b = start("a", "amsterdam", 0), start("b", "berlin", memory)
	a.SetPeers([]Peer{b.peer})
	b.SetPeers([]Peer{a.peer})
	w.until(2*time.Second, "link", func() bool { return bulkUp(a, "b") && bulkUp(b, "a") })
	return a, b
}

func ownConn(n *node, peer zone.Node) *conn {
	return n.Manager.links[Key{peer, zone.ClassBulk}].current.Load()
}

// TestOneSessionFillsALongPath sends as much as goes on one session over 100 ms. By
// a window a round trip it is bound without memory for more; with it, by nothing of
// this package's.
func TestOneSessionFillsALongPath(t *testing.T) {
	carried := func(memory int64) (rate float64, status Status) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 50*time.Millisecond)
			defer w.close()
			x := new(senders)
			a, b := sidePair(w, memory, x.handle)
			x.from, x.to = a, "b"
			x.start(1, 32<<10)
			time.Sleep(3 * time.Second)
			before := x.total()
			time.Sleep(time.Second)
			rate, status = float64(x.total()-before), statusOf(a, "b")
			x.end()
			w.until(time.Second, "side streams end at both ends", func() bool {
				return ownConn(a, "b").sides.out.Load() == 0 && ownConn(b, "a").sides.in.Load() == 0
			})
		})
		return rate, status
	}
	const perTrip = sideWindow / 0.1 // bytes a second
	narrow, st := carried(-1)
	if narrow > 1.1*perTrip || st.Rates.Bound != BoundWindow || st.Rates.Window != sideWindow {
		t.Errorf("%.0f bytes a second without side streams, %+v; want at most a window a round trip, and that said", narrow, st.Rates)
	}
	wide, st := carried(32 << 20)
	if wide < 5*perTrip || st.Rates.Window != (1+sessionSides)*sideWindow {
		t.Errorf("%.0f bytes a second with side streams, %+v; want at least five windows a round trip, and eight in force", wide, st.Rates)
	}
	t.Logf("%.1f and %.1f MB/s", narrow/1e6, wide/1e6)
}

// TestFramesOnSideStreamsKeepTheirOrder sends frames that go aside between small
// ones that do not, over a path that loses some, to a reader that gives up and comes
// again all the time.
func TestFramesOnSideStreamsKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 50*time.Millisecond)
		defer w.close()
		var next, most atomic.Int64
		wrong := make(chan uint64, 1)
		handle := func(ctx context.Context, s *Session) {
			for {
				short, cancel := context.WithTimeout(ctx, 3*time.Millisecond)
				f, err := s.Recv(short)
				cancel()
				if errors.Is(err, context.DeadlineExceeded) {
					continue
				}
				if err != nil {
					return
				}
				most.Store(max(most.Load(), s.conn.sides.in.Load()))
				if n := binary.LittleEndian.Uint64(f.Payload); n != uint64(next.Load()) || len(f.Payload) != sizeOf(n) {
					wrong <- n
					return
				}
				next.Add(1)
			}
		}
		a, _ := sidePair(w, 32<<20, handle)
		s, err := a.Open("b", zone.ClassBulk, 7)
		if err != nil {
			t.Fatal(err)
		}
		const frames = 1200
		for n := range uint64(frames) {
			if n == 900 {
				w.lose(1, 0.01)
			}
			p := make([]byte, sizeOf(n))
			binary.LittleEndian.PutUint64(p, n)
			if err := s.Send(t.Context(), wire.Frame{Type: wire.TypeBatch, Session: 7, Class: zone.ClassBulk, Payload: p}); err != nil {
				t.Fatal(err)
			}
		}
		_ = s.Close(wire.CodeOK)
		w.until(20*time.Second, "every frame", func() bool { return next.Load() == frames || len(wrong) > 0 })
		if len(wrong) > 0 {
			t.Fatalf("frame %d came when %d was due", <-wrong, next.Load())
		}
		if most.Load() < sessionSides {
			t.Errorf("%d side streams at a time, want %d", most.Load(), sessionSides)
		}
	})
}

// TestRecvThatEndedInTimeHarmsNoOther ends a context as a Recv under it returns.
func TestRecvThatEndedInTimeHarmsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5*time.Millisecond)
		defer w.close()
		got := make(chan error, 1)
		a, _ := sidePair(w, 0, func(ctx context.Context, s *Session) {
			_, err := s.Recv(ctx)
			if err == nil {
				short, cancel := context.WithCancel(ctx)
				stop := s.interrupt(short)
				cancel()
				stop()
				_, err = s.Recv(ctx)
			}
			got <- err
		})
		s, err := a.Open("b", zone.ClassBulk, 7)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.Send(t.Context(), wire.Frame{Type: wire.TypeBatch, Session: 7, Class: zone.ClassBulk, Payload: []byte("x")}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if err := <-got; err != nil {
			t.Errorf("the next Recv failed: %v", err)
		}
		_ = s.Close(wire.CodeOK)
	})
}

// sizeOf is the size of the frame with a number.
func sizeOf(n uint64) int {
	if n%3 == 0 {
		return 100
	}
	return 20<<10 + int(n%7)*5003
}

// TestUnreadWideSessionsDoNotStopOthers fills every window that two sessions with
// side streams have, which nobody reads any more. A third one and the probes go on.
func TestUnreadWideSessionsDoNotStopOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 50*time.Millisecond)
		defer w.close()
		x := &senders{arrived: make(map[uint64]uint64), stop: make(chan struct{})}
		var stuck sync.WaitGroup
		freeze := make(chan struct{})
		handle := func(ctx context.Context, s *Session) {
			for {
				f, err := s.Recv(ctx)
				if err != nil {
					return
				}
				select {
				case <-freeze:
					if f.Session <= 2 {
						<-x.stop
						return
					}
				default:
				}
				x.mu.Lock()
				x.arrived[f.Session]++
				x.mu.Unlock()
			}
		}
		a, b := sidePair(w, 1<<30, handle)
		defer func() {
			close(x.stop)
			for _, c := range a.Manager.links[Key{"b", zone.ClassBulk}].connections() {
				c.close(wire.CodeOK, "")
			}
			stuck.Wait()
		}()
		send := func(number uint64) {
			s, err := a.Open("b", zone.ClassBulk, number)
			if err != nil {
				t.Error(err)
				return
			}
			for !x.over() {
				f := wire.Frame{Type: wire.TypeBatch, Session: number, Class: zone.ClassBulk, Payload: make([]byte, 32<<10)}
				if s.Send(context.Background(), f) != nil {
					return
				}
			}
			_ = s.Close(wire.CodeOK)
		}
		for number := range uint64(2) {
			stuck.Go(func() { send(number + 1) })
		}
		w.until(10*time.Second, "both are wide", func() bool { return ownConn(b, "a").sides.in.Load() == 2*sessionSides })
		close(freeze)
		time.Sleep(2 * time.Second)
		if n := ownConn(a, "b").sides.out.Load(); n != 2*sessionSides {
			t.Fatalf("%d side streams are left, want those of both", n)
		}
		stuck.Go(func() { send(3) })
		w.until(2*time.Second, "the third begins", func() bool { return x.next(3) > 0 })
		before := x.next(3)
		time.Sleep(2 * time.Second)
		if got := (x.next(3) - before) * 32 << 10; got < sideWindow/0.1 {
			t.Errorf("the third has passed %d bytes in 2 s beside two that nobody reads, want half a window each round trip or more", got)
		}
		if st := statusOf(a, "b"); st.State != StateUp || st.Reconnects != 0 {
			t.Errorf("the link is %+v, want it up as before", st)
		}
	})
}

// TestSideStreamsEndWhenTheyAreNotNeeded lets a session that was fast become slow.
func TestSideStreamsEndWhenTheyAreNotNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 50*time.Millisecond)
		defer w.close()
		x := new(senders)
		a, b := sidePair(w, 32<<20, x.handle)
		s, err := a.Open("b", zone.ClassBulk, 1)
		if err != nil {
			t.Fatal(err)
		}
		x.arrived = make(map[uint64]uint64)
		var n uint64
		send := func() {
			p := make([]byte, 20<<10)
			binary.LittleEndian.PutUint64(p, n)
			n++
			if err := s.Send(t.Context(), wire.Frame{Type: wire.TypeBatch, Session: 1, Class: zone.ClassBulk, Payload: p}); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		for ownConn(a, "b").sides.out.Load() < sessionSides {
			send()
		}
		if took := time.Since(start); took < (sessionSides-1)*fitTrips*100*time.Millisecond {
			t.Errorf("the window grew to the most in %v, want some round trips for each step", took)
		}
		for range 400 {
			time.Sleep(250 * time.Millisecond)
			send()
		}
		time.Sleep(time.Second)
		if out, in := ownConn(a, "b").sides.out.Load(), ownConn(b, "a").sides.in.Load(); out != 0 || in != 0 {
			t.Errorf("%d and %d side streams are left after 100 s of little", out, in)
		}
		if x.next(1) != n {
			t.Errorf("%d of %d frames came", x.next(1), n)
		}
		_ = s.Close(wire.CodeOK)
	})
}

// TestSenderKeepsToTheSideStreamsThatItWasTold sends on two sessions to a node that
// takes three side streams of both together.
func TestSenderKeepsToTheSideStreamsThatItWasTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 50*time.Millisecond)
		defer w.close()
		x := new(senders)
		a, b := sidePair(w, 3*2*windowsShare*sideWindow, x.handle)
		x.from, x.to = a, "b"
		x.start(2, 32<<10)
		defer x.end()
		for range 20 {
			time.Sleep(100 * time.Millisecond)
			if n := ownConn(b, "a").sides.in.Load(); n > 3 {
				t.Fatalf("%d side streams have come, 3 were allowed", n)
			}
		}
		if n := ownConn(a, "b").sides.out.Load(); n != 3 {
			t.Errorf("%d side streams are used, want the 3 that are allowed", n)
		}
	})
}

// TestUrgentLinksHaveNoSideStreams: what they carry is small.
func TestUrgentLinksHaveNoSideStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5*time.Millisecond)
		defer w.close()
		a, b := w.pair(nil, nil)
		w.until(2*time.Second, "up", up(a, b))
		c := a.Manager.links[Key{"b", zone.ClassUrgent}].current.Load()
		if c.peer.Sides != 0 || c.sides.told != 0 || c.peer.Features&wire.FeatureSides != 0 {
			t.Errorf("an urgent link may have %d and %d side streams", c.peer.Sides, c.sides.told)
		}
	})
}

// TestWindowMemoryIsNeverPassed has connections come and go.
func TestWindowMemoryIsNeverPassed(t *testing.T) {
	const total = 256
	m := newWindowMemory(Limits{StreamWindow: 2 << 20, WindowMemory: total * 2 << 20})
	var have []int
	held := 0
	for i := range 5000 {
		if i%3 == 2 && i%500 < 400 {
			last := len(have) - 1
			m.give(have[last])
			held -= 2 * have[last]
			have = have[:last]
			continue
		}
		n := m.take()
		if i == 0 && n != maxSides {
			t.Errorf("the first connection gets %d, want %d", n, maxSides)
		}
		have, held = append(have, n), held+2*n
		if held > total || m.left != total-held {
			t.Fatalf("%d windows are held and %d left of %d", held, m.left, total)
		}
	}
	for _, n := range have {
		m.give(n)
	}
	if m.left != total {
		t.Errorf("%d of %d are back", m.left, total)
	}
	if n := newWindowMemory(Limits{StreamWindow: 2 << 20, WindowMemory: -1}).take(); n != 0 {
		t.Errorf("%d side streams without memory for any", n)
	}
}

// TestHostilePeersKeepToTheWindowMemory greets from many connections and fills every
// stream that it can, which nobody reads.
func TestHostilePeersKeepToTheWindowMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5*time.Millisecond)
		defer w.close()
		const memory = 64 * sideWindow
		hold := make(chan struct{})
		a := w.start("a", "amsterdam", 1, func(context.Context, *Session) { <-hold }, func(o *Options) {
			o.Classes = []zone.Class{zone.ClassBulk}
			o.Limits.StreamWindow, o.Limits.Sessions, o.Limits.WindowMemory = sideWindow, 4, memory
			o.Timing.RedAfter = time.Hour // strangers answer no probes
		})
		defer close(hold)
		var told, sent int64
		var conns []*quic.Conn
		for i := range 12 {
			s := w.stranger(router(zone.Node("s"+string(rune('a'+i))), "zurich"))
			qc, h := s.greetedBulk(t, a, zone.Node("s"+string(rune('a'+i))))
			conns = append(conns, qc)
			told += int64(h.Sides)
			sent += flood(t, qc, int(h.Sides))
		}
		if told == 0 || 2*told*sideWindow > memory {
			t.Errorf("strangers were told of %d side streams, want some, and two windows each within the memory", told)
		}
		if most := 12*4*int64(sideWindow) + 2*told*sideWindow; sent > most {
			t.Errorf("%d bytes were taken, want at most %d", sent, most)
		}
		for _, qc := range conns {
			_ = qc.CloseWithError(0, "")
		}
		w.until(5*time.Second, "the memory is free again", func() bool {
			a.windows.mu.Lock()
			defer a.windows.mu.Unlock()
			return a.windows.left == 64
		})
	})
}

// greetedBulk is greeted for a bulk link; it returns the answer.
func (s *stranger) greetedBulk(t *testing.T, a *node, name zone.Node) (*quic.Conn, wire.Hello) {
	t.Helper()
	qc := s.dial(t, a, s.conf)
	stream, err := qc.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	hello := greeting()
	hello.Node, hello.Class = name, zone.ClassBulk
	if err := sendHello(stream, hello); err != nil {
		t.Fatal(err)
	}
	f, err := wire.ReadFrame(stream, wire.MaxHello)
	if err != nil {
		t.Fatal(err)
	}
	h, err := wire.ParseHello(f.Payload)
	if err != nil {
		t.Fatal(err)
	}
	return qc, h
}

// flood opens every session and twice the side streams that it was told of, and
// returns how many bytes were taken.
func flood(t *testing.T, qc *quic.Conn, sides int) (sent int64) {
	t.Helper()
	first := uint64(0)
	for range 4 {
		st, err := qc.OpenStream()
		if err != nil {
			break
		}
		if first == 0 {
			first = uint64(st.StreamID())
		}
		_ = st.SetWriteDeadline(time.Now().Add(time.Second))
		n, _ := st.Write(make([]byte, 2*sideWindow))
		sent += int64(n)
	}
	for range 2 * sides {
		st, err := qc.OpenUniStream()
		if err != nil {
			t.Fatal(err)
		}
		_ = st.SetWriteDeadline(time.Now().Add(time.Second))
		n, _ := st.Write(append(binary.LittleEndian.AppendUint64(nil, first), make([]byte, 2*sideWindow)...))
		sent += int64(n)
	}
	return sent
}

// TestSideStreamsBeyondWhatWasToldEndTheConnection opens one too many.
func TestSideStreamsBeyondWhatWasToldEndTheConnection(t *testing.T) {
	for name, memory := range map[string]int64{"none": -1, "some": 32 * sideWindow} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 5*time.Millisecond)
				defer w.close()
				a := w.start("a", "amsterdam", 1, func(ctx context.Context, _ *Session) { <-ctx.Done() }, func(o *Options) {
					o.Classes = []zone.Class{zone.ClassBulk}
					o.Limits.StreamWindow, o.Limits.WindowMemory = sideWindow, memory
					o.Timing.RedAfter = time.Hour
				})
				qc, h := w.stranger(router("s", "zurich")).greetedBulk(t, a, "s")
				flood(t, qc, int(h.Sides))
				if qc.Context().Err() != nil {
					t.Fatal("the connection has ended too early")
				}
				st, err := qc.OpenUniStream()
				if err != nil {
					t.Fatal(err)
				}
				_, _ = st.Write([]byte{1})
				if code := told(t, qc); code != wire.CodeTooMany {
					t.Errorf("told %s, want too-many", code)
				}
			})
		})
	}
}

// TestAsideThatLeadsNowhereEndsTheSession names a side stream that does not come.
func TestAsideThatLeadsNowhereEndsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5*time.Millisecond)
		defer w.close()
		ended := make(chan error, 1)
		a := w.start("a", "amsterdam", 1, func(ctx context.Context, s *Session) {
			_, err := s.Recv(ctx)
			ended <- err
		}, func(o *Options) { o.Timing.RedAfter = time.Hour })
		st, err := w.stranger(router("s", "zurich")).greeted(t, a).OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		aside := wire.Aside{Stream: 77}
		start := time.Now()
		if _, err := st.Write(mustFrame(wire.Frame{Type: wire.TypeAside, Session: 1, Payload: aside.Append(nil)})); err != nil {
			t.Fatal(err)
		}
		var closed *wire.ClosedError
		if err := <-ended; !errors.As(err, &closed) || closed.Code != wire.CodeTimeout {
			t.Errorf("the session ended with %v, want a timeout", err)
		}
		if took := time.Since(start); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("it took %v, want 5 s", took)
		}
	})
}
