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
	"go.opentelemetry.io/otel/metric"

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
	// Memory keeps the newest term of each group over restarts; nil: nothing does, and
	// only processes that run know what Consul has forgotten.
	Memory Memory
	// Lineage returns a random number that is not 0.
	Lineage func() record.LineageID
	// Now is a monotonic clock, Wall the wall clock for reports; nil = time.Now.
	Now, Wall func() time.Time
	Logger    *slog.Logger // nil discards
	Meter     metric.Meter // nil: nothing is measured
}

// standingEvery is how often a member tells where it stands while nobody needs it.
func (o *Options) standingEvery() time.Duration { return 4 * o.Timing.Renew }

// Coordinator is the coordinator as one member has it.
type Coordinator struct {
	o Options

	turn   atomic.Uint64 // of what was written last; begins anywhere
	saving chan struct{} // capacity 1: held while a term is saved

	mu        sync.Mutex
	observers map[zone.Group]*observer        // guarded by mu, as are all below
	told      map[zone.Group]told             // what this member said last
	granted   map[zone.Group]grant            // the last lease of this node
	terms     map[zone.Group]coordinator.Term // the newest that was learned, and is in the memory
	forgets   bool                            // the memory could not be written
}

// told is what this member said last.
type told struct {
	at       time.Time
	standing coordinator.Standing
}

// grant is a lease that this node has.
type grant struct {
	epoch uint64
	until time.Time // counted from before it was asked for
	noted time.Time // when the term was last told what is committed, or the epoch led first
}

var _ coordinator.Coordinator = (*Coordinator)(nil)

// New returns a coordinator, which knows what is in its memory; Run makes it take part
// in elections.
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
	c := &Coordinator{o: o, saving: make(chan struct{}, 1), observers: map[zone.Group]*observer{}, told: map[zone.Group]told{},
		granted: map[zone.Group]grant{}, terms: map[zone.Group]coordinator.Term{}}
	c.turn.Store(uint64(o.Lineage())) // random: not where the process before began
	for _, g := range o.Groups() {
		if err := c.recall(g); err != nil {
			return nil, err
		}
	}
	if err := c.measure(); err != nil {
		return nil, err
	}
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
		asked := c.o.Now()
		s, err := c.list(ctx, group)
		if err != nil {
			return coordinator.Term{}, none, unknown("renew", group, err)
		}
		next, l, err := c.renew(ctx, s, st, asked)
		if err == nil {
			err = c.learn(next)
		}
		switch {
		case err == nil:
			return next, l, nil
		case !errors.Is(err, errChanged) || ctx.Err() != nil:
			return coordinator.Term{}, none, unknown("renew", group, err)
		}
	}
}

// renew writes what the standing makes due, if the state is as it was read after asked.
func (c *Coordinator) renew(ctx context.Context, s state, st coordinator.Standing, asked time.Time) (coordinator.Term, coordinator.Lease, error) {
	none := coordinator.Lease{}
	t, group := s.term, s.term.Group
	mine := c.known(group)
	if err := c.tell(ctx, group, st, t.Master == "" || mine.Newer(t)); err != nil {
		return t, none, err
	}
	if mine.Newer(t) {
		return c.putBack(ctx, s, mine, st, asked)
	}
	leads := st.Leads == t.Epoch
	switch {
	case st.Node != t.Master:
		return t, none, nil
	case t.Incarnation != 0 && st.Incarnation != t.Incarnation:
		// The master's disk was emptied or exchanged: what it led with is gone. The lease
		// runs out, in case that this is a second node of the same name.
		return t, none, nil
	case leads && t.Alone != "":
		// Another node has gone on alone since, or this one has in another epoch: an
		// election finds out what it wrote, as long as that node is there to be asked.
		return t, none, nil
	case leads && t.Incarnation == 0 && st.Incarnation != 0:
		if err := c.putTerm(ctx, s, t.Named(st.Incarnation)); err != nil {
			return t, none, err
		}
		return t, none, errChanged // and the lease with the term as it is now
	case leads && c.marks(s, st):
		if err := c.putTerm(ctx, s, t.Marked(st.Majority, c.o.Timing.Lease, max(s.known(), st.Committed))); err != nil {
			return t, none, err
		}
		c.note(group, t.Epoch)
		return t, none, errChanged // likewise
	case leads:
		op, err := c.leaseOf(t, st)
		if err == nil {
			err = c.commit(ctx, asRead(c.key(group, "term"), s.termIndex), op)
		}
		if err != nil {
			return t, none, err
		}
		return t, c.grant(t, asked), nil
	case st.Leads == 0 && st.Epoch >= t.Epoch:
		// It led the epoch and does not any more: it was started again or stepped down.
		next := t.Vacated().Noted(max(s.known(), st.Committed))
		if err := c.putTermWith(ctx, s, next, c.returned); err != nil {
			return t, none, err
		}
		c.report(next)
		return next, none, nil
	}
	return t, none, nil
}

// leaseOf is the operation that renews the lease of the term's master.
func (c *Coordinator) leaseOf(t coordinator.Term, st coordinator.Standing) (*api.KVTxnOp, error) {
	return set(c.key(t.Group, "lease"), lease{Turn: c.turn.Add(1), Epoch: t.Epoch, Node: st.Node, Committed: st.Committed, Lease: c.o.Timing.Lease})
}

