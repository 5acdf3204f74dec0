package egress

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/masters"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

var _ flow.Dialer = (*Egress)(nil)

// RouterInfo is a router of this city as gossip knows it.
type RouterInfo struct {
	Node     zone.Node
	Addr     string // host:port of in-city TCP
	Draining bool
}

// Options tells an Egress what to be.
type Options struct {
	City     zone.City // of this broker
	Topology func() *zone.Topology
	// Routers returns the living routers of this city. Those of the topology are
	// tried behind them, so that a city without gossip is not cut off. Nil means
	// none.
	Routers func() []RouterInfo
	// Broker returns the address of a broker of this city when gossip knows one
	// that is newer than the topology's; empty = it does not. Nil means never.
	Broker func(zone.Node) string
	// Masters knows which node of a group to try first. Nil means none does: each is
	// tried in the topology's order.
	Masters *masters.Directory
	Pool    PoolOptions
}

// Error says why there is no stream.
type Error struct {
	City  zone.City
	Group zone.Group
	Code  wire.Code
	Err   error // may be nil
}

// Error implements error.
func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("egress: to group %s in %s: %s", e.Group, e.City, e.Code)
	}
	return fmt.Sprintf("egress: to group %s in %s: %s: %v", e.Group, e.City, e.Code, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// WireCode tells a flow why there is no stream.
func (e *Error) WireCode() wire.Code { return e.Code }

// Egress opens streams for a broker's flows; it implements flow.Dialer.
type Egress struct {
	o    Options
	pool *Pool
}

// New returns an Egress.
func New(o Options) *Egress {
	if o.Routers == nil {
		o.Routers = func() []RouterInfo { return nil }
	}
	if o.Broker == nil {
		o.Broker = func(zone.Node) string { return "" }
	}
	if o.Masters == nil {
		o.Masters = masters.New(nil)
	}
	return &Egress{o: o, pool: NewPool(o.Pool)}
}

// Close ends every session; Open fails from then on. It is idempotent.
func (e *Egress) Close() { e.pool.Close() }

// Open implements flow.Dialer. It fails with an *Error, or with the context's
// error. Routers are tried in the order of the session's rendezvous hash; one
// that does not answer at all takes only its share of the time.
func (e *Egress) Open(ctx context.Context, leg flow.Leg, session uint64) (wire.Stream, error) {
	fail := func(code wire.Code, err error) error {
		return &Error{City: leg.City, Group: leg.Group, Code: code, Err: err}
	}
	top := e.o.Topology()
	if leg.City == e.o.City {
		g := top.FindGroup(leg.Group)
		if g == nil || g.Zone.City.Name != leg.City {
			return nil, fail(wire.CodeUnknownGroup, nil)
		}
		return e.direct(ctx, g, leg, session)
	}
	var errs []error
	list := e.candidates(top, leg, session)
	for i, r := range list {
		try, cancel := share(ctx, len(list)-i)
		s, err := e.pool.Open(try, e.through(r, leg), session)
		cancel()
		if err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		errs = append(errs, fmt.Errorf("router %s: %w", r.Node, err))
	}
	return nil, fail(wire.CodeNoRoute, errors.Join(errs...))
}

// share returns a context for the first of n attempts that have the rest of
// ctx's time together.
func share(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	until, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(until)/time.Duration(n))
}

