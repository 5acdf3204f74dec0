package peer

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

func TestGreetingThatDoesNotFitIsRefusedWithTheReason(t *testing.T) {
	digest := zone.Digest{1}
	cases := []struct {
		name   string
		change func(*wire.Hello)
		code   wire.Code
	}{
		{"newer version", func(h *wire.Hello) { h.VersionMin, h.VersionMax = 9, 10 }, wire.CodeUnsupported},
		{"another deployment", func(h *wire.Hello) { h.Deployment = "staging" }, wire.CodeWrongDeployment},
		{"my own name", func(h *wire.Hello) { h.Node = "l1" }, wire.CodeWrongIdentity},
		{"another city", func(h *wire.Hello) { h.City = "beijing" }, wire.CodeWrongIdentity},
		{"topology with two contents", func(h *wire.Hello) { h.Digest = digest }, wire.CodeDiverged},
		{"no limits", func(h *wire.Hello) { h.MaxFrame = 0 }, wire.CodeMalformed},
		{"no incarnation", func(h *wire.Hello) { h.Incarnation = 0 }, wire.CodeMalformed},
		{"unknown class", func(h *wire.Hello) { h.Class = 77 }, wire.CodeUnsupported},
		{"long name", func(h *wire.Hello) { h.Group = zone.Group(strings.Repeat("x", 300)) }, wire.CodeMalformed},
		{"not admitted", func(h *wire.Hello) { h.DestinationCity = "atlantis" }, wire.CodeNoRoute},
		{"newer topology", func(h *wire.Hello) { h.Epoch, h.Digest = zone.Epoch{Term: 2}, digest }, wire.CodeOK},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, echo, func(l, _ *Options) {
					l.Admit = func(h wire.Hello) (wire.Code, string) {
						if h.DestinationCity != "shanghai" {
							return wire.CodeNoRoute, "no such city"
						}
						return wire.CodeOK, ""
					}
				})
				h := p.hello()
				c.change(&h)
				sc := p.stranger(t)
				// The stranger itself accepts everything: what counts is the answer.
				if err := writeFrame(sc, wire.TypeHello, h.Append(nil)); err != nil {
					t.Fatal(err)
				}
				f, err := wire.ReadFrame(sc, wire.MaxHello)
				if err != nil {
					t.Fatal(err)
				}
				switch r, err := wire.ParseRefuse(f.Payload); {
				case c.code == wire.CodeOK:
					if f.Type != wire.TypeHello {
						t.Errorf("answer %s, want hello", f.Type)
					}
				case f.Type != wire.TypeRefuse || err != nil || r.Code != c.code || r.Text == "":
					t.Errorf("answer %s %+v %v, want refuse with %s", f.Type, r, err, c.code)
				}
				_ = sc.Close()
				p.close(t)
			})
		})
	}
}

func TestDialerChecksTheAnswer(t *testing.T) {
	answer := func(f wire.Frame) func(net.Conn) {
		return func(c net.Conn) { _, _ = c.Write(mustFrame(f)) }
	}
	hello := (&Options{Self: broker("l1"), Incarnation: 1, Limits: Limits{}.withDefaults(), Topology: Options{}.withDefaults().Topology}).hello("shanghai", zone.ClassBulk)
	other := hello
	other.Node = "l2"
	staging := hello
	staging.Deployment = "staging"
	cases := []struct {
		name   string
		answer func(net.Conn)
		check  func(error) bool
	}{
		{"silence", func(net.Conn) {}, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
		{"end", func(c net.Conn) { _ = c.Close() }, func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }},
		{"garbage", func(c net.Conn) { _, _ = c.Write([]byte(strings.Repeat("HTTP/1.1 400\r\n", 10))) }, isFrameError},
		{"another frame", answer(wire.Frame{Type: wire.TypeAck}), isFrameError},
		{"cut off greeting", answer(wire.Frame{Type: wire.TypeHello, Payload: []byte{1}}), isFrameError},
		{"oversized greeting", answer(wire.Frame{Type: wire.TypeHello, Payload: make([]byte, wire.MaxHello+1)}), isFrameError},
		{"another node", answer(wire.Frame{Type: wire.TypeHello, Payload: other.Append(nil)}), func(err error) bool { return errors.Is(err, ErrUnexpected) }},
		{"another deployment", answer(wire.Frame{Type: wire.TypeHello, Payload: staging.Append(nil)}), func(err error) bool { return code(err) == wire.CodeWrongDeployment }},
		{"refusal", answer(wire.Frame{Type: wire.TypeRefuse, Payload: (&wire.Refuse{Code: wire.CodeTooMany}).Append(nil)}), func(err error) bool { return code(err) == wire.CodeTooMany }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, echo, nil)
				ln := newPipeNet()
				p.d.o.DialContext = ln.dial
				done := make(chan struct{})
				go func() {
					defer close(done)
					sc, err := ln.Accept()
					if err != nil {
						t.Error(err)
						return
					}
					if _, err := wire.ReadFrame(sc, wire.MaxHello); err != nil {
						t.Error(err)
					}
					c.answer(sc)
					<-drainConn(sc)
					_ = sc.Close()
				}()
				start := time.Now()
				_, err := p.d.Open(context.Background(), target(), 1)
				var de *DialError
				if !errors.As(err, &de) || de.Step != StepGreet || de.Link != "l1 at x:1" || de.As != broker("d1") || !c.check(err) {
					t.Errorf("%v", err)
				}
				if took := time.Since(start); took > p.d.o.Timing.Handshake {
					t.Errorf("took %v", took)
				}
				if st := p.d.Status(); len(st) != 1 || st[0].State != StateDown || st[0].Err == nil {
					t.Errorf("status %+v", st)
				}
				<-done
				p.close(t)
			})
		})
	}
}

