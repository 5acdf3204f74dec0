package call

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/simnet"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// Kinds that the answerer of the tests knows.
const (
	kindEcho  = 1 // gives the body back
	kindFault = 2 // refuses
	kindHang  = 3 // waits until nobody waits any more
	kindDead  = 4 // fails with an error that is no Fault
)

// world is the broker b of group gb, and callers, on a simulated network.
type world struct {
	t      *testing.T
	net    *simnet.Net
	server *Server
	l      *peer.Listener
	mu     sync.Mutex
	cut    map[string]bool // by name of the sender; guarded by mu
	hosts  map[string]*simnet.Host
	hung   atomic.Int64 // calls that wait now
	served atomic.Int64 // calls that were handled
}

const addr = "10.0.0.1:7"

func identity(name, zoneName string) peer.Identity {
	return peer.Identity{Deployment: "bank", City: "shanghai", Zone: zone.Zone(zoneName), Role: zone.RoleBroker, Name: zone.Node(name)}
}

func newWorld(t *testing.T, limits Bounds) *world {
	t.Helper()
	w := &world{t: t, cut: map[string]bool{}, hosts: map[string]*simnet.Host{}}
	w.net = simnet.New(1, func(from, _ *simnet.Host) simnet.Path {
		w.mu.Lock()
		defer w.mu.Unlock()
		return simnet.Path{Delay: time.Millisecond, Cut: w.cut[from.Name()]}
	}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { w.net.Run(ctx) })
	host := w.host("b", 1)
	var err error
	if w.server, err = NewServer(ServerOptions{Handle: w.handle, Bounds: limits}); err != nil {
		t.Fatal(err)
	}
	w.l, err = peer.NewListener(peer.Options{Self: identity("b", "z"), Group: "gb", Incarnation: 1}, func(ctx context.Context, s *peer.Session) {
		if first, err := s.Recv(ctx); err == nil && first.Type == wire.TypeCall {
			_ = w.server.Serve(ctx, s.Peer().Node, s, first) // the caller sees what went wrong
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := host.Listen(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		if err := w.l.Serve(ln); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		if err := w.l.Close(); err != nil {
			t.Error(err)
		}
		if w.server.bytes != 0 || len(w.server.peers) != 0 {
			t.Errorf("%d bytes and %d peers are still counted", w.server.bytes, len(w.server.peers))
		}
		cancel()
		wg.Wait()
	})
	return w
}

func (w *world) host(name string, last byte) *simnet.Host {
	h, err := w.net.Host(name, "x", netip.AddrFrom4([4]byte{10, 0, 0, last}))
	if err != nil {
		w.t.Fatal(err)
	}
	w.hosts[name] = h
	return h
}

func (w *world) handle(ctx context.Context, kind uint8, body []byte) ([]byte, error) {
	w.served.Add(1)
	switch kind {
	case kindFault:
		return nil, &Fault{Kind: 12, Text: "no: " + string(body)}
	case kindHang:
		w.hung.Add(1)
		defer w.hung.Add(-1)
		<-ctx.Done()
		return nil, ctx.Err()
	case kindDead:
		return nil, errors.New("this node dies")
	}
	return body, nil
}

// dialer makes a node that connects to b.
func (w *world) dialer(last byte, id peer.Identity) *peer.Dialer {
	w.t.Helper()
	d, err := peer.NewDialer(peer.Options{Self: id, Incarnation: 2, DialContext: w.host(string(id.Name), last).Dial})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := d.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return d
}

// caller makes a broker that asks b; every other group hangs before it is reached.
func (w *world) caller(last byte, id peer.Identity, o Options) *Client {
	w.t.Helper()
	d := w.dialer(last, id)
	var n atomic.Uint64
	o.Session = func() uint64 { return n.Add(1) }
	o.Open = func(ctx context.Context, to zone.Group, session uint64) (wire.Stream, error) {
		if to != "gb" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		s, err := d.Open(ctx, peer.Target{Identity: identity("b", "z"), Addr: addr, Class: zone.ClassControl}, session)
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	c, err := NewClient(o)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestCallIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Bounds{})
		c := w.caller(2, identity("a", "z"), Options{})
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				body := bytes.Repeat([]byte{byte(i)}, i*10_000)
				got, err := c.Call(t.Context(), "gb", kindEcho, body)
				if err != nil || !bytes.Equal(got, body) {
					t.Errorf("call %d: %d bytes, %v", i, len(got), err)
				}
			})
		}
		wg.Wait()
		_, err := c.Call(t.Context(), "gb", kindFault, []byte("why"))
		var f *Fault
		if !errors.As(err, &f) || f.Kind != 12 || f.Text != "no: why" {
			t.Errorf("a refusal arrives as %v", err)
		}
		if body := make([]byte, wire.MaxCall); true {
			if got, err := c.Call(t.Context(), "gb", kindEcho, body); err != nil || len(got) != len(body) {
				t.Errorf("the largest legal body: %d bytes, %v", len(got), err)
			}
			_, err := c.Call(t.Context(), "gb", kindEcho, append(body, 1))
			notAnswered(t, err, false)
		}
		_, err = c.Call(t.Context(), "gb", kindDead, nil)
		notAnswered(t, err, true)
		if u := c.Usage(); u.Depth != 0 || len(c.groups) != 0 {
			t.Errorf("places are still taken: %+v", u)
		}
	})
}

