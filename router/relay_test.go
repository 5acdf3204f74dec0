package router

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/policy"
	"github.com/mqrouter/mqrouter/replication/egress"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

func batch(session, n uint64, size int) wire.Frame {
	p := make([]byte, max(size, 8))
	binary.LittleEndian.PutUint64(p, n)
	return wire.Frame{Type: wire.TypeBatch, Session: session, Class: zone.ClassBulk, Payload: p}
}

func number(f wire.Frame) uint64 { return binary.LittleEndian.Uint64(f.Payload) }

// recv returns the next frame and fails the test when there is none.
func recv(t testing.TB, s wire.Stream) wire.Frame {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	f, err := s.Recv(ctx)
	if err != nil {
		t.Fatalf("Recv: %v", err)
	}
	return f
}

// closed returns the code with which the stream ends.
func closed(t testing.TB, s wire.Stream) wire.Code {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for {
		_, err := s.Recv(ctx)
		var c *wire.ClosedError
		if errors.As(err, &c) {
			return c.Code
		}
		if err != nil {
			t.Fatalf("Recv: %v, want the end of the stream", err)
		}
	}
}

func TestRelayKeepsOrderInBothDirections(t *testing.T) {
	c := newCluster(t, "rt-sh-1", "rt-hz-1", "rt-hz-2")
	hops := make(chan uint8, 1)
	c.broker("rz03-a", func(s wire.Stream) {
		f, err := s.Recv(context.Background())
		if err != nil {
			return
		}
		hops <- f.Hops
		f.Hops = 0
		if s.Send(context.Background(), f) == nil {
			echo(s)
		}
	})
	c.linked()
	s := c.open(c.routers["rt-sh-1"], 42, nil)
	if f := recv(t, s); f.Type != wire.TypeOpen || f.Session != 42 || f.Hops != 1 {
		t.Errorf("the echo of Open is %+v, want session 42 after one crossing", f)
	}
	if h := <-hops; h != 1 {
		t.Errorf("the broker saw %d hops, want 1", h)
	}
	const frames = 300
	typeOf := func(i uint64) wire.Type {
		if i%7 == 3 {
			return 250
		}
		return wire.TypeBatch
	}
	go func() {
		for i := range uint64(frames) {
			// Sizes from a header to more than a link's first packet and its buffers, and
			// some of a type that only the ends know.
			f := batch(42, i, int(i*7919%70_000))
			f.Type = typeOf(i)
			if s.Send(context.Background(), f) != nil {
				return
			}
		}
	}()
	for i := range uint64(frames) {
		f := recv(t, s)
		if number(f) != i || f.Type != typeOf(i) || f.Hops != 1 || len(f.Payload) != max(int(i*7919%70_000), 8) {
			t.Fatalf("frame %d: number %d, %d bytes, %d hops", i, number(f), len(f.Payload), f.Hops)
		}
	}
	st := c.routers["rt-sh-1"].Status()
	if st.Sessions != 1 || len(st.Cities) != 3-1 {
		t.Errorf("status = %+v, want one session and two other cities", st)
	}
	for _, city := range st.Cities {
		if city.City == "hangzhou" && (city.FramesOut != frames || city.FramesIn < frames || city.WireOut < city.BytesOut) {
			t.Errorf("hangzhou = %+v, want %d frames out and the wire to carry no less than the payload", city, frames)
		}
	}
	_ = s.Close(wire.CodeOK)
	for name, r := range c.routers {
		until(t, string(name)+" forgets the session", func() bool { return r.Status().Sessions == 0 })
	}
}

