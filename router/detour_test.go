package router

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// misled is gossip that puts some routers where nobody is.
type misled struct {
	view
	away   []zone.Node
	healed *atomic.Bool
}

func (m misled) Routers() []Member {
	all := m.view.Routers()
	for i := range all {
		if slices.Contains(m.away, all[i].Node) && !m.healed.Load() {
			all[i].QUIC = "127.0.0.1:1"
		}
	}
	return all
}

// TestCutThroughOverRealSockets is a detour outside of any simulation: two cities
// never find each other, a session between them passes the third, keeps order in
// both directions, is seen as what it is, and is asked to move when they do.
func TestCutThroughOverRealSockets(t *testing.T) {
	c := newCluster(t)
	c.broker("rz03-a", func(s wire.Stream) {
		for {
			f, err := s.Recv(t.Context())
			if err != nil {
				return
			}
			if f.Hops != 2 {
				t.Errorf("%s came over %d cities, want 2", f.Type, f.Hops)
			}
			f.Hops = 0
			if s.Send(t.Context(), f) != nil {
				return
			}
		}
	})
	var healed atomic.Bool
	apart := func(o *Options) {
		o.Peers = misled{view{c, make(chan struct{}, 1)}, []zone.Node{"rt-sh-1", "rt-hz-1"}, &healed}
		o.Limits.Path = PathTiming{Return: 300 * time.Millisecond, Worse: time.Hour}
		o.Limits.Timing.Handshake = time.Second // the addresses where nobody is must not hold up the right ones
	}
	sh := c.start("rt-sh-1", apart)
	c.start("rt-hz-1", apart)
	c.start("rt-sz-1", nil)
	to := func() PathStatus {
		for _, p := range sh.Status().Paths {
			if p.City == "hangzhou" && p.Class == zone.ClassBulk {
				return p
			}
		}
		return PathStatus{}
	}
	until(t, "a detour", func() bool { return to().Via == "shenzhen" })
	s := c.open(sh, 1, nil)
	if f := recv(t, s); f.Type != wire.TypeOpen || f.Hops != 2 {
		t.Fatalf("the echo of Open is %s after %d hops; want it without what routers tell each other, after 2", f.Type, f.Hops)
	}
	const frames = 200
	go func() {
		for i := range uint64(frames) {
			if s.Send(t.Context(), batch(1, i, 20_000)) != nil {
				return
			}
		}
	}()
	for i := range uint64(frames) {
		if f := recv(t, s); number(f) != i {
			t.Fatalf("frame %d is number %d", i, number(f))
		}
	}
	if p, st := to(), c.routers["rt-sz-1"].Status(); p.Detoured != 1 || st.Passing != 1 || st.Passed != 1 || sh.Status().Detoured != 1 {
		t.Errorf("path %+v; the third city passes %d sessions of %d", p, st.Passing, st.Passed)
	}
	// What may not enter the third city is not passed on; what may, is.
	forbidden := c.open(sh, 2, func(_ *wire.Frame, o *wire.Open) { o.Residency = []zone.City{"shanghai", "hangzhou"} })
	f := recv(t, forbidden)
	if r, err := wire.ParseRefuse(f.Payload); f.Type != wire.TypeRefuse || err != nil || r.Code != wire.CodeResidency || r.RetryAfter == 0 {
		t.Errorf("answered with %s %+v, %v; want a refusal for residency that says when to try again", f.Type, r, err)
	}
	stray := c.open(sh, 3, nil)
	recv(t, stray)
	x := wire.Batch{First: 1, Count: 1, Residency: []zone.City{"shanghai", "hangzhou"}, RawSize: 1, Data: []byte("x")}
	if err := stray.Send(t.Context(), wire.Frame{Type: wire.TypeBatch, Session: 3, Class: zone.ClassBulk, Payload: x.Append(nil)}); err != nil {
		t.Fatal(err)
	}
	if code := closed(t, stray); code != wire.CodeResidency {
		t.Errorf("a batch that may not go round ended its session with %s, want residency", code)
	}
	if st := c.routers["rt-sz-1"].Status(); st.Astray != 0 {
		t.Errorf("%d batches came to the third city that may not", st.Astray)
	}

	healed.Store(true)
	if f := recv(t, s); f.Type != wire.TypeDrain {
		t.Fatalf("%s after the direct link works, want drain", f.Type)
	}
	_ = s.Close(wire.CodeOK)
	until(t, "the direct path", func() bool { p := to(); return p.Via == "" && p.Detoured == 0 && p.Up })
}

