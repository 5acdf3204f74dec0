package link

import (
	"context"
	"crypto/rand"
	"errors"
	mrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/router/link/datagram"
	"github.com/mqrouter/mqrouter/router/link/fec"
	"github.com/mqrouter/mqrouter/zone"
)

// connectionIDLength is that of quic-go's identifiers, in bytes; its default of
// four is short for a socket that many peers share.
const connectionIDLength = 8

// Manager keeps all links of a router. Its methods are safe for concurrent use.
type Manager struct {
	o         Options
	transport *quic.Transport
	reader    *datagram.Conn // nil where quic-go reads the socket itself
	layer     *fec.Layer     // nil without correction
	windows   *windowMemory

	handlers    sync.WaitGroup // sessions' handlers and greetings
	handlerCtx  context.Context
	handshakes  atomic.Int64
	connections atomic.Int64
	refusals    atomic.Uint64
	started     atomic.Bool
	stopping    chan struct{} // closed when the links' loops end

	randMu sync.Mutex
	rand   *mrand.Rand // guarded by randMu

	mu      sync.Mutex
	run     context.Context // guarded by mu; nil before Run and after it
	loops   sync.WaitGroup
	links   map[Key]*link         // guarded by mu; none is ever taken out
	budgets map[zone.Node]*budget // guarded by mu; of the links
	wanted  map[zone.Node]Peer
	drain   bool // guarded by mu
	over    bool // guarded by mu; Run is returning
}

// New checks the options. Nothing is sent before Run.
func New(o Options) (*Manager, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	m := &Manager{
		o: o, rand: o.Rand, windows: newWindowMemory(o.Limits), stopping: make(chan struct{}),
		links: make(map[Key]*link), budgets: make(map[zone.Node]*budget), wanted: make(map[zone.Node]Peer),
	}
	var reset quic.StatelessResetKey
	if _, err := rand.Read(reset[:]); err != nil {
		return nil, err
	}
	m.transport = &quic.Transport{
		Conn: m.correct(o.PacketConn), ConnectionIDLength: connectionIDLength, StatelessResetKey: &reset,
		VerifySourceAddress: m.suspicious, ConnContext: m.admit,
	}
	return m, nil
}