func TestDeadRouterEndsItsSessionsAndTheNextOpenTakesAnother(t *testing.T) {
	c := newCluster(t, "rt-sh-1", "rt-sh-2", "rt-hz-1", "rt-hz-2")
	c.broker("rz03-a", echo)
	c.linked()
	for _, victim := range []zone.Node{"rt-hz-1", "rt-sh-1"} {
		var streams []*pipe
		for i := range uint64(16) {
			s := c.open(c.routers["rt-sh-1"], 100+i, nil)
			recv(t, s)
			streams = append(streams, s)
		}
		used := c.routers[victim].Status().Sessions
		if used == 0 || (victim == "rt-hz-1" && used == len(streams)) {
			t.Errorf("%s has %d of %d sessions, want them spread", victim, used, len(streams))
		}
		c.routers[victim].stop()
		ended := 0
		for _, s := range streams {
			if err := s.Send(t.Context(), batch(0, 1, 8)); err != nil {
				ended++
				continue
			}
			_ = s.Close(wire.CodeOK)
		}
		t.Logf("%s: %d sessions, %d ended", victim, used, ended)
		near := c.routers["rt-sh-1"]
		if victim == "rt-sh-1" {
			near = c.routers["rt-sh-2"]
		}
		until(t, "a session over another router", func() bool {
			s := c.open(near, 7, nil)
			defer s.Close(wire.CodeOK)
			f, err := s.Recv(t.Context()) // until the death is noticed, it may still take a session
			return err == nil && f.Type == wire.TypeOpen
		})
		until(t, "the death is noticed", func() bool {
			_, up := near.links.Up(victim, zone.ClassBulk)
			return !up
		})
	}
}

func TestSessionsOfADeadFarRouterEndAtOnce(t *testing.T) {
	c := newCluster(t, "rt-sh-1", "rt-hz-1")
	c.broker("rz03-a", echo)
	c.linked()
	s := c.open(c.routers["rt-sh-1"], 9, nil)
	recv(t, s)
	c.routers["rt-hz-1"].stop()
	if code := closed(t, s); !code.Retryable() {
		t.Errorf("the origin was told %s, want something to try again", code)
	}
}

func TestDeadBrokerEndsTheSessionAtOnce(t *testing.T) {
	c := newCluster(t, "rt-sh-1", "rt-hz-1")
	c.broker("rz03-a", echo)
	c.linked()
	s := c.open(c.routers["rt-sh-1"], 9, nil)
	recv(t, s)
	c.mu.Lock()
	targets := c.targets
	c.mu.Unlock()
	want := egress.Target{Node: "rz03-a-1", Role: zone.RoleBroker, Zone: "rz03", City: "hangzhou", Class: zone.ClassBulk, Addr: "127.0.0.1:9010"}
	if len(targets) != 1 || targets[0] != want {
		t.Errorf("the router asked for %+v, want %+v", targets, want)
	}
	c.kill("rz03-a-1")
	if code := closed(t, s); code != wire.CodeShutdown {
		t.Errorf("the origin was told %s, want shutdown", code)
	}
}

func TestSessionsThatCannotPassAreRefusedWithTheReason(t *testing.T) {
	c := newCluster(t, "rt-sh-1", "rt-hz-1")
	c.broker("rz03-a", echo)
	c.linked()
	newer := zone.Epoch{Term: c.top.Epoch.Term, Number: c.top.Epoch.Number + 1}
	for name, row := range map[string]struct {
		change func(*wire.Frame, *wire.Open)
		want   wire.Code
	}{
		"unknown city":         {func(_ *wire.Frame, o *wire.Open) { o.City = "atlantis" }, wire.CodeNoRoute},
		"unknown city, newer":  {func(_ *wire.Frame, o *wire.Open) { o.City, o.RouteEpoch = "atlantis", newer }, wire.CodeTopologyBehind},
		"unknown group":        {func(_ *wire.Frame, o *wire.Open) { o.Group = "nobody" }, wire.CodeUnknownGroup},
		"unknown group, newer": {func(_ *wire.Frame, o *wire.Open) { o.Group, o.RouteEpoch = "nobody", newer }, wire.CodeTopologyBehind},
		"group elsewhere":      {func(_ *wire.Frame, o *wire.Open) { o.Group = "rz01-a" }, wire.CodeUnknownGroup},
		"own city":             {func(_ *wire.Frame, o *wire.Open) { o.City = "shanghai" }, wire.CodeNoRoute},
		"no router there":      {func(_ *wire.Frame, o *wire.Open) { o.City, o.Group = c.third() }, wire.CodeNoRoute},
		"no broker there":      {func(_ *wire.Frame, o *wire.Open) { o.Group = "cz-hz-a" }, wire.CodeNoRoute},
		"residency":            {func(_ *wire.Frame, o *wire.Open) { o.Residency = []zone.City{"shanghai"} }, wire.CodeResidency},
		"hops":                 {func(f *wire.Frame, _ *wire.Open) { f.Hops = policy.HopLimit }, wire.CodeHops},
		"class":                {func(f *wire.Frame, _ *wire.Open) { f.Class = zone.ClassControl }, wire.CodeUnsupported},
		"session 0":            {func(f *wire.Frame, _ *wire.Open) { f.Session = 0 }, wire.CodeMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.open(c.routers["rt-sh-1"], 5, row.change)
			f := recv(t, s)
			if f.Type != wire.TypeRefuse {
				t.Fatalf("answered with %s, want refuse", f.Type)
			}
			r, err := wire.ParseRefuse(f.Payload)
			if err != nil || r.Code != row.want {
				t.Errorf("refused with %s (%s), %v; want %s", r.Code, r.Text, err, row.want)
			}
			if code := closed(t, s); code != row.want {
				t.Errorf("ended with %s, want %s", code, row.want)
			}
		})
	}
}

