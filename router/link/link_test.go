package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

func TestLinkIsUpAfterTwoRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 40*time.Millisecond)
		defer w.close()
		a, b := w.pair(nil, nil)
		took := w.until(time.Second, "up", up(a, b))
		if took < 160*time.Millisecond || took > 175*time.Millisecond {
			t.Errorf("the dialler was up after %v, want two round trips of 80 ms", took)
		}
		w.until(time.Second, "other side up", up(b, a))
		time.Sleep(2 * time.Second)
		if s := statusOf(a, "b"); s.State != StateUp || s.Connections != 1 || s.Reconnects != 0 {
			t.Errorf("status = %+v, want one connection that stays", s)
		}
		if rtt, _ := a.Up("b", zone.ClassUrgent); rtt < 80*time.Millisecond || rtt > 120*time.Millisecond {
			t.Errorf("round trip = %v, want 80 ms and at most an acknowledgement's delay more", rtt)
		}
	})
}

func TestSessionKeepsOrderAndTellsCode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 10*time.Millisecond)
		defer w.close()
		const frames = 200
		result := make(chan error, 1)
		a, b := w.pair(func(ctx context.Context, s *Session) {
			for i := range frames {
				f, err := s.Recv(ctx)
				if err != nil || string(f.Payload) != fmt.Sprint(i) {
					result <- fmt.Errorf("frame %d: %q, %w", i, f.Payload, err)
					return
				}
			}
			_, err := s.Recv(ctx)
			result <- err
		}, nil)
		w.until(time.Second, "up", up(a, b))
		s, err := a.Open("b", zone.ClassUrgent, 77)
		if err != nil {
			t.Fatal(err)
		}
		for i := range frames {
			if err := s.Send(t.Context(), frame(77, fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
		_ = s.Close(wire.CodeDraining)
		var closed *wire.ClosedError
		if err := <-result; !errors.As(err, &closed) || closed.Code != wire.CodeDraining || closed.Local {
			t.Errorf("the far end saw %v, want draining from its peer", err)
		}
		time.Sleep(time.Second)
		if got := statusOf(a, "b").Sessions + statusOf(b, "a").Sessions; got != 0 {
			t.Errorf("%d sessions are left", got)
		}
	})
}

func TestCutOf20SecondsHealsWithinASecond(t *testing.T) {
	for _, oneWay := range []time.Duration{5 * time.Millisecond, 75 * time.Millisecond} {
		t.Run(oneWay.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, oneWay)
				defer w.close()
				a, b := w.pair(nil, nil)
				w.until(time.Second, "up", up(a, b))
				for round := range 3 {
					w.setDrop(func(simnet.Packet) bool { return true })
					w.until(5*time.Second, "red", func() bool {
						return statusOf(a, "b").State == StateRed && statusOf(b, "a").State == StateRed
					})
					time.Sleep(20 * time.Second)
					w.setDrop(nil)
					took := w.until(time.Second, "healed", func() bool { return up(a, b)() && up(b, a)() })
					t.Logf("round %d: healed after %v", round, took)
				}
				if s := statusOf(a, "b"); s.Reconnects == 0 {
					t.Errorf("reconnects = %d, want them counted", s.Reconnects)
				}
			})
		})
	}
}

func TestS7_BlackHoleOneWayGoesRedAndRedials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 10*time.Millisecond)
		defer w.close()
		a, b := w.pair(nil, nil)
		w.until(time.Second, "up", func() bool { return up(a, b)() && up(b, a)() })
		s, err := a.Open("b", zone.ClassUrgent, 5)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(t.Context(), frame(5, "x")); err != nil {
			t.Fatal(err)
		}
		w.setDrop(func(p simnet.Packet) bool { return p.To.String() == b.peer.Addr })
		took := w.until(4*time.Second, "red", func() bool {
			return statusOf(a, "b").State == StateRed && statusOf(b, "a").State != StateUp
		})
		if took > 2600*time.Millisecond {
			t.Errorf("noticed after %v, want at most the probes' limit of 2 s and one probe more", took)
		}
		_, _ = s.Recv(t.Context()) // what was echoed before, perhaps
		if _, err := s.Recv(t.Context()); err == nil {
			t.Error("the session survived its link")
		}
		w.setDrop(nil)
		w.until(time.Second, "healed", func() bool { return up(a, b)() && up(b, a)() })
	})
}

func TestStalledStreamIsResetAndStopsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5*time.Millisecond)
		defer w.close()
		stalled := make(chan struct{})
		a, b := w.pair(func(ctx context.Context, s *Session) {
			f, err := s.Recv(ctx)
			if err != nil {
				return
			}
			if string(f.Payload) == "stall" {
				<-stalled // reads no more
				return
			}
			_ = s.Send(ctx, f)
			echo(ctx, s)
		}, func(o *Options) { o.Limits.StreamWindow = 256 << 10 })
		w.until(time.Second, "up", up(a, b))
		slow, err := a.Open("b", zone.ClassUrgent, 1)
		if err != nil {
			t.Fatal(err)
		}
		quick, err := a.Open("b", zone.ClassUrgent, 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := slow.Send(t.Context(), frame(1, "stall")); err != nil {
			t.Fatal(err)
		}
		outcome := make(chan error, 1)
		go func() {
			big := string(make([]byte, 1<<20))
			start := time.Now()
			err := slow.Send(context.Background(), frame(1, big))
			if took := time.Since(start); took < time.Second || took > 2*time.Second {
				t.Errorf("the stalled stream was reset after %v, want a second", took)
			}
			outcome <- err
		}()
		for i := range 300 { // three seconds
			if err := quick.Send(t.Context(), frame(2, fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if _, err := quick.Recv(t.Context()); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took > 40*time.Millisecond {
				t.Fatalf("frame %d took %v beside a stalled stream", i, took)
			}
		}
		var closed *wire.ClosedError
		if err := <-outcome; !errors.As(err, &closed) || closed.Code != wire.CodeSlowPeer {
			t.Errorf("the stalled stream ended with %v, want slow-peer", err)
		}
		close(stalled)
		_ = quick.Close(wire.CodeOK)
		if s := statusOf(a, "b"); s.State != StateUp || s.Reconnects != 0 {
			t.Errorf("status = %+v, want the link unharmed", s)
		}
	})
}

