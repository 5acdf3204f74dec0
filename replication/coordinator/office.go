package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Limits of an Office.
const (
	// WatchTime is how long Watch waits for a change at most.
	WatchTime = 5 * time.Second
	// orderTime is how long an operator's fail-over is tried when ctx has no end: a
	// lease, a margin and an election many times over.
	orderTime = 15 * time.Second
	// retryTime is how long a step waits that could not be carried out.
	retryTime = 100 * time.Millisecond
)

// Book keeps the terms: the state that outlives an Office. It is safe for concurrent
// use.
type Book interface {
	// Term returns the newest term known of a group; without a Version when there is
	// none. It does not block.
	Term(group zone.Group) Term
	// Terms returns all of them, sorted by group.
	Terms() []Term
	// Put stores the term durably if the one in force has the version before it. It
	// fails with an *Error of KindStaleVersion, or of KindNoQuorum when it is not known
	// whether it did.
	Put(ctx context.Context, t Term) error
	// Confirm returns nil only if no other process had taken over when it was called.
	Confirm(ctx context.Context) error
	// Changed returns a channel that is closed when a term changes after the call.
	Changed() <-chan struct{}
}

// OfficeOptions tells an Office what to be. Book, Group and Groups are required.
type OfficeOptions struct {
	Book   Book
	Timing Timing
	// Group returns what the topology in force says of a group with more than one
	// node; Groups names all of them.
	Group  func(zone.Group) (Group, bool)
	Groups func() []zone.Group
	// Alone returns the node of a group for which the topology in force has one node;
	// false for any other. nil: there is no such group. See Term.Alone.
	Alone func(zone.Group) (zone.Node, bool)
	// Lineage returns a random number that is not 0. Required.
	Lineage func() record.LineageID
	// Now is a monotonic clock, Wall the wall clock for reports; nil = time.Now.
	Now, Wall func() time.Time
	Logger    *slog.Logger // nil discards
}

// Office is a Coordinator as long as its process decides: it joins a Book and a Desk.
// A process makes one when it takes over, after everything that others had decided is
// in its book, and ends it when it does not decide any more.
type Office struct {
	o    OfficeOptions
	kick chan struct{} // capacity 1: something was heard

	mu   sync.Mutex
	desk *Desk // guarded by mu
}

var _ Coordinator = (*Office)(nil)

// NewOffice returns an office that takes over now.
func NewOffice(o OfficeOptions) *Office {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Wall == nil {
		o.Wall = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Office{o: o, kick: make(chan struct{}, 1), desk: NewDesk(o.Timing, o.Now())}
}

// Run carries out what time and members make due, until ctx ends; it returns nil.
func (o *Office) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := o.o.Book.Changed()
		timer.Reset(max(o.step(ctx), 0))
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-o.kick:
		case <-changed:
		}
	}
}

// step does what is due and returns when to look again.
func (o *Office) step(ctx context.Context) (next time.Duration) {
	now := o.o.Now()
	next = o.desk.Timing().Renew
	o.mu.Lock()
	o.desk.Forget(func(g zone.Group) bool { _, ok := o.o.Group(g); return ok })
	var due []Term
	var was []place // of the terms that are due
	for _, name := range o.o.Groups() {
		g, ok := o.o.Group(name)
		if !ok {
			continue
		}
		t := o.term(name)
		s := o.desk.Judge(now, g, t)
		if !s.Wake.IsZero() {
			next = min(next, s.Wake.Sub(now))
		}
		if n, ok := o.carryOut(now, t, s); ok {
			due, was = append(due, n), append(was, placeOf(t))
		}
	}
	for _, t := range o.leftAlone() {
		due, was = append(due, t), append(was, placeOf(t))
	}
	o.mu.Unlock()
	// Together, not one after another: when a room goes dark, all its groups are due.
	errs := make([]error, len(due))
	var wg sync.WaitGroup
	for i, t := range due {
		wg.Go(func() { errs[i] = o.o.Book.Put(ctx, t) })
	}
	wg.Wait()
	for i, t := range due {
		switch {
		case errs[i] == nil && was[i] != placeOf(t):
			o.report(t)
		case errs[i] == nil: // a note that changes nobody's place
		case errors.Is(errs[i], KindStaleVersion): // somebody else's change is seen next time
		case ctx.Err() == nil:
			o.o.Logger.Warn("decision about a broker group could not be stored", "group", string(t.Group), "err", errs[i])
			next = min(next, retryTime)
		}
	}
	if len(due) > 0 {
		return min(next, retryTime)
	}
	return next
}

