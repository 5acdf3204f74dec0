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

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// Conn is an in-city connection that carries the streams of many sessions. It
// is safe for concurrent use.
type Conn interface {
	// Open returns a stream for the session without waiting for the peer.
	Open(ctx context.Context, session uint64) (wire.Stream, error)
	// Done is closed when the connection has ended; its streams have ended, too.
	Done() <-chan struct{}
	// Close ends the connection and its streams at once.
	Close() error
}

// Target says what a connection is for.
type Target struct {
	Node  zone.Node
	Role  zone.Role  // RoleBroker or RoleRouter
	City  zone.City  // destination of the flows
	Group zone.Group // destination group; empty through a router
	Class zone.Class
	Addr  string // host:port
}

// key is a target without what may change while it is the same.
func (t Target) key() Target {
	t.Addr = ""
	return t
}

// DialFunc connects, with TLS and greeting, until ctx ends.
type DialFunc func(ctx context.Context, t Target) (Conn, error)

// PoolOptions tells a Pool what to be. The zero value of all but Dial takes the
// default.
type PoolOptions struct {
	Dial        DialFunc
	DialTimeout time.Duration // over connect, TLS and greeting; default 3 s
	Backoff     time.Duration // bound of the full jitter after a failed dial; default 500 ms
	Idle        time.Duration // a connection without streams is closed after so long; default 30 s
	Connections int           // at most; default 1024; a further one is refused
	Rand        *rand.Rand    // nil takes a random seed
}

// Errors of a Pool.
var (
	// ErrBackoff says that the last dial failed a moment ago; it wraps the reason.
	ErrBackoff = errors.New("egress: backing off")
	// ErrConnections says that there are as many connections as there may be.
	ErrConnections = errors.New("egress: too many connections")
	// ErrClosed says that the pool has ended.
	ErrClosed = errors.New("egress: closed")
)

// Pool keeps one connection for each target. Its methods are safe for
// concurrent use.
type Pool struct {
	o      PoolOptions
	ctx    context.Context // of dials
	cancel context.CancelFunc
	dials  sync.WaitGroup

	mu      sync.Mutex
	rand    *rand.Rand        // guarded by mu
	entries map[Target]*entry // guarded by mu
	closed  bool              // guarded by mu
}

// entry is a connection, one being dialled, or the memory of a failure. Its
// fields are guarded by the pool's mu.
type entry struct {
	addr    string
	dialled chan struct{} // closed when the dial has ended; nil = none runs
	conn    Conn
	since   time.Time
	streams int
	idle    time.Time // since when there are no streams
	err     error     // of the last dial
	until   time.Time // no dial before
}

// NewPool returns a pool; call Run to sweep and to end it.
func NewPool(o PoolOptions) *Pool {
	if o.DialTimeout <= 0 {
		o.DialTimeout = 3 * time.Second
	}
	if o.Backoff <= 0 {
		o.Backoff = 500 * time.Millisecond
	}
	if o.Idle <= 0 {
		o.Idle = 30 * time.Second
	}
	if o.Connections <= 0 {
		o.Connections = 1024
	}
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	p := &Pool{o: o, rand: o.Rand, entries: make(map[Target]*entry)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Run closes idle connections until ctx ends, then closes every connection and
// joins the dials.
func (p *Pool) Run(ctx context.Context) error {
	tick := time.NewTicker(max(p.o.Idle/4, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			closeAll(p.sweep(time.Now()))
		case <-ctx.Done():
			p.Close()
			return nil
		}
	}
}

// Close closes every connection and joins the dials. It is idempotent.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	conns := p.take(func(Target, *entry) bool { return true })
	p.mu.Unlock()
	p.cancel()
	closeAll(conns)
	p.dials.Wait()
}

// Open returns a stream for the session on the target's connection, which it
// dials first when there is none. It waits until ctx ends or the dial does.
func (p *Pool) Open(ctx context.Context, t Target, session uint64) (wire.Stream, error) {
	for attempt := 0; ; attempt++ {
		e, c, err := p.connection(ctx, t)
		if err != nil {
			return nil, err
		}
		s, err := c.Open(ctx, session)
		if err == nil {
			return &stream{Stream: s, pool: p, entry: e}, nil
		}
		p.release(e)
		// A connection may have ended a moment before it was used.
		select {
		case <-c.Done():
			if attempt == 0 {
				continue
			}
		default:
		}
		return nil, err
	}
}

// connection returns the target's connection with one stream counted on it.
func (p *Pool) connection(ctx context.Context, t Target) (*entry, Conn, error) {
	key := t.key()
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil, nil, ErrClosed
		}
		e := p.entries[key]
		stale := e.gone() || (e != nil && e.conn != nil && e.addr != t.Addr)
		switch {
		case e != nil && e.conn != nil && !stale:
			e.streams++
			p.mu.Unlock()
			return e, e.conn, nil
		case e != nil && e.dialled != nil:
		case e != nil && e.conn == nil && e.addr == t.Addr && time.Now().Before(e.until):
			err := fmt.Errorf("%w: %w", ErrBackoff, e.err)
			p.mu.Unlock()
			return nil, nil, err
		default:
			old, err := p.dial(key, t, e)
			if err != nil {
				p.mu.Unlock()
				return nil, nil, err
			}
			e = p.entries[key]
			if old != nil {
				p.mu.Unlock()
				_ = old.Close()
				p.mu.Lock()
			}
		}
		wait := e.dialled
		p.mu.Unlock()
		if wait == nil {
			continue
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		p.mu.Lock()
		conn, err := e.conn, e.err
		p.mu.Unlock()
		if conn == nil {
			return nil, nil, err
		}
	}
}

