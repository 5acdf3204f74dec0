package link

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// senders are flows that a test drives over a link as a router does: a session
// each, which is opened again when the link says so or when it ends, and goes on
// from what has arrived.
type senders struct {
	from   *node
	to     zone.Node
	wg     sync.WaitGroup
	pause  atomic.Bool
	stop   chan struct{}
	reopen atomic.Int64 // sessions that were opened again because they ended
	moved  atomic.Int64 // those that the link asked for

	mu      sync.Mutex
	arrived map[uint64]uint64 // guarded by mu; the next number that each flow's end waits for
	bytes   int64             // guarded by mu
}

// handle is the far end: it takes the numbers of a flow in order, each once, and
// passes over what it has.
func (x *senders) handle(ctx context.Context, s *Session) {
	for {
		f, err := s.Recv(ctx)
		if err != nil {
			return
		}
		n := binary.LittleEndian.Uint64(f.Payload)
		x.mu.Lock()
		if x.arrived[f.Session] == n {
			x.arrived[f.Session]++
			x.bytes += int64(len(f.Payload))
		}
		x.mu.Unlock()
	}
}

func (x *senders) next(flow uint64) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.arrived[flow]
}

func (x *senders) total() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.bytes
}

// start begins n flows of frames of size bytes.
func (x *senders) start(n, size int) {
	x.arrived, x.stop = make(map[uint64]uint64), make(chan struct{})
	for i := range n {
		x.wg.Go(func() { x.flow(uint64(i+1), size) })
	}
}

func (x *senders) end() {
	close(x.stop)
	x.wg.Wait()
}

func (x *senders) over() bool {
	select {
	case <-x.stop:
		return true
	default:
		return false
	}
}

func (x *senders) flow(number uint64, size int) {
	payload := make([]byte, size)
	for !x.over() {
		s, err := x.from.Open(x.to, zone.ClassBulk, number)
		if err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		for n := x.next(number); !x.over(); n++ {
			if x.pause.Load() {
				time.Sleep(20 * time.Millisecond)
			}
			if s.Displaced() {
				x.moved.Add(1)
				break
			}
			if x.pause.Load() {
				n--
				continue
			}
			binary.LittleEndian.PutUint64(payload, n)
			f := wire.Frame{Type: wire.TypeBatch, Session: number, Class: zone.ClassBulk, Payload: payload}
			if err := s.Send(context.Background(), f); err != nil {
				x.reopen.Add(1)
				break
			}
		}
		_ = s.Close(wire.CodeDraining)
		time.Sleep(100 * time.Millisecond) // what is on its way arrives
	}
}

// bulkPair starts two nodes with bulk links and flows from a to b.
func bulkPair(w *world, parallelA, parallelB int) (a, b *node, x *senders) {
	x = new(senders)
	start := func(name zone.Node, city zone.City, parallel int) *node {
		return w.start(name, city, 11, x.handle, func(o *Options) {
			o.Classes = []zone.Class{zone.ClassBulk}
			o.Limits.Parallel = parallel
		})
	}
	a, b = start("a", "amsterdam", parallelA), start("b", "berlin", parallelB)
	a.SetPeers([]Peer{b.peer})
	b.SetPeers([]Peer{a.peer})
	x.from, x.to = a, "b"
	w.until(2*time.Second, "link", func() bool { return bulkUp(a, "b") && bulkUp(b, "a") })
	return a, b, x
}

func bulkUp(n *node, peer zone.Node) bool {
	_, ok := n.Up(peer, zone.ClassBulk)
	return ok
}

// lose drops a part of all packets.
func (w *world) lose(seed uint64, part float64) {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, 3))
	w.setDrop(func(simnet.Packet) bool {
		mu.Lock()
		defer mu.Unlock()
		return r.Float64() < part
	})
}

// TestW6_LinkGrowsOnALossyPathAndShrinksAgain sends as much as goes over a path
// with 1 % of loss: the link grows to its limit, goodput with it, sessions move
// over without a number missing or out of order, and when there is nothing to send
// any more one connection is left.
func TestW6_LinkGrowsOnALossyPathAndShrinksAgain(t *testing.T) {
	var alone int64 // bytes a second once the first slow start is over
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 15*time.Millisecond)
		defer w.close()
		_, _, x := bulkPair(w, 1, 1)
		w.lose(1, 0.01)
		x.start(8, 32<<10)
		defer x.end()
		time.Sleep(5 * time.Second)
		before := x.total()
		time.Sleep(10 * time.Second)
		alone = (x.total() - before) / 10
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 15*time.Millisecond)
		defer w.close()
		a, b, x := bulkPair(w, 4, 6)
		w.lose(1, 0.01)
		x.start(8, 32<<10)
		took := w.until(2*time.Minute, "four carriers", func() bool { return statusOf(a, "b").Connections == 5 })
		time.Sleep(3 * time.Second)
		before := x.total()
		time.Sleep(5 * time.Second)
		grown := (x.total() - before) / 5
		t.Logf("%d kB/s on one connection; four more after %v; then %d kB/s; moved %d, opened again %d; %+v",
			alone/1000, took, grown/1000, x.moved.Load(), x.reopen.Load(), statusOf(a, "b"))
		if grown < 2*alone {
			t.Errorf("%d bytes a second on four connections, want at least twice the %d on one", grown, alone)
		}
		s := statusOf(a, "b")
		if s.Rates.Bound != BoundPath || s.Rates.Loss < 0.002 || s.Rates.Out < float64(alone) || s.Rates.Busy == 0 {
			t.Errorf("rates = %+v, want the path as the bound, its loss and goodput", s.Rates)
		}
		if got := statusOf(b, "a"); got.Connections != 5 || got.Rates.In < float64(alone) || got.Reconnects != 0 {
			t.Errorf("the other end shows %+v", got)
		}
		own := a.Manager.links[Key{"b", zone.ClassBulk}].current.Load()
		if n := own.opened.Load(); n != 0 || own.extra {
			t.Errorf("%d sessions are left on the link's own connection", n)
		}
		x.pause.Store(true)
		w.setDrop(nil)
		w.until(2*time.Minute, "one connection is left", func() bool {
			return statusOf(a, "b").Connections == 1 && statusOf(b, "a").Connections == 1
		})
		if x.reopen.Load() != 0 {
			t.Errorf("%d sessions ended by themselves", x.reopen.Load())
		}
		x.end()
	})
}

