package peer

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/internal/loglimit"
	"github.com/mqrouter/mqrouter/replication/wire"
)

const maxAcceptPause = time.Second

// errHandedOn says that a connection belongs to somebody else now.
var errHandedOn = errors.New("peer: connection is of another protocol")

// Listener takes the connections and sessions of the nodes of its city. It is
// safe for concurrent use.
type Listener struct {
	o        Options
	handle   func(context.Context, *Session)
	stats    counters
	total    atomic.Int64
	draining atomic.Bool
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup // one for each accepted connection
	complain loglimit.Limit

	mu      sync.Mutex
	closed  bool                  // guarded by mu
	sockets map[net.Listener]bool // guarded by mu
	conns   map[net.Conn]*conn    // accepted connections; nil before the greeting; guarded by mu
	silent  list.List             // those before the greeting and not given up, oldest first; guarded by mu
	serving sync.WaitGroup        // one for each Serve
}

// NewListener returns a Listener that calls handle for each session, in its own
// goroutine. The session is closed with CodeOK when handle returns, with
// CodeShutdown after Close. handle's
// context ends with Close, and handle must return then.
func NewListener(o Options, handle func(context.Context, *Session)) (*Listener, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if handle == nil {
		return nil, errors.New("peer: handler is missing")
	}
	l := &Listener{
		o: o.withDefaults(), handle: handle, complain: loglimit.Limit{Lines: complainLimit, Window: time.Second},
		sockets: make(map[net.Listener]bool), conns: make(map[net.Conn]*conn),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l, nil
}

// Serve accepts connections of ln until Close, which closes ln; then it returns
// nil. Several sockets may be served at a time. Failed accepts are tried again.
func (l *Listener) Serve(ln net.Listener) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return errors.Join(ErrClosed, ln.Close())
	}
	l.sockets[ln] = true
	l.serving.Add(1)
	l.mu.Unlock()
	defer l.serving.Done()
	pause := 5 * time.Millisecond
	for {
		raw, err := ln.Accept()
		switch {
		case err == nil:
			pause = 5 * time.Millisecond
			l.admit(raw)
		case l.ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("peer: accept: %w", err)
		default:
			// Out of descriptors, or the peer has gone already: both pass.
			if missed, ok := l.complain.Allow(time.Now()); ok {
				l.o.Logger.Warn("peer accept failed", "err", err, "suppressed", missed)
			}
			t := time.NewTimer(pause)
			select {
			case <-t.C:
			case <-l.ctx.Done():
			}
			t.Stop()
			pause = min(2*pause, maxAcceptPause)
		}
	}
}

// admit starts an accepted connection, or closes it when there are too many.
// Of those that have not greeted it closes the oldest instead: a peer greets
// within milliseconds, so strangers who stay silent cannot keep it out.
func (l *Listener) admit(raw net.Conn) {
	l.mu.Lock()
	ok := !l.closed && len(l.conns) < l.o.Limits.Connections
	if ok {
		if l.silent.Len() >= l.o.Limits.Handshakes {
			l.stats.refused.Add(1)
			_ = l.silent.Remove(l.silent.Front()).(net.Conn).Close() // its goroutine sees that
		}
		l.conns[raw] = nil
		place := l.silent.PushBack(raw)
		l.wg.Go(func() { l.serve(raw, place) })
	}
	l.mu.Unlock()
	if !ok {
		l.stats.refused.Add(1)
		_ = raw.Close() // a stranger gets no explanation that costs anything
	}
}

