package link

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// TestS2_AnyLostPacketOfTheGreetingOnlyDelays loses, one a run, each packet of
// the handshake and the greeting in either direction, once: the link comes up
// all the same, and within what a repetition or another attempt takes.
func TestS2_AnyLostPacketOfTheGreetingOnlyDelays(t *testing.T) {
	for _, from := range []string{"10.0.0.1:4433", "10.0.0.2:4433"} {
		for nth := range int64(10) {
			t.Run(fmt.Sprintf("%s/%d", from, nth), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, 20*time.Millisecond)
					defer w.close()
					a := w.start("a", "amsterdam", 11, nil, nil)
					b := w.start("b", "berlin", 12, nil, nil)
					var seen atomic.Int64
					w.setDrop(func(p simnet.Packet) bool { return p.From.String() == from && seen.Add(1) == nth+1 })
					a.SetPeers([]Peer{b.peer}) // only a dials: nobody saves it
					w.until(2*time.Second, "link", up(a, b))
					w.until(2*time.Second, "link at the other end", up(b, a))
				})
			})
		}
	}
}

// TestP7_PeerWithMyOwnIdentityIsTold gives two routers what one sample
// configuration gives: the same name, or the same city. There is no link between
// them, both ends say why, and links with others are not disturbed.
func TestP7_PeerWithMyOwnIdentityIsTold(t *testing.T) {
	for name, twin := range map[string]struct {
		node zone.Node
		city zone.City
	}{"the same node": {"a", "amsterdam"}, "the same name in another city": {"a", "berlin"}, "the same city": {"b", "amsterdam"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 20*time.Millisecond)
				defer w.close()
				a := w.start("a", "amsterdam", 11, nil, nil)
				b := w.start(twin.node, twin.city, 12, nil, nil)
				c := w.start("c", "cologne", 13, nil, nil)
				// The address of a peer that both have in their file is the twin's.
				a.SetPeers([]Peer{{Node: "b", City: "berlin", Addr: b.peer.Addr}, c.peer})
				w.until(time.Second, "link with another", up(a, c))
				time.Sleep(5 * time.Second)
				s := statusOf(a, "b")
				if s.State == StateUp || s.Connections != 0 {
					t.Fatalf("a link with a twin: %+v", s)
				}
				if !strings.Contains(s.LastError, "wrong-identity") {
					t.Errorf("the reason is %q, want wrong-identity", s.LastError)
				}
				if up := statusOf(a, "c"); up.State != StateUp || up.Reconnects != 0 {
					t.Errorf("another link was disturbed: %+v", up)
				}
			})
		})
	}
}

// TestR2_TwoHundredDialAtOnce restarts a hub that two hundred routers have links
// with: never are more handshakes in progress than there may be, nobody has to be
// helped, and all are back within a bound.
func TestR2_TwoHundredDialAtOnce(t *testing.T) {
	const routers, cap = 200, 16
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 20*time.Millisecond)
		defer w.close()
		hub := w.start("hub", "harbour", 1, nil, func(o *Options) { o.Limits.Handshakes = cap })
		var all []*node
		for i := range routers {
			n := w.start(zone.Node(fmt.Sprintf("n%03d", i)), "north", 2, nil, nil)
			n.SetPeers([]Peer{hub.peer})
			all = append(all, n)
		}
		most := int64(0)
		took := w.until(20*time.Second, "all links", func() bool {
			most = max(most, hub.handshakes.Load())
			for _, n := range all {
				if !up(n, hub)() {
					return false
				}
			}
			return true
		})
		t.Logf("%d links after %v, at most %d handshakes at a time, %d refused", routers, took, most, hub.Refusals())
		if most > cap {
			t.Errorf("%d handshakes at a time, want at most %d", most, cap)
		}
	})
}

// TestG3_OversizeFrameHarmsNothing sends a frame above what the peer takes over a
// session that goes on: that call fails with what it is, and the next frame
// arrives.
func TestG3_OversizeFrameHarmsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5*time.Millisecond)
		defer w.close()
		a, b := w.pair(nil, func(o *Options) { o.Limits.MaxPayload = 1 << 20 })
		w.until(time.Second, "link", up(a, b))
		s, err := a.Open("b", zone.ClassUrgent, 7)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(wire.CodeOK)
		other, err := a.Open("b", zone.ClassUrgent, 8)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close(wire.CodeOK)
		for _, size := range []int{1<<20 + 1, wire.MaxPayload, wire.MaxPayload + 1} {
			err := s.Send(context.Background(), frame(7, strings.Repeat("x", size)))
			var fe *wire.FrameError
			if !errors.As(err, &fe) || (!errors.Is(err, ErrTooLarge) && size <= wire.MaxPayload) {
				t.Fatalf("%d bytes: %v, want a *wire.FrameError", size, err)
			}
			for i, s := range []*Session{s, other} {
				if err := s.Send(context.Background(), frame(uint64(7+i), "fits")); err != nil {
					t.Fatal(err)
				}
				if f, err := s.Recv(context.Background()); err != nil || string(f.Payload) != "fits" {
					t.Fatalf("after %d bytes: %q, %v", size, f.Payload, err)
				}
			}
		}
		if s := statusOf(a, "b"); s.Reconnects != 0 || s.State != StateUp {
			t.Errorf("the link did not survive: %+v", s)
		}
	})
}