// gone reports whether the entry's connection has ended; the pool's mu is held.
func (e *entry) gone() bool {
	if e == nil || e.conn == nil {
		return false
	}
	select {
	case <-e.conn.Done():
		return true
	default:
		return false
	}
}

// dial starts a dial in place of the entry, whose connection it returns; mu is
// held.
func (p *Pool) dial(key, t Target, old *entry) (Conn, error) {
	if old == nil && len(p.entries) >= p.o.Connections && !p.forgetOne() {
		return nil, ErrConnections
	}
	e := &entry{addr: t.Addr, dialled: make(chan struct{})}
	p.entries[key] = e
	p.dials.Go(func() {
		ctx, cancel := context.WithTimeout(p.ctx, p.o.DialTimeout)
		defer cancel()
		c, err := p.o.Dial(ctx, t)
		p.mu.Lock()
		now := time.Now()
		if err != nil {
			e.err, e.until = err, now.Add(time.Duration(p.rand.Int64N(int64(p.o.Backoff))))
		} else {
			e.conn, e.since, e.idle = c, now, now
		}
		dropped := p.entries[key] != e
		close(e.dialled)
		e.dialled = nil
		p.mu.Unlock()
		if dropped && c != nil {
			_ = c.Close()
		}
	})
	if old != nil {
		return old.conn, nil
	}
	return nil, nil
}

// forgetOne drops an entry that holds no connection; mu is held.
func (p *Pool) forgetOne() bool {
	for key, e := range p.entries {
		if e.dialled == nil && (e.conn == nil || e.gone()) {
			delete(p.entries, key)
			return true
		}
	}
	return false
}

func (p *Pool) release(e *entry) {
	p.mu.Lock()
	e.streams--
	if e.streams == 0 {
		e.idle = time.Now()
	}
	p.mu.Unlock()
}

// sweep forgets what is over and returns the connections to close.
func (p *Pool) sweep(now time.Time) []Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take(func(_ Target, e *entry) bool {
		switch {
		case e.dialled != nil:
			return false
		case e.conn == nil:
			return now.After(e.until.Add(p.o.Idle))
		}
		return e.gone() || (e.streams == 0 && now.Sub(e.idle) >= p.o.Idle)
	})
}

// take removes the entries that which picks and returns their connections; mu
// is held.
func (p *Pool) take(which func(Target, *entry) bool) []Conn {
	var out []Conn
	for key, e := range p.entries {
		if which(key, e) {
			delete(p.entries, key)
			if e.conn != nil {
				out = append(out, e.conn)
			}
		}
	}
	return out
}

// Drop closes every connection to the node; their streams end at once.
func (p *Pool) Drop(node zone.Node) {
	p.mu.Lock()
	conns := p.take(func(t Target, _ *entry) bool { return t.Node == node })
	p.mu.Unlock()
	closeAll(conns)
}

// Healthy reports whether the target is not backing off after a failed dial.
func (p *Pool) Healthy(t Target) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entries[t.key()]
	return e == nil || e.addr != t.Addr || e.conn != nil || e.dialled != nil || !time.Now().Before(e.until)
}

// Nodes returns the nodes to which there are connections or dials.
func (p *Pool) Nodes(role zone.Role) []zone.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := make(map[zone.Node]bool)
	var out []zone.Node
	for t := range p.entries {
		if t.Role == role && !seen[t.Node] {
			seen[t.Node] = true
			out = append(out, t.Node)
		}
	}
	return out
}

// ConnStatus is what is known of a connection of a pool.
type ConnStatus struct {
	Target  Target
	Up      bool
	Since   time.Time // of Up
	Streams int
	Err     string // of the last dial; empty = it went well, or goes on
}

// Status returns every connection, by node, destination and class.
func (p *Pool) Status() []ConnStatus {
	p.mu.Lock()
	out := make([]ConnStatus, 0, len(p.entries))
	for t, e := range p.entries {
		t.Addr = e.addr
		s := ConnStatus{Target: t, Up: e.conn != nil && !e.gone(), Since: e.since, Streams: e.streams}
		if e.err != nil {
			s.Err = e.err.Error()
		}
		out = append(out, s)
	}
	p.mu.Unlock()
	slices.SortFunc(out, func(a, b ConnStatus) int {
		return cmp.Or(cmp.Compare(a.Target.Node, b.Target.Node), cmp.Compare(a.Target.City, b.Target.City),
			cmp.Compare(a.Target.Group, b.Target.Group), cmp.Compare(a.Target.Class, b.Target.Class))
	})
	return out
}

func closeAll(conns []Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// stream counts a session of a connection.
type stream struct {
	wire.Stream
	pool  *Pool
	entry *entry
	once  sync.Once
}

// Close implements wire.Stream.
func (s *stream) Close(code wire.Code) error {
	err := s.Stream.Close(code)
	s.once.Do(func() { s.pool.release(s.entry) })
	return err
}