// place is what people want to hear of when it changes.
type place struct {
	master zone.Node
	epoch  uint64
}

func placeOf(t Term) place { return place{master: t.Master, epoch: t.Epoch} }

// leftAlone returns the terms of groups that the topology has one node for, which are
// to say so. The caller holds mu.
func (o *Office) leftAlone() []Term {
	if o.o.Alone == nil {
		return nil
	}
	var due []Term
	for _, t := range o.o.Book.Terms() {
		if n, ok := o.o.Alone(t.Group); ok && t.Epoch > 0 && t.Alone != n {
			due = append(due, t.LeftAlone(n))
		}
	}
	return due
}

// carryOut returns the term that a step leads to.
func (o *Office) carryOut(now time.Time, t Term, s Step) (Term, bool) {
	switch {
	case s.Vacate:
		return t.Vacated().Noted(o.desk.Known(t)), true
	case s.Elect != nil:
		return t.Elected(*s.Elect, o.o.Lineage(), o.desk.Timing().Lease, o.o.Wall()), true
	case s.Mark:
		return o.desk.Mark(now, t), true
	case s.Named != 0:
		return t.Named(s.Named), true
	}
	return t, false
}

// report logs a decision that is in force.
func (o *Office) report(t Term) {
	switch {
	case t.Master == "":
		o.o.Logger.Warn("broker group has no master", "group", string(t.Group), "epoch", t.Epoch, "version", t.Version)
	case t.Lost != nil && t.Lost.Epoch == t.Epoch:
		o.o.Logger.Error("master appointed by force; records may be lost", "group", string(t.Group), "epoch", t.Epoch, "master", string(t.Master),
			"from", uint64(t.Lost.From), "known", uint64(t.Lost.Known), "by", t.Lost.By, "reason", t.Lost.Reason)
	default:
		o.o.Logger.Info("master of a broker group", "group", string(t.Group), "epoch", t.Epoch, "master", string(t.Master), "in_sync", t.InSync)
	}
}

// term returns the group's term, which has its name even when nothing is known.
func (o *Office) term(group zone.Group) Term {
	t := o.o.Book.Term(group)
	t.Group = group
	return t
}

func (o *Office) wake() {
	select {
	case o.kick <- struct{}{}:
	default:
	}
}

// find returns what the topology says of a group.
func (o *Office) find(op string, group zone.Group) (Group, error) {
	g, ok := o.o.Group(group)
	if !ok {
		return g, &Error{Op: op, Group: group, Kind: KindNotFound, Text: "the topology has no broker group of several nodes by this name here"}
	}
	return g, nil
}

// Renew implements Coordinator.
func (o *Office) Renew(ctx context.Context, group zone.Group, s Standing) (Term, Lease, error) {
	g, err := o.find("renew", group)
	if err != nil {
		return Term{}, Lease{}, err
	}
	if !g.has(s.Node) {
		return Term{}, Lease{}, &Error{Op: "renew", Group: group, Kind: KindNotFound, Text: fmt.Sprintf("%s is not one of its nodes", s.Node)}
	}
	o.mu.Lock()
	t := o.term(group)
	l := o.desk.Renew(o.o.Now(), g, t, s)
	o.mu.Unlock()
	if t.Master == "" || l == (Lease{}) && s.Node == t.Master || t.Incarnation == 0 || s.Node == t.Master && s.Majority && !t.Majority {
		o.wake()
	}
	// For the term as well: members must not act on what another one has decided over.
	if err := o.o.Book.Confirm(ctx); err != nil {
		return Term{}, Lease{}, o.noQuorum("renew", group, err)
	}
	return t, l, nil
}

// noQuorum makes an error of a Book one of the interface's.
func (o *Office) noQuorum(op string, group zone.Group, err error) error {
	var e *Error
	if errors.As(err, &e) {
		return &Error{Op: op, Group: group, Kind: e.Kind, Text: e.Text, Err: e.Err}
	}
	return &Error{Op: op, Group: group, Kind: KindNoQuorum, Err: err}
}