// third returns a city without a running router and a group of it.
func (c *cluster) third() (zone.City, zone.Group) {
	for _, city := range c.top.Cities {
		if city.Name != "shanghai" && city.Name != "hangzhou" {
			return city.Name, city.CZone.Groups[0].Name
		}
	}
	return "", ""
}

func TestGarbageFirstFramesEndTheSession(t *testing.T) {
	c := newCluster(t, "rt-sh-1", "rt-hz-1")
	c.broker("rz03-a", echo)
	c.linked()
	for name, row := range map[string]struct {
		change func(*wire.Frame, *wire.Open)
		want   wire.Code
	}{
		"another type": {func(f *wire.Frame, _ *wire.Open) { f.Type = wire.TypeBatch }, wire.CodeUnsupported},
		"unknown type": {func(f *wire.Frame, _ *wire.Open) { f.Type = 250 }, wire.CodeUnsupported},
		"no open":      {func(f *wire.Frame, _ *wire.Open) { f.Payload = []byte("not an open") }, wire.CodeMalformed},
		"empty":        {func(f *wire.Frame, _ *wire.Open) { f.Payload = []byte{} }, wire.CodeMalformed},
	} {
		if code := closed(t, c.open(c.routers["rt-sh-1"], 5, row.change)); code != row.want {
			t.Errorf("%s: ended with %s, want %s", name, code, row.want)
		}
		// The same, straight over the link: what a faulty router could send.
		s, err := c.routers["rt-sh-1"].links.Open("rt-hz-1", zone.ClassBulk, 6)
		if err != nil {
			t.Fatal(err)
		}
		f := wire.Frame{Type: wire.TypeOpen, Session: 6, Class: zone.ClassBulk, Payload: []byte{}}
		row.change(&f, nil)
		if err := s.Send(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		if code := closed(t, s); code != row.want {
			t.Errorf("%s over a link: ended with %s, want %s", name, code, row.want)
		}
		_ = s.Close(wire.CodeOK)
	}
}

func TestSessionsAreCapped(t *testing.T) {
	c := newCluster(t, "rt-hz-1")
	c.broker("rz03-a", echo)
	r := c.start("rt-sh-1", func(o *Options) { o.Limits.Sessions = 3 })
	c.linked()
	var open []*pipe
	for i := range uint64(3) {
		s := c.open(r, 1+i, nil)
		recv(t, s)
		open = append(open, s)
	}
	f := recv(t, c.open(r, 9, nil))
	if x, err := wire.ParseRefuse(f.Payload); f.Type != wire.TypeRefuse || err != nil || x.Code != wire.CodeTooMany {
		t.Errorf("the fourth session got %s %+v, want a refusal with too-many", f.Type, x)
	}
	_ = open[0].Close(wire.CodeOK)
	until(t, "a free place", func() bool { return r.Status().Sessions == 2 })
	if f := recv(t, c.open(r, 10, nil)); f.Type != wire.TypeOpen {
		t.Errorf("after one left the next got %s, want to pass", f.Type)
	}
}

func TestDrainMovesSessionsAndReturnsWhenTheyHaveLeft(t *testing.T) {
	c := newCluster(t, "rt-sh-1", "rt-hz-1", "rt-hz-2")
	c.broker("rz03-a", echo)
	c.linked()
	near := c.routers["rt-sh-1"]
	var streams []*pipe
	for i := range uint64(12) {
		s := c.open(near, 1+i, nil)
		recv(t, s)
		streams = append(streams, s)
	}
	far := c.routers["rt-hz-1"]
	moving := far.Status().Sessions
	if moving == 0 || moving == len(streams) {
		t.Fatalf("%d of %d sessions go over rt-hz-1, want some", moving, len(streams))
	}
	drained := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		drained <- far.Drain(ctx)
	}()
	until(t, "the other side knows", func() bool {
		_, ok := near.links.Up("rt-hz-1", zone.ClassBulk)
		return !ok
	})
	// A marker comes back behind a Drain that was sent before it.
	asked := 0
	until(t, "every session of the draining router is asked to leave", func() bool {
		for i, s := range streams {
			if err := s.Send(t.Context(), batch(1+uint64(i), 77, 8)); err != nil {
				t.Fatal(err)
			}
			f := recv(t, s)
			if f.Type == wire.TypeDrain {
				asked++
				if d, err := wire.ParseDrain(f.Payload); err != nil || d.Deadline <= 0 || d.Deadline > time.Minute {
					t.Errorf("Drain = %+v, %v; want the time that is left", d, err)
				}
				f = recv(t, s)
			}
			if number(f) != 77 {
				t.Errorf("session %d lost its frame", i)
			}
		}
		return asked >= moving
	})
	if asked != moving {
		t.Errorf("%d sessions were asked to leave, want the %d of the draining router", asked, moving)
	}
	for i := range uint64(8) {
		if f := recv(t, c.open(near, 100+i, nil)); f.Type != wire.TypeOpen {
			t.Errorf("a new session got %s, want the other router", f.Type)
		}
	}
	select {
	case err := <-drained:
		t.Fatalf("Drain returned %v before its sessions had left", err)
	default:
	}
	for _, s := range streams {
		_ = s.Close(wire.CodeOK)
	}
	if err := <-drained; err != nil {
		t.Errorf("Drain: %v", err)
	}
	if f := recv(t, c.openDirect(far)); f.Type != wire.TypeRefuse {
		t.Errorf("the draining router answered %s, want refuse", f.Type)
	}
}

