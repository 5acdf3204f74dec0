package router

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// simBroker is the only broker of a city: it settles the numbers of every flow
// that comes, once and in order, and answers with the settled prefix.
type simBroker struct {
	w    *simWorld
	city zone.City

	mu    sync.Mutex
	slow  time.Time                    // takes nothing before; guarded by mu
	dead  bool                         // guarded by mu
	flows map[record.FlowID]*simInflow // guarded by mu
	open  map[*bounded]bool            // guarded by mu
	late  int                          // frames of sessions that another has taken over; guarded by mu
}

// simInflow is what a broker knows of a flow.
type simInflow struct {
	settled uint64
	owner   *bounded // the session that may settle
	opened  int      // sessions so far
	hops    []uint8  // of each number, from the first
}

func newSimBroker(w *simWorld, city zone.City) *simBroker {
	return &simBroker{w: w, city: city, flows: make(map[record.FlowID]*simInflow), open: make(map[*bounded]bool)}
}

func (b *simBroker) serve(s *bounded) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dead {
		return false
	}
	b.open[s] = true
	b.w.wg.Go(func() {
		b.session(s)
		_ = s.Close(wire.CodeShutdown)
		b.mu.Lock()
		delete(b.open, s)
		b.mu.Unlock()
	})
	return true
}

func (b *simBroker) kill() {
	b.mu.Lock()
	b.dead = true
	all := b.open
	b.open = map[*bounded]bool{}
	b.mu.Unlock()
	for s := range all {
		_ = s.Close(wire.CodeShutdown)
	}
}

// pause makes the broker take nothing for a while.
func (b *simBroker) pause(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slow = time.Now().Add(d)
}

func (b *simBroker) rest() {
	b.mu.Lock()
	d := time.Until(b.slow)
	b.mu.Unlock()
	if d > 0 {
		time.Sleep(d)
	}
}

// session serves one session.
func (b *simBroker) session(s *bounded) {
	bg := context.Background()
	f, err := s.Recv(bg)
	if err != nil {
		return
	}
	o, err := wire.ParseOpen(f.Payload)
	if err != nil || o.City != b.city {
		b.w.t.Errorf("%s: a session begins with %s to %q: %v", b.city, f.Type, o.City, err)
		return
	}
	answer := func(t wire.Type, settled uint64) error {
		return s.Send(bg, wire.Frame{Type: t, Session: f.Session, Class: f.Class, Payload: binary.LittleEndian.AppendUint64(nil, settled)})
	}
	b.mu.Lock()
	in := b.flows[o.Flow]
	if in == nil {
		in = &simInflow{}
		b.flows[o.Flow] = in
	}
	if in.owner != nil {
		_ = in.owner.Close(wire.CodeSuperseded)
	}
	in.owner = s
	in.opened++
	settled := in.settled
	b.mu.Unlock()
	if answer(wire.TypeAccept, settled) != nil {
		return
	}
	for {
		f, err := s.Recv(bg)
		if err != nil {
			return
		}
		b.rest()
		x, err := wire.ParseBatch(f.Payload)
		if err != nil {
			b.w.t.Errorf("%s: %v", b.city, err)
			return
		}
		settled, ok := b.settle(in, s, &x, f.Hops, o.OriginCity)
		if !ok || answer(wire.TypeAck, settled) != nil {
			return
		}
	}
}

// settle lands a batch of one record; false ends the session.
func (b *simBroker) settle(in *simInflow, s *bounded, x *wire.Batch, hops uint8, from zone.City) (uint64, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case in.owner != s:
		b.late++
		return 0, false
	case x.First > in.settled+1:
		b.w.t.Errorf("%s: number %d from %s after %d", b.city, x.First, from, in.settled)
		return 0, false
	case x.First == in.settled+1:
		in.settled++
		in.hops = append(in.hops, hops)
	}
	if hops < 1 || hops > maxPath {
		b.w.t.Errorf("%s: number %d from %s came over %d cities", b.city, x.First, from, hops)
	}
	return in.settled, true
}

// simLane is a flow's origin: it numbers a record every Every, sends each until
// it is settled, and opens its session again whenever that ends.
type simLane struct {
	w         *simWorld
	from, to  zone.City
	class     zone.Class
	lane      uint8
	size      int    // bytes of a record
	burst     uint64 // records that are sent before the lane reads what is settled
	every     time.Duration
	residency func(number uint64) []zone.City // nil = everything may go everywhere
	rng       *rand.Rand
	done      chan struct{}
	stop      context.CancelFunc

	mu       sync.Mutex
	born     []time.Time     // of each number, from the first; guarded by mu
	waits    []time.Duration // until it was settled; guarded by mu
	refusals map[wire.Code]int
	final    int    // refusals that name no time to try again; guarded by mu
	session  uint64 // of the present one; 0 = none
	opens    int
	closing  bool // no more new numbers
}

