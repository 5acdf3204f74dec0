package ship

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/internal/loglimit"
	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// tick is how often a leader looks at the clock when nothing else happens: how late
// it may notice that a replica is silent, or that its lease is over.
const tick = 25 * time.Millisecond

// Sets is the part of a coordinator that a leader needs; see
// [coordinator.Coordinator].
type Sets interface {
	Watch(ctx context.Context, group zone.Group, after uint64) (coordinator.Term, error)
	ChangeSet(ctx context.Context, group zone.Group, epoch, version uint64, inSync, proposed []zone.Node) (coordinator.Term, error)
}

var _ Sets = coordinator.Coordinator(nil)

// LeaderOptions tells a Leader what to be. All fields but Limits, Logger and Meter
// are required.
type LeaderOptions struct {
	Self  zone.Node
	Group zone.Group
	// Term is the term that made Self the master. The log has begun its lineage.
	Term coordinator.Term
	// Log is the group's log here, ready to write.
	Log       LeaderLog
	Snapshots Snapshots
	Sets      Sets
	// Leading reports whether this node's lease for Term.Epoch holds now. It does not
	// block and is called often.
	Leading func() bool
	// Members are the nodes that the topology in force names as members of the group,
	// Self included. It does not block.
	Members func() []zone.Node

	Limits Limits
	Logger *slog.Logger // nil discards
	Meter  metric.Meter // nil measures nothing
}

// Validate reports every fault, joined.
func (o *LeaderOptions) Validate() error {
	var errs []error
	if o.Self == "" || o.Group == "" || o.Log == nil || o.Snapshots == nil || o.Sets == nil || o.Leading == nil || o.Members == nil {
		errs = append(errs, errors.New("ship: a leader's option is missing"))
	}
	if o.Term.Epoch == 0 || o.Term.Master != o.Self {
		errs = append(errs, errors.New("ship: the term names another master"))
	}
	return errors.Join(append(errs, o.Limits.Validate())...)
}

// brokenLines is how many lines a minute tell of replicas that did not get a snapshot: a
// replica with a broken disk asks again every few seconds.
const brokenLines = 3

// Leader ships a master's log to its replicas and says what is committed, for one
// epoch. Make one, call Run, hand Serve each session that begins with Follow. It is
// safe for concurrent use.
type Leader struct {
	o       LeaderOptions
	pace    *pace
	metrics *leaderMetrics
	broken  loglimit.Limit // lines about snapshots that replicas did not get
	asks    chan *ask      // from act to the asker; capacity 1: one is under way at most
	watched chan struct{}  // capacity 1: a term may have to be looked for
	done    chan struct{}  // closed when Run returns

	mu      sync.Mutex
	keeper  *keeper                 // guarded by mu
	senders map[zone.Node]*sender   // the newest session of each; guarded by mu
	seeded  map[zone.Node]*seedHold // the newest of each that was given a snapshot; they, too, are guarded by mu
	over    bool                    // guarded by mu
	version uint64                  // of the newest term; guarded by mu

	sessions uint64 // begun so far; guarded by mu
}

// NewLeader returns a Leader that does nothing until Run.
func NewLeader(o LeaderOptions) (*Leader, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.Limits = o.Limits.WithDefaults()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = o.Logger.With("group", string(o.Group), "epoch", o.Term.Epoch)
	l := &Leader{
		o: o, broken: loglimit.Limit{Lines: brokenLines, Window: time.Minute}, pace: newPace(o.Limits.CatchUp), asks: make(chan *ask, 1), watched: make(chan struct{}, 1), done: make(chan struct{}),
		senders: make(map[zone.Node]*sender), seeded: make(map[zone.Node]*seedHold), version: o.Term.Version,
	}
	l.keeper = newKeeper(time.Now(), o.Self, o.Term, o.Limits, o.Members(), o.Log)
	var err error
	l.metrics, err = newLeaderMetrics(o.Meter, l)
	return l, err
}

// Run leads until ctx ends, which it returns the error of, or until this node must
// not lead any more: a *StepDownError. Sessions end with it. It is called once.
func (l *Leader) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { l.ask(ctx) })
	wg.Go(func() { l.watch(ctx) })
	err := l.lead(ctx)
	cancel()
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	close(l.done)
	wg.Wait()
	l.o.Log.Retain(nothing)
	l.metrics.close()
	return err
}

// lead is Run's loop: the log's moves and the clock.
func (l *Leader) lead(ctx context.Context) error {
	moved := make(chan struct{}, 1)
	defer l.o.Log.Notify(moved)()
	l.moved() // it may have moved before it was watched
	clock := time.NewTicker(tick)
	defer clock.Stop()
	for {
		if reason, err := l.unfit(); reason != 0 {
			return &StepDownError{Group: l.o.Group, Epoch: l.o.Term.Epoch, Reason: reason, Err: err}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
			l.moved()
		case now := <-clock.C:
			l.ticked(now)
		}
	}
}

