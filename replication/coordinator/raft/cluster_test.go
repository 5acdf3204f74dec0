package raft

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/coordinator/conformance"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
)

// brief is times of tests in which leases run out.
var brief = coordinator.Timing{Lease: 300 * time.Millisecond, Renew: 80 * time.Millisecond, Margin: 60 * time.Millisecond, Settle: 50 * time.Millisecond}

// cluster is the voters of a city, in this process, over pipes.
type cluster struct {
	t      *testing.T
	dir    string
	timing coordinator.Timing
	beat   time.Duration
	log    *slog.Logger

	mu    sync.Mutex
	names []zone.Node            // voters in the topology; guarded by mu, as is all below
	up    map[zone.Node]*upVoter // those that run
	cut   map[zone.Node]bool     // those that nobody reaches, and that reach nobody
	lines map[*line]bool
}

type upVoter struct {
	v    *Voter
	stop func()
}

// line is a connection between two nodes.
type line struct {
	a, b zone.Node
	ends [2]net.Conn
}

func newCluster(t *testing.T, names ...zone.Node) *cluster {
	c := &cluster{t: t, dir: t.TempDir(), names: names, beat: 150 * time.Millisecond, up: map[zone.Node]*upVoter{}, cut: map[zone.Node]bool{}, lines: map[*line]bool{},
		timing: brief}
	c.log = slog.New(slog.DiscardHandler)
	if os.Getenv("COORDINATOR_LOG") != "" {
		c.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	t.Cleanup(func() {
		for _, n := range c.running() {
			c.stop(n)
		}
	})
	return c
}

func (c *cluster) running() []zone.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []zone.Node
	for n := range c.up {
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

func (c *cluster) voters() []zone.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.names)
}

// dial is the way from a node to the others.
func (c *cluster) dial(from zone.Node) Dial {
	return func(ctx context.Context, to zone.Node, protocol string) (net.Conn, error) {
		here, there, u, err := c.connect(from, to)
		if err != nil {
			return nil, err
		}
		u.v.Accept(there, protocol, peer.Identity{Name: from, Role: zone.RoleBroker})
		return here, nil
	}
}

func (c *cluster) connect(from, to zone.Node) (here, there net.Conn, u *upVoter, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u = c.up[to]
	switch {
	case c.cut[from] || c.cut[to]:
		return nil, nil, nil, context.DeadlineExceeded
	case u == nil:
		return nil, nil, nil, errors.New("nobody listens")
	}
	here, there = net.Pipe()
	c.lines[&line{a: from, b: to, ends: [2]net.Conn{here, there}}] = true
	return here, there, u, nil
}

// start starts a voter on its folder.
func (c *cluster) start(n zone.Node) *Voter {
	c.t.Helper()
	v, err := NewVoter(Options{Self: n, Dir: filepath.Join(c.dir, string(n)), Voters: c.voters, Dial: c.dial(n), Group: conformance.Group, Groups: conformance.Groups,
		Timing: c.timing, Beat: c.beat, Logger: c.log.With("voter", string(n))})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = v.Run(ctx)
	}()
	c.mu.Lock()
	c.up[n] = &upVoter{v: v, stop: func() { cancel(); <-done }}
	c.mu.Unlock()
	return v
}

// stop stops a voter, and breaks its connections.
func (c *cluster) stop(n zone.Node) {
	c.mu.Lock()
	u := c.up[n]
	delete(c.up, n)
	c.mu.Unlock()
	if u != nil {
		u.stop()
		c.snap(n)
	}
}

// snap breaks the connections of a node.
func (c *cluster) snap(n zone.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.lines {
		if l.a == n || l.b == n {
			_, _ = l.ends[0].Close(), l.ends[1].Close()
			delete(c.lines, l)
		}
	}
}

// isolate cuts a node off until the function returned is called.
func (c *cluster) isolate(n zone.Node) (heal func()) {
	c.mu.Lock()
	c.cut[n] = true
	c.mu.Unlock()
	c.snap(n)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.cut, n)
	}
}

// client is the coordinator as a node that is no voter has it.
func (c *cluster) client(n zone.Node) *Client {
	return NewClient(ClientOptions{Voters: c.voters, Dial: c.dial(n)})
}

// patience bounds what is waited for; a busy machine may need some of it.
const patience = 3 * time.Minute

// until waits for cond.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// leader waits for one and returns it.
func (c *cluster) leader() (n zone.Node, v *Voter) {
	c.t.Helper()
	until(c.t, "a voter leads", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for name, u := range c.up {
			if !c.cut[name] && u.v.Status().State == StateLeader {
				n, v = name, u.v
				return true
			}
		}
		return false
	})
	return n, v
}

// disturb is what happens to a quorum.
func (c *cluster) disturb(r *rand.Rand) (undo func()) {
	all := c.running()
	n := all[r.IntN(len(all))]
	if r.IntN(2) == 0 { // rather the leader than anybody
		for _, x := range all {
			c.mu.Lock()
			u := c.up[x]
			c.mu.Unlock()
			if u.v.Status().State == StateLeader {
				n = x
			}
		}
	}
	switch r.IntN(3) {
	case 0:
		c.stop(n)
		return func() { c.start(n) }
	case 1:
		c.stop(n)
		c.start(n)
		return func() {}
	}
	return c.isolate(n)
}

func three(t *testing.T) *cluster {
	return threeWith(t, coordinator.Timing{})
}

// threeWith is three with other times than a test cluster's, unless they are zero.
func threeWith(t *testing.T, times coordinator.Timing) *cluster {
	c := newCluster(t, "v1", "v2", "v3")
	if times != (coordinator.Timing{}) {
		c.timing = times
	}
	for _, n := range c.voters() {
		c.start(n)
	}
	c.leader()
	return c
}

func (c *cluster) subject() conformance.Subject {
	clients := map[zone.Node]coordinator.Coordinator{}
	for _, n := range append([]zone.Node{"n9"}, conformance.Nodes...) {
		clients[n] = c.client(n)
	}
	return conformance.Subject{Client: func(n zone.Node) coordinator.Coordinator { return clients[n] }, Timing: c.timing, Disturb: c.disturb}
}

func TestRaftConforms(t *testing.T) {
	conformance.Suite(t, brief, func(t *testing.T, times coordinator.Timing) conformance.Subject { return threeWith(t, times).subject() })
}

func TestRaftKeepsThePromisesUnderFaults(t *testing.T) {
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	for seed := range uint64(2) {
		conformance.Faults(t, three(t).subject(), seed+1, rounds)
	}
}

func TestOneVoterIsAQuorum(t *testing.T) {
	c := newCluster(t, "v1")
	c.start("v1")
	c.leader()
	c.stop("v1")
	c.start("v1")
	c.leader()
}
