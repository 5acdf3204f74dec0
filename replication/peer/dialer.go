package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// maxDown bounds the targets whose last failure a Dialer remembers.
const maxDown = 1024

// Target is where a connection goes. There is one connection for each distinct
// value.
type Target struct {
	Identity    Identity  // who must answer
	Addr        string    // host:port
	Destination zone.City // where the sessions go in the end; another city through a router
	Class       zone.Class
}

func (t *Target) link() string { return fmt.Sprintf("%s at %s", t.Identity.Name, t.Addr) }

// Dialer opens sessions to the nodes of its city. It keeps one connection for
// each target, made when the first session asks for it and closed when it has
// had none for a while. It does not try again by itself: whoever wants a
// session does, with back-off. It is safe for concurrent use.
type Dialer struct {
	o      Options
	stats  counters
	total  atomic.Int64
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	closed  bool              // guarded by mu
	targets map[Target]*trunk // guarded by mu
	live    map[*conn]bool    // greeted and not ended, also those that drain; guarded by mu
}

// trunk is the one connection to a target, or the last attempt at it. All
// fields are guarded by the Dialer's mu.
type trunk struct {
	c     *conn         // nil unless greeted and not ended
	ready chan struct{} // closed when the attempt that goes on ends; nil when none does
	err   error         // of the last attempt or connection
	since time.Time
}

// NewDialer returns a Dialer. It does nothing until the first Open.
func NewDialer(o Options) (*Dialer, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	d := &Dialer{o: o.withDefaults(), targets: make(map[Target]*trunk), live: make(map[*conn]bool)}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d, nil
}

// Open returns a new session with the number, on the target's connection, which
// it makes when there is none: one deadline, Timing.Handshake, covers connect,
// TLS and greeting. The peer learns of the session by its first frame, which
// must be Open, Want, Seal, Call or Follow. Errors are *DialError (shared by all that wait for
// the same attempt), *wire.ClosedError with CodeTooMany, ErrSession, ErrClosed
// and ctx's. Ending ctx does not end the attempt.
func (d *Dialer) Open(ctx context.Context, t Target, number uint64) (*Session, error) {
	for {
		c, err := d.connection(ctx, t)
		if err != nil {
			return nil, err
		}
		s, err := c.open(number)
		if !errors.Is(err, errGone) {
			return s, err
		}
		d.forget(t, c, &wire.ClosedError{Code: wire.CodeDraining})
	}
}

// connection returns the target's connection. Each turn of Open's loop either
// finds one or makes a new attempt, which the peer or the deadline ends.
func (d *Dialer) connection(ctx context.Context, t Target) (*conn, error) {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil, ErrClosed
	}
	tr := d.targets[t]
	if tr == nil {
		d.prune()
		tr = &trunk{}
		d.targets[t] = tr
	}
	if tr.c != nil {
		defer d.mu.Unlock()
		return tr.c, nil
	}
	if tr.ready == nil {
		tr.ready, tr.since = make(chan struct{}), time.Now()
		d.wg.Go(func() { d.serve(t, tr) })
	}
	ready := tr.ready
	d.mu.Unlock()
	select {
	case <-ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case tr.c != nil:
		return tr.c, nil
	case tr.err != nil:
		return nil, tr.err
	}
	return nil, ErrClosed
}

// prune forgets targets that are down when there are many: addresses change.
// The caller holds mu.
func (d *Dialer) prune() {
	if len(d.targets) < maxDown {
		return
	}
	for t, tr := range d.targets {
		if tr.c == nil && tr.ready == nil {
			delete(d.targets, t)
		}
	}
}

// serve makes the target's connection and runs it until it ends.
func (d *Dialer) serve(t Target, tr *trunk) {
	c, err := d.dial(t)
	d.mu.Lock()
	if err == nil && d.closed {
		_ = c.raw.Close() // nobody will use it
		err = ErrClosed
	}
	tr.err, tr.since = err, time.Now()
	if err == nil {
		tr.c = c
		d.live[c] = true
	}
	close(tr.ready)
	tr.ready = nil
	d.mu.Unlock()
	if err != nil {
		d.stats.failed.Add(1)
		return
	}
	d.stats.connected.Add(1)
	d.o.Logger.Info("peer connected", "peer", c.link, "class", t.Class, "destination", t.Destination)
	err = c.run()
	d.forget(t, c, err)
	d.mu.Lock()
	delete(d.live, c)
	d.mu.Unlock()
	d.o.Logger.Info("peer connection ended", "peer", c.link, "class", t.Class, "destination", t.Destination, "err", err)
}

// forget takes a connection that ends off its target, so that the next Open
// makes a new one.
func (d *Dialer) forget(t Target, c *conn, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if tr := d.targets[t]; tr != nil && tr.c == c {
		tr.c, tr.err, tr.since = nil, err, time.Now()
	}
}

func (d *Dialer) dial(t Target) (*conn, error) {
	ctx, cancel := context.WithTimeout(d.ctx, d.o.Timing.Handshake)
	defer cancel()
	fail := func(step Step, err error) (*conn, error) {
		return nil, &DialError{Link: t.link(), As: d.o.Self, Step: step, Err: timedOut(ctx, err)}
	}
	raw, err := d.o.DialContext(ctx, t.Addr)
	if err != nil {
		return fail(StepConnect, err)
	}
	stop := closeAfter(ctx, raw)
	sec, err := secure(ctx, raw, d.o.TLS, true, t.link(), &t.Identity, nil)
	if err != nil {
		stop()
		_ = raw.Close() // err says what happened
		return fail(StepTLS, err)
	}
	mine := d.o.hello(t.Destination, t.Class)
	nc := sec.Conn
	theirs, err := greetFirst(nc, &mine, sec.identity)
	if err == nil && identityOf(&theirs) != t.Identity {
		err = &IdentityError{Link: t.link(), Offered: identityOf(&theirs).String(), Err: ErrUnexpected}
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = raw.Close() // err says what happened
		return fail(StepGreet, err)
	}
	return newConn(&d.o, &d.stats, &d.total, nc, raw, t.link(), &mine, &theirs), nil
}

// closeAfter closes a connection when ctx ends, which ends what reads or writes
// it. stop reports whether that had not happened yet.
func closeAfter(ctx context.Context, raw net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = raw.Close() })
}

// Close ends every session and connection with CodeShutdown and waits for all
// goroutines. A second Close returns nil.
func (d *Dialer) Close() error {
	d.mu.Lock()
	d.closed = true
	var open []*conn
	for c := range d.live {
		open = append(open, c)
	}
	d.mu.Unlock()
	d.cancel()
	for _, c := range open {
		c.shutdown(wire.CodeShutdown, "node stops")
	}
	d.wg.Wait()
	return nil
}

// Stats returns the counters.
func (d *Dialer) Stats() Stats { return d.stats.stats(d.total.Load()) }

// Status describes every target, in no order.
func (d *Dialer) Status() []ConnStatus {
	d.mu.Lock()
	type row struct {
		t  Target
		tr trunk
	}
	rows := make([]row, 0, len(d.targets))
	for t, tr := range d.targets {
		rows = append(rows, row{t, *tr})
	}
	d.mu.Unlock()
	out := make([]ConnStatus, 0, len(rows))
	for _, r := range rows {
		st := ConnStatus{Link: r.t.link(), State: StateDown, Since: r.tr.since, Err: r.tr.err}
		switch {
		case r.tr.c != nil:
			st = r.tr.c.status()
		case r.tr.ready != nil:
			st.State = StateConnecting
		}
		st.Target = r.t
		out = append(out, st)
	}
	return out
}