// unfit says why this node must not lead any more; 0 when it may.
func (l *Leader) unfit() (StepDownReason, error) {
	if err := l.o.Log.Err(); err != nil {
		return StepDownLog, err
	}
	l.mu.Lock()
	over := l.keeper.over
	l.mu.Unlock()
	switch {
	case over:
		return StepDownSuperseded, nil
	case !l.o.Leading():
		return StepDownLease, nil
	}
	return 0, nil
}

func (l *Leader) moved() {
	end, synced := l.o.Log.End(), l.o.Log.Synced()
	leading := l.o.Leading()
	l.mu.Lock()
	l.keeper.moved(end, synced)
	d := l.keeper.step(time.Now(), leading)
	l.mu.Unlock()
	l.act(d)
}

func (l *Leader) ticked(now time.Time) {
	named, leading := l.o.Members(), l.o.Leading()
	l.mu.Lock()
	l.keeper.name(now, named)
	d := l.keeper.step(now, leading)
	for _, s := range l.senders {
		if l.keeper.mute(now, s.node, s.id) {
			s.giveUp()
		}
	}
	need := l.needed(now)
	l.mu.Unlock()
	l.act(d)
	l.o.Log.Retain(need)
}

// acked takes a replica's word through a session.
func (l *Leader) acked(s *sender, written, synced record.Position) {
	leading, now := l.o.Leading(), time.Now()
	l.mu.Lock()
	l.keeper.acked(now, s.node, s.id, written, synced)
	d := l.keeper.step(now, leading)
	l.mu.Unlock()
	l.act(d)
}

// act does what a step decided. The commit position only ascends, so that it does
// not matter in which order two steps' decisions get here.
func (l *Leader) act(d decision) {
	if d.acked {
		l.o.Log.Acked(d.quorum)
	}
	if d.committed {
		l.o.Log.Commit(d.commit)
		l.wakeSenders()
	}
	for _, c := range d.changes {
		l.metrics.changed(c)
		if c.To < c.From && c.Fault != FaultNone {
			l.o.Logger.Warn("replica stepped back", "peer", string(c.Node), "from", c.From, "to", c.To, "fault", c.Fault)
			continue
		}
		l.o.Logger.Info("replica changed", "peer", string(c.Node), "from", c.From, "to", c.To)
	}
	if d.ask != nil {
		l.asks <- d.ask // there is room: none is under way
	}
}

func (l *Leader) wakeSenders() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.senders {
		signal(s.wake)
	}
}

// ask is a goroutine of Run: it puts requests to the coordinator, one at a time.
func (l *Leader) ask(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-l.asks:
			l.put(ctx, a)
		}
	}
}

func (l *Leader) put(ctx context.Context, a *ask) {
	actx, cancel := context.WithTimeout(ctx, l.o.Limits.Ask)
	t, err := l.o.Sets.ChangeSet(actx, l.o.Group, l.o.Term.Epoch, a.version, a.inSync, a.proposed)
	cancel()
	now, leading := time.Now(), l.o.Leading()
	l.mu.Lock()
	if err == nil {
		l.keeper.learned(now, t)
		l.version = max(l.version, t.Version)
	}
	l.keeper.answered(now, err == nil)
	if errors.Is(err, coordinator.KindStaleEpoch) {
		l.keeper.over = true
	}
	d := l.keeper.step(now, leading)
	l.mu.Unlock()
	l.act(d)
	l.metrics.asked(err)
	if err == nil {
		l.o.Logger.Info("in-sync set changed", "in_sync", t.InSync, "proposed", t.Proposed)
		return
	}
	signal(l.watched)
	if ctx.Err() == nil {
		l.o.Logger.Warn("in-sync set could not be changed", "want", a.inSync, "proposed", a.proposed, "err", err)
	}
}

// watch is a goroutine of Run: it waits for terms that this leader did not ask for.
func (l *Leader) watch(ctx context.Context) {
	for ctx.Err() == nil {
		l.mu.Lock()
		after := l.version
		l.mu.Unlock()
		t, err := l.o.Sets.Watch(ctx, l.o.Group, after)
		if err != nil || t.Epoch <= l.o.Term.Epoch && t.Version <= after {
			pause(ctx, l.o.Limits.AskAgain, l.watched)
			continue
		}
		l.Observe(t)
	}
}

// Observe tells the leader of a term that somebody else has heard of.
func (l *Leader) Observe(t coordinator.Term) {
	now, leading := time.Now(), l.o.Leading()
	l.mu.Lock()
	l.keeper.learned(now, t)
	l.version = max(l.version, t.Version)
	d := l.keeper.step(now, leading)
	l.mu.Unlock()
	l.act(d)
}

// InSync is how many copies an acknowledgement of all in sync has now, at least: what
// a topic's minimum is compared with.
func (l *Leader) InSync() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.keeper.inSync()
}

// Done is closed when Run has ended.
func (l *Leader) Done() <-chan struct{} { return l.done }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a signal already waits
	}
}

// pause waits for a time, a signal or the context.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	case <-ctx.Done():
	}
}