// TestLostExtraConnectionEndsItsSessionsOnly kills one of four connections that
// carry sessions: its own go on from what has arrived, the others notice nothing,
// and the connection is replaced.
func TestLostExtraConnectionEndsItsSessionsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 15*time.Millisecond)
		defer w.close()
		a, b, x := bulkPair(w, 4, 4)
		w.lose(2, 0.01)
		x.start(8, 32<<10)
		defer x.end()
		w.until(2*time.Minute, "four carriers", func() bool { return statusOf(a, "b").Connections == 5 })
		w.until(10*time.Second, "two sessions on each", func() bool { return spreadOf(a, "b") == [2]int64{2, 2} })
		l := b.Manager.links[Key{"a", zone.ClassBulk}]
		(*l.carriers.Load())[2].close(wire.CodeInternal, "killed by the test")
		w.until(2*time.Second, "its sessions open again", func() bool { return x.reopen.Load() > 0 })
		w.until(5*time.Second, "replaced", func() bool {
			return statusOf(a, "b").Connections == 5 && statusOf(b, "a").Connections == 5
		})
		w.until(10*time.Second, "two sessions on each", func() bool { return spreadOf(a, "b") == [2]int64{2, 2} })
		if x.reopen.Load() > 2 || statusOf(a, "b").Reconnects != 0 {
			t.Errorf("%d sessions ended, want at most the two of the lost connection; %+v", x.reopen.Load(), statusOf(a, "b"))
		}
		start := make(map[uint64]uint64)
		for i := range uint64(8) {
			start[i+1] = x.next(i + 1)
		}
		time.Sleep(5 * time.Second)
		for i, n := range start {
			if x.next(i) <= n {
				t.Errorf("flow %d stands still at %d", i, n)
			}
		}
	})
}

// spreadOf returns the least and the most sessions on a carrier.
func spreadOf(n *node, peer zone.Node) [2]int64 {
	carriers := n.Manager.links[Key{peer, zone.ClassBulk}].carriers.Load()
	if carriers == nil {
		return [2]int64{}
	}
	out := [2]int64{1 << 30, 0}
	for _, c := range *carriers {
		out[0], out[1] = min(out[0], c.opened.Load()), max(out[1], c.opened.Load())
	}
	return out
}

// TestPeerWithoutExtraConnectionsGetsOne sends to a node whose greeting takes
// none, as one of an earlier version does.
func TestPeerWithoutExtraConnectionsGetsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 15*time.Millisecond)
		defer w.close()
		a, b, x := bulkPair(w, 4, 1)
		w.lose(3, 0.01)
		x.start(4, 32<<10)
		defer x.end()
		for range 20 {
			time.Sleep(time.Second)
			if na, nb := statusOf(a, "b").Connections, statusOf(b, "a").Connections; na != 1 || nb != 1 {
				t.Fatalf("%d and %d connections, want one", na, nb)
			}
		}
		if b.Refusals() != 0 || x.moved.Load() != 0 {
			t.Errorf("%d connections refused, %d sessions moved", b.Refusals(), x.moved.Load())
		}
	})
}

// TestUrgentLinkKeepsOneConnection: urgent sessions never wait behind a growing
// link, and have theirs for themselves.
func TestUrgentLinkKeepsOneConnection(t *testing.T) {
	l := Limits{Parallel: 9}.withDefaults()
	if got := l.parallel(zone.ClassUrgent); got != 1 {
		t.Errorf("an urgent link has %d connections", got)
	}
	if got := l.parallel(zone.ClassBulk); got != 9 {
		t.Errorf("a bulk link has at most %d connections, want 9", got)
	}
}

// TestCutOfTenMinutesHealsWithinASecondWithAllConnections cuts a grown link.
func TestCutOfTenMinutesHealsWithinASecondWithAllConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 50*time.Millisecond)
		defer w.close()
		a, _, x := bulkPair(w, 4, 4)
		w.lose(4, 0.01)
		x.start(8, 4<<10) // of which the first window carries one of each flow
		defer x.end()
		w.until(2*time.Minute, "four carriers", func() bool { return statusOf(a, "b").Connections == 5 })
		for _, cut := range []time.Duration{20 * time.Second, 10 * time.Minute} {
			w.setDrop(func(simnet.Packet) bool { return true })
			time.Sleep(cut)
			if s := statusOf(a, "b"); s.State != StateRed || s.Connections != 0 {
				t.Fatalf("after %v of a cut: %+v", cut, s)
			}
			before := x.total()
			w.setDrop(nil)
			took := w.until(time.Second, "traffic", func() bool { return x.total() > before })
			t.Logf("traffic %v after a cut of %v", took, cut)
			w.until(2*time.Minute, "four carriers", func() bool { return statusOf(a, "b").Connections == 5 })
		}
	})
}