func TestT3_RestartedPeerAtNewAddressIsBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 20*time.Millisecond)
		defer w.close()
		a, b := w.pair(nil, nil)
		w.until(time.Second, "up", up(a, b))
		// As after kill -9: no word of farewell.
		old := b.peer.Addr
		w.setDrop(func(p simnet.Packet) bool { return p.From.String() == old || p.To.String() == old })
		again := w.start("b", "berlin", 13, nil, nil)
		again.SetPeers([]Peer{a.peer})
		a.SetPeers([]Peer{again.peer})
		w.until(time.Second, "back", func() bool {
			s, err := a.Open("b", zone.ClassUrgent, 9)
			if err != nil {
				return false
			}
			defer s.Close(wire.CodeOK)
			if err := s.Send(t.Context(), frame(9, "hello")); err != nil {
				return false
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err = s.Recv(ctx)
			return err == nil
		})
	})
}

func TestDrainingPeerTakesNoNewSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5*time.Millisecond)
		defer w.close()
		a, b := w.pair(nil, nil)
		w.until(time.Second, "up", func() bool { return up(a, b)() && up(b, a)() })
		s, err := a.Open("b", zone.ClassUrgent, 3)
		if err != nil {
			t.Fatal(err)
		}
		b.Drain(10 * time.Second)
		w.until(time.Second, "draining", func() bool { return statusOf(a, "b").State == StateDraining })
		if _, err := a.Open("b", zone.ClassUrgent, 4); !errors.Is(err, ErrNoLink) {
			t.Errorf("Open = %v, want ErrNoLink", err)
		}
		c := w.start("c", "copenhagen", 14, nil, nil)
		c.SetPeers([]Peer{b.peer})
		w.until(time.Second, "a new peer is told", func() bool {
			return strings.Contains(statusOf(c, "b").LastError, wire.CodeDraining.String())
		})
		if err := s.Send(t.Context(), frame(3, "still here")); err != nil {
			t.Fatal(err)
		}
		if f, err := s.Recv(t.Context()); err != nil || string(f.Payload) != "still here" {
			t.Errorf("Recv = %q, %v; want the session to go on", f.Payload, err)
		}
	})
}

func TestBothSidesDialAndOneConnectionStays(t *testing.T) {
	for _, oneWay := range []time.Duration{time.Millisecond, 60 * time.Millisecond, 150 * time.Millisecond, 300 * time.Millisecond} {
		t.Run(oneWay.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, oneWay)
				defer w.close()
				a, b := w.pair(nil, nil)
				w.until(5*time.Second, "up", func() bool { return up(a, b)() && up(b, a)() })
				time.Sleep(10 * time.Second)
				sa, sb := statusOf(a, "b"), statusOf(b, "a")
				for _, s := range []Status{sa, sb} {
					if s.State != StateUp || s.Connections != 1 || s.Attempts != 0 || s.Reconnects != 0 {
						t.Errorf("status = %+v, want one connection, never lost", s)
					}
				}
				packets := sa.Traffic.PacketsOut + sb.Traffic.PacketsOut
				time.Sleep(10 * time.Second)
				after := statusOf(a, "b").Traffic.PacketsOut + statusOf(b, "a").Traffic.PacketsOut
				if n := after - packets; n < 40 || n > 200 {
					t.Errorf("an idle link sent %d packets in 10 s, want 20 probes and answers from each end", n)
				}
			})
		})
	}
}

func TestLossNeitherReordersNorEndsASession(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 15*time.Millisecond)
				defer w.close()
				a, b := w.pair(nil, nil)
				w.until(time.Second, "up", up(a, b))
				var mu sync.Mutex
				r := rand.New(rand.NewPCG(seed, 3))
				w.setDrop(func(simnet.Packet) bool {
					mu.Lock()
					defer mu.Unlock()
					return r.IntN(100) < 3
				})
				s, err := a.Open("b", zone.ClassUrgent, 8)
				if err != nil {
					t.Fatal(err)
				}
				const frames = 300
				go func() {
					for i := range frames {
						if s.Send(context.Background(), frame(8, fmt.Sprintf("%d %s", i, make([]byte, i*31%9000)))) != nil {
							return
						}
					}
				}()
				for i := range frames {
					f, err := s.Recv(t.Context())
					if err != nil {
						t.Fatalf("frame %d: %v", i, err)
					}
					if want := fmt.Sprintf("%d ", i); !strings.HasPrefix(string(f.Payload), want) {
						t.Fatalf("frame %d begins with %q", i, f.Payload[:8])
					}
				}
				_ = s.Close(wire.CodeOK)
				st := statusOf(a, "b")
				if st.Traffic.PacketsLost == 0 || st.Reconnects != 0 || st.State != StateUp {
					t.Errorf("status = %+v, want losses seen and the link up", st)
				}
			})
		})
	}
}
