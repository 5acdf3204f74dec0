package broker

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// way is a direction of a link between two cities.
type way struct{ from, to zone.City }

// links are the links between the cities of a world: what crossed them, and which
// of them carry nothing. The zero value works.
type links struct {
	mu      sync.Mutex
	cut     map[way]bool          // frames vanish, dials hang; guarded by mu
	slow    map[way]time.Duration // guarded by mu
	records map[way]int           // in batches; guarded by mu
}

// set cuts a direction, or heals it.
func (l *links) set(w way, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut == nil {
		l.cut = map[way]bool{}
	}
	l.cut[w] = cut
}

// slowed makes each frame of a direction take so long.
func (l *links) slowed(w way, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.slow == nil {
		l.slow = map[way]time.Duration{}
	}
	l.slow[w] = d
}

// crossed returns how many records have crossed, and counts anew.
func (l *links) crossed() map[way]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.records
	l.records = nil
	return n
}

func (l *links) dial(ctx context.Context, from, to zone.City) error {
	l.mu.Lock()
	cut := l.cut[way{from, to}] || l.cut[way{to, from}]
	l.mu.Unlock()
	if !cut || from == to {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (l *links) pipe(from, to zone.City) (wire.Stream, wire.Stream) {
	a, b := flow.Pipe()
	if from == to {
		return a, b
	}
	return &linked{a, l, way{from, to}}, &linked{b, l, way{to, from}}
}

// linked is one end of a stream between two cities. It raises the hops, as routers
// do.
type linked struct {
	wire.Stream
	links *links
	way   way
}

func (s *linked) Send(ctx context.Context, f wire.Frame) error {
	l := s.links
	l.mu.Lock()
	cut, slow := l.cut[s.way], l.slow[s.way]
	if f.Type == wire.TypeBatch && !cut {
		if b, err := wire.ParseBatch(f.Payload); err == nil {
			if l.records == nil {
				l.records = map[way]int{}
			}
			l.records[s.way] += int(b.Count)
		}
	}
	l.mu.Unlock()
	if cut {
		return nil
	}
	if slow > 0 {
		t := time.NewTimer(slow)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
	f.Hops++
	return s.Stream.Send(ctx, f)
}

// serve handles a session as a node does.
func (s *site) serve(b wire.Stream) {
	first, err := b.Recv(s.ctx)
	if err != nil {
		_ = b.Close(wire.CodeShutdown)
		return
	}
	if o, err := wire.ParseOpen(first.Payload); err == nil && first.Type == wire.TypeOpen && o.Role == wire.OpenPull {
		_ = s.outbox.ServePull(s.ctx, b, first)
		return
	}
	_ = s.inbox.Serve(s.ctx, &replayed{b, &first})
}

// replayed is a stream whose first frame was read already.
type replayed struct {
	wire.Stream
	first *wire.Frame
}

func (r *replayed) Recv(ctx context.Context) (wire.Frame, error) {
	if f := r.first; f != nil {
		r.first = nil
		return *f, nil
	}
	return r.Stream.Recv(ctx)
}

// pullOptions are those of a node.
func (s *site) pullOptions(seed uint64) flow.PullOptions {
	rng := rand.New(rand.NewPCG(seed, 2))
	var mu sync.Mutex
	return flow.PullOptions{
		Holders: s.holders, Dialer: caller{s},
		Session: func() uint64 {
			mu.Lock()
			defer mu.Unlock()
			return rng.Uint64() | 1
		},
	}
}

func (s *site) holders(id record.FlowID) (legs []flow.Leg) {
	t := s.Topology()
	origin := t.FindGroup(id.Origin)
	for _, c := range t.Channels {
		if string(c.Name) != id.Target || origin == nil || s.Zone() != s.Zone().City.CZone {
			continue
		}
		ask := record.FlowID{Origin: s.Group().Name, Incarnation: s.Sink().Incarnation(), Target: id.Target, Channel: true, Class: id.Class}
		for _, h := range t.Holders(c, s.Zone().City, origin.Zone.City.Name) {
			legs = append(legs, flow.Leg{Flow: ask, City: h.Name, Group: h.CZone.SlotOwner(c.Slot).Name})
		}
	}
	return legs
}
