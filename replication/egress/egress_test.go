package egress

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is the in-city network: which nodes answer, and what was asked.
type fake struct {
	mu     sync.Mutex
	down   map[zone.Node]bool
	silent map[zone.Node]bool // takes no notice of who dials
	asked  []Target
	open   map[*fakeStream]bool
}

func newFake() *fake { return &fake{down: make(map[zone.Node]bool), open: make(map[*fakeStream]bool)} }

var errDown = errors.New("connection refused")

func (f *fake) Open(ctx context.Context, t Target, _ uint64) (wire.Stream, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.asked = append(f.asked, t)
	if f.down[t.Node] {
		return nil, errDown
	}
	if f.silent[t.Node] {
		f.mu.Unlock()
		<-ctx.Done()
		f.mu.Lock()
		return nil, ctx.Err()
	}
	s := &fakeStream{f: f, target: t}
	f.open[s] = true
	return s, nil
}

func (f *fake) set(node zone.Node, down bool) {
	f.mu.Lock()
	f.down[node] = down
	f.mu.Unlock()
}

func (f *fake) last() Target {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[len(f.asked)-1]
}

type fakeStream struct {
	wire.Stream
	f      *fake
	target Target
	code   wire.Code
}

func (s *fakeStream) Close(code wire.Code) error {
	s.f.mu.Lock()
	if s.f.open[s] {
		s.code = code
		delete(s.f.open, s)
	}
	s.f.mu.Unlock()
	return nil
}

// city is an Egress of a broker in shanghai.
type city struct {
	*Egress
	net     *fake
	routers []RouterInfo
	top     *zone.Topology
}

func newCity(t *testing.T) *city {
	t.Helper()
	top, err := zone.Parse(sample.YAML, "sample.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c := &city{net: newFake(), top: top, routers: []RouterInfo{
		{Node: "rt-sh-1", Addr: "127.0.0.1:9001"}, {Node: "rt-sh-2", Addr: "10.0.0.9:9002"},
	}}
	c.Egress = New(Options{
		City: "shanghai", Topology: func() *zone.Topology { return top },
		Routers: func() []RouterInfo { return c.routers },
		Pool:    PoolOptions{Open: c.net.Open, Rand: rand.New(rand.NewPCG(1, 2))},
	})
	t.Cleanup(c.Close)
	return c
}

func leg(city zone.City, group zone.Group) flow.Leg {
	return flow.Leg{Flow: record.FlowID{Class: zone.ClassUrgent}, City: city, Group: group}
}

var far = leg("hangzhou", "rz03-a")