func mustFrame(f wire.Frame) []byte {
	b, err := wire.AppendFrame(nil, &f)
	if err != nil {
		panic(err)
	}
	return b
}

func isFrameError(err error) bool {
	var fe *wire.FrameError
	return errors.As(err, &fe)
}

func code(err error) wire.Code {
	var ce *wire.ClosedError
	if errors.As(err, &ce) {
		return ce.Code
	}
	return wire.CodeOK
}

func TestS2_OneDeadlineCoversConnectAndGreeting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, echo, nil)
		p.d.o.DialContext = func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done() // a connect that goes nowhere
			return nil, ctx.Err()
		}
		start := time.Now()
		errs := make(chan error)
		for i := range uint64(5) { // all wait for one attempt
			go func() {
				_, err := p.d.Open(context.Background(), target(), i+1)
				errs <- err
			}()
		}
		synctest.Wait()
		if st := p.d.Status(); len(st) != 1 || st[0].State != StateConnecting || !st[0].Since.Equal(start) {
			t.Errorf("status %+v", st)
		}
		for range 5 {
			var de *DialError
			if err := <-errs; !errors.As(err, &de) || de.Step != StepConnect {
				t.Errorf("%v", err)
			}
		}
		if took := time.Since(start); took != p.d.o.Timing.Handshake {
			t.Errorf("took %v, want %v", took, p.d.o.Timing.Handshake)
		}
		if st := p.d.Stats(); st.Failed != 1 {
			t.Errorf("%d attempts, want 1", st.Failed)
		}
		p.close(t)
	})
}

func TestStrangersAreCutOffInTime(t *testing.T) {
	drip := func(c net.Conn) { // a byte now and then
		for _, b := range mustFrame(wire.Frame{Type: wire.TypeHello, Payload: make([]byte, 100)}) {
			if _, err := c.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(500 * time.Millisecond)
		}
	}
	for name, behave := range map[string]func(net.Conn){
		"silence": func(net.Conn) {},
		"slow":    drip,
		"garbage": func(c net.Conn) { _, _ = c.Write([]byte(strings.Repeat("x", 1000))) },
		"oversized": func(c net.Conn) {
			_, _ = c.Write(mustFrame(wire.Frame{Type: wire.TypeHello, Payload: make([]byte, 1<<20)}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, echo, nil)
				c := p.stranger(t)
				start := time.Now()
				gone := make(chan struct{})
				go func() { defer close(gone); behave(c) }()
				if err := <-drainConn(c); !errors.Is(err, io.EOF) {
					t.Errorf("%v", err)
				}
				if took := time.Since(start); took > p.l.o.Timing.Handshake {
					t.Errorf("cut off after %v", took)
				}
				<-gone
				_ = c.Close()
				synctest.Wait()
				if st := p.l.Stats(); st.Failed != 1 || st.Connected != 0 {
					t.Errorf("%+v", st)
				}
				p.close(t)
			})
		})
	}
}

func TestHandshakesAndConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, echo, func(l, _ *Options) { l.Limits.Handshakes, l.Limits.Connections = 2, 3 })
		a := p.stranger(t) // says nothing, as the next two
		synctest.Wait()    // it is the oldest
		began := time.Now()
		b, third := p.stranger(t), p.stranger(t)
		if err := <-drainConn(a); !errors.Is(err, io.EOF) || time.Since(began) != 0 {
			t.Errorf("the oldest of three handshakes: %v after %v", err, time.Since(began))
		}
		<-drainConn(b)
		<-drainConn(third)
		var greeted []net.Conn
		for range 3 {
			synctest.Wait() // the place of the one before is free
			greeted = append(greeted, p.greeted(t))
		}
		fourth := p.stranger(t)
		if err := <-drainConn(fourth); !errors.Is(err, io.EOF) {
			t.Errorf("fourth connection: %v", err)
		}
		synctest.Wait()
		if st := p.l.Stats(); st.Refused != 2 || st.Connected != 3 {
			t.Errorf("%+v", st)
		}
		for _, c := range append(greeted, a, b, third, fourth) {
			_ = c.Close()
		}
		p.close(t)
	})
}