// TestD4_LateFramesOfAPausedRouterAreRefused stops a router for as long as its
// links survive it, with frames in its hands, while the flow goes on over
// another; when it comes to life again its frames arrive, and settle nothing.
func TestD4_LateFramesOfAPausedRouterAreRefused(t *testing.T) {
	top := simTopology(t, 2, 2)
	tls := pki(t, top)
	synctest.Test(t, func(t *testing.T) {
		w := newSimWorld(t, top, tls, 20*time.Millisecond, Limits{})
		defer w.close()
		w.linked()
		dest := w.brokers[groupOf("basil")]
		open := func(number uint64) *pipe {
			t.Helper()
			near, far := newPipe()
			r := w.routersIn("amber", number)[0]
			w.wg.Go(func() { r.ServePeer(t.Context(), "g-amber-1", far) })
			o := wire.Open{Flow: (&simLane{from: "amber", to: "basil", class: zone.ClassBulk}).flow(), City: "basil", Group: "g-basil", OriginCity: "amber", RouteEpoch: top.Epoch}
			if err := near.Send(t.Context(), wire.Frame{Type: wire.TypeOpen, Session: number, Class: zone.ClassBulk, Payload: o.Append(nil)}); err != nil {
				t.Fatal(err)
			}
			if f := recv(t, near); f.Type != wire.TypeAccept {
				t.Fatalf("answered with %s", f.Type)
			}
			return near
		}
		send := func(p *pipe, session, n uint64) {
			t.Helper()
			b := wire.Batch{First: n, Count: 1, RawSize: 1, Data: []byte("x")}
			if err := p.Send(t.Context(), wire.Frame{Type: wire.TypeBatch, Session: session, Class: zone.ClassBulk, Payload: b.Append(nil)}); err != nil {
				t.Fatal(err)
			}
		}
		// Two sessions that take different routers.
		first, second := uint64(1), uint64(2)
		for w.routersIn("amber", second)[0] == w.routersIn("amber", first)[0] {
			second++
		}
		a := open(first)
		send(a, first, 1)
		recv(t, a)
		paused := w.routersIn("amber", first)[0]
		freeze := func(is bool) {
			w.net.mu.Lock()
			defer w.net.mu.Unlock()
			w.net.dead[paused.addr] = is
		}
		freeze(true)
		for n := uint64(2); n < 8; n++ {
			send(a, first, n) // the router takes them, and that is all
		}
		b := open(second)
		for n := uint64(2); n < 5; n++ {
			send(b, second, n)
			recv(t, b)
		}
		time.Sleep(time.Second)
		freeze(false)
		if code := closed(t, a); code != wire.CodeSuperseded {
			t.Errorf("the older session ended with %s, want superseded", code)
		}
		for n := uint64(5); n < 8; n++ {
			send(b, second, n)
			recv(t, b)
		}
		dest.mu.Lock()
		defer dest.mu.Unlock()
		for _, in := range dest.flows {
			if in.settled != 7 || len(in.hops) != 7 || in.opened != 2 {
				t.Errorf("%d settled, %d landed in %d sessions; want 7, 7 and 2", in.settled, len(in.hops), in.opened)
			}
		}
		_ = b.Close(wire.CodeOK)
	})
}
