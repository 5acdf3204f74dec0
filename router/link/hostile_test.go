package link

import (
	"context"
	"crypto/tls"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// stranger is a bare QUIC endpoint with a valid certificate.
type stranger struct {
	*quic.Transport
	conf *tls.Config
	addr string
}

func (w *world) stranger(id peer.Identity) *stranger {
	sock := w.socket()
	tr := &quic.Transport{Conn: sock, ConnectionIDLength: 8}
	w.ends = append(w.ends, func() { _ = tr.Close() })
	return &stranger{Transport: tr, conf: w.ca.issue(w.t, id), addr: sock.LocalAddr().String()}
}

func router(name zone.Node, city zone.City) peer.Identity {
	return peer.Identity{Deployment: testDeployment, City: city, Role: zone.RoleRouter, Name: name}
}

func (s *stranger) dial(t *testing.T, to *node, conf *tls.Config) *quic.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	qc, err := s.Dial(ctx, to.sock.LocalAddr(), conf, nil)
	if err != nil {
		t.Fatal(err)
	}
	return qc
}

// greeting is what a router named s of city zurich says to amsterdam.
func greeting() *wire.Hello {
	return &wire.Hello{
		VersionMin: 1, VersionMax: 1, Deployment: testDeployment, Role: zone.RoleRouter,
		City: "zurich", Node: "s", Incarnation: 5, MaxFrame: wire.MaxPayload, MaxSessions: 10,
		DestinationCity: "amsterdam", Class: zone.ClassUrgent,
	}
}

// told returns the code with which the node ended the connection.
func told(t *testing.T, qc *quic.Conn) wire.Code {
	t.Helper()
	select {
	case <-qc.Context().Done():
	case <-time.After(time.Minute):
		t.Fatal("the connection was not closed")
	}
	var app *quic.ApplicationError
	if err := context.Cause(qc.Context()); !errors.As(err, &app) || !app.Remote {
		t.Fatalf("the connection ended with %v", err)
	}
	return wire.Code(app.ErrorCode)
}

func TestS2_SilentPeerIsGivenUpAndDialledForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 20*time.Millisecond)
		defer w.close()
		s := w.stranger(router("s", "zurich"))
		ln, err := s.Listen(s.conf, nil)
		if err != nil {
			t.Fatal(err)
		}
		var accepted, ended atomic.Int64
		w.wg.Go(func() { // takes connections and says nothing
			for {
				qc, err := ln.Accept(context.Background())
				if err != nil {
					return
				}
				accepted.Add(1)
				context.AfterFunc(qc.Context(), func() { ended.Add(1) })
			}
		})
		w.ends = append(w.ends, func() { _ = ln.Close() })
		a := w.start("a", "amsterdam", 1, nil, nil)
		a.SetPeers([]Peer{{Node: "s", City: "zurich", Addr: s.addr}})
		w.until(time.Second, "handshaking", func() bool { return statusOf(a, "s").State == StateHandshaking })
		time.Sleep(20 * time.Second)
		st := statusOf(a, "s")
		// The state says since when nothing but handshakes goes on, not since when
		// the present one does.
		if st.State != StateHandshaking || st.LastError == "" || time.Since(st.Since) < 15*time.Second {
			t.Errorf("status = %+v, want handshaking for most of the time, and the fault", st)
		}
		n := accepted.Load()
		if n < 13 || n > 70 {
			t.Errorf("%d attempts in 20 s, want a steady few a second", n)
		}
		if left := n - ended.Load(); left > maxAttempts {
			t.Errorf("%d connections are open, want at most %d", left, maxAttempts)
		}
		time.Sleep(5 * time.Second)
		if accepted.Load() == n {
			t.Error("dialling has stopped")
		}
	})
}

func TestS2_SilentDiallerIsClosedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5*time.Millisecond)
		defer w.close()
		a := w.start("a", "amsterdam", 1, nil, nil)
		s := w.stranger(router("s", "zurich"))
		start := time.Now()
		if code := told(t, s.dial(t, a, s.conf)); code != wire.CodeTimeout {
			t.Errorf("told %s, want timeout", code)
		}
		if took := time.Since(start); took > 3100*time.Millisecond {
			t.Errorf("it took %v, want the deadline of 3 s", took)
		}
		if a.handshakes.Load() != 0 {
			t.Errorf("%d handshakes are counted", a.handshakes.Load())
		}
	})
}