// marks says whether the term of this node, its master, has to be marked before the next
// lease: a lease must not be longer than the term says.
func (c *Coordinator) marks(s state, st coordinator.Standing) bool {
	t := s.term
	c.mu.Lock()
	g := c.granted[t.Group]
	c.mu.Unlock()
	return st.Majority && !t.Majority || t.Leased < c.o.Timing.Lease ||
		g.epoch == t.Epoch && max(s.known(), st.Committed) > t.Committed && c.o.Now().Sub(g.noted) >= coordinator.NoteEvery
}

// note remembers that the term was just told what is committed.
func (c *Coordinator) note(group zone.Group, epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.granted[group]; g.epoch == epoch {
		g.noted = c.o.Now()
		c.granted[group] = g
	}
}

// grant returns the lease that was written for this node, and remembers it.
func (c *Coordinator) grant(t coordinator.Term, asked time.Time) coordinator.Lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.granted[t.Group]
	if g.epoch != t.Epoch {
		g = grant{epoch: t.Epoch, noted: c.o.Now()}
	}
	g.until = asked.Add(c.o.Timing.Lease)
	c.granted[t.Group] = g
	return coordinator.Lease{Epoch: t.Epoch, Duration: c.o.Timing.Lease}
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
	op, err := set(c.key(group, "standing", string(st.Node)), saying{Turn: c.turn.Add(1), Standing: st, Remembers: markOf(c.known(group))})
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
		asking, cancel := context.WithTimeout(ctx, q.WaitTime+callTime) // an agent that hangs is not waited for
		p, meta, err := c.o.Client.KV().Get(c.key(group, "term"), q.WithContext(asking))
		cancel()
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
			if err := c.learn(s.term); err != nil {
				return coordinator.Term{}, unknown("watch", group, err)
			}
			return s.term, nil
		}
		next, idle := nextIndex(q.WaitIndex, meta.LastIndex)
		if index = next; idle {
			pause(ctx, retryTime)
		}
	}
}

// change reads the term, has f make the next one, and writes it with the operations that
// with returns; again when it changed meanwhile. with may be nil.
func (c *Coordinator) change(ctx context.Context, op string, group zone.Group, f func(state) (coordinator.Term, error), with extra) (coordinator.Term, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	for {
		s, err := c.list(ctx, group)
		if err != nil {
			return coordinator.Term{}, unknown(op, group, err)
		}
		next, err := f(s)
		if err != nil {
			return coordinator.Term{}, err
		}
		if err = c.putTermWith(ctx, s, next, with); err == nil {
			err = c.learn(next)
		}
		switch {
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
	return c.change(ctx, "change set", group, func(s state) (coordinator.Term, error) {
		switch mine := c.known(group); {
		case mine.Newer(s.term):
			return s.term, fail("change set", group, coordinator.KindNoQuorum, "%s", setBack(s.term, markOf(mine), c.o.Self))
		case s.term.Master != c.o.Self:
			return s.term, fail("change set", group, coordinator.KindStaleEpoch, "the master is %q, not %s", s.term.Master, c.o.Self)
		}
		next, err := s.term.Changed(g, epoch, version, inSync, proposed)
		return next.Noted(s.known()), err
	}, nil)
}

// Resign implements coordinator.Coordinator.
func (c *Coordinator) Resign(ctx context.Context, group zone.Group, epoch uint64, to zone.Node) (coordinator.Term, error) {
	g, err := c.find("resign", group)
	if err != nil {
		return coordinator.Term{}, err
	}
	next, err := c.change(ctx, "resign", group, func(s state) (coordinator.Term, error) {
		t := s.term
		o := c.observer(group)
		switch mine := c.known(group); {
		case mine.Newer(t):
			return t, fail("resign", group, coordinator.KindNoQuorum, "%s", setBack(t, markOf(mine), c.o.Self))
		case epoch != t.Epoch || t.Master != c.o.Self:
			return t, fail("resign", group, coordinator.KindStaleEpoch, "the epoch is %d, of %q", t.Epoch, t.Master)
		case to == "":
			return s.vacated(), nil
		case o == nil:
			return t, fail("resign", group, coordinator.KindNoQuorum, "this node does not follow the group yet")
		}
		if why := o.electable(g, t, to, c.o.Now()); why != "" {
			return t, fail("resign", group, coordinator.KindNoCandidate, "%s", why)
		}
		return t.Passed(to, c.o.Lineage(), c.o.Timing.Lease).Noted(s.known()), nil
	}, c.returned)
	if err == nil {
		c.report(next)
	}
	return next, err
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

// Waiting says why the group has no master, or that its term is gone, for people; "" = it
// has one, or nothing is known. gone says that Consul has lost a term that was in force.
func (c *Coordinator) Waiting(g zone.Group) (why string, gone bool) {
	o := c.observer(g)
	if o == nil {
		return "", false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	// A state that is read a moment later than it was written is no store that was set back.
	gone = !o.behind.IsZero() && c.o.Now().Sub(o.behind) > 2*c.o.Timing.Renew
	if o.state.term.Master != "" && !gone {
		return "", false
	}
	return o.waiting, gone
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
