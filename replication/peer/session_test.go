package peer

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

func TestSessionsShareOneConnectionAndKeepTheirOrder(t *testing.T) {
	a := authority(t, "bank", time.Now())
	ls, ds := store(t, a, broker("l1"), time.Now), store(t, a, broker("d1"), time.Now)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// A busy machine is no slow peer: timings must not decide this test.
	calm := Timing{Handshake: patience, Write: patience, Dead: patience, Idle: patience}
	l, err := NewListener(Options{Self: broker("l1"), Group: "gl", Incarnation: 1, Timing: calm, TLS: &TLS{Store: ls, Authorize: allow}}, echo)
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDialer(Options{Self: broker("d1"), Group: "gd", Incarnation: 2, Timing: calm, TLS: &TLS{Store: ds, Authorize: allow}})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- l.Serve(ln) }()
	to := Target{Identity: broker("l1"), Addr: ln.Addr().String(), Destination: "shanghai", Class: zone.ClassUrgent}

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	const sessions, frames = 16, 100
	var wg sync.WaitGroup
	for i := range uint64(sessions) {
		wg.Go(func() { exchange(ctx, t, d, to, i+1, frames) })
	}
	wg.Wait()
	if st := d.Stats(); st.Connected != 1 || st.Failed != 0 {
		t.Errorf("%d connections, %d failed, want one", st.Connected, st.Failed)
	}
	if st := d.Status(); len(st) != 1 || st[0].State != StateOpen || st[0].Peer.Node != "l1" || st[0].Target != to {
		t.Errorf("status %+v", st)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if h := l.Stats().Held + d.Stats().Held; h != 0 {
		t.Errorf("%d bytes still reserved", h)
	}
}

// exchange sends numbered frames of growing size and checks the echo.
func exchange(ctx context.Context, t *testing.T, d *Dialer, to Target, id uint64, frames int) {
	s, err := d.Open(ctx, to, id)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = s.Close(wire.CodeOK) }()
	if s.Peer().Node != "l1" || s.Class() != to.Class || s.ID() != id || s.Destination() != "shanghai" {
		t.Errorf("session %+v", s.Peer())
	}
	go func() {
		payload := make([]byte, 8, 64<<10)
		for i := range frames {
			binary.LittleEndian.PutUint64(payload, uint64(i))
			typ := wire.TypeBatch
			if i == 0 {
				typ = wire.TypeOpen
			}
			if err := s.Send(ctx, wire.Frame{Type: typ, Payload: payload[:8+i*64]}); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for i := range frames {
		f, err := s.Recv(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		if f.Session != id || f.Class != to.Class || binary.LittleEndian.Uint64(f.Payload) != uint64(i) || len(f.Payload) != 8+i*64 {
			t.Errorf("session %d: frame %d is %d of %d bytes", id, i, binary.LittleEndian.Uint64(f.Payload), len(f.Payload))
			return
		}
	}
}

func TestPeersEndIsHeardAfterWhatItSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, func(ctx context.Context, s *Session) {
			f, err := s.Recv(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			for range 3 {
				if err := s.Send(ctx, f); err != nil {
					t.Error(err)
				}
			}
			s.CloseText(wire.CodeResidency, "not here")
			_, err = s.Recv(ctx)
			closedWith(t, err, wire.CodeResidency)
		}, nil)
		s := p.open(t, 7)
		send(t, s, wire.TypeOpen, "x")
		<-s.Done()
		for range 3 {
			if f := recv(t, s); string(f.Payload) != "x" {
				t.Errorf("payload %q", f.Payload)
			}
		}
		_, err := s.Recv(context.Background())
		closedWith(t, err, wire.CodeResidency)
		if !strings.Contains(err.Error(), "not here") {
			t.Errorf("no detail in %v", err)
		}
		closedWith(t, s.Send(context.Background(), wire.Frame{Type: wire.TypeBatch}), wire.CodeResidency)
		if err := s.Close(wire.CodeOK); err != nil {
			t.Error(err)
		}
		p.close(t)
	})
}

func TestEndedContextEndsTheCallOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, echo, nil)
		s := p.open(t, 7)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := s.Recv(ctx); err != context.DeadlineExceeded { //nolint:errorlint // ctx's own
			t.Errorf("%v", err)
		}
		send(t, s, wire.TypeOpen, "still here")
		if f := recv(t, s); string(f.Payload) != "still here" {
			t.Errorf("payload %q", f.Payload)
		}
		p.close(t)
		_, err := s.Recv(context.Background())
		closedWith(t, err, wire.CodeShutdown)
	})
}

func TestReusedBufferDoesNotChangeWhatWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, echo, nil)
		s := p.open(t, 7)
		b := []byte("first")
		if err := s.Send(context.Background(), wire.Frame{Type: wire.TypeOpen, Payload: b}); err != nil {
			t.Fatal(err)
		}
		copy(b, "other")
		if f := recv(t, s); string(f.Payload) != "first" {
			t.Errorf("payload %q", f.Payload)
		}
		p.close(t)
	})
}

func TestFullQueueResetsThatSessionOnly(t *testing.T) {
	for _, bound := range []string{"frames", "session", "connection", "node"} {
		t.Run(bound, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, func(ctx context.Context, s *Session) {
					if s.ID() == 1 { // never reads
						<-s.Done()
						return
					}
					echo(ctx, s)
				}, func(l, _ *Options) {
					switch bound {
					case "frames":
						l.Limits.Frames = 10
					case "session":
						l.Limits.SessionBytes = 10 << 10
					case "connection":
						l.Limits.ConnBytes = 10 << 10
					case "node":
						l.Limits.TotalBytes = 10 << 10
					}
				})
				slow, good := p.open(t, 1), p.open(t, 2)
				kib := strings.Repeat("x", 1<<10)
				send(t, good, wire.TypeOpen, "a")
				recv(t, good)
				for range 12 {
					if slow.Send(context.Background(), wire.Frame{Type: wire.TypeOpen, Payload: []byte(kib)}) != nil {
						break
					}
				}
				_, err := slow.Recv(context.Background())
				closedWith(t, err, wire.CodeSlowPeer)
				send(t, good, wire.TypeBatch, "b")
				if f := recv(t, good); string(f.Payload) != "b" {
					t.Errorf("payload %q", f.Payload)
				}
				synctest.Wait()
				if st := p.l.Stats(); st.Overflows != 1 {
					t.Errorf("%d overflows, want 1", st.Overflows)
				}
				p.close(t)
			})
		})
	}
}

func TestHopThatTakesNoBytesResetsWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, echo, nil)
		ln := newPipeNet()
		p.d.o.DialContext = ln.dial
		done := make(chan struct{})
		go func() { // greets, then reads no more
			defer close(done)
			c, err := ln.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := greetSecond(c, &p.l.o, nil, false); err != nil {
				t.Error(err)
			}
			done <- struct{}{}
			_ = c.Close()
		}()
		s := p.open(t, 7)
		start := time.Now()
		big := make([]byte, 1<<20)
		var err error
		for range 5 {
			if err = s.Send(context.Background(), wire.Frame{Type: wire.TypeBatch, Payload: big}); err != nil {
				break
			}
		}
		closedWith(t, err, wire.CodeSlowPeer)
		if took := time.Since(start); took < time.Second || took > 1100*time.Millisecond {
			t.Errorf("reset after %v, want 1 s", took)
		}
		if p.d.Stats().SlowPeers == 0 {
			t.Error("not counted")
		}
		<-done
		p.close(t)
	})
}

func TestSessionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, echo, func(l, _ *Options) { l.Limits.Sessions = 3 })
		for i := range uint64(3) {
			s := p.open(t, i+1)
			send(t, s, wire.TypeOpen, "x")
			recv(t, s)
		}
		_, err := p.d.Open(context.Background(), target(), 4)
		closedWith(t, err, wire.CodeTooMany) // the greeting told the bound

		c := p.greeted(t) // one who does not keep to it
		go func() {
			for i := range uint64(4) {
				if _, err := c.Write(rawFrame(t, wire.Frame{Type: wire.TypeOpen, Session: i + 1})); err != nil {
					t.Error(err)
				}
			}
		}()
		for {
			f, err := wire.ReadFrame(c, wire.MaxPayload)
			if err != nil {
				t.Fatal(err)
			}
			if f.Session != 4 {
				continue // echoes, probes
			}
			r, err := wire.ParseRefuse(f.Payload)
			if err != nil || f.Type != wire.TypeRefuse || r.Code != wire.CodeTooMany {
				t.Errorf("%s %+v, %v", f.Type, r, err)
			}
			break
		}
		_ = c.Close()
		p.close(t)
	})
}

func TestSessionNumbersAreChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, echo, nil)
		s := p.open(t, 7)
		for _, id := range []uint64{0, 7} {
			if _, err := p.d.Open(context.Background(), target(), id); err != ErrSession { //nolint:errorlint // the sentinel itself
				t.Errorf("session %d: %v, want ErrSession", id, err)
			}
		}
		if err := s.Close(wire.CodeOK); err != nil {
			t.Error(err)
		}
		send(t, p.open(t, 7), wire.TypeWant, "again")
		p.close(t)
	})
}

func TestFramesOfOtherSessionsAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, echo, nil)
		c := p.greeted(t)
		frames := []wire.Frame{
			{Type: wire.TypeBatch, Session: 99, Payload: make([]byte, 1<<20)}, // late, of a session that has ended
			{Type: wire.TypeEnd, Session: 98},
			{Type: wire.Type(200), Session: 97, Payload: []byte("of a later version")},
			{Type: wire.Type(200), Payload: []byte("of a later version")},
			{Type: wire.TypeOpen, Session: 5, Payload: []byte("hello")},
			{Type: wire.Type(200), Session: 5, Payload: []byte("passes through")},
		}
		go func() {
			for _, f := range frames {
				if _, err := c.Write(rawFrame(t, f)); err != nil {
					t.Error(err)
				}
			}
		}()
		for _, want := range []string{"hello", "passes through"} {
			f, err := wire.ReadFrame(c, wire.MaxPayload)
			if err != nil || f.Session != 5 || string(f.Payload) != want {
				t.Fatalf("%+v, %v, want %q", f, err, want)
			}
		}
		if st := p.l.Stats(); st.Ignored != 3 {
			t.Errorf("%d frames ignored, want 3", st.Ignored)
		}
		_ = c.Close()
		p.close(t)
	})
}

func TestPayloadAboveThePeersLimitHarmsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, echo, func(l, _ *Options) { l.Limits.MaxPayload = 1 << 10 })
		s := p.open(t, 7)
		err := s.Send(context.Background(), wire.Frame{Type: wire.TypeOpen, Payload: make([]byte, 2<<10)})
		if err == nil || codeOf(err) != wire.CodeUnsupported {
			t.Errorf("%v", err)
		}
		send(t, s, wire.TypeOpen, "fits")
		if f := recv(t, s); string(f.Payload) != "fits" {
			t.Errorf("payload %q", f.Payload)
		}
		p.close(t)
	})
}

func TestManyShortSessionsLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, func(ctx context.Context, s *Session) {
			if s.ID()%2 == 0 { // half of them never read what came
				return
			}
			echo(ctx, s)
		}, nil)
		for i := range uint64(2000) {
			s := p.open(t, i+1)
			send(t, s, wire.TypeOpen, fmt.Sprint(i))
			if i%3 == 0 {
				_, _ = s.Recv(context.Background()) // an echo, or the end
			}
			if err := s.Close(wire.CodeOK); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if st := p.l.Status(); len(st) != 1 || st[0].Sessions != 0 || st[0].Held != 0 {
			t.Errorf("left behind: %+v", st)
		}
		if st := p.d.Status(); len(st) != 1 || st[0].Sessions != 0 || st[0].Held != 0 {
			t.Errorf("left behind: %+v", st)
		}
		p.close(t)
	})
}