// direct opens a stream to a broker of this city: the group's master, as far as it is
// known, else the first node that answers, which says so when it is not the master.
func (e *Egress) direct(ctx context.Context, g *zone.GroupInfo, leg flow.Leg, session uint64) (wire.Stream, error) {
	var targets []Target
	for _, n := range e.o.Masters.Order(g) {
		for _, addr := range Addresses(e.o.Broker(n.Name), n.Peer) {
			targets = append(targets, Target{Node: n.Name, Role: zone.RoleBroker, Zone: g.Zone.Name, City: leg.City, Class: leg.Flow.Class, Addr: addr})
		}
	}
	var errs []error
	for i, t := range targets {
		try, cancel := share(ctx, len(targets)-i)
		s, err := e.pool.Open(try, t, session)
		cancel()
		if err == nil {
			return e.o.Masters.Listen(s, g, t.Node), nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		errs = append(errs, fmt.Errorf("broker %s: %w", t.Node, err))
	}
	return nil, &Error{City: leg.City, Group: leg.Group, Code: wire.CodeNoRoute, Err: errors.Join(errs...)}
}

func (e *Egress) through(r RouterInfo, leg flow.Leg) Target {
	return Target{Node: r.Node, Role: zone.RoleRouter, City: leg.City, Class: leg.Flow.Class, Addr: r.Addr}
}

// Addresses returns where to try a node, in order: what gossip says, which knows
// first when a node has moved, then what the topology says, because gossip may be
// wrong. An empty address is none. A node proves by its certificate that it is
// the one meant, so that the wrong address costs an attempt and nothing else.
func Addresses(gossip, topology string) []string {
	switch {
	case gossip == "":
		return []string{topology}
	case topology == "" || gossip == topology:
		return []string{gossip}
	}
	return []string{gossip, topology}
}

// candidates returns the routers to try, in order: living ones that are not
// backing off, the same where the topology has another address for them, then
// the topology's that gossip does not know, by rendezvous hash within each part.
func (e *Egress) candidates(top *zone.Topology, leg flow.Leg, session uint64) []RouterInfo {
	known := e.o.Routers()
	living := slices.DeleteFunc(slices.Clone(known), func(r RouterInfo) bool { return r.Draining })
	var elsewhere, rest []RouterInfo
	if city := top.FindCity(e.o.City); city != nil {
		for _, n := range city.Routers {
			i := slices.IndexFunc(known, func(r RouterInfo) bool { return r.Node == n.Name })
			switch at := (RouterInfo{Node: n.Name, Addr: n.Peer}); {
			case i < 0:
				rest = append(rest, at)
			case !known[i].Draining && known[i].Addr != n.Peer:
				elsewhere = append(elsewhere, at)
			}
		}
	}
	rank := func(rs []RouterInfo) {
		Rank(rs, session, func(r RouterInfo) zone.Node { return r.Node })
		slices.SortStableFunc(rs, func(a, b RouterInfo) int {
			return ill(e.pool, e.through(a, leg)) - ill(e.pool, e.through(b, leg))
		})
	}
	rank(living)
	rank(elsewhere)
	rank(rest)
	return slices.Concat(living, elsewhere, rest)
}

func ill(p *Pool, t Target) int {
	if p.Healthy(t) {
		return 0
	}
	return 1
}

// departedSilence is how long a connection must have brought nothing before
// gossip is believed that its router is gone: one and a half of package peer's
// probe intervals, so that a living connection has always answered one.
const departedSilence = 3 * time.Second

// recheck is how soon to look again at connections that outlive what gossip
// says.
const recheck = time.Second

// RoutersChanged ends the sessions through routers that gossip does not list any
// more and that have been silent, if it lists another: a broker that has lost
// everybody keeps what works, and so does one whose gossip is in disorder while
// the routers answer. Gossip thus hastens what the connection would find out by
// itself, and a storm of suspicions moves nothing. Call it when the list of
// routers may have changed, and again after the time that it returns; 0 = there
// is nothing to look at again.
func (e *Egress) RoutersChanged() (again time.Duration) {
	living := e.o.Routers()
	if !slices.ContainsFunc(living, func(r RouterInfo) bool { return !r.Draining }) {
		return 0
	}
	for _, node := range e.pool.Nodes(zone.RoleRouter) {
		if slices.ContainsFunc(living, func(r RouterInfo) bool { return r.Node == node }) {
			continue
		}
		if left := e.pool.DropSilent(node, departedSilence); left > 0 {
			again = recheck
		}
	}
	return again
}

// Status returns what is known of each in-city destination.
func (e *Egress) Status() []TargetStatus { return e.pool.Status() }

// Rank sorts by rendezvous hash: the order is the same wherever it is computed,
// spreads the keys evenly, and taking an item out moves only the keys for which
// it came first.
func Rank[T any](items []T, key uint64, node func(T) zone.Node) {
	slices.SortFunc(items, func(a, b T) int {
		x, y := score(key, node(a)), score(key, node(b))
		switch {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
}

// score mixes a key and a name; the finalizer is that of MurmurHash3.
func score(key uint64, node zone.Node) uint64 {
	h := xxhash.Sum64String(string(node)) ^ key
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