func TestWrongGreetingsAreRefusedWithTheReason(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*wire.Hello)
		raw    []byte
		want   wire.Code
	}{
		"deployment":    {change: func(h *wire.Hello) { h.Deployment = "other" }, want: wire.CodeWrongDeployment},
		"node":          {change: func(h *wire.Hello) { h.Node = "b" }, want: wire.CodeWrongIdentity},
		"city":          {change: func(h *wire.Hello) { h.City = "berlin" }, want: wire.CodeWrongIdentity},
		"role":          {change: func(h *wire.Hello) { h.Role = zone.RoleBroker }, want: wire.CodeWrongIdentity},
		"other city":    {change: func(h *wire.Hello) { h.DestinationCity = "berlin" }, want: wire.CodeWrongIdentity},
		"version":       {change: func(h *wire.Hello) { h.VersionMin, h.VersionMax = 7, 9 }, want: wire.CodeUnsupported},
		"class":         {change: func(h *wire.Hello) { h.Class = 77 }, want: wire.CodeUnsupported},
		"incarnation":   {change: func(h *wire.Hello) { h.Incarnation = 0 }, want: wire.CodeMalformed},
		"garbage":       {raw: []byte("GET / HTTP/1.1\r\nHost: router\r\n\r\n"), want: wire.CodeMalformed},
		"another frame": {raw: mustFrame(wire.Frame{Type: wire.TypeProbe, Payload: make([]byte, 32)}), want: wire.CodeMalformed},
		"huge":          {raw: mustFrame(wire.Frame{Type: wire.TypeHello, Payload: make([]byte, 1<<20)}), want: wire.CodeMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 5*time.Millisecond)
				defer w.close()
				a := w.start("a", "amsterdam", 1, nil, nil)
				s := w.stranger(router("s", "zurich"))
				qc := s.dial(t, a, s.conf)
				stream, err := qc.OpenStream()
				if err != nil {
					t.Fatal(err)
				}
				if row.raw != nil {
					w.wg.Go(func() { _, _ = stream.Write(row.raw) })
				} else {
					h := greeting()
					row.change(h)
					if err := sendHello(stream, h); err != nil {
						t.Fatal(err)
					}
				}
				if code := told(t, qc); code != row.want {
					t.Errorf("told %s, want %s", code, row.want)
				}
				if n := a.connections.Load(); n != 0 || a.Refusals() == 0 {
					t.Errorf("%d connections, %d refusals", n, a.Refusals())
				}
			})
		})
	}
}

func mustFrame(f wire.Frame) []byte {
	b, err := wire.AppendFrame(nil, &f)
	if err != nil {
		panic(err) // the table above is wrong
	}
	return b
}

func TestP2_IdentitiesThatMayNotLinkAreRefused(t *testing.T) {
	for name, id := range map[string]peer.Identity{
		"a broker":         {Deployment: testDeployment, City: "zurich", Zone: "z", Role: zone.RoleBroker, Name: "s"},
		"own city":         router("s", "amsterdam"),
		"other deployment": {Deployment: "other", City: "zurich", Role: zone.RoleRouter, Name: "s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 5*time.Millisecond)
				defer w.close()
				a := w.start("a", "amsterdam", 1, nil, nil)
				s := w.stranger(id)
				if code := told(t, s.dial(t, a, s.conf)); code != wire.CodeWrongIdentity {
					t.Errorf("told %s, want wrong-identity", code)
				}
			})
		})
	}
}

// greeted returns a connection of the stranger that a has accepted.
func (s *stranger) greeted(t *testing.T, a *node) *quic.Conn {
	t.Helper()
	qc := s.dial(t, a, s.conf)
	stream, err := qc.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := sendHello(stream, greeting()); err != nil {
		t.Fatal(err)
	}
	if _, err := wire.ReadFrame(stream, wire.MaxHello); err != nil {
		t.Fatal(err)
	}
	return qc
}

func TestS7_PeerThatAnswersNoProbesIsTornDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5*time.Millisecond)
		defer w.close()
		a := w.start("a", "amsterdam", 1, nil, nil)
		s := w.stranger(router("s", "zurich"))
		// Its acknowledgements keep QUIC content; only the probes tell.
		qc := s.greeted(t, a)
		start := time.Now()
		if code := told(t, qc); code != wire.CodeTimeout {
			t.Errorf("told %s, want timeout", code)
		}
		if took := time.Since(start); took < 2*time.Second || took > 2100*time.Millisecond {
			t.Errorf("torn down after %v, want 2 s", took)
		}
	})
}

