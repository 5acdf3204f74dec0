package consul

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// callTime is how long one request to Consul may take when its caller gives no less.
const callTime = 2 * time.Second

// orderTime is how long a fail-over is waited for.
const orderTime = 20 * time.Second

// DefaultTiming is that of this driver: transactions go through Consul's disks, so
// that renewals are rarer than with the raft driver.
func DefaultTiming() coordinator.Timing {
	return coordinator.Timing{Lease: 2 * time.Second, Renew: 500 * time.Millisecond, Margin: 300 * time.Millisecond, Settle: 250 * time.Millisecond}
}

// Options tells a Coordinator what to be. Client, Prefix, Self, Group, Groups and
// Lineage are required.
type Options struct {
	Client *api.Client
	Prefix string // without a slash at its ends; the city's
	Self   zone.Node
	// Group says what the topology in force says of a group; Groups names those of which
	// this node is a member.
	Group  func(zone.Group) (coordinator.Group, bool)
	Groups func() []zone.Group
	Timing coordinator.Timing // zero fields are DefaultTiming's
	// Lineage returns a random number that is not 0.
	Lineage func() record.LineageID
	// Now is a monotonic clock, Wall the wall clock for reports; nil = time.Now.
	Now, Wall func() time.Time
	Logger    *slog.Logger // nil discards
}

// standingEvery is how often a member tells where it stands while nobody needs it.
func (o *Options) standingEvery() time.Duration { return 4 * o.Timing.Renew }

// Coordinator is the coordinator as one member has it.
type Coordinator struct {
	o Options

	turn atomic.Uint64 // of what was written last; begins anywhere

	mu        sync.Mutex
	observers map[zone.Group]*observer // guarded by mu
	told      map[zone.Group]told      // guarded by mu
}

// told is what this member said last.
type told struct {
	at       time.Time
	standing coordinator.Standing
}

var _ coordinator.Coordinator = (*Coordinator)(nil)

