package raft

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// attemptTime is how long one voter has to answer what does not wait for an event;
	// another one is asked then.
	attemptTime = 500 * time.Millisecond
	// roundPause is how long a client waits when no voter could answer.
	roundPause = 50 * time.Millisecond
	// callTime is how long a call is tried whose context has no end.
	callTime = 5 * time.Second
)

// client asks one node.
type client struct {
	http *http.Client
	done func()
}

func newClient(dial Dial) *client {
	t := &http.Transport{
		DialTLSContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			return dial(ctx, zone.Node(host), ALPNCoordinator)
		},
		MaxIdleConnsPerHost: 4, IdleConnTimeout: idleTime / 2, DisableCompression: true,
		MaxResponseHeaderBytes: maxHead,
	}
	return &client{http: &http.Client{Transport: t}, done: t.CloseIdleConnections}
}

// post asks a node. The error is a *failure when the node answered and did not do it.
func (c *client) post(ctx context.Context, to zone.Node, op string, q request) (answer, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return answer{}, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+string(to)+":1/v1/"+op, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	res, err := c.http.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxMessage))
	if err != nil {
		return answer{}, err
	}
	if res.StatusCode != http.StatusOK {
		return answer{}, fmt.Errorf("status %d: %.200s", res.StatusCode, text)
	}
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		return answer{}, err
	}
	if a.Failed != nil {
		return answer{}, a.Failed
	}
	return a, nil
}

// ClientOptions tells a Client what to be. Voters and Dial are required.
type ClientOptions struct {
	// Voters returns the voters that the topology in force names; it does not block.
	Voters func() []zone.Node
	Dial   Dial
	// Self and Local are given by a node that is a voter itself: it does not dial
	// itself.
	Self  zone.Node
	Role  zone.Role
	Local *Voter
}

// Client is a coordinator.Coordinator that asks the voters: the one that led last,
// whom that one names, and then the others in turn. It has no goroutine of its own.
type Client struct {
	o      ClientOptions
	client *client

	mu     sync.Mutex
	leader zone.Node // who answered last, or was named; "" = nobody yet; guarded by mu
}

var _ coordinator.Coordinator = (*Client)(nil)

// NewClient returns a client. Close ends its connections.
func NewClient(o ClientOptions) *Client { return &Client{o: o, client: newClient(o.Dial)} }

// Close ends the connections that nobody uses.
func (c *Client) Close() { c.client.done() }

// Leader returns the voter that is asked first; "" = nobody has answered yet.
func (c *Client) Leader() zone.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leader
}

func (c *Client) setLeader(n zone.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leader = n
}

// call asks until somebody knows, or ctx ends. each bounds one attempt.
func (c *Client) call(ctx context.Context, op string, q request, each time.Duration) (answer, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(callTime, 2*each))
		defer cancel()
	}
	fail := func(k coordinator.Kind, text string, err error) (answer, error) {
		return answer{}, &coordinator.Error{Op: op, Group: q.Group, Kind: k, Text: text, Err: err}
	}
	var last error
	for {
		tried := map[zone.Node]bool{}
		for to := c.next(tried); to != ""; to = c.next(tried) {
			tried[to] = true
			a, err := c.ask(ctx, to, op, q, each)
			var f *failure
			switch {
			case err == nil:
				c.setLeader(to)
				return a, nil
			case errors.As(err, &f) && f.Kind != coordinator.KindNoQuorum:
				c.setLeader(to)
				return fail(f.Kind, f.Text, nil)
			case errors.As(err, &f):
				c.setLeader(f.Leader)
			case c.Leader() == to:
				c.setLeader("")
			}
			last = fmt.Errorf("voter %s: %w", to, err)
			if ctx.Err() != nil {
				return fail(coordinator.KindNoQuorum, "", errors.Join(ctx.Err(), last))
			}
		}
		if last == nil {
			return fail(coordinator.KindNoQuorum, "the topology names no voters", nil)
		}
		select {
		case <-ctx.Done():
			return fail(coordinator.KindNoQuorum, "", errors.Join(ctx.Err(), last))
		case <-time.After(roundPause):
		}
	}
}