// notAnswered checks that err is an *Error that says whether the call was sent.
func notAnswered(t *testing.T, err error, sent bool) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Sent != sent {
		t.Errorf("error %v, want *Error with sent %v", err, sent)
	}
}

// A caller that gives up frees the answerer: nobody works for nobody.
func TestCallEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Bounds{})
		c := w.caller(2, identity("a", "z"), Options{})
		began := time.Now()
		_, err := c.Call(within(t, time.Second), "gb", kindHang, nil)
		notAnswered(t, err, true)
		if took := time.Since(began); took != 875*time.Millisecond {
			t.Errorf("the call ended after %v, want with an eighth of the second left", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		_, err = c.Call(ctx, "gb", kindHang, nil)
		notAnswered(t, err, true)
		time.Sleep(10 * time.Millisecond)
		if n := w.hung.Load(); n != 0 {
			t.Errorf("%d calls are still served", n)
		}
		if _, err := c.Call(context.WithoutCancel(t.Context()), "gb", kindHang, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call without an end: %v", err)
		}
	})
}

// A deadline travels as the time that is left: the answerer stops by itself when a
// cut keeps the caller's end of the session from it.
func TestCallDeadlineHoldsAtTheAnswerer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Bounds{})
		c := w.caller(2, identity("a", "z"), Options{})
		time.AfterFunc(500*time.Millisecond, func() { w.set("a", true) })
		_, err := c.Call(within(t, time.Second), "gb", kindHang, nil)
		notAnswered(t, err, true)
		time.Sleep(10 * time.Millisecond)
		if n := w.hung.Load(); n != 0 {
			t.Errorf("%d calls are served beyond their time", n)
		}
		w.set("a", false)
	})
}

func (w *world) set(from string, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[from] = cut
}

// A group that does not answer holds up neither calls to others nor, once it is
// back, calls to itself.
func TestSilentGroupHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Bounds{})
		c := w.caller(2, identity("a", "z"), Options{PerGroup: 4})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				_, err := c.Call(within(t, 3*time.Second), "elsewhere", kindEcho, nil)
				notAnswered(t, err, false)
			})
		}
		synctest.Wait()
		if u := c.Usage(); u.Depth != 4 || u.Full != 16 {
			t.Errorf("usage %+v, want 4 under way and 16 that wait", u)
		}
		began := time.Now()
		if _, err := c.Call(t.Context(), "gb", kindEcho, nil); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("a call to another group took %v", took)
		}
		wg.Wait()
		w.net.Reset(w.hosts["a"], w.hosts["b"])
		time.Sleep(time.Millisecond)
		if _, err := c.Call(t.Context(), "gb", kindEcho, nil); err != nil {
			t.Errorf("after the connection broke: %v", err)
		}
	})
}

func TestAnswererRefusesAboveItsBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Bounds{PerPeer: 2, Bytes: 1000})
		a, b := w.caller(2, identity("a", "z"), Options{}), w.caller(3, identity("c", "z"), Options{})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { _, _ = a.Call(within(t, time.Second), "gb", kindHang, make([]byte, 400)) })
		}
		time.Sleep(100 * time.Millisecond)
		_, err := a.Call(t.Context(), "gb", kindEcho, nil)
		refusedWith(t, err, wire.CodeTooMany)
		_, err = b.Call(t.Context(), "gb", kindEcho, make([]byte, 300))
		refusedWith(t, err, wire.CodeTooMany)
		if _, err := b.Call(t.Context(), "gb", kindEcho, make([]byte, 200)); err != nil {
			t.Errorf("another peer within the bounds: %v", err)
		}
		if u := w.server.Usage(); u.Depth != 800 || u.Full != 2 {
			t.Errorf("usage %+v", u)
		}
		wg.Wait()
		time.Sleep(100 * time.Millisecond)
		if got, err := a.Call(t.Context(), "gb", kindEcho, make([]byte, 5000)); err != nil || len(got) != 5000 {
			t.Errorf("a body above all the bytes, alone: %d bytes, %v", len(got), err)
		}
	})
}

func refusedWith(t *testing.T, err error, code wire.Code) {
	t.Helper()
	notAnswered(t, err, false)
	var closed *wire.ClosedError
	if !errors.As(err, &closed) || closed.Code != code {
		t.Errorf("error %v, want one with %s", err, code)
	}
}

// Only brokers of the same zone call each other; nothing of a stranger's body is
// kept.
func TestOnlyTheZonesBrokersMayCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Bounds{})
		router, reader := identity("r", ""), identity("k", "z")
		router.Role, reader.Role = zone.RoleRouter, zone.RoleCacheSync
		for i, id := range []peer.Identity{identity("x", "other"), identity("y", ""), router, reader} {
			c := w.caller(byte(10+i), id, Options{})
			_, err := c.Call(t.Context(), "gb", kindEcho, make([]byte, 1<<20))
			refusedWith(t, err, wire.CodeWrongIdentity)
		}
		if n := w.served.Load(); n != 0 {
			t.Errorf("%d calls of strangers were served", n)
		}
		if s := w.l.Stats(); s.RefusedSessions != 4 || s.Held != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// A kind that is for some peers only is served to them alone.
func TestAKindMayBeForSomePeersOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Bounds{})
		w.server.o.May = func(from zone.Node, kind uint8) error {
			if kind == kindEcho && from != "member" {
				return errors.New("it is for members")
			}
			return nil
		}
		if _, err := w.caller(10, identity("member", "z"), Options{}).Call(t.Context(), "gb", kindEcho, []byte("x")); err != nil {
			t.Errorf("a member's call: %v", err)
		}
		other := w.caller(11, identity("other", "z"), Options{})
		_, err := other.Call(t.Context(), "gb", kindEcho, []byte("x"))
		refusedWith(t, err, wire.CodeWrongIdentity)
		if n := w.served.Load(); n != 1 {
			t.Errorf("%d calls were served, want the member's", n)
		}
		var f *Fault
		if _, err := other.Call(t.Context(), "gb", kindFault, nil); !errors.As(err, &f) {
			t.Errorf("a kind that is for all: %v", err)
		}
	})
}

// What a certified peer sends instead of a call is refused, and its connection
// goes on serving others.
func TestMalformedCallsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Bounds{})
		d := w.dialer(2, identity("a", "z"))
		good := wire.Call{Kind: kindEcho, Time: time.Second, Body: []byte("x")}
		for i, payload := range [][]byte{
			nil, {1}, (&wire.Call{Time: time.Second}).Append(nil), good.Append(nil)[:6],
			append((&wire.Call{Kind: 1, Time: time.Second}).Append(nil)[:5], 0xff, 0xff, 0xff, 0xff),
		} {
			f := w.raw(d, uint64(i+1), wire.Frame{Type: wire.TypeCall, Payload: payload})
			if r, err := wire.ParseRefuse(f.Payload); f.Type != wire.TypeRefuse || err != nil || r.Code != wire.CodeMalformed {
				t.Errorf("payload %x is answered with %s: %+v, %v", payload, f.Type, r, err)
			}
		}
		f := w.raw(d, 100, wire.Frame{Type: wire.TypeCall, Payload: good.Append(nil)})
		if r, err := wire.ParseReply(f.Payload); f.Type != wire.TypeReply || err != nil || string(r.Body) != "x" {
			t.Errorf("a good call after them: %s %+v, %v", f.Type, r, err)
		}
	})
}

