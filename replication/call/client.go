package call

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/internal/bounds"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// How long calls take at most.
const (
	// DefaultTime is for callers whose context has no end.
	DefaultTime = 10 * time.Second
	// MaxTime is for all others: the longest that a client of a broker waits.
	MaxTime = time.Minute
	// answerTime is what is left of a caller's time, at most, to tell its client that
	// there was no answer: a round trip between the two.
	answerTime = 250 * time.Millisecond
)

// Options tells a Client what to be.
type Options struct {
	// Open opens a session to the group's broker, on a connection of class control,
	// which it makes when there is none; it backs off from a broker that cannot be
	// reached by failing at once. Required.
	Open func(ctx context.Context, group zone.Group, session uint64) (wire.Stream, error)
	// Session returns a number that no session has: random, not 0. Required.
	Session func() uint64
	// PerGroup bounds the calls under way to one group; more wait. 0 = 256.
	PerGroup int
	// KindName names a kind in metrics; nil = by its number.
	KindName func(kind uint8) string
	Meter    metric.Meter // nil measures nothing
}

// Client asks. It is safe for concurrent use.
type Client struct {
	o       Options
	metrics *metrics

	mu     sync.Mutex
	groups map[zone.Group]*group // guarded by mu; those that are asked now

	full atomic.Uint64 // calls that had to wait for one
}

// group is the places for calls to one group.
type group struct {
	places chan struct{} // a place is taken by sending
	users  int           // guarded by Client.mu
}

// NewClient returns a Client.
func NewClient(o Options) (*Client, error) {
	if o.PerGroup <= 0 {
		o.PerGroup = 256
	}
	m, err := newMetrics(o.Meter, "out", o.KindName)
	if err != nil {
		return nil, err
	}
	return &Client{o: o, metrics: m, groups: map[zone.Group]*group{}}, nil
}

// Call asks the group's broker and waits for the answer, at most until shortly before
// ctx ends, so that who asked in turn can be told, and at most MaxTime (DefaultTime
// when ctx has no end). A node that is not the master of the group has not looked at
// the call, which is made again until one has. It fails with a *Fault when
// the broker says no, and with an *Error when it says nothing. body is not kept.
func (c *Client) Call(ctx context.Context, to zone.Group, kind uint8, body []byte) ([]byte, error) {
	limit := DefaultTime
	if end, bounded := ctx.Deadline(); bounded {
		left := time.Until(end)
		limit = min(left-min(left/8, answerTime), MaxTime)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	reply, err := c.call(ctx, to, kind, body)
	c.metrics.took(kind, began, err)
	return reply, err
}

func (c *Client) call(ctx context.Context, to zone.Group, kind uint8, body []byte) ([]byte, error) {
	if len(body) > wire.MaxCall {
		return nil, &Error{Group: to, Err: fmt.Errorf("a call of %d bytes; at most %d are allowed", len(body), wire.MaxCall)}
	}
	leave, err := c.enter(ctx, to)
	if err != nil {
		return nil, &Error{Group: to, Err: err}
	}
	defer leave()
	for again := firstAgain; ; again = min(2*again, maxAgain) {
		reply, err := c.once(ctx, to, kind, body)
		if !elsewhere(err) || !pause(ctx, again) {
			return reply, err
		}
	}
}

// Pauses before a call that met a node which is not its group's master is made again.
const (
	firstAgain = 10 * time.Millisecond
	maxAgain   = 500 * time.Millisecond // the design's bound for anything that is tried again
)

// elsewhere reports whether a call was not looked at since another node of the group
// is its master.
func elsewhere(err error) bool {
	var e *Error
	var closed *wire.ClosedError
	return errors.As(err, &e) && !e.Sent && errors.As(e.Err, &closed) && closed.Code == wire.CodeNotMaster
}

// pause waits, and reports whether the context has not ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// once makes one attempt.
func (c *Client) once(ctx context.Context, to zone.Group, kind uint8, body []byte) ([]byte, error) {
	s, err := c.o.Open(ctx, to, c.o.Session())
	if err != nil {
		return nil, &Error{Group: to, Err: err}
	}
	code := wire.CodeTimeout
	defer func() { _ = s.Close(code) }() // it says nothing that matters any more
	until, _ := ctx.Deadline()
	x := wire.Call{Kind: kind, Time: time.Until(until), Body: body}
	if err := s.Send(ctx, wire.Frame{Type: wire.TypeCall, Payload: x.Append(make([]byte, 0, wire.CallSize(len(body))))}); err != nil {
		return nil, &Error{Group: to, Err: err}
	}
	reply, err := c.await(ctx, to, s)
	if err == nil {
		code = wire.CodeOK
	}
	return reply, err
}

// await receives the answer to a call that was sent.
func (c *Client) await(ctx context.Context, to zone.Group, s wire.Stream) ([]byte, error) {
	for {
		f, err := s.Recv(ctx)
		if err != nil {
			return nil, &Error{Group: to, Sent: true, Err: err}
		}
		switch f.Type {
		case wire.TypeReply:
			r, err := wire.ParseReply(f.Payload)
			switch {
			case err != nil:
				return nil, &Error{Group: to, Sent: true, Err: err}
			case r.Fault != 0:
				return nil, &Fault{Kind: r.Fault, Text: r.Text}
			}
			return r.Body, nil
		case wire.TypeRefuse:
			r, err := wire.ParseRefuse(f.Payload)
			if err != nil {
				return nil, &Error{Group: to, Sent: true, Err: err}
			}
			return nil, &Error{Group: to, Err: &wire.ClosedError{Code: r.Code, Text: r.Text}}
		case wire.TypeDrain: // about the connection; the answer comes first
		default:
			return nil, &Error{Group: to, Sent: true, Err: fmt.Errorf("%w: a %s frame in answer to a call", errProtocol, f.Type)}
		}
	}
}

var errProtocol = errors.New("call: the peer does not keep to the protocol")

// enter takes a place for a call to the group, and waits for one.
func (c *Client) enter(ctx context.Context, to zone.Group) (leave func(), err error) {
	c.mu.Lock()
	g := c.groups[to]
	if g == nil {
		g = &group{places: make(chan struct{}, c.o.PerGroup)}
		c.groups[to] = g
	}
	g.users++
	c.mu.Unlock()
	gone := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if g.users--; g.users == 0 {
			delete(c.groups, to)
		}
	}
	select {
	case g.places <- struct{}{}:
	default:
		c.full.Add(1)
		select {
		case g.places <- struct{}{}:
		case <-ctx.Done():
			gone()
			return nil, fmt.Errorf("%d calls are under way to it: %w", c.o.PerGroup, ctx.Err())
		}
	}
	return func() {
		<-g.places
		gone()
	}, nil
}

// Usage tells how many calls are under way to the group that has the most.
func (c *Client) Usage() bounds.Usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	most := 0
	for _, g := range c.groups {
		most = max(most, len(g.places))
	}
	return bounds.Usage{Name: "call.out", Unit: "call", Depth: int64(most), Limit: int64(c.o.PerGroup), Full: c.full.Load()}
}
