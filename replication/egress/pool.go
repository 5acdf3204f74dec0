package egress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// Target says what a session's in-city connection is for. There is one
// connection for each distinct value: a destination that stalls stops no other.
type Target struct {
	Node  zone.Node
	Role  zone.Role // RoleBroker or RoleRouter
	Zone  zone.Zone // of the node; empty for routers
	City  zone.City // destination of the flows
	Class zone.Class
	Addr  string // host:port
}

// OpenFunc opens a session on the target's connection, which it makes when there
// is none. It returns when ctx ends; one deadline of its own covers connect, TLS
// and greeting.
type OpenFunc func(ctx context.Context, t Target, session uint64) (wire.Stream, error)

// OverPeer returns the OpenFunc of a node of the deployment and city that dials
// with d.
func OverPeer(d *peer.Dialer, deployment string, city zone.City) OpenFunc {
	return func(ctx context.Context, t Target, session uint64) (wire.Stream, error) {
		s, err := d.Open(ctx, peer.Target{
			Identity:    peer.Identity{Deployment: deployment, City: city, Zone: t.Zone, Role: t.Role, Name: t.Node},
			Addr:        t.Addr,
			Destination: t.City,
			Class:       t.Class,
		}, session)
		if err != nil {
			return nil, err // not s: a nil *Session is no nil Stream
		}
		return s, nil
	}
}

// Errors of a Pool.
var (
	// ErrBackoff says that the last attempt failed a moment ago; it comes with
	// that failure.
	ErrBackoff = errors.New("egress: backing off")
	// ErrSessions says that there are as many sessions as there may be.
	ErrSessions = errors.New("egress: too many sessions")
	// ErrClosed says that the pool has ended.
	ErrClosed = errors.New("egress: closed")
)

// PoolOptions tells a Pool what to be. The zero value of all but Open takes the
// default.
type PoolOptions struct {
	Open     OpenFunc
	Backoff  time.Duration // bound of the full jitter after a failure; default and most 500 ms
	Sessions int           // at a time; default 8192
	Rand     *rand.Rand    // nil takes a random seed
}

// maxTargets bounds the failures that a pool remembers.
const maxTargets = 1024

// Pool keeps the sessions by target: it backs off from targets that cannot be
// reached and ends every session to a node at once. Its methods are safe for
// concurrent use.
type Pool struct {
	o PoolOptions

	mu      sync.Mutex
	rand    *rand.Rand        // guarded by mu
	targets map[Target]*state // guarded by mu
	total   int               // guarded by mu; sessions open or being opened
	closed  bool              // guarded by mu
	full    uint64            // guarded by mu; sessions refused with ErrSessions
}

// state is what is known of a target. Its fields are guarded by the pool's mu.
type state struct {
	streams map[*stream]struct{}
	opening int
	opened  uint64
	failed  uint64
	err     error     // of the last attempt; nil = it went well
	until   time.Time // no attempt before
}

// NewPool returns a pool.
func NewPool(o PoolOptions) *Pool {
	const most = 500 * time.Millisecond // the design's bound for anything that dials
	if o.Backoff <= 0 || o.Backoff > most {
		o.Backoff = most
	}
	if o.Sessions <= 0 {
		o.Sessions = 8192
	}
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	return &Pool{o: o, rand: o.Rand, targets: make(map[Target]*state)}
}

// Open opens a session. A target whose last attempt failed is refused with
// ErrBackoff until its back-off is over. The caller closes the stream.
func (p *Pool) Open(ctx context.Context, t Target, session uint64) (wire.Stream, error) {
	if err := p.begin(t); err != nil {
		return nil, err
	}
	s, err := p.o.Open(ctx, t, session)
	if err != nil {
		p.failed(ctx, t, err)
		return nil, err
	}
	out := &stream{Stream: s, pool: p, target: t}
	if p.opened(out) {
		return out, nil
	}
	_ = out.Close(wire.CodeShutdown) // Close of the pool has not seen it
	return nil, ErrClosed
}

// failed notes an attempt without a session.
func (p *Pool) failed(ctx context.Context, t Target, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.targets[t]
	st.opening--
	p.total--
	if !errors.Is(ctx.Err(), context.Canceled) { // who was told to stop says nothing of the target
		st.failed++
		st.err, st.until = err, time.Now().Add(time.Duration(p.rand.Int64N(int64(p.o.Backoff))))
	}
}