// Run serves until ctx ends or the socket fails, and joins everything before it
// returns. It returns nil when ctx ended.
func (m *Manager) Run(ctx context.Context) error {
	if !m.started.CompareAndSwap(false, true) {
		return ErrRunning
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ln, err := m.transport.Listen(m.tlsConfig(nil), m.quicConfig())
	if err != nil {
		return err
	}
	m.handlerCtx = ctx
	m.mu.Lock()
	m.run = ctx
	for _, l := range m.links {
		m.start(l)
	}
	m.mu.Unlock()

	err = m.acceptLoop(ctx, ln)
	cancel()
	m.mu.Lock()
	m.run, m.over = nil, true
	m.mu.Unlock()
	close(m.stopping)
	m.loops.Wait()
	m.handlers.Wait()
	err = errors.Join(err, ln.Close(), m.transport.Close())
	if m.layer != nil {
		m.layer.Close()
	}
	return err
}

// start starts the link's loop; mu is held and Run is running.
func (m *Manager) start(l *link) {
	ctx := m.run
	m.loops.Go(func() { l.run(ctx) })
}

// linkTo returns the link of the key and makes it if it is not there.
func (m *Manager) linkTo(key Key, city zone.City) (*link, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.linkLocked(key, city)
}

func (m *Manager) linkLocked(key Key, city zone.City) (*link, error) {
	if l := m.links[key]; l != nil {
		return l, nil
	}
	if m.over {
		return nil, refused(wire.CodeShutdown, "stopping")
	}
	l := newLink(m, key, city, time.Now())
	m.links[key] = l
	if m.drain {
		l.events <- message{ev: evDrain{}}
	}
	if m.run != nil {
		m.start(l)
	}
	return l, nil
}

// budgetOf returns what the links with the node share; mu is held.
func (m *Manager) budgetOf(node zone.Node) *budget {
	b, ok := m.budgets[node]
	if !ok {
		b = newBudget(m.o.Limits.Rate)
		m.budgets[node] = b
	}
	return b
}

// SetPeers tells which routers to have links with: those of the topology, at
// the addresses that gossip knows better. A peer that is no longer named is not
// dialled any more; a connection that it has is left to end by itself. A peer with
// another address than before is dialled there although its link is up; if it
// answers, its sessions move over, else nothing happens to them.
func (m *Manager) SetPeers(peers []Peer) {
	type change struct {
		l  *link
		ev event
	}
	var changes []change
	m.mu.Lock()
	next := make(map[zone.Node]Peer, len(peers))
	for _, p := range peers {
		next[p.Node] = p
		old, had := m.wanted[p.Node]
		if had && old == p {
			continue
		}
		for _, class := range m.o.Classes {
			l, err := m.linkLocked(Key{p.Node, class}, p.City)
			if err != nil {
				continue
			}
			l.peer.Store(&p)
			switch {
			case !had:
				changes = append(changes, change{l, evWant{true}})
			case old.Addr != p.Addr:
				changes = append(changes, change{l, evMoved{}})
			}
		}
	}
	for node := range m.wanted {
		if _, ok := next[node]; ok {
			continue
		}
		for _, class := range m.o.Classes {
			if l := m.links[Key{node, class}]; l != nil {
				changes = append(changes, change{l, evWant{false}})
			}
		}
	}
	m.wanted = next
	m.mu.Unlock()
	for _, c := range changes {
		c.l.tell(message{ev: c.ev})
	}
}

// Open opens a session's stream on the link to the node. It does not block;
// the peer learns of it with the first frame. It fails with ErrNoLink,
// ErrSessions or a *wire.ClosedError.
func (m *Manager) Open(node zone.Node, class zone.Class, number uint64) (*Session, error) {
	m.mu.Lock()
	l := m.links[Key{node, class}]
	m.mu.Unlock()
	if l == nil {
		return nil, ErrNoLink
	}
	return l.open(number)
}

// Up reports whether the link takes sessions now, and its round trip (0 = not
// measured yet).
func (m *Manager) Up(node zone.Node, class zone.Class) (rtt time.Duration, ok bool) {
	m.mu.Lock()
	l := m.links[Key{node, class}]
	m.mu.Unlock()
	if l == nil {
		return 0, false
	}
	c := l.current.Load()
	if c == nil {
		return 0, false
	}
	return time.Duration(c.rtt.Load()), true
}

// Drain tells every peer to open no new sessions here, and opens none itself
// any more. Sessions go on. deadline is when this node will close.
func (m *Manager) Drain(deadline time.Duration) {
	m.mu.Lock()
	if m.drain {
		m.mu.Unlock()
		return
	}
	m.drain = true
	links := make([]*link, 0, len(m.links))
	for _, l := range m.links {
		links = append(links, l)
	}
	m.mu.Unlock()
	d := wire.Drain{Deadline: deadline}
	for _, l := range links {
		l.tell(message{ev: evDrain{}})
		for _, c := range l.connections() {
			c.say(wire.TypeDrain, d.Append(nil))
		}
	}
}

func (m *Manager) drains() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.drain
}

// Status returns every link, in no order.
func (m *Manager) Status() []Status {
	m.mu.Lock()
	links := make([]*link, 0, len(m.links))
	for _, l := range m.links {
		links = append(links, l)
	}
	m.mu.Unlock()
	out := make([]Status, len(links))
	for i, l := range links {
		out[i] = l.Status()
	}
	return out
}

// Refusals returns how many incoming connections were refused, before or in
// their greeting.
func (m *Manager) Refusals() uint64 { return m.refusals.Load() }

// jitter draws a duration in [0, d).
func (m *Manager) jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	m.randMu.Lock()
	defer m.randMu.Unlock()
	return time.Duration(m.rand.Int64N(int64(d)))
}

func (l *link) connections() []*conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]*conn, 0, len(l.conns))
	for _, c := range l.conns {
		out = append(out, c)
	}
	return out
}