func TestHostileBytesAfterTheGreetingEndTheConnection(t *testing.T) {
	open := wire.Frame{Type: wire.TypeOpen, Session: 5, Payload: []byte("x")}
	damaged := mustFrame(open)
	damaged[len(damaged)-1] ^= 1
	cases := map[string][]byte{
		"garbage":              []byte(strings.Repeat("GET / HTTP/1.1\r\n", 4)),
		"damaged payload":      damaged,
		"second greeting":      mustFrame(wire.Frame{Type: wire.TypeHello}),
		"malformed probe":      mustFrame(wire.Frame{Type: wire.TypeProbe, Payload: []byte{1}}),
		"malformed reply":      mustFrame(wire.Frame{Type: wire.TypeProbeReply, Payload: []byte{1}}),
		"malformed drain":      mustFrame(wire.Frame{Type: wire.TypeDrain}),
		"malformed end":        append(mustFrame(open), mustFrame(wire.Frame{Type: wire.TypeEnd, Session: 5})...),
		"oversized own frame":  mustFrame(wire.Frame{Type: wire.TypeProbe, Payload: make([]byte, maxOwn+1)}),
		"oversized end":        append(mustFrame(open), mustFrame(wire.Frame{Type: wire.TypeEnd, Session: 5, Payload: make([]byte, maxOwn+1)})...),
		"payload above limits": mustFrame(wire.Frame{Type: wire.TypeBatch, Session: 5, Payload: make([]byte, 2<<20)}),
	}
	for name, b := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, echo, func(l, _ *Options) { l.Limits.MaxPayload = 1 << 20 })
				good := p.open(t, 1)
				c := p.greeted(t)
				go func() { _, _ = c.Write(b) }()
				told := false
				for {
					f, err := wire.ReadFrame(c, wire.MaxPayload)
					if err != nil {
						break
					}
					if e, err := wire.ParseEnd(f.Payload); f.Session == 0 && f.Type == wire.TypeEnd && err == nil {
						told = e.Code == wire.CodeMalformed
					}
				}
				if !told {
					t.Error("the peer was not told that its bytes are malformed")
				}
				_ = c.Close()
				send(t, good, wire.TypeOpen, "others go on")
				recv(t, good)
				p.close(t)
			})
		})
	}
}

func TestPeerThatAsksAndDoesNotReadIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, echo, nil)
		c := p.greeted(t)
		b := mustFrame(wire.Frame{Type: wire.TypeProbe, Payload: (&wire.Probe{}).Append(nil)})
		start := time.Now()
		for {
			if _, err := c.Write(b); err != nil {
				break
			}
		}
		if took := time.Since(start); took > 4*time.Second {
			t.Errorf("cut off after %v", took)
		}
		_ = c.Close()
		p.close(t)
	})
}

func TestDeadPeerIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, func(ctx context.Context, s *Session) {
			_, _ = s.Recv(ctx)
			_, err := s.Recv(ctx)
			closedWith(t, err, wire.CodeTimeout)
		}, nil)
		c := p.greeted(t)
		if _, err := c.Write(mustFrame(wire.Frame{Type: wire.TypeOpen, Session: 5})); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		<-drainConn(c) // reads the probes, answers none
		if took := time.Since(start); took > p.l.o.Timing.Dead {
			t.Errorf("noticed after %v", took)
		}
		synctest.Wait() // the session has been told
		_ = c.Close()
		p.close(t)
	})
}

func TestFrameThatDripsInIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, echo, nil)
		c := p.greeted(t)
		end := drainConn(c)
		b := mustFrame(wire.Frame{Type: wire.TypeOpen, Session: 5, Payload: make([]byte, 1000)})
		start := time.Now()
		for i := range b {
			if _, err := c.Write(b[i : i+1]); err != nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		<-end
		if took := time.Since(start); took > p.l.o.Timing.Dead+time.Second {
			t.Errorf("cut off after %v", took)
		}
		_ = c.Close()
		p.close(t)
	})
}

func TestQuietConnectionLivesWhileItHasASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, echo, nil)
		s := p.open(t, 7)
		send(t, s, wire.TypeOpen, "x")
		recv(t, s)
		time.Sleep(time.Hour)
		send(t, s, wire.TypeBatch, "y")
		if f := recv(t, s); string(f.Payload) != "y" {
			t.Errorf("payload %q", f.Payload)
		}
		if st := p.d.Stats(); st.Connected != 1 {
			t.Errorf("%d connections", st.Connected)
		}
		if err := s.Close(wire.CodeOK); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if st := p.d.Status(); len(st) != 1 || st[0].State != StateDown {
			t.Errorf("idle connection is kept: %+v", st)
		}
		if len(p.l.Status()) != 0 {
			t.Error("the listener keeps it")
		}
		send(t, p.open(t, 8), wire.TypeOpen, "again") // a new one
		if st := p.d.Stats(); st.Connected != 2 {
			t.Errorf("%d connections, want 2", st.Connected)
		}
		p.close(t)
	})
}

func TestDrainReachesEverySessionAndRefusesNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, echo, nil)
		a, b := p.open(t, 1), p.open(t, 2)
		for _, s := range []*Session{a, b} {
			send(t, s, wire.TypeOpen, "x")
			recv(t, s)
		}
		p.l.Drain(5 * time.Second)
		for _, s := range []*Session{a, b} {
			f := recv(t, s)
			d, err := wire.ParseDrain(f.Payload)
			if f.Type != wire.TypeDrain || f.Session != s.ID() || err != nil || d.Deadline != 5*time.Second {
				t.Errorf("%+v %v", f, err)
			}
			send(t, s, wire.TypeBatch, "still served")
			recv(t, s)
		}
		if st := p.d.Status(); st[0].State != StateDraining {
			t.Errorf("state %s", st[0].State)
		}
		_, err := p.d.Open(context.Background(), target(), 3)
		closedWith(t, err, wire.CodeDraining)
		send(t, a, wire.TypeBatch, "a connection that drains lives on")
		recv(t, a)
		p.close(t)
	})
}

func TestListenersEndIsToldToEverySession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, func(ctx context.Context, s *Session) {
			<-ctx.Done() // a handler that only its context ends
		}, nil)
		s := p.open(t, 7)
		send(t, s, wire.TypeOpen, "x")
		synctest.Wait()
		if err := p.l.Close(); err != nil {
			t.Error(err)
		}
		_, err := s.Recv(context.Background())
		closedWith(t, err, wire.CodeShutdown)
		if _, err := p.d.Open(context.Background(), target(), 8); err == nil {
			t.Error("opened after the listener's end")
		}
		if err := p.l.Serve(newPipeNet()); !errors.Is(err, ErrClosed) {
			t.Errorf("Serve after Close: %v", err)
		}
		p.close(t)
		if _, err := p.d.Open(context.Background(), target(), 9); !errors.Is(err, ErrClosed) {
			t.Errorf("Open after Close: %v", err)
		}
	})
}

func TestOptionsReportEveryFault(t *testing.T) {
	a := authority(t, "bank", testTime)
	o := Options{Self: Identity{City: "c"}, TLS: &TLS{Store: store(t, a, broker("n"), fixed)}}
	err := o.Validate()
	for _, want := range []string{"deployment", "name", "role", "incarnation", "certificate says"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no word of %q in %v", want, err)
		}
	}
	if _, err := NewDialer(o); err == nil {
		t.Error("dialer made")
	}
	if _, err := NewListener(Options{Self: broker("n"), Incarnation: 1}, nil); err == nil {
		t.Error("listener without a handler made")
	}
}

func FuzzConnection(f *testing.F) {
	hello := (&Options{Self: broker("d1"), Incarnation: 2, Limits: Limits{}.withDefaults(), Topology: Options{}.withDefaults().Topology}).hello("shanghai", zone.ClassBulk)
	f.Add([]byte("garbage"), false)
	f.Add(mustFrame(wire.Frame{Type: wire.TypeHello, Payload: hello.Append(nil)}), false)
	f.Add(mustFrame(wire.Frame{Type: wire.TypeOpen, Session: 1, Payload: []byte("x")}), true)
	f.Add(mustFrame(wire.Frame{Type: wire.TypeProbe, Payload: (&wire.Probe{}).Append(nil)}), true)
	f.Fuzz(func(t *testing.T, b []byte, greeted bool) {
		p := newPair(t, echo, func(l, _ *Options) { l.Timing.Write = 10 * time.Millisecond })
		c := p.stranger(t)
		if greeted {
			h := p.hello()
			if _, err := greetFirst(c, &h, nil); err != nil {
				t.Fatal(err)
			}
		}
		end := drainConn(c)
		_, _ = c.Write(b) // the listener may end the connection at any byte
		_ = c.Close()
		<-end
		p.close(t)
	})
}