// opened notes a session; it reports false when the pool has been closed.
func (p *Pool) opened(s *stream) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.targets[s.target]
	st.opening--
	st.opened++
	st.err = nil
	st.streams[s] = struct{}{}
	return !p.closed
}

// begin counts an attempt, or says why there is none.
func (p *Pool) begin(t Target) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.targets[t]
	switch {
	case p.closed:
		return ErrClosed
	case p.total >= p.o.Sessions:
		p.full++
		return ErrSessions
	case st != nil && st.err != nil && time.Now().Before(st.until):
		return fmt.Errorf("%w: %w", ErrBackoff, st.err)
	case st == nil:
		p.prune()
		st = &state{streams: make(map[*stream]struct{})}
		p.targets[t] = st
	}
	st.opening++
	p.total++
	return nil
}

// prune forgets targets without sessions when there are many: addresses change.
// mu is held.
func (p *Pool) prune() {
	if len(p.targets) < maxTargets {
		return
	}
	for t, st := range p.targets {
		if st.opening == 0 && len(st.streams) == 0 {
			delete(p.targets, t)
		}
	}
}

func (p *Pool) forget(s *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total--
	delete(p.targets[s.target].streams, s)
}

// hearer is a stream that knows when its connection last brought something;
// those of package peer do.
type hearer interface{ Heard() time.Time }

// DropSilent ends the sessions to the node whose connections have brought
// nothing for so long, and returns how many are left.
func (p *Pool) DropSilent(node zone.Node, silence time.Duration) (left int) {
	now := time.Now()
	p.end(func(t Target, s *stream) bool {
		if t.Node != node {
			return false
		}
		if h, ok := s.Stream.(hearer); ok && now.Sub(h.Heard()) < silence {
			left++
			return false
		}
		return true
	}, wire.CodeShutdown)
	return left
}

// Close ends every session. Open fails from then on. It is idempotent.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.end(func(Target, *stream) bool { return true }, wire.CodeShutdown)
}

// end closes the streams that which picks; which must not block.
func (p *Pool) end(which func(Target, *stream) bool, code wire.Code) {
	p.mu.Lock()
	var all []*stream
	for t, st := range p.targets {
		for s := range st.streams {
			if which(t, s) {
				all = append(all, s)
			}
		}
	}
	p.mu.Unlock()
	for _, s := range all {
		_ = s.Close(code)
	}
}

// Healthy reports whether the target is not backing off.
func (p *Pool) Healthy(t Target) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.targets[t]
	return st == nil || st.err == nil || !time.Now().Before(st.until)
}

// Nodes returns the nodes of the role to which there are sessions.
func (p *Pool) Nodes(role zone.Role) []zone.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []zone.Node
	for t, st := range p.targets {
		if t.Role == role && len(st.streams) > 0 && !slices.Contains(out, t.Node) {
			out = append(out, t.Node)
		}
	}
	return out
}

// TargetStatus is what is known of a target.
type TargetStatus struct {
	Target   Target
	Sessions int
	Opened   uint64 // since the start
	Failed   uint64
	Err      string // of the last attempt; empty = it went well
}

// Status returns every target, by node, destination and class.
func (p *Pool) Status() []TargetStatus {
	p.mu.Lock()
	out := make([]TargetStatus, 0, len(p.targets))
	for t, st := range p.targets {
		s := TargetStatus{Target: t, Sessions: len(st.streams), Opened: st.opened, Failed: st.failed}
		if st.err != nil {
			s.Err = st.err.Error()
		}
		out = append(out, s)
	}
	p.mu.Unlock()
	slices.SortFunc(out, func(a, b TargetStatus) int {
		return cmp.Or(cmp.Compare(a.Target.Node, b.Target.Node), cmp.Compare(a.Target.City, b.Target.City),
			cmp.Compare(a.Target.Class, b.Target.Class), cmp.Compare(a.Target.Addr, b.Target.Addr))
	})
	return out
}

// stream is a session that the pool can end.
type stream struct {
	wire.Stream
	pool   *Pool
	target Target
	once   sync.Once
}

// Close implements wire.Stream.
func (s *stream) Close(code wire.Code) error {
	err := s.Stream.Close(code)
	s.once.Do(func() { s.pool.forget(s) })
	return err
}
