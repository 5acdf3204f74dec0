package ship

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// simNet carries streams between nodes: with delay, links that pass nothing in one
// direction or both, and streams that are reset.
type simNet struct {
	mu      sync.Mutex
	rng     *rand.Rand
	delay   time.Duration         // one way
	cut     map[[2]zone.Node]bool // from, to: nothing arrives; "" is the coordinator
	healed  chan struct{}         // closed when a link was mended
	streams map[*simPipe]bool
	serve   func(at, from zone.Node, s wire.Stream) bool // false = nobody is there
}

func newSimNet(rng *rand.Rand) *simNet {
	return &simNet{rng: rng, delay: time.Millisecond, cut: map[[2]zone.Node]bool{}, healed: make(chan struct{}), streams: map[*simPipe]bool{}}
}

// pass waits until something sent now arrives; an error is the context's.
func (n *simNet) pass(ctx context.Context, from, to zone.Node) error {
	for {
		n.mu.Lock()
		down, healed := n.cut[[2]zone.Node{from, to}], n.healed
		wait := n.delay/2 + time.Duration(n.rng.Int64N(int64(n.delay)))
		n.mu.Unlock()
		if down {
			select {
			case <-healed:
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

func (n *simNet) set(from, to zone.Node, down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[[2]zone.Node{from, to}] = down
	if !down {
		close(n.healed)
		n.healed = make(chan struct{})
	}
}

func (n *simNet) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cut)
	n.delay = time.Millisecond
	close(n.healed)
	n.healed = make(chan struct{})
}

// reset ends some streams.
func (n *simNet) reset(share float64) {
	n.mu.Lock()
	var hit []*simPipe
	for p := range n.streams {
		if n.rng.Float64() < share {
			hit = append(hit, p)
		}
	}
	n.mu.Unlock()
	for _, p := range hit {
		p.end(wire.CodeShutdown, nil)
	}
}

// drop ends the streams of a node that has died: the other side notices at once, or
// never when the link is cut.
func (n *simNet) drop(node zone.Node) {
	n.mu.Lock()
	var hit []*simPipe
	for p := range n.streams {
		if p.ends[0].node == node || p.ends[1].node == node {
			hit = append(hit, p)
		}
	}
	n.mu.Unlock()
	for _, p := range hit {
		p.end(wire.CodeShutdown, nil)
	}
}

// dial opens a stream.
func (n *simNet) dial(ctx context.Context, from, to zone.Node) (wire.Stream, error) {
	if err := n.pass(ctx, from, to); err != nil {
		return nil, err
	}
	if err := n.pass(ctx, to, from); err != nil {
		return nil, err
	}
	p := &simPipe{net: n, done: make(chan struct{})}
	for i, node := range []zone.Node{from, to} {
		p.ends[i] = &simEnd{p: p, node: node, in: make(chan simSent, 256)}
	}
	p.ends[0].peer, p.ends[1].peer = p.ends[1], p.ends[0]
	n.mu.Lock()
	n.streams[p] = true
	n.mu.Unlock()
	if !n.serve(to, from, p.ends[1]) {
		p.end(wire.CodeNotMaster, p.ends[1])
		return nil, &wire.ClosedError{Code: wire.CodeNotMaster}
	}
	return p.ends[0], nil
}

type simSent struct {
	f  wire.Frame
	at time.Time
}

// simPipe is a stream: frames arrive in order, each after a delay. One that was sent
// before the end may be lost with it.
type simPipe struct {
	net  *simNet
	ends [2]*simEnd
	done chan struct{}

	once sync.Once
	code wire.Code
	by   *simEnd
}

func (p *simPipe) end(code wire.Code, by *simEnd) {
	p.once.Do(func() {
		p.code, p.by = code, by
		close(p.done)
		p.net.mu.Lock()
		delete(p.net.streams, p)
		p.net.mu.Unlock()
	})
}

type simEnd struct {
	p    *simPipe
	peer *simEnd
	node zone.Node
	in   chan simSent
}

func (e *simEnd) closed() error {
	<-e.p.done
	return &wire.ClosedError{Code: e.p.code, Local: e.p.by == e}
}

func (e *simEnd) Send(ctx context.Context, f wire.Frame) error {
	select {
	case <-e.p.done:
		return e.closed()
	default:
	}
	b, err := wire.AppendFrame(nil, &f) // as it goes over a wire
	if err != nil {
		return err
	}
	h, err := wire.ParseHeader(b)
	if err != nil {
		return err
	}
	select {
	case e.peer.in <- simSent{h.Frame(b[wire.HeaderSize:]), time.Now()}:
		return nil
	case <-e.p.done:
		return e.closed()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *simEnd) Recv(ctx context.Context) (wire.Frame, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	select {
	case s := <-e.in:
		go func() {
			select {
			case <-e.p.done:
				cancel()
			case <-stop:
			}
		}()
		if err := e.arrive(ctx, s); err != nil {
			select {
			case <-e.p.done:
				return wire.Frame{}, e.closed()
			default:
				return wire.Frame{}, err
			}
		}
		return s.f, nil
	case <-e.p.done:
		return wire.Frame{}, e.closed()
	case <-ctx.Done():
		return wire.Frame{}, ctx.Err()
	}
}

// arrive waits for a frame's delay, beside those of others on their way.
func (e *simEnd) arrive(ctx context.Context, s simSent) error {
	e.p.net.mu.Lock()
	down := e.p.net.cut[[2]zone.Node{e.peer.node, e.node}]
	left := e.p.net.delay - time.Since(s.at)
	e.p.net.mu.Unlock()
	if down {
		return e.p.net.pass(ctx, e.peer.node, e.node)
	}
	if left <= 0 {
		return nil
	}
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *simEnd) Close(code wire.Code) error {
	e.p.end(code, e)
	return nil
}
