package egress

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// heardStream is a stream that knows when its connection last brought something.
type heardStream struct {
	*fakeStream
	last *time.Time
}

func (s *heardStream) Heard() time.Time { return *s.last }

// TestR3_FlappingMembersMoveNothing lets gossip lose and find a router again and
// again, as a starved pool does, for three minutes: while the router answers,
// every session stays where it is; when it does not, gossip's word is enough.
func TestR3_FlappingMembersMoveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCity(t)
		last := map[zone.Node]*time.Time{"rt-sh-1": new(time.Time), "rt-sh-2": new(time.Time)}
		answer := func(nodes ...zone.Node) {
			for _, n := range nodes {
				*last[n] = time.Now()
			}
		}
		c.pool.o.Open = func(ctx context.Context, to Target, session uint64) (wire.Stream, error) {
			s, err := c.net.Open(ctx, to, session)
			if err != nil {
				return nil, err
			}
			return &heardStream{s.(*fakeStream), last[to.Node]}, nil
		}
		answer("rt-sh-1", "rt-sh-2")
		for session := range uint64(40) {
			if _, err := c.Open(t.Context(), far, session); err != nil {
				t.Fatal(err)
			}
		}
		both, next := c.routers, time.Now()
		opened := len(c.net.asked)
		for i := range 600 {
			c.routers = both
			if i%3 > 0 {
				c.routers = both[i%3-1 : i%3]
			}
			if time.Now().After(next) { // package peer probes every two seconds
				answer("rt-sh-1", "rt-sh-2")
				next = time.Now().Add(2 * time.Second)
			}
			if again := c.RoutersChanged(); (again > 0) != (i%3 > 0) {
				t.Fatalf("look again after %v with %d routers listed", again, len(c.routers))
			}
			time.Sleep(300 * time.Millisecond)
		}
		if len(c.net.open) != 40 || len(c.net.asked) != opened {
			t.Fatalf("%d of 40 sessions are left, %d were opened", len(c.net.open), len(c.net.asked)-opened)
		}
		// Now one of them really is gone.
		gone := both[0].Node
		c.routers = both[1:]
		for range 4 {
			answer(both[1].Node)
			c.RoutersChanged()
			time.Sleep(time.Second)
		}
		for s := range c.net.open {
			if s.target.Node == gone {
				t.Fatal("a session stays on a router that gossip does not list and that says nothing")
			}
		}
		if again := c.RoutersChanged(); again != 0 || len(c.net.open) == 0 {
			t.Errorf("look again after %v, %d sessions left", again, len(c.net.open))
		}
	})
}

// TestWrongGossipAddressCostsAnAttempt: whichever of gossip and topology is wrong
// about where a node is, its sessions open.
func TestWrongGossipAddressCostsAnAttempt(t *testing.T) {
	near := leg("shanghai", "rz02-a")
	for name, row := range map[string]struct{ right string }{
		"gossip is right":   {"10.0.0.9:1"},
		"topology is right": {"127.0.0.1:9005"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCity(t)
			c.o.Broker = func(zone.Node) string { return "10.0.0.9:1" }
			c.pool.o.Open = func(ctx context.Context, to Target, session uint64) (wire.Stream, error) {
				if to.Addr != row.right {
					return nil, errors.New("somebody else answers")
				}
				return c.net.Open(ctx, to, session)
			}
			s, err := c.Open(t.Context(), near, 1)
			if err != nil {
				t.Fatal(err)
			}
			_ = s.Close(wire.CodeOK)
		})
	}
	t.Run("routers", func(t *testing.T) {
		c := newCity(t)
		c.routers = []RouterInfo{{Node: "rt-sh-1", Addr: "10.0.0.9:1"}, {Node: "rt-sh-2", Addr: "10.0.0.9:2"}}
		c.pool.o.Open = func(ctx context.Context, to Target, session uint64) (wire.Stream, error) {
			if n := c.top.FindNode(to.Node); to.Addr != n.Peer {
				return nil, errors.New("somebody else answers")
			}
			return c.net.Open(ctx, to, session)
		}
		s, err := c.Open(t.Context(), far, 1)
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Close(wire.CodeOK)
	})
}

// TestT7_WhenAllFailEachIsStillTried lets every router fail at once, for long:
// none is ever given up, each is tried again within the longest back-off, and the
// first that answers gets the sessions.
func TestT7_WhenAllFailEachIsStillTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCity(t)
		for _, n := range []zone.Node{"rt-sh-1", "rt-sh-2"} {
			c.net.set(n, true)
		}
		last := map[zone.Node]time.Time{"rt-sh-1": time.Now(), "rt-sh-2": time.Now()}
		for session := range uint64(6000) {
			_, err := c.Open(t.Context(), far, session)
			var e *Error
			if !errors.As(err, &e) || e.Code != wire.CodeNoRoute || !errors.Is(err, errDown) {
				t.Fatalf("Open = %v, want no-route and why", err)
			}
			for _, a := range c.net.asked {
				last[a.Node] = time.Now()
			}
			c.net.asked = nil
			for n, at := range last {
				if d := time.Since(at); d > 520*time.Millisecond {
					t.Fatalf("%s was not tried for %v", n, d)
				}
			}
			for _, st := range c.Status() { // that none is left is shown with the reason
				if session > 10 && (st.Err == "" || st.Failed == 0) {
					t.Fatalf("status %+v does not say that it fails", st)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		c.net.set("rt-sh-2", false)
		start := time.Now()
		for session := uint64(0); ; session++ {
			if s, err := c.Open(t.Context(), far, session); err == nil {
				_ = s.Close(wire.CodeOK)
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(start); took > 520*time.Millisecond {
			t.Errorf("a router that is back was used after %v", took)
		}
	})
}