// raw opens a session with the frame and returns the answer.
func (w *world) raw(d *peer.Dialer, session uint64, f wire.Frame) wire.Frame {
	w.t.Helper()
	s, err := d.Open(w.t.Context(), peer.Target{Identity: identity("b", "z"), Addr: addr, Class: zone.ClassControl}, session)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = s.Close(wire.CodeOK) }()
	if err := s.Send(w.t.Context(), f); err != nil {
		w.t.Fatal(err)
	}
	got, err := s.Recv(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

// liar is a stream whose other end answers with given frames.
type liar struct {
	frames []wire.Frame
	closed wire.Code
}

func (l *liar) Send(context.Context, wire.Frame) error { return nil }
func (l *liar) Close(code wire.Code) error             { l.closed = code; return nil }
func (l *liar) Recv(ctx context.Context) (wire.Frame, error) {
	if len(l.frames) == 0 {
		<-ctx.Done()
		return wire.Frame{}, ctx.Err()
	}
	f := l.frames[0]
	l.frames = l.frames[1:]
	return f, nil
}

// Whatever an answerer sends, its caller gets one answer or one error, in time.
func TestLyingAnswererIsSeenThrough(t *testing.T) {
	reply := (&wire.Reply{Body: []byte("yes")}).Append(nil)
	for _, c := range []struct {
		what   string
		frames []wire.Frame
		ok     bool
		sent   bool
		code   wire.Code
	}{
		{"an answer", []wire.Frame{{Type: wire.TypeReply, Payload: reply}}, true, false, wire.CodeOK},
		{"a warning, then an answer", []wire.Frame{{Type: wire.TypeDrain}, {Type: wire.TypeReply, Payload: reply}}, true, false, wire.CodeOK},
		{"nothing", nil, false, true, wire.CodeTimeout},
		{"half an answer", []wire.Frame{{Type: wire.TypeReply, Payload: reply[:5]}}, false, true, wire.CodeTimeout},
		{"half a refusal", []wire.Frame{{Type: wire.TypeRefuse, Payload: []byte{1}}}, false, true, wire.CodeTimeout},
		{"another frame", []wire.Frame{{Type: wire.TypeAck, Payload: reply}}, false, true, wire.CodeTimeout},
		{"a call back", []wire.Frame{{Type: wire.TypeCall, Payload: (&wire.Call{Kind: 1}).Append(nil)}}, false, true, wire.CodeTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := &liar{frames: c.frames}
			client, err := NewClient(Options{Session: func() uint64 { return 1 }, Open: func(context.Context, zone.Group, uint64) (wire.Stream, error) { return l, nil }})
			if err != nil {
				t.Fatal(err)
			}
			got, err := client.Call(within(t, time.Second), "gb", kindEcho, nil)
			switch {
			case c.ok && (err != nil || string(got) != "yes"):
				t.Errorf("%s: %q, %v", c.what, got, err)
			case !c.ok:
				notAnswered(t, err, c.sent)
			}
			if l.closed != c.code {
				t.Errorf("%s: closed with %s, want %s", c.what, l.closed, c.code)
			}
		})
	}
}

func TestErrorsSayWhatMayHaveHappened(t *testing.T) {
	cause := errors.New("cause")
	for sent, want := range map[bool]string{true: "may have done", false: "cannot be asked"} {
		err := fmt.Errorf("wrapped: %w", &Error{Group: "gb", Sent: sent, Err: cause})
		if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "gb") || !errors.Is(err, cause) {
			t.Errorf("sent %v: %v", sent, err)
		}
	}
}