// serve greets a connection and runs it until it ends.
func (l *Listener) serve(raw net.Conn, place *list.Element) {
	handedOn := false
	defer func() {
		if !handedOn {
			_ = raw.Close() // ended already, unless the greeting failed
		}
		l.mu.Lock()
		delete(l.conns, raw)
		l.mu.Unlock()
	}()
	c, err := l.greet(raw)
	l.mu.Lock()
	l.silent.Remove(place) // nothing, if it was given up
	l.mu.Unlock()
	if errors.Is(err, errHandedOn) {
		handedOn = true
		return
	}
	if err != nil {
		l.stats.failed.Add(1)
		if missed, ok := l.complain.Allow(time.Now()); ok && l.ctx.Err() == nil {
			l.o.Logger.Warn("peer refused", "peer", raw.RemoteAddr().String(), "err", err, "suppressed", missed)
		}
		return
	}
	l.stats.connected.Add(1)
	var handlers sync.WaitGroup
	c.accept = func(s *Session) {
		handlers.Go(func() {
			defer func() {
				if l.ctx.Err() != nil {
					s.reset(wire.CodeShutdown, "node stops") // a handler that only its context ends is faster than Close
					return
				}
				s.reset(wire.CodeOK, "")
			}()
			l.handle(l.ctx, s)
		})
	}
	l.mu.Lock()
	l.conns[raw] = c
	closed := l.closed
	l.mu.Unlock()
	if l.draining.Load() {
		c.draining.Store(true) // Drain came between the greeting and here
	}
	if closed {
		c.shutdown(wire.CodeShutdown, "node stops")
	}
	l.o.Logger.Info("peer accepted", "peer", c.link, "class", c.class, "destination", c.destination)
	err = c.run()
	handlers.Wait()
	l.o.Logger.Info("peer connection ended", "peer", c.link, "class", c.class, "destination", c.destination, "err", err)
}

func (l *Listener) greet(raw net.Conn) (*conn, error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.o.Timing.Handshake)
	defer cancel()
	stop := closeAfter(ctx, raw)
	defer stop()
	link := "from " + raw.RemoteAddr().String()
	sec, err := secure(ctx, raw, l.o.TLS, false, link, nil, l.o.Others)
	if err != nil {
		return nil, &DialError{Link: link, As: l.o.Self, Step: StepTLS, Err: timedOut(ctx, err)}
	}
	if sec.other != nil {
		if !stop() {
			return nil, &DialError{Link: link, As: l.o.Self, Step: StepTLS, Err: ctx.Err()}
		}
		sec.other(sec.Conn)
		return nil, errHandedOn
	}
	nc, cert := sec.Conn, sec.identity
	theirs, err := greetSecond(nc, &l.o, cert, l.draining.Load())
	if err != nil {
		return nil, &DialError{Link: link, As: l.o.Self, Step: StepGreet, Err: timedOut(ctx, err)}
	}
	if !stop() {
		return nil, &DialError{Link: link, As: l.o.Self, Step: StepGreet, Err: ctx.Err()}
	}
	link = fmt.Sprintf("%s at %s", theirs.Node, raw.RemoteAddr())
	return newConn(&l.o, &l.stats, &l.total, nc, raw, link, &theirs, &theirs), nil
}

// timedOut says that the deadline ended a step, rather than how that showed.
func timedOut(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), err)
	}
	return err
}

// Drain asks every peer to move its sessions elsewhere before the deadline, and
// takes no new session and no new connection from now on.
func (l *Listener) Drain(deadline time.Duration) {
	l.draining.Store(true)
	d := wire.Drain{Deadline: deadline}
	for _, c := range l.greeted() {
		c.smu.Lock()
		c.draining.Store(true) // under smu: begin sees it, or the session is told
		c.smu.Unlock()
		c.control(0, wire.TypeDrain, d.Append(nil))
	}
}

func (l *Listener) greeted() []*conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*conn, 0, len(l.conns))
	for _, c := range l.conns {
		if c != nil {
			all = append(all, c)
		}
	}
	return all
}

// Close stops accepting, ends every session and connection with CodeShutdown,
// and waits for all goroutines, the handlers' included. A second Close returns
// nil.
func (l *Listener) Close() error {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	sockets := l.sockets
	l.sockets = nil
	l.mu.Unlock()
	l.cancel()
	var errs []error
	for ln := range sockets {
		if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if first {
		for _, c := range l.greeted() {
			c.shutdown(wire.CodeShutdown, "node stops")
		}
	}
	l.serving.Wait()
	l.wg.Wait()
	return errors.Join(errs...)
}

// Stats returns the counters.
func (l *Listener) Stats() Stats { return l.stats.stats(l.total.Load()) }

// Status describes every greeted connection, in no order.
func (l *Listener) Status() []ConnStatus {
	var out []ConnStatus
	for _, c := range l.greeted() {
		out = append(out, c.status())
	}
	return out
}