func TestStreamFloodIsCappedAndRunningSessionsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5*time.Millisecond)
		defer w.close()
		var running, most atomic.Int64
		hold := make(chan struct{})
		a := w.start("a", "amsterdam", 1, func(ctx context.Context, s *Session) {
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer running.Add(-1)
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			_, _ = s.Recv(ctx)
			<-hold
		}, func(o *Options) {
			o.Limits.Sessions = 20
			o.Timing.RedAfter = time.Hour // the stranger answers no probes
		})
		s := w.stranger(router("s", "zurich"))
		qc := s.greeted(t, a)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		opened := 0
		for {
			st, err := qc.OpenStreamSync(ctx)
			if err != nil {
				break
			}
			opened++
			// Ending them at once does not make room: the handlers still run.
			_, _ = st.Write([]byte("garbage"))
			st.CancelWrite(1)
			st.CancelRead(1)
		}
		if opened != 20 || most.Load() != 20 {
			t.Errorf("%d streams were opened and %d handlers ran, want 20", opened, most.Load())
		}
		close(hold)
		w.until(time.Second, "handlers end", func() bool { return running.Load() == 0 })
		ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := qc.OpenStreamSync(ctx); err != nil {
			t.Errorf("after the handlers ended: %v, want room again", err)
		}
	})
}

func TestConnectionsOfOnePeerAreCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5*time.Millisecond)
		defer w.close()
		a := w.start("a", "amsterdam", 1, nil, nil)
		s := w.stranger(router("s", "zurich"))
		for range 12 {
			s.greeted(t, a)
		}
		synctest.Wait()
		if n := statusOf(a, "s").Connections; n > maxConns {
			t.Errorf("%d connections are kept, want at most %d", n, maxConns)
		}
	})
}

func TestR2_HandshakesInProgressAreCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5*time.Millisecond)
		defer w.close()
		a := w.start("a", "amsterdam", 1, nil, func(o *Options) { o.Limits.Handshakes = 8 })
		b := w.start("b", "berlin", 2, nil, nil)
		s := w.stranger(router("s", "zurich"))
		refused := 0
		for range 30 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := s.Dial(ctx, a.sock.LocalAddr(), s.conf, nil); err != nil {
				refused++
			}
			cancel()
		}
		if got := a.handshakes.Load(); got > 6 || refused != 24 {
			t.Errorf("%d handshakes are in progress and %d were refused, want 6 and 24", got, refused)
		}
		// The places are free again once the silent ones have had their time.
		b.SetPeers([]Peer{a.peer})
		w.until(5*time.Second, "up", up(b, a))
		w.until(5*time.Second, "no places taken", func() bool { return a.handshakes.Load() == 0 })
	})
}

// TestPeersHavePlacesThatStrangersCannotTake: strangers hold all that they can get at both
// ends, for longer than the test waits.
func TestPeersHavePlacesThatStrangersCannotTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5*time.Millisecond)
		defer w.close()
		change := func(o *Options) { o.Limits.Handshakes, o.Timing.Handshake = 8, time.Minute }
		a, b := w.start("a", "amsterdam", 1, nil, change), w.start("b", "berlin", 2, nil, change)
		s := w.stranger(router("s", "zurich"))
		for _, to := range []*node{a, b} {
			for range 20 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				_, _ = s.Dial(ctx, to.sock.LocalAddr(), s.conf, nil)
				cancel()
			}
			if n := to.handshakes.Load(); n != 6 {
				t.Fatalf("%d handshakes are in progress, want 6 of 8", n)
			}
		}
		a.SetPeers([]Peer{b.peer})
		b.SetPeers([]Peer{a.peer})
		w.until(time.Second, "up", func() bool { return up(a, b)() && up(b, a)() })
	})
}

func TestM1_MemoryReturnsAfter1000ShortConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Millisecond)
		defer w.close()
		a := w.start("a", "amsterdam", 1, nil, nil)
		s := w.stranger(router("s", "zurich"))
		round := func(n int) {
			for i := range n {
				switch i % 3 {
				case 0: // aborted handshake
					ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
					_, _ = s.Dial(ctx, a.sock.LocalAddr(), s.conf, nil)
					cancel()
				case 1: // connected and gone
					_ = s.dial(t, a, s.conf).CloseWithError(0, "")
				case 2: // greeted, a stream, and gone
					qc := s.greeted(t, a)
					if st, err := qc.OpenStream(); err == nil {
						_, _ = st.Write([]byte("half a fra"))
					}
					_ = qc.CloseWithError(0, "")
				}
				time.Sleep(5 * time.Millisecond)
			}
			time.Sleep(30 * time.Second) // past every deadline
			synctest.Wait()
		}
		round(60)
		base, goroutines := heap(), runtime.NumGoroutine()
		round(1000)
		if now := heap(); now > base+4<<20 {
			t.Errorf("heap went from %d to %d bytes", base, now)
		}
		if now := runtime.NumGoroutine(); now > goroutines+4 {
			t.Errorf("goroutines went from %d to %d", goroutines, now)
		}
		if a.handshakes.Load() != 0 || a.connections.Load() != 0 {
			t.Errorf("%d handshakes and %d connections are counted", a.handshakes.Load(), a.connections.Load())
		}
	})
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
