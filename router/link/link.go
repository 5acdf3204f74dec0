package link

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/router/link/fec"
	"github.com/mqrouter/mqrouter/zone"
)

// Key names a link of a node.
type Key struct {
	Node  zone.Node
	Class zone.Class
}

// Traffic counts what went over the wire, headers of UDP and IP included.
type Traffic struct {
	BytesIn, BytesOut     uint64
	PacketsIn, PacketsOut uint64
	PacketsLost           uint64 // as this end's loss detection counts them
}

func (t *Traffic) add(o Traffic) {
	t.BytesIn += o.BytesIn
	t.BytesOut += o.BytesOut
	t.PacketsIn += o.PacketsIn
	t.PacketsOut += o.PacketsOut
	t.PacketsLost += o.PacketsLost
}

// Status is what is known of a link.
type Status struct {
	Node        zone.Node
	City        zone.City
	Class       zone.Class
	Addr        string // where it is dialled; empty when only the peer dials
	State       State
	Since       time.Time     // of State
	RTT         time.Duration // smoothed, of probes; 0 = not measured
	MinRTT      time.Duration
	Sessions    int // of both ends
	Connections int // the link's own and extra ones, those that wait to be idle included
	Wanted      int // connections that this end wants for its sessions; 1 = the link's own, or the last extra one
	Attempts    int // dials in progress
	Rates       Rates
	Reconnects  uint64     // connections that replaced a lost one
	Epoch       zone.Epoch // the peer's topology when it greeted
	Digest      zone.Digest
	Traffic     Traffic    // of all connections since the start, without what correction adds
	Correction  fec.Status // of the stream to the node, which its links share; zero without one
	LastError   string     // why the last attempt or connection failed; empty = none did
	FailedAt    time.Time
}

// message is what goes to a link's loop.
type message struct {
	ev   event
	conn *conn // with evUp
	err  error // with evFailed and evLost
}

// linkEvents is the capacity of a link's event queue; a sender waits when it is
// full, which only delays the reading of control frames.
const linkEvents = 32

// link is the loop of one link and what it shows to others.
type link struct {
	m      *Manager
	key    Key
	events chan message
	ended  <-chan struct{}
	budget *budget // shared with the other links of the node; nil = no limit

	peer     atomic.Pointer[Peer]       // nil until somebody wants the link
	current  atomic.Pointer[conn]       // stands for the link; nil = none
	host     atomic.Pointer[netip.Addr] // where the peer was dialled last; nil = nowhere
	carriers atomic.Pointer[[]*conn]    // take new sessions in its place; nil = none. Never changed

	// Only the loop uses these.
	machine *machine
	cancels map[uint64]context.CancelFunc
	nextID  uint64
	extras  uint64 // dialled so far
	sampler sampler

	mu       sync.Mutex
	conns    map[uint64]*conn // guarded by mu; only the loop changes it
	status   Status           // guarded by mu; without what Status adds
	finished Traffic          // guarded by mu; of connections that ended
}

func newLink(m *Manager, key Key, city zone.City, now time.Time) *link {
	l := &link{
		m: m, key: key, events: make(chan message, linkEvents), ended: m.stopping, budget: m.budgetOf(key.Node),
		machine: newMachine(m.o.Timing, m.o.Node < key.Node, m.o.Limits.parallel(key.Class), m.jitter, now),
		cancels: make(map[uint64]context.CancelFunc), conns: make(map[uint64]*conn),
	}
	l.status = Status{Node: key.Node, City: city, Class: key.Class, Since: now}
	return l
}

// tell hands a message to the loop; it reports false when the loop has ended.
func (l *link) tell(msg message) bool {
	select {
	case l.events <- msg:
		return true
	case <-l.ended:
		return false
	}
}

// run is the loop. It returns when ctx ends, with every attempt and connection
// joined.
func (l *link) run(ctx context.Context) {
	var wg sync.WaitGroup
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		l.reset(timer)
		var msg message
		select {
		case msg = <-l.events:
		case <-timer.C:
			msg.ev = evTick{}
		case <-ctx.Done():
			continue
		}
		l.handle(ctx, &wg, msg)
	}
	l.current.Store(nil)
	l.carriers.Store(nil)
	for _, cancel := range l.cancels {
		cancel()
	}
	for _, c := range l.conns {
		c.close(wire.CodeShutdown, "")
	}
	wg.Wait()
	for len(l.events) > 0 { // a connection that was greeted too late
		if msg := <-l.events; msg.conn != nil {
			msg.conn.close(wire.CodeShutdown, "")
		}
	}
}

func (l *link) reset(timer *time.Timer) {
	at := l.machine.deadline()
	if at.IsZero() {
		timer.Reset(time.Hour)
		return
	}
	timer.Reset(max(time.Until(at), 0))
}