// lane starts a lane.
func (w *simWorld) lane(from, to zone.City, seed uint64, change func(*simLane)) *simLane {
	l := &simLane{
		w: w, from: from, to: to, class: zone.ClassBulk, size: 1, burst: 32, every: 100 * time.Millisecond,
		rng: rand.New(rand.NewPCG(seed, uint64(len(from))<<32|uint64(len(to)))), done: make(chan struct{}), refusals: make(map[wire.Code]int),
	}
	if change != nil {
		change(l)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	w.wg.Go(func() {
		defer close(l.done)
		var wg sync.WaitGroup
		wg.Go(func() { l.produce(ctx) })
		for ctx.Err() == nil {
			l.once(ctx)
			sleepFor(ctx, time.Duration(l.rng.Int64N(int64(250*time.Millisecond))))
		}
		wg.Wait()
	})
	return l
}

func sleepFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

func (l *simLane) produce(ctx context.Context) {
	for ctx.Err() == nil {
		l.mu.Lock()
		if !l.closing {
			l.born = append(l.born, time.Now())
		}
		l.mu.Unlock()
		sleepFor(ctx, l.every)
	}
}

// cities returns the residency of a number.
func (l *simLane) cities(number uint64) []zone.City {
	if l.residency == nil {
		return nil
	}
	return l.residency(number)
}

func (l *simLane) flow() record.FlowID {
	return record.FlowID{Origin: groupOf(l.from), Incarnation: 1, Target: string(groupOf(l.to)), Class: l.class, Lane: l.lane}
}

// once is one session.
func (l *simLane) once(ctx context.Context) {
	number := l.rng.Uint64() | 1
	routers := l.w.routersIn(l.from, number)
	if len(routers) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	near, far := newPipe()
	s := &bounded{near}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	defer s.Close(wire.CodeOK)
	wg.Go(func() { routers[0].ServePeer(ctx, zone.Node(groupOf(l.from)+"-1"), &bounded{far}) })

	l.mu.Lock()
	settled := uint64(len(l.waits))
	l.session = number
	l.opens++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.session = 0
		l.mu.Unlock()
	}()
	o := wire.Open{
		Flow: l.flow(), City: l.to, Group: groupOf(l.to), OriginCity: l.from, RouteEpoch: l.w.top.Epoch,
		Cursor: settled, MaxRecord: 1 << 20, Residency: l.cities(settled + 1),
	}
	if s.Send(ctx, wire.Frame{Type: wire.TypeOpen, Session: number, Class: l.class, Payload: o.Append(nil)}) != nil {
		return
	}
	// A destination that is silent for two seconds while there is something to
	// settle is given up, as a flow does.
	next, err := l.read(ctx, s)
	if err != nil {
		return
	}
	l.note(next)
	for settled := next; ; {
		ready := l.wait(ctx, settled+1)
		if ready == 0 {
			return
		}
		for n := settled + 1; n <= ready; n++ {
			b := wire.Batch{First: n, Count: 1, Cursor: settled, Path: []zone.City{l.from}, Residency: l.cities(n), RawSize: uint32(l.size), Data: make([]byte, l.size)}
			if s.Send(ctx, wire.Frame{Type: wire.TypeBatch, Session: number, Class: l.class, Payload: b.Append(nil)}) != nil {
				return
			}
		}
		for settled < ready {
			if settled, err = l.read(ctx, s); err != nil {
				return
			}
			l.note(settled)
		}
	}
}

// note takes the destination's word for what is settled.
func (l *simLane) note(settled uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uint64(len(l.waits)) < settled {
		l.waits = append(l.waits, time.Since(l.born[len(l.waits)]))
	}
}

// wait returns when the number exists: the highest one to send now, at most a
// burst of them, or 0 when ctx has ended.
func (l *simLane) wait(ctx context.Context, number uint64) uint64 {
	for ctx.Err() == nil {
		l.mu.Lock()
		n := uint64(len(l.born))
		l.mu.Unlock()
		if n >= number {
			return min(n, number+l.burst-1)
		}
		sleepFor(ctx, 5*time.Millisecond)
	}
	return 0
}

var errEnded = errors.New("session ended")

// read returns the settled prefix that the destination tells next.
func (l *simLane) read(ctx context.Context, s wire.Stream) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for {
		f, err := s.Recv(ctx)
		if err != nil {
			return 0, err
		}
		switch f.Type {
		case wire.TypeAccept, wire.TypeAck:
			return binary.LittleEndian.Uint64(f.Payload), nil
		case wire.TypeRefuse:
			if r, err := wire.ParseRefuse(f.Payload); err == nil {
				l.mu.Lock()
				l.refusals[r.Code]++
				if r.RetryAfter == 0 {
					l.final++
				}
				l.mu.Unlock()
			}
			return 0, errEnded
		default: // drain
			return 0, errEnded
		}
	}
}

// settled returns how many numbers are settled and how many there are.
func (l *simLane) settled() (settled, all int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waits), len(l.born)
}

// finish ends the numbering.
func (l *simLane) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closing = true
}

// worst returns the longest wait of the numbers from the first on.
func (l *simLane) worst(from int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var most time.Duration
	for i := from; i < len(l.waits); i++ {
		most = max(most, l.waits[i])
	}
	return most
}

// inflow is what the destination knows of the lane.
func (l *simLane) inflow() (settled uint64, hops []uint8, opened int) {
	b := l.w.brokers[groupOf(l.to)]
	b.mu.Lock()
	defer b.mu.Unlock()
	in := b.flows[l.flow()]
	if in == nil {
		return 0, nil, 0
	}
	return in.settled, append([]uint8(nil), in.hops...), in.opened
}
