package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// MemberOptions tells a Member what to be. Coordinator, Group, Node and Standing are
// required.
type MemberOptions struct {
	Coordinator Coordinator
	Group       zone.Group
	Node        zone.Node
	Timing      Timing // that of the coordinator
	// Standing says where this member's log stands. Node, Leads and Seen are filled by
	// the Member. It is called by one goroutine at a time and must not block for long.
	Standing func() Standing
	// Now is a monotonic clock; nil = time.Now.
	Now    func() time.Time
	Logger *slog.Logger // nil discards
}

// Member is a node's place in its broker group: it tells the coordinator where the
// node stands, follows the term, and keeps the lease. Run has two goroutines. Its
// methods are safe for concurrent use.
type Member struct {
	o     MemberOptions
	floor uint64 // epoch of the log's last lineage when the member was made

	kick  chan struct{} // capacity 1: renew at once
	lease atomic.Pointer[heldLease]

	mu      sync.Mutex
	term    Term          // newest seen; guarded by mu
	changed chan struct{} // closed and replaced when term changes; guarded by mu
	down    uint64        // epochs up to this one are not led any more; guarded by mu
	err     error         // why the last renewal failed; nil = it did not; guarded by mu
	every   time.Duration // how often to renew; guarded by mu
	heard   time.Time     // when the coordinator answered last; guarded by mu
}

type heldLease struct {
	epoch uint64
	until time.Time
}

// NewMember returns a member that has not told anything yet.
func NewMember(o MemberOptions) *Member {
	o.Timing = o.Timing.WithDefaults()
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Member{o: o, every: o.Timing.Renew, kick: make(chan struct{}, 1), changed: make(chan struct{})}
	m.floor = o.Standing().Epoch
	m.term.Group = o.Group
	return m
}

// Holds says whether this member may answer for the epoch now. It allocates nothing
// and takes no lock.
func (m *Member) Holds(epoch uint64) bool {
	l := m.lease.Load()
	return l != nil && l.epoch == epoch && m.o.Now().Before(l.until)
}

// Until returns when the lease that was granted last ends, by this member's clock, and
// of which epoch it is; zero when there was none.
func (m *Member) Until() (epoch uint64, until time.Time) {
	if l := m.lease.Load(); l != nil {
		return l.epoch, l.until
	}
	return 0, time.Time{}
}

// Term returns the newest term seen and a channel that is closed when there is a
// newer one. Its Version is 0 before the first answer and while the group has none.
func (m *Member) Term() (Term, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.term, m.changed
}

// Observe takes a term that another call to the coordinator returned.
func (m *Member) Observe(t Term) {
	m.mu.Lock()
	newer := t.Newer(m.term)
	if newer {
		if m.term.Version == 0 && t.Master == m.o.Node && t.Epoch > 1 {
			// Another process of this node was elected, for the log that it had then. What
			// became of the log since, nobody knows: this one waits to be elected itself.
			m.down = max(m.down, t.Epoch)
		}
		m.term = t
		close(m.changed)
		m.changed = make(chan struct{})
	}
	m.mu.Unlock()
	// A vacant term waits for standings that know of it; a new master claims its epoch.
	if newer && (t.Master == "" || t.Master == m.o.Node) {
		m.Kick()
	}
}

// Kick makes the member tell where it stands soon, for instance because that changed
// in a way that matters: its log failed.
func (m *Member) Kick() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// StepDown gives up the lease of the epoch, and of every earlier one, for good, and
// tells the coordinator so. The caller answers nothing for the epoch any more.
func (m *Member) StepDown(epoch uint64) {
	m.mu.Lock()
	m.down = max(m.down, epoch)
	m.mu.Unlock()
	if l := m.lease.Load(); l != nil && l.epoch <= epoch {
		m.lease.CompareAndSwap(l, nil) // a newer one stays
	}
	m.Kick()
}

// Health says when the coordinator answered last, and why not since.
func (m *Member) Health() (heard time.Time, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.heard, m.err
}

// Run tells the coordinator where the member stands and follows the term until ctx
// ends; it returns nil. When it returns, nobody renews the lease any more.
func (m *Member) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { m.watch(ctx) })
	defer wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-m.kick:
		}
		m.renew(ctx)
		timer.Reset(m.beat())
	}
}

// renew tells where the member stands and takes the lease if there is one.
func (m *Member) renew(ctx context.Context) {
	// Half a lease: one request that is lost leaves time for another.
	ctx, cancel := context.WithTimeout(ctx, m.o.Timing.Lease/2)
	defer cancel()
	m.mu.Lock()
	seen := m.term
	leads := uint64(0)
	if seen.Master == m.o.Node && seen.Epoch > max(m.floor, m.down) {
		leads = seen.Epoch
	}
	m.mu.Unlock()
	s := m.o.Standing() // after the term was looked at: Seen says so
	if seen.Incarnation != 0 && s.Incarnation != seen.Incarnation {
		leads = 0 // the store that was elected is gone; this one only has its name
	}
	s.Node, s.Seen, s.SeenEpoch, s.Leads = m.o.Node, seen.Version, seen.Epoch, leads
	asked := m.o.Now()
	t, l, err := m.o.Coordinator.Renew(ctx, m.o.Group, s)
	m.mu.Lock()
	failed := err != nil && m.err == nil
	recovered := err == nil && m.err != nil
	m.err = err
	if err == nil {
		m.heard = m.o.Now()
	}
	if err == nil && l.Duration > 0 && l.Epoch == leads && leads > m.down {
		m.lease.Store(&heldLease{epoch: l.Epoch, until: asked.Add(l.Duration)})
		m.every = m.o.Timing.renewEach(l.Duration)
	}
	m.mu.Unlock()
	switch {
	case failed && !errors.Is(err, context.Canceled):
		m.o.Logger.Warn("coordinator does not answer", "group", string(m.o.Group), "err", err)
	case recovered:
		m.o.Logger.Info("coordinator answers again", "group", string(m.o.Group))
	}
	if err == nil {
		m.Observe(t)
	}
}

// beat is how often to tell where the member stands: as often as leases that were
// granted by other times ask for.
func (m *Member) beat() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.every
}

// watch follows the term.
func (m *Member) watch(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		was, _ := m.Term()
		t, err := m.o.Coordinator.Watch(ctx, m.o.Group, was.Version)
		if err != nil {
			pause.Reset(m.o.Timing.Renew / 2) // Renew tells of it
			continue
		}
		m.Observe(t)
		if t.Newer(was) || t.Version == was.Version {
			pause.Reset(0)
		} else { // of somebody who is behind, or has lost what he knew
			pause.Reset(m.o.Timing.Renew)
		}
	}
}