// handle applies one message and carries out what the machine decides.
func (l *link) handle(ctx context.Context, wg *sync.WaitGroup, msg message) {
	now := time.Now()
	switch e := msg.ev.(type) {
	case evUp:
		if e.attempt != 0 && !l.machine.expects(e.attempt) {
			// Another attempt was faster.
			msg.conn.close(wire.CodeSuperseded, "another connection has taken over")
			return
		}
		l.nextID++
		msg.conn.id, e.conn = l.nextID, l.nextID
		e.incarnation = uint64(msg.conn.peer.Incarnation)
		e.extra, e.takes = msg.conn.extra, int(msg.conn.peer.Extras)
		msg.ev = e
		l.adopt(ctx, wg, msg.conn)
		if cancel := l.cancels[e.attempt]; cancel != nil {
			cancel()
			delete(l.cancels, e.attempt)
		}
	case evMoved:
		e.back = l.isAt(l.peer.Load().Addr)
		msg.ev = e
	case evFailed:
		if cancel := l.cancels[e.attempt]; cancel != nil {
			cancel()
			delete(l.cancels, e.attempt)
			l.fault(now, msg.err)
		}
	case evLost:
		l.drop(e.conn)
		l.fault(now, msg.err)
	}
	l.carryOut(ctx, wg, l.machine.step(now, msg.ev))
	if s, ok := l.sample(now); ok {
		l.carryOut(ctx, wg, l.machine.step(now, evLoad{s}))
	}
	var idle []uint64
	l.machine.retiring(func(id uint64) {
		if c := l.conns[id]; c == nil || c.sessions.Load() == 0 {
			idle = append(idle, id)
		}
	})
	for _, id := range idle {
		l.carryOut(ctx, wg, l.machine.step(now, evIdle{id}))
	}
	l.publish()
}

// isAt reports whether the link's connection leads to an address already.
func (l *link) isAt(addr string) bool {
	c := l.current.Load()
	return c != nil && c.qc.RemoteAddr().String() == addr
}

// adopt starts serving a greeted connection.
func (l *link) adopt(ctx context.Context, wg *sync.WaitGroup, c *conn) {
	l.mu.Lock()
	l.conns[c.id] = c
	l.status.Epoch, l.status.Digest = c.peer.Epoch, c.peer.Digest
	l.mu.Unlock()
	l.m.connections.Add(1)
	wg.Go(func() {
		err := c.run(ctx)
		l.m.connections.Add(-1)
		l.tell(message{ev: evLost{c.id}, err: err})
	})
}

// drop keeps the counts of a connection that has ended.
func (l *link) drop(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.conns[id]; c != nil {
		delete(l.conns, id)
		l.finished.add(c.traffic())
	}
}

func (l *link) fault(now time.Time, err error) {
	if err == nil || codeOf(err) == wire.CodeSuperseded {
		return
	}
	l.mu.Lock()
	l.status.LastError, l.status.FailedAt = err.Error(), now
	l.mu.Unlock()
}

func (l *link) carryOut(ctx context.Context, wg *sync.WaitGroup, effects []effect) {
	for _, e := range effects {
		switch e.kind {
		case doRetire:
			if c := l.conns[e.id]; c != nil {
				d := wire.Drain{}
				c.say(wire.TypeDrain, d.Append(nil))
			}
		case doDial:
			attempt, cancel := context.WithCancel(ctx)
			l.cancels[e.id] = cancel
			wg.Go(func() { l.m.dial(attempt, l, e.id, 0, false) })
		case doMove:
			attempt, cancel := context.WithCancel(ctx)
			l.cancels[e.id] = cancel
			wg.Go(func() { l.m.dial(attempt, l, e.id, 0, true) })
		case doExtra:
			attempt, cancel := context.WithCancel(ctx)
			l.cancels[e.id] = cancel
			l.extras++
			number := int((l.extras-1)%maxExtraNumber) + 1
			wg.Go(func() { l.m.dial(attempt, l, e.id, number, false) })
		case doCancel:
			if cancel := l.cancels[e.id]; cancel != nil {
				cancel()
				delete(l.cancels, e.id)
			}
		case doProbe:
			if c := l.conns[e.id]; c != nil {
				c.probe()
			}
		case doSilent:
			l.end(e.id, wire.CodeTimeout, "no answer to probes")
		case doSurplus:
			l.end(e.id, wire.CodeSuperseded, "another connection has taken over")
		case doStale:
			l.end(e.id, wire.CodeSuperseded, "a later start has greeted")
		}
	}
}

func (l *link) end(id uint64, code wire.Code, text string) {
	if c := l.conns[id]; c != nil {
		c.close(code, text)
	}
}

// publish shows the outcome of a step to the other goroutines.
func (l *link) publish() {
	m := l.machine
	l.current.Store(l.conns[m.current()]) // nil for 0, which no connection has
	l.publishCarriers()
	l.mu.Lock()
	before := l.status.State
	l.status.State, l.status.Since = m.state, m.since
	l.status.Connections, l.status.Attempts = len(m.conns)+len(m.extras.conns), len(m.attempts)+len(m.extras.attempts)
	l.status.Wanted = m.extras.demand.want
	l.status.Reconnects = m.reconnects
	after, fault := l.status, l.status.LastError
	l.mu.Unlock()
	if before == after.State {
		return
	}
	level := slog.LevelDebug
	switch after.State {
	case StateRed:
		level = slog.LevelWarn
	case StateUp:
		level = slog.LevelInfo
	}
	attrs := []any{"peer", l.key.Node, "city", after.City, "class", l.key.Class, "state", after.State.String(), "was", before.String()}
	if fault != "" {
		attrs = append(attrs, "err", fault)
	}
	l.m.o.Logger.Log(context.Background(), level, "link state changed", attrs...)
}

// Status returns what is known of the link now.
func (l *link) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.status
	s.Traffic = l.finished
	for _, c := range l.conns {
		s.Sessions += int(c.sessions.Load())
		s.Traffic.add(c.traffic())
	}
	if c := l.current.Load(); c != nil {
		s.RTT, s.MinRTT = time.Duration(c.rtt.Load()), time.Duration(c.minRTT.Load())
		if c.lease != nil {
			s.Correction = c.lease.Status()
		}
	}
	if p := l.peer.Load(); p != nil {
		s.Addr = p.Addr
	}
	return s
}