// openDirect hands a session to a router as a broker of its own city would.
func (c *cluster) openDirect(r *running) *pipe {
	return c.open(r, 500, func(_ *wire.Frame, o *wire.Open) { o.City, o.Group = "shanghai", "rz01-a" })
}

func TestDrainGivesUpAtItsDeadline(t *testing.T) {
	c := newCluster(t, "rt-sh-1", "rt-hz-1")
	c.broker("rz03-a", echo)
	c.linked()
	s := c.open(c.routers["rt-sh-1"], 1, nil)
	recv(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.routers["rt-sh-1"].Drain(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Drain = %v, want the context's error", err)
	}
}

func TestM2_MemoryReturnsAfterManySessions(t *testing.T) {
	c := newCluster(t, "rt-sh-1", "rt-hz-1")
	c.broker("rz03-a", echo)
	c.linked()
	near := c.routers["rt-sh-1"]
	round := func(n int) {
		for i := range uint64(n) {
			s := c.open(near, 1+i, nil)
			recv(t, s)
			if err := s.Send(t.Context(), batch(1+i, i, 30_000)); err != nil {
				t.Fatal(err)
			}
			recv(t, s)
			_ = s.Close(wire.CodeOK)
		}
		for _, r := range c.routers {
			until(t, "no sessions", func() bool { return r.Status().Sessions == 0 })
		}
	}
	round(50) // pools and maps have their size
	base := heap()
	round(1000)
	until(t, "goroutines of sessions end", func() bool { return sessionGoroutines() == 0 })
	if now := heap(); now > base+8<<20 {
		t.Errorf("heap went from %d to %d bytes after 1,000 sessions", base, now)
	}
}

// sessionGoroutines counts the goroutines that work for a session.
func sessionGoroutines() int {
	var b strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&b, 2)
	n := 0
	for g := range strings.SplitSeq(b.String(), "\n\n") {
		if strings.Contains(g, "router.(*Router).serve") || strings.Contains(g, "router.(*Router).pump") || strings.Contains(g, "router.echo") {
			n++
		}
	}
	return n
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestOptionsReportEveryFault(t *testing.T) {
	_, err := New(Options{})
	for _, want := range []string{"node", "incarnation", "topology", "gossip", "TLS", "packet", "opener"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want it to name the missing %s", err, want)
		}
	}
}