// next returns whom to ask now; "" = everybody was.
func (c *Client) next(tried map[zone.Node]bool) zone.Node {
	voters := c.o.Voters()
	if l := c.Leader(); l != "" && !tried[l] && slices.Contains(voters, l) {
		return l
	}
	for _, n := range voters {
		if !tried[n] {
			return n
		}
	}
	return ""
}

func (c *Client) ask(ctx context.Context, to zone.Node, op string, q request, each time.Duration) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, each)
	defer cancel()
	if c.o.Local != nil && to == c.o.Self {
		a := c.o.Local.answer(ctx, caller{node: c.o.Self, role: c.o.Role}, op, q)
		if a.Failed != nil {
			return answer{}, a.Failed
		}
		return a, nil
	}
	return c.client.post(ctx, to, op, q)
}

// term is call for what returns a term.
func (c *Client) term(ctx context.Context, op string, q request, each time.Duration) (coordinator.Term, error) {
	a, err := c.call(ctx, op, q, each)
	switch {
	case err != nil:
		return coordinator.Term{}, err
	case a.Term == nil:
		return coordinator.Term{}, &coordinator.Error{Op: op, Group: q.Group, Kind: coordinator.KindNoQuorum, Text: "an answer without a term"}
	}
	return *a.Term, nil
}

// Renew implements coordinator.Coordinator.
func (c *Client) Renew(ctx context.Context, g zone.Group, s coordinator.Standing) (coordinator.Term, coordinator.Lease, error) {
	a, err := c.call(ctx, opRenew, request{Group: g, Standing: &s}, attemptTime)
	switch {
	case err != nil:
		return coordinator.Term{}, coordinator.Lease{}, err
	case a.Term == nil:
		return coordinator.Term{}, coordinator.Lease{}, &coordinator.Error{Op: opRenew, Group: g, Kind: coordinator.KindNoQuorum, Text: "an answer without a term"}
	}
	return *a.Term, coordinator.Lease{Epoch: a.LeaseEpoch, Duration: time.Duration(a.Lease) * time.Microsecond}, nil
}

// Watch implements coordinator.Coordinator.
func (c *Client) Watch(ctx context.Context, g zone.Group, after uint64) (coordinator.Term, error) {
	return c.term(ctx, opWatch, request{Group: g, After: after}, coordinator.WatchTime+attemptTime)
}

// ChangeSet implements coordinator.Coordinator.
func (c *Client) ChangeSet(ctx context.Context, g zone.Group, epoch, version uint64, inSync, proposed []zone.Node) (coordinator.Term, error) {
	return c.term(ctx, opChange, request{Group: g, Epoch: epoch, Version: version, InSync: inSync, Proposed: proposed}, putTime)
}

// Resign implements coordinator.Coordinator.
func (c *Client) Resign(ctx context.Context, g zone.Group, epoch uint64, to zone.Node) (coordinator.Term, error) {
	return c.term(ctx, opResign, request{Group: g, Epoch: epoch, To: to}, putTime)
}

// Failover implements coordinator.Coordinator.
func (c *Client) Failover(ctx context.Context, g zone.Group, order coordinator.Order) (coordinator.Term, error) {
	return c.term(ctx, opFailover, request{Group: g, Order: &order}, 20*time.Second)
}

// Terms implements coordinator.Coordinator.
func (c *Client) Terms(ctx context.Context) ([]coordinator.Term, error) {
	a, err := c.call(ctx, opTerms, request{}, putTime)
	return a.Terms, err
}

// Status returns the state of a voter as it tells it.
func (c *Client) Status(ctx context.Context, n zone.Node) (Status, error) {
	a, err := c.ask(ctx, n, opStatus, request{}, attemptTime)
	switch {
	case err != nil:
		return Status{}, err
	case a.Status == nil:
		return Status{}, errNoStatus
	}
	return *a.Status, nil
}