func TestOwnCityIsReachedDirectly(t *testing.T) {
	c := newCity(t)
	s, err := c.Open(t.Context(), leg("shanghai", "rz02-a"), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(wire.CodeOK)
	want := Target{Node: "rz02-a-1", Role: zone.RoleBroker, Zone: "rz02", City: "shanghai", Class: zone.ClassUrgent, Addr: "127.0.0.1:9005"}
	if got := c.net.last(); got != want {
		t.Errorf("asked for %+v, want %+v", got, want)
	}
	c.o.Broker = func(n zone.Node) string { return "10.1.1.1:" + fmt.Sprint(len(n)) }
	s2, err := c.Open(t.Context(), leg("shanghai", "rz02-a"), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s2.Close(wire.CodeOK)
	if got := c.net.last().Addr; got != "10.1.1.1:8" {
		t.Errorf("asked at %s, want the address that gossip knows", got)
	}
}

func TestUnknownGroupIsSaid(t *testing.T) {
	c := newCity(t)
	for _, l := range []flow.Leg{leg("shanghai", "nobody"), leg("shanghai", "rz03-a")} {
		_, err := c.Open(t.Context(), l, 1)
		var e *Error
		if !errors.As(err, &e) || e.Code != wire.CodeUnknownGroup {
			t.Errorf("%+v: %v, want unknown-group", l, err)
		}
	}
}

func TestSessionsSpreadOverRoutersAndKeepTheirRouter(t *testing.T) {
	c := newCity(t)
	count := make(map[zone.Node]int)
	for session := range uint64(1000) {
		var first zone.Node
		for range 2 {
			s, err := c.Open(t.Context(), far, session)
			if err != nil {
				t.Fatal(err)
			}
			_ = s.Close(wire.CodeOK)
			got := c.net.last()
			if got.City != "hangzhou" || got.Role != zone.RoleRouter || got.Zone != "" {
				t.Fatalf("asked for %+v, want a router towards hangzhou", got)
			}
			if first == "" {
				first = got.Node
				count[first]++
			} else if got.Node != first {
				t.Fatalf("session %d went to %s and to %s", session, first, got.Node)
			}
		}
	}
	for node, n := range count {
		if n < 400 || n > 600 {
			t.Errorf("%s has %d of 1,000 sessions, want about half", node, n)
		}
	}
}

func TestDeadRouterIsAvoidedAtOnceAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCity(t)
		c.net.set("rt-sh-1", true)
		asked := func() (n int) {
			for session := range uint64(100) {
				s, err := c.Open(t.Context(), far, session)
				if err != nil {
					t.Fatal(err)
				}
				_ = s.Close(wire.CodeOK)
				if got := c.net.last().Node; got != "rt-sh-2" {
					t.Fatalf("session %d went to %s", session, got)
				}
			}
			for _, a := range c.net.asked {
				if a.Node == "rt-sh-1" {
					n++
				}
			}
			c.net.asked = nil
			return n
		}
		if n := asked(); n != 1 {
			t.Errorf("the dead router was asked %d times, want once: then it is backed off from", n)
		}
		time.Sleep(500 * time.Millisecond)
		if n := asked(); n != 1 {
			t.Errorf("after the longest back-off it was asked %d times, want once more", n)
		}
		time.Sleep(500 * time.Millisecond)
		c.net.set("rt-sh-1", false)
		used := make(map[zone.Node]bool)
		for session := range uint64(50) {
			s, err := c.Open(t.Context(), far, session)
			if err != nil {
				t.Fatal(err)
			}
			_ = s.Close(wire.CodeOK)
			used[c.net.last().Node] = true
		}
		if len(used) != 2 {
			t.Errorf("sessions go over %v, want both again", used)
		}
	})
}