// New returns a coordinator; Run makes it take part in elections.
func New(o Options) (*Coordinator, error) {
	if o.Client == nil || o.Prefix == "" || o.Self == "" || o.Group == nil || o.Groups == nil || o.Lineage == nil {
		return nil, errors.New("coordinator/consul: a required option is missing")
	}
	d := DefaultTiming()
	for _, f := range []struct{ to, def *time.Duration }{{&o.Timing.Lease, &d.Lease}, {&o.Timing.Renew, &d.Renew}, {&o.Timing.Margin, &d.Margin}, {&o.Timing.Settle, &d.Settle}} {
		if *f.to == 0 {
			*f.to = *f.def
		}
	}
	if err := o.Timing.Validate(); err != nil {
		return nil, err
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Wall == nil {
		o.Wall = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Coordinator{o: o, observers: map[zone.Group]*observer{}, told: map[zone.Group]told{}}
	c.turn.Store(uint64(o.Lineage())) // random: not where the process before began
	return c, nil
}

// Timing returns the times in force.
func (c *Coordinator) Timing() coordinator.Timing { return c.o.Timing }

// Run takes part in the elections of this node's groups until ctx ends; it returns
// nil.
func (c *Coordinator) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(c.o.Timing.Renew)
	defer tick.Stop()
	for {
		for _, g := range c.o.Groups() {
			c.mu.Lock()
			_, there := c.observers[g]
			o := newObserver(c, g)
			if !there {
				c.observers[g] = o
			}
			c.mu.Unlock()
			if !there {
				wg.Go(func() { o.run(ctx) }) // to the end: a node leaves its group by being stopped
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (c *Coordinator) observer(g zone.Group) *observer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.observers[g]
}

// fail makes an error of the interface.
func fail(op string, g zone.Group, k coordinator.Kind, format string, args ...any) error {
	return &coordinator.Error{Op: op, Group: g, Kind: k, Text: fmt.Sprintf(format, args...)}
}

func unknown(op string, g zone.Group, err error) error {
	return &coordinator.Error{Op: op, Group: g, Kind: coordinator.KindNoQuorum, Err: err}
}

func (c *Coordinator) find(op string, g zone.Group) (coordinator.Group, error) {
	x, ok := c.o.Group(g)
	if !ok {
		return x, fail(op, g, coordinator.KindNotFound, "the topology has no broker group of several nodes by this name here")
	}
	return x, nil
}

// bounded gives ctx an end.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, callTime)
}

// Renew implements coordinator.Coordinator.
func (c *Coordinator) Renew(ctx context.Context, group zone.Group, st coordinator.Standing) (coordinator.Term, coordinator.Lease, error) {
	none := coordinator.Lease{}
	g, err := c.find("renew", group)
	switch {
	case err != nil:
		return coordinator.Term{}, none, err
	case st.Node != c.o.Self || !slices.Contains(g.Members, st.Node):
		return coordinator.Term{}, none, fail("renew", group, coordinator.KindNotFound, "%s is not one of its nodes, or not this one", st.Node)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	for {
		s, err := c.list(ctx, group)
		if err != nil {
			return coordinator.Term{}, none, unknown("renew", group, err)
		}
		next, l, err := c.renew(ctx, s, st)
		switch {
		case err == nil:
			return next, l, nil
		case !errors.Is(err, errChanged) || ctx.Err() != nil:
			return coordinator.Term{}, none, unknown("renew", group, err)
		}
	}
}

// renew writes what the standing makes due, if the state is as it was read.
func (c *Coordinator) renew(ctx context.Context, s state, st coordinator.Standing) (coordinator.Term, coordinator.Lease, error) {
	t, group := s.term, s.term.Group
	if err := c.tell(ctx, group, st, t.Master == ""); err != nil {
		return t, coordinator.Lease{}, err
	}
	if st.Node != t.Master {
		return t, coordinator.Lease{}, nil
	}
	switch {
	case st.Leads == t.Epoch && t.Incarnation == 0 && st.Incarnation != 0:
		if err := c.putTerm(ctx, s, t.Named(st.Incarnation)); err != nil {
			return t, coordinator.Lease{}, err
		}
		return t, coordinator.Lease{}, errChanged // and the lease with the term as it is now
	case st.Leads == t.Epoch && st.Majority && !t.Majority:
		if err := c.putTerm(ctx, s, t.Marked(true, 0, s.known())); err != nil {
			return t, coordinator.Lease{}, err
		}
		return t, coordinator.Lease{}, errChanged // likewise
	case st.Leads == t.Epoch:
		op, err := set(c.key(group, "lease"), lease{Turn: c.turn.Add(1), Epoch: t.Epoch, Node: st.Node, Committed: st.Committed, Lease: c.o.Timing.Lease})
		if err == nil {
			err = c.commit(ctx, asRead(c.key(group, "term"), s.termIndex), op)
		}
		if err != nil {
			return t, coordinator.Lease{}, err
		}
		return t, coordinator.Lease{Epoch: t.Epoch, Duration: c.o.Timing.Lease}, nil
	case st.Leads == 0 && st.Epoch >= t.Epoch:
		// It led the epoch and does not any more: it was started again or stepped down.
		next := t.Vacated().Noted(max(s.known(), st.Committed))
		if err := c.putTerm(ctx, s, next, c.noLease(group)); err != nil {
			return t, coordinator.Lease{}, err
		}
		c.report(next)
		return next, coordinator.Lease{}, nil
	}
	return t, coordinator.Lease{}, nil
}

// tell writes the standing when it is time, or when it counts.
func (c *Coordinator) tell(ctx context.Context, group zone.Group, st coordinator.Standing, urgent bool) error {
	now := c.o.Now()
	c.mu.Lock()
	last := c.told[group]
	c.mu.Unlock()
	if !urgent && last.standing.Fit == st.Fit && last.standing.Node != "" && now.Sub(last.at) < c.o.standingEvery() {
		return nil
	}
	op, err := set(c.key(group, "standing", string(st.Node)), saying{Turn: c.turn.Add(1), Standing: st})
	if err == nil {
		err = c.commit(ctx, op)
	}
	if err == nil {
		c.mu.Lock()
		c.told[group] = told{at: now, standing: st}
		c.mu.Unlock()
	}
	return err
}

// Watch implements coordinator.Coordinator.
func (c *Coordinator) Watch(ctx context.Context, group zone.Group, after uint64) (coordinator.Term, error) {
	if _, err := c.find("watch", group); err != nil {
		return coordinator.Term{}, err
	}
	end := c.o.Now().Add(coordinator.WatchTime)
	index := uint64(0)
	for {
		q := &api.QueryOptions{WaitIndex: index, WaitTime: max(end.Sub(c.o.Now()), time.Millisecond)}
		p, meta, err := c.o.Client.KV().Get(c.key(group, "term"), q.WithContext(ctx))
		if err != nil {
			return coordinator.Term{}, unknown("watch", group, err)
		}
		var pairs api.KVPairs
		if p != nil {
			pairs = append(pairs, p)
		}
		s, err := c.read(group, pairs)
		if err != nil {
			return coordinator.Term{}, unknown("watch", group, err)
		}
		if s.term.Version != after || !c.o.Now().Before(end) {
			return s.term, nil
		}
		if index = meta.LastIndex; index < q.WaitIndex {
			index = 0
		}
	}
}

// change reads the term, has f make the next one, and writes it; again when it changed
// meanwhile.
func (c *Coordinator) change(ctx context.Context, op string, group zone.Group, f func(state) (coordinator.Term, []*api.KVTxnOp, error)) (coordinator.Term, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	for {
		s, err := c.list(ctx, group)
		if err != nil {
			return coordinator.Term{}, unknown(op, group, err)
		}
		next, ops, err := f(s)
		if err != nil {
			return coordinator.Term{}, err
		}
		switch err := c.putTerm(ctx, s, next, ops...); {
		case err == nil:
			return next, nil
		case !errors.Is(err, errChanged) || ctx.Err() != nil:
			return coordinator.Term{}, unknown(op, group, err)
		}
	}
}

// ChangeSet implements coordinator.Coordinator.
func (c *Coordinator) ChangeSet(ctx context.Context, group zone.Group, epoch, version uint64, inSync, proposed []zone.Node) (coordinator.Term, error) {
	g, err := c.find("change set", group)
	if err != nil {
		return coordinator.Term{}, err
	}
	return c.change(ctx, "change set", group, func(s state) (coordinator.Term, []*api.KVTxnOp, error) {
		if s.term.Master != c.o.Self {
			return s.term, nil, fail("change set", group, coordinator.KindStaleEpoch, "the master is %q, not %s", s.term.Master, c.o.Self)
		}
		next, err := s.term.Changed(g, epoch, version, inSync, proposed)
		return next.Noted(s.known()), nil, err
	})
}

// Resign implements coordinator.Coordinator.
func (c *Coordinator) Resign(ctx context.Context, group zone.Group, epoch uint64, to zone.Node) (coordinator.Term, error) {
	g, err := c.find("resign", group)
	if err != nil {
		return coordinator.Term{}, err
	}
	next, err := c.change(ctx, "resign", group, func(s state) (coordinator.Term, []*api.KVTxnOp, error) {
		t, ops := s.term, []*api.KVTxnOp{c.noLease(group)}
		o := c.observer(group)
		switch {
		case epoch != t.Epoch || t.Master != c.o.Self:
			return t, nil, fail("resign", group, coordinator.KindStaleEpoch, "the epoch is %d, of %q", t.Epoch, t.Master)
		case to == "":
			return s.vacated(), ops, nil
		case o == nil:
			return t, nil, fail("resign", group, coordinator.KindNoQuorum, "this node does not follow the group yet")
		}
		if why := o.electable(g, t, to, c.o.Now()); why != "" {
			return t, nil, fail("resign", group, coordinator.KindNoCandidate, "%s", why)
		}
		return t.Passed(to, c.o.Lineage(), c.o.Timing.Lease).Noted(s.known()), ops, nil
	})
	if err == nil {
		c.report(next)
	}
	return next, err
}

// Failover implements coordinator.Coordinator. It has to be called at a member of the
// group.
func (c *Coordinator) Failover(ctx context.Context, group zone.Group, by coordinator.Order) (coordinator.Term, error) {
	to := by.To
	g, err := c.find("failover", group)
	if err != nil {
		return coordinator.Term{}, err
	}
	o := c.observer(group)
	if o == nil {
		return coordinator.Term{}, fail("failover", group, coordinator.KindRefused, "%s is no member of the group, or has just started: ask a member", c.o.Self)
	}
	ctx, cancel := context.WithTimeout(ctx, orderTime)
	defer cancel()
	vacant, err := c.change(ctx, "failover", group, func(s state) (coordinator.Term, []*api.KVTxnOp, error) {
		if err := o.mayOrder(g, s, by, c.o.Now()); err != nil {
			return s.term, nil, err
		}
		next := s.vacated()
		op, err := set(c.key(group, "order"), order{Version: next.Version, Order: by})
		return next, []*api.KVTxnOp{op}, err
	})
	if err != nil {
		return coordinator.Term{}, err
	}
	c.o.Logger.Warn("fail-over ordered", "group", string(group), "to", string(to), "allow_loss", by.AllowLoss, "by", by.By, "reason", by.Reason)
	for t := vacant; ; {
		if t, err = c.Watch(ctx, group, t.Version); err != nil {
			o.mu.Lock()
			defer o.mu.Unlock()
			return coordinator.Term{}, fail("failover", group, coordinator.KindNoQuorum, "%s", o.waiting)
		}
		switch {
		case t.Epoch > vacant.Epoch && t.Master == to:
			return t, nil
		case t.Epoch > vacant.Epoch:
			return coordinator.Term{}, fail("failover", group, coordinator.KindNoCandidate, "%s could not take over without loss; the master is %s", to, t.Master)
		}
	}
}

// mayOrder says whether the operator's order can be carried out, as far as that is
// known before the master is asked to stop.
func (o *observer) mayOrder(g coordinator.Group, s state, by coordinator.Order, now time.Time) error {
	to, allowLoss := by.To, by.AllowLoss
	o.mu.Lock()
	defer o.mu.Unlock()
	safe := slices.Contains(s.term.InSync, to) && s.standings[to].Fit
	alive := s.term.Master != "" && s.leaseIndex != 0 && now.Before(o.leased.Add(max(o.c.o.Timing.Lease, s.lease.Lease)))
	no := func(k coordinator.Kind, format string, args ...any) error {
		return fail("failover", o.group, k, format, args...)
	}
	switch why := by.Check(); {
	case why != "":
		return no(coordinator.KindRefused, "%s", why)
	case !slices.Contains(g.Members, to):
		return no(coordinator.KindNotFound, "%s is not a node of the group", to)
	case to == s.term.Master:
		return no(coordinator.KindRefused, "%s is the master", to)
	case !o.fresh(to, now):
		return no(coordinator.KindNoCandidate, "%s does not answer", to)
	case allowLoss && alive && !safe:
		return no(coordinator.KindRefused, "the master %s answers; nothing needs to be lost while it does", s.term.Master)
	case !allowLoss && !safe && s.term.Epoch != 0:
		return no(coordinator.KindNoCandidate, "%s is not in sync, or not fit; in sync are %v", to, s.term.InSync)
	}
	return nil
}

// Terms implements coordinator.Coordinator.
func (c *Coordinator) Terms(ctx context.Context) ([]coordinator.Term, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	pairs, _, err := c.o.Client.KV().List(c.o.Prefix+"/", (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
	if err != nil {
		return nil, unknown("terms", "", err)
	}
	var all []coordinator.Term
	for _, p := range pairs {
		name, isTerm := strings.CutSuffix(strings.TrimPrefix(p.Key, c.o.Prefix+"/"), "/term")
		if !isTerm || strings.Contains(name, "/") {
			continue
		}
		s, err := c.read(zone.Group(name), api.KVPairs{p})
		if err != nil {
			return nil, unknown("terms", zone.Group(name), err)
		}
		if s.term.Epoch > 0 {
			all = append(all, s.term)
		}
	}
	slices.SortFunc(all, func(x, y coordinator.Term) int { return strings.Compare(string(x.Group), string(y.Group)) })
	return all, nil
}

// Waiting says why the group has no master; "" = it has one, or nothing is known.
func (c *Coordinator) Waiting(g zone.Group) string {
	o := c.observer(g)
	if o == nil {
		return ""
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state.term.Master != "" {
		return ""
	}
	return o.waiting
}

// report logs a decision that is in force and was made here.
func (c *Coordinator) report(t coordinator.Term) {
	switch {
	case t.Master == "":
		c.o.Logger.Warn("broker group has no master", "group", string(t.Group), "epoch", t.Epoch, "version", t.Version)
	case t.Lost != nil && t.Lost.Epoch == t.Epoch:
		c.o.Logger.Error("master appointed by force; records may be lost", "group", string(t.Group), "epoch", t.Epoch, "master", string(t.Master),
			"from", uint64(t.Lost.From), "known", uint64(t.Lost.Known), "by", t.Lost.By, "reason", t.Lost.Reason)
	default:
		c.o.Logger.Info("master of a broker group", "group", string(t.Group), "epoch", t.Epoch, "master", string(t.Master), "in_sync", t.InSync)
	}
}