// Watch implements Coordinator.
func (o *Office) Watch(ctx context.Context, group zone.Group, after uint64) (Term, error) {
	if _, err := o.find("watch", group); err != nil {
		return Term{}, err
	}
	end := time.NewTimer(WatchTime)
	defer end.Stop()
	for {
		changed := o.o.Book.Changed()
		t := o.term(group)
		if t.Version != after {
			return t, nil
		}
		select {
		case <-changed:
		case <-end.C:
			if err := o.o.Book.Confirm(ctx); err != nil {
				return Term{}, o.noQuorum("watch", group, err)
			}
			return t, nil
		case <-ctx.Done():
			return Term{}, &Error{Op: "watch", Group: group, Kind: KindNoQuorum, Err: ctx.Err()}
		}
	}
}

// ChangeSet implements Coordinator.
func (o *Office) ChangeSet(ctx context.Context, group zone.Group, epoch, version uint64, inSync, proposed []zone.Node) (Term, error) {
	g, err := o.find("change set", group)
	if err != nil {
		return Term{}, err
	}
	o.mu.Lock()
	t := o.term(group)
	known := o.desk.Known(t)
	o.mu.Unlock()
	next, err := t.Changed(g, epoch, version, inSync, proposed)
	if err != nil {
		return Term{}, err
	}
	next = next.Noted(known)
	if err := o.o.Book.Put(ctx, next); err != nil {
		return Term{}, o.noQuorum("change set", group, err)
	}
	return next, nil
}

// Resign implements Coordinator.
func (o *Office) Resign(ctx context.Context, group zone.Group, epoch uint64, to zone.Node) (Term, error) {
	fail := func(k Kind, text string) (Term, error) {
		return Term{}, &Error{Op: "resign", Group: group, Kind: k, Text: text}
	}
	g, err := o.find("resign", group)
	if err != nil {
		return Term{}, err
	}
	for {
		o.mu.Lock()
		t := o.term(group)
		if epoch != t.Epoch || t.Master == "" {
			o.mu.Unlock()
			return fail(KindStaleEpoch, fmt.Sprintf("the epoch is %d, of %q", t.Epoch, t.Master))
		}
		why, ok := o.desk.Resign(o.o.Now(), g, t, to)
		known, lease := o.desk.Known(t), o.desk.Timing().Lease
		o.mu.Unlock()
		if !ok {
			return fail(KindNoCandidate, why)
		}
		next := t.Vacated()
		if to != "" {
			next = t.Passed(to, o.o.Lineage(), lease)
		}
		next = next.Noted(known)
		switch err := o.o.Book.Put(ctx, next); {
		case err == nil:
			o.report(next)
			o.wake()
			return next, nil
		case errors.Is(err, KindStaleVersion) && ctx.Err() == nil: // its in-sync set changed meanwhile
		default:
			return Term{}, o.noQuorum("resign", group, err)
		}
	}
}

// Failover implements Coordinator.
func (o *Office) Failover(ctx context.Context, group zone.Group, order Order) (Term, error) {
	to := order.To
	g, err := o.find("failover", group)
	if err != nil {
		return Term{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, orderTime)
	defer cancel()
	o.mu.Lock()
	was := o.term(group)
	err = o.desk.Order(o.o.Now(), g, was, order)
	o.mu.Unlock()
	if err != nil {
		return Term{}, err
	}
	o.o.Logger.Warn("fail-over ordered", "group", string(group), "to", string(to), "allow_loss", order.AllowLoss, "by", order.By, "reason", order.Reason)
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.desk.Recall(group)
	}()
	o.wake()
	for {
		changed := o.o.Book.Changed()
		if t := o.term(group); t.Epoch > was.Epoch {
			return order.Outcome(t)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Term{}, &Error{Op: "failover", Group: group, Kind: KindNoQuorum, Text: o.Opinion(group).Waiting, Err: ctx.Err()}
		}
	}
}

// Terms implements Coordinator.
func (o *Office) Terms(ctx context.Context) ([]Term, error) {
	if err := o.o.Book.Confirm(ctx); err != nil {
		return nil, o.noQuorum("terms", "", err)
	}
	return o.o.Book.Terms(), nil
}

// Opinion returns what is known of a group besides its term.
func (o *Office) Opinion(group zone.Group) Opinion {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.desk.Opinion(o.o.Now(), o.term(group))
}
