package flow

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
)

// simNet carries streams between an origin and its destinations: with delay,
// bounded queues, streams that reset or fall silent, directions that stand
// still, destinations that cannot be reached, and old sessions that come back.
type simNet struct {
	mu      sync.Mutex
	rng     *rand.Rand
	delay   time.Duration    // one way
	rate    float64          // bytes a second; 0 = any
	down    bool             // nothing can be dialled; the dial hangs or fails
	still   [2]chan struct{} // per direction: not nil while nothing moves; closed when it does again
	streams map[*simEnd]bool // opener's ends
	serve   func(leg Leg, s wire.Stream)
	ghosts  []ghost // what sessions have sent, to come back later
	record  bool
	depth   int // frames that a direction holds before Send waits; 0 = simDepth
}

// ghost is a session's frames as a hop may repeat them.
type ghost struct {
	leg    Leg
	frames []wire.Frame
}

type timedFrame struct {
	at time.Time
	f  wire.Frame
}

// simStream is what both ends share.
type simStream struct {
	net    *simNet
	dirs   [2]chan timedFrame // by sender: 0 = opener
	ended  [2]chan struct{}   // closed when that side knows of the end
	mu     sync.Mutex
	code   wire.Code
	by     int
	once   [2]sync.Once
	silent bool // frames vanish. Guarded by mu
	last   [2]time.Time
	ghost  *ghost
}

type simEnd struct {
	s    *simStream
	side int
}

var _ wire.Stream = (*simEnd)(nil)

const simDepth = 32 // see simNet.depth

// Open implements Dialer.
func (n *simNet) Open(ctx context.Context, leg Leg, _ uint64) (wire.Stream, error) {
	n.mu.Lock()
	delay, down, hang := n.delay, n.down, n.rng.IntN(2) == 0
	n.mu.Unlock()
	if down && hang {
		sleep(ctx, 300*time.Millisecond)
		return nil, context.DeadlineExceeded
	}
	if !sleep(ctx, 2*delay) {
		return nil, ctx.Err()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return nil, &wire.ClosedError{Code: wire.CodeNoRoute}
	}
	a, b := n.pair()
	if n.record {
		a.s.ghost = &ghost{leg: leg}
	}
	n.streams[a] = true
	n.serve(leg, b)
	return a, nil
}

// pair makes a stream. n.mu is held or n is not shared yet.
func (n *simNet) pair() (a, b *simEnd) {
	s := &simStream{net: n}
	for i := range s.dirs {
		s.dirs[i], s.ended[i] = make(chan timedFrame, cmp.Or(n.depth, simDepth)), make(chan struct{})
	}
	return &simEnd{s, 0}, &simEnd{s, 1}
}

func (e *simEnd) Send(ctx context.Context, f wire.Frame) error {
	f.Payload = append([]byte(nil), f.Payload...)
	s, n := e.s, e.s.net
	n.mu.Lock()
	at := time.Now().Add(n.delay)
	if n.rate > 0 {
		at = at.Add(time.Duration(float64(len(f.Payload)) / n.rate * 1e9))
	}
	if at.Before(s.last[e.side]) {
		at = s.last[e.side]
	}
	s.last[e.side] = at
	if e.side == 0 && s.ghost != nil && len(s.ghost.frames) < 40 {
		s.ghost.frames = append(s.ghost.frames, f)
	}
	n.mu.Unlock()
	s.mu.Lock()
	silent := s.silent
	s.mu.Unlock()
	select {
	case <-s.ended[e.side]:
		return e.err()
	default:
	}
	if silent {
		return nil
	}
	t := time.NewTimer(time.Second) // a hop that cannot pass bytes on resets the stream
	defer t.Stop()
	select {
	case s.dirs[e.side] <- timedFrame{at, f}:
		return nil
	case <-s.ended[e.side]:
		return e.err()
	case <-t.C:
		e.end(wire.CodeSlowPeer, true)
		return e.err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *simEnd) Recv(ctx context.Context) (wire.Frame, error) {
	s, n := e.s, e.s.net
	in := s.dirs[1-e.side]
	var t timedFrame
	select {
	case t = <-in:
	default:
		select {
		case t = <-in:
		case <-s.ended[e.side]:
			select {
			case t = <-in:
			default:
				return wire.Frame{}, e.err()
			}
		case <-ctx.Done():
			return wire.Frame{}, ctx.Err()
		}
	}
	for {
		if !sleep(ctx, time.Until(t.at)) {
			return wire.Frame{}, ctx.Err()
		}
		n.mu.Lock()
		still := n.still[1-e.side]
		n.mu.Unlock()
		if still == nil {
			return t.f, nil
		}
		select {
		case <-still:
		case <-s.ended[e.side]:
			return wire.Frame{}, e.err()
		case <-ctx.Done():
			return wire.Frame{}, ctx.Err()
		}
	}
}

func (e *simEnd) Close(code wire.Code) error {
	e.end(code, true)
	return nil
}

// end ends the stream; the other side hears of it after the delay when tell is
// true, else never.
func (e *simEnd) end(code wire.Code, tell bool) {
	s, n := e.s, e.s.net
	n.mu.Lock()
	delete(n.streams, e)
	delay := n.delay
	if s.ghost != nil && len(s.ghost.frames) > 1 && len(n.ghosts) < 20 {
		n.ghosts = append(n.ghosts, *s.ghost)
		s.ghost = nil
	}
	n.mu.Unlock()
	s.once[e.side].Do(func() {
		s.mu.Lock()
		if s.code == 0 {
			s.code, s.by = code, e.side
		}
		s.mu.Unlock()
		close(s.ended[e.side])
	})
	if tell {
		time.AfterFunc(delay, func() { s.once[1-e.side].Do(func() { close(s.ended[1-e.side]) }) })
	}
}

func (e *simEnd) err() error {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	return &wire.ClosedError{Code: e.s.code, Local: e.s.by == e.side}
}

func (n *simNet) set(fn func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fn()
}

// reset ends every stream with the chance p, seen by both ends; or with silent,
// makes it carry nothing more while both ends believe in it.
func (n *simNet) reset(p float64, silent bool) {
	n.mu.Lock()
	var hit []*simEnd
	for e := range n.streams {
		hit = append(hit, e)
	}
	n.mu.Unlock()
	for _, e := range hit {
		n.mu.Lock()
		yes := n.rng.Float64() < p
		n.mu.Unlock()
		switch {
		case !yes:
		case silent:
			e.s.mu.Lock()
			e.s.silent = true
			e.s.mu.Unlock()
		default:
			e.end(wire.CodeShutdown, true)
		}
	}
}

// haunt lets an old session come back: the same frames again, to the same
// destination.
func (n *simNet) haunt(ctx context.Context, wg *sync.WaitGroup) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.ghosts) == 0 {
		return
	}
	g := n.ghosts[n.rng.IntN(len(n.ghosts))]
	a, b := n.pair()
	n.serve(g.leg, b)
	wg.Go(func() {
		defer a.Close(wire.CodeShutdown)
		for _, f := range g.frames {
			if a.Send(ctx, f) != nil {
				return
			}
		}
		for {
			if _, err := a.Recv(ctx); err != nil {
				return
			}
		}
	})
}