func TestNoRouterAnswers(t *testing.T) {
	c := newCity(t)
	c.net.set("rt-sh-1", true)
	c.net.set("rt-sh-2", true)
	for range 2 { // the second time they are backed off from
		_, err := c.Open(t.Context(), far, 1)
		var e *Error
		if !errors.As(err, &e) || e.Code != wire.CodeNoRoute || !errors.Is(err, errDown) {
			t.Errorf("Open = %v, want no-route and why", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newCity(t).Open(ctx, far, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("Open = %v, want the context's error", err)
	}
}

func TestSilentRouterGoneEndsItsSessionsAtOnceAndNoOthers(t *testing.T) {
	c := newCity(t)
	var streams []wire.Stream
	for session := range uint64(40) {
		s, err := c.Open(t.Context(), far, session)
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	both := c.routers
	c.routers = both[1:]
	c.RoutersChanged()
	for s := range c.net.open {
		if s.target.Node != "rt-sh-2" {
			t.Errorf("a session over %s is still open", s.target.Node)
		}
	}
	left := len(c.net.open)
	if left == 0 || left == len(streams) {
		t.Errorf("%d of %d sessions are left, want those of the other router", left, len(streams))
	}
	c.routers = []RouterInfo{{Node: "rt-sh-1", Addr: "127.0.0.1:9001"}}
	c.RoutersChanged()
	if len(c.net.open) != 0 {
		t.Errorf("%d sessions stay on a router that is not listed", len(c.net.open))
	}
	for _, s := range streams {
		_ = s.Close(wire.CodeOK) // their owner does so, too
	}
	if st := c.Status(); st[0].Sessions != 0 || c.pool.total != 0 {
		t.Errorf("status = %+v, %d sessions in all; want none", st, c.pool.total)
	}
}

func TestBrokerThatHasLostEverybodyKeepsWhatWorks(t *testing.T) {
	c := newCity(t)
	s, err := c.Open(t.Context(), far, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(wire.CodeOK)
	c.routers = nil
	c.RoutersChanged()
	if len(c.net.open) != 1 {
		t.Error("an empty list ended the session")
	}
	// The topology's routers serve when gossip knows nobody.
	s2, err := c.Open(t.Context(), far, 2)
	if err != nil {
		t.Fatal(err)
	}
	_ = s2.Close(wire.CodeOK)
}

func TestDrainingRouterGetsNoNewSessions(t *testing.T) {
	c := newCity(t)
	c.routers[0].Draining = true
	for session := range uint64(30) {
		s, err := c.Open(t.Context(), far, session)
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Close(wire.CodeOK)
		if got := c.net.last().Node; got != "rt-sh-2" {
			t.Fatalf("session %d went to the draining %s", session, got)
		}
	}
}

func TestPoolIsBoundedAndEnds(t *testing.T) {
	n := newFake()
	p := NewPool(PoolOptions{Open: n.Open, Sessions: 3})
	var open []wire.Stream
	for i := range uint64(3) {
		s, err := p.Open(t.Context(), Target{Node: "a"}, i)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, s)
	}
	if _, err := p.Open(t.Context(), Target{Node: "b"}, 9); !errors.Is(err, ErrSessions) {
		t.Errorf("Open = %v, want ErrSessions", err)
	}
	_ = open[0].Close(wire.CodeOK)
	_ = open[0].Close(wire.CodeOK) // counts once
	if _, err := p.Open(t.Context(), Target{Node: "b"}, 9); err != nil {
		t.Errorf("Open = %v, want room", err)
	}
	if _, err := p.Open(t.Context(), Target{Node: "b"}, 10); !errors.Is(err, ErrSessions) {
		t.Errorf("Open = %v, want ErrSessions", err)
	}
	p.Close()
	if len(n.open) != 0 {
		t.Errorf("%d sessions outlive the pool", len(n.open))
	}
	if _, err := p.Open(t.Context(), Target{Node: "a"}, 11); !errors.Is(err, ErrClosed) {
		t.Errorf("Open = %v, want ErrClosed", err)
	}
	p.Close()
}

func TestPoolForgetsTargetsThatAreNotUsed(t *testing.T) {
	n := newFake()
	n.set("a", true)
	p := NewPool(PoolOptions{Open: n.Open})
	defer p.Close()
	for i := range 3 * maxTargets {
		_, _ = p.Open(t.Context(), Target{Node: "a", Addr: fmt.Sprint(i)}, 1)
	}
	if got := len(p.Status()); got > maxTargets {
		t.Errorf("%d targets are remembered, want at most %d", got, maxTargets)
	}
}

func TestRankMovesOnlyWhatALostNodeHad(t *testing.T) {
	nodes := []zone.Node{"a", "b", "c"}
	self := func(n zone.Node) zone.Node { return n }
	moved := 0
	for key := range uint64(3000) {
		all := slices.Clone(nodes)
		Rank(all, key, self)
		rest := slices.DeleteFunc(slices.Clone(nodes), func(n zone.Node) bool { return n == "b" })
		Rank(rest, key, self)
		if all[0] == "b" {
			moved++
		} else if all[0] != rest[0] {
			t.Fatalf("key %d moved from %s to %s although %s lives", key, all[0], rest[0], all[0])
		}
	}
	if moved < 900 || moved > 1100 {
		t.Errorf("b had %d of 3,000 keys, want a third", moved)
	}
}

// TestSilentRouterCostsNobodyTheirTime: a router that answers nothing, as after
// a power cut, must not use up the time in which another one would have answered.
func TestSilentRouterCostsNobodyTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCity(t)
		c.net.silent = map[zone.Node]bool{"rt-sh-1": true}
		for session := range uint64(20) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			s, err := c.Open(ctx, far, session)
			cancel()
			if err != nil {
				t.Fatalf("session %d: %v", session, err)
			}
			if got := c.net.last().Node; got != "rt-sh-2" {
				t.Fatalf("session %d goes through %s", session, got)
			}
			s.Close(wire.CodeOK)
		}
		for _, st := range c.Status() {
			if (st.Target.Node == "rt-sh-1") != (st.Failed > 0) {
				t.Errorf("%s failed %d times", st.Target.Node, st.Failed)
			}
		}
	})
}
