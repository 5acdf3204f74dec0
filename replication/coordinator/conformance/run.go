package conformance

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

// Drift is by how much the clocks of the suite's members run fast or slow: within
// what coordinator.Timing's default margin allows for.
const Drift = 0.03

// fleet is the members of a run.
type fleet struct {
	w   *world
	ctx context.Context

	mu    sync.Mutex
	alive map[zone.Node]*running // guarded by mu
}

type running struct {
	p    *process
	stop func() // ends the process and waits
}

func newFleet(ctx context.Context, w *world) *fleet {
	f := &fleet{w: w, ctx: ctx, alive: map[zone.Node]*running{}}
	w.copyTo = f.copyTo
	return f
}

// copyTo brings the logs of those who live level with the master's. The caller holds
// the world's mu.
func (f *fleet) copyTo(from zone.Node, log *disk) map[zone.Node]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	lives := map[zone.Node]bool{from: true}
	for n, r := range f.alive {
		r.p.mu.Lock()
		stopped := r.p.frozen != nil
		r.p.mu.Unlock()
		if n == from || stopped {
			continue
		}
		lives[n] = true
		if d := f.w.logs[n]; d.epoch <= log.epoch {
			*d = *log
		}
	}
	return lives
}

// start begins a process of the node.
func (f *fleet) start(n zone.Node, rate float64) {
	ctx, cancel := context.WithCancel(f.ctx)
	p := &process{w: f.w, node: n, rate: rate, up: time.Now()}
	p.m = coordinator.NewMember(coordinator.MemberOptions{Coordinator: seen{f.w.subject.Client(n), p}, Group: Name, Node: n,
		Timing: f.w.subject.Timing, Standing: p.standing, Now: p.now})
	var wg sync.WaitGroup
	wg.Go(func() { _ = p.m.Run(ctx) })
	wg.Go(func() {
		tick := time.NewTicker(f.w.subject.Timing.Renew / 4)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				p.work(ctx)
			}
		}
	})
	f.mu.Lock()
	f.alive[n] = &running{p: p, stop: func() { cancel(); wg.Wait(); f.w.gaveUp(n) }}
	f.mu.Unlock()
}

// kill ends the node's process, if there is one.
func (f *fleet) kill(n zone.Node) {
	f.mu.Lock()
	r := f.alive[n]
	delete(f.alive, n)
	f.mu.Unlock()
	if r != nil {
		r.stop()
	}
}

func (f *fleet) get(n zone.Node) *process {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.alive[n]; r != nil {
		return r.p
	}
	return nil
}

// pause waits; false: the run is over.
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

// Faults drives a group of three members through rounds of faults that the seed draws
// and fails the test when a promise is broken. In the end, with everything up, the
// group must have a master that acknowledges.
func Faults(t *testing.T, s Subject, seed uint64, rounds int) {
	t.Helper()
	s.Timing = s.Timing.WithDefaults()
	r := rand.New(rand.NewPCG(seed, 0xc0))
	ctx, cancel := context.WithCancel(context.Background())
	w := newWorld(s)
	f := newFleet(ctx, w)
	for _, n := range Nodes {
		f.start(n, 1+Drift*(2*r.Float64()-1))
	}
	for range rounds {
		f.round(r)
	}
	for _, n := range Nodes {
		if f.get(n) == nil {
			f.start(n, 1)
		}
	}
	w.mu.Lock()
	was, epochs, grants := w.acked, w.terms.Epoch, w.grants
	w.mu.Unlock()
	ok := false
	for deadline := time.Now().Add(patience); !ok && time.Now().Before(deadline); {
		pause(ctx, s.Timing.Renew)
		w.mu.Lock()
		ok = w.acked > was+5 && len(w.terms.InSync) == len(Nodes)
		w.mu.Unlock()
	}
	for _, n := range Nodes {
		f.kill(n)
	}
	cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !ok {
		t.Errorf("seed %d: with everything up, the group does not get a master and its whole set: %+v, %d acknowledged", seed, w.terms, w.acked)
	}
	for _, x := range w.faults {
		t.Errorf("seed %d: %s", seed, x)
	}
	t.Logf("seed %d: %d epochs, %d leases granted, %d records acknowledged before the end", seed, epochs, grants, was)
}

// round lets one thing happen to the members or to the coordinator, waits, and undoes
// it.
func (f *fleet) round(r *rand.Rand) {
	span := func() time.Duration {
		return time.Duration(float64(f.w.subject.Timing.Lease) * (0.1 + 2.5*r.Float64()))
	}
	n := Nodes[r.IntN(len(Nodes))]
	if r.IntN(2) == 0 { // rather the master than anybody
		f.w.mu.Lock()
		if m := f.w.terms.Master; m != "" {
			n = m
		}
		f.w.mu.Unlock()
	}
	undo := func() {}
	switch k := r.IntN(5); {
	case k == 0 && f.get(n) != nil:
		f.kill(n)
		rate := 1 + Drift*(2*r.Float64()-1)
		undo = func() { f.start(n, rate) }
	case k == 1 && f.get(n) != nil:
		undo = f.get(n).pause()
	case k == 2 && f.get(n) != nil:
		p := f.get(n)
		t, _ := p.m.Term()
		p.down.Store(t.Epoch)
		p.m.StepDown(t.Epoch)
		f.w.gaveUp(n)
	case f.w.subject.Disturb != nil:
		undo = f.w.subject.Disturb(r)
	}
	pause(f.ctx, span())
	undo()
	pause(f.ctx, span())
}

// patience bounds what is waited for; a busy machine may need some of it.
const patience = 3 * time.Minute

// Suite runs what is not about faults: every method's answers, refusals and orders.
// open starts a subject anew, with these times. Its lease is a long one where no lease
// is to run out, which it would do on a machine that stands still for a moment.
func Suite(t *testing.T, times coordinator.Timing, open func(t *testing.T, times coordinator.Timing) Subject) {
	t.Helper()
	times = times.WithDefaults()
	calm := times
	calm.Lease, calm.Margin = time.Minute, 2*time.Second
	t.Run("FirstMasterWaitsForAllNodes", func(t *testing.T) { firstMaster(t, open(t, calm)) })
	t.Run("SetGrowsInTwoSteps", func(t *testing.T) { changeSet(t, open(t, calm)) })
	t.Run("PlannedSwitch", func(t *testing.T) { resign(t, open(t, calm)) })
	t.Run("NobodyOutsideTheSetWithoutAnOrder", func(t *testing.T) { noCandidate(t, open(t, times)) })
}

// by is a member played by hand: it renews with what it is given.
type by struct {
	t    *testing.T
	s    Subject
	node zone.Node
	st   coordinator.Standing
	term coordinator.Term
}

func play(t *testing.T, s Subject) map[zone.Node]*by {
	all := map[zone.Node]*by{}
	for _, n := range Nodes {
		all[n] = &by{t: t, s: s, node: n, st: coordinator.Standing{Node: n, Fit: true}}
	}
	return all
}

// renew renews until cond holds for the term and the lease, together with the others
// given.
func (b *by) renew(cond func(coordinator.Term, coordinator.Lease) bool, others ...*by) coordinator.Term {
	b.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		met := false
		for _, o := range append([]*by{b}, others...) {
			l, ok := o.once()
			met = met || ok && o == b && cond(o.term, l)
		}
		if met {
			return b.term
		}
		if !time.Now().Before(deadline) {
			b.t.Fatalf("%s: the term does not become what it should: %+v", b.node, b.term)
		}
		pause(b.t.Context(), b.s.Timing.Renew/4)
	}
}

// once renews once.
func (b *by) once() (coordinator.Lease, bool) {
	b.st.Seen, b.st.SeenEpoch = b.term.Version, b.term.Epoch
	b.st.Leads = 0
	if b.term.Master == b.node && b.st.Epoch <= b.term.Epoch {
		b.st.Leads = b.term.Epoch
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	t, l, err := b.s.Client(b.node).Renew(ctx, Name, b.st)
	if err == nil {
		b.term = t
	}
	return l, err == nil
}

func leads(n zone.Node) func(coordinator.Term, coordinator.Lease) bool {
	return func(t coordinator.Term, l coordinator.Lease) bool {
		return t.Master == n && l.Duration > 0 && l.Epoch == t.Epoch
	}
}

// grown makes a term in which the set given is in sync, and returns it. Its master is n1,
// unless a lease has run out meanwhile.
func grown(t *testing.T, s Subject, set ...zone.Node) (map[zone.Node]*by, coordinator.Term) {
	t.Helper()
	all := play(t, s)
	for _, b := range all {
		b.st.Incarnation, b.st.Epoch, b.st.End = 7, 3, 100
	}
	all["n1"].st.End = 101
	var term coordinator.Term
	for deadline := time.Now().Add(patience); !slices.Equal(term.InSync, set) || term.Proposed != nil; {
		if !time.Now().Before(deadline) {
			t.Fatalf("the set does not become %v: %+v", set, term)
		}
		for _, n := range Nodes {
			l, ok := all[n].once()
			if !ok || !leads(n)(all[n].term, l) {
				continue
			}
			term = all[n].term
			next := [2][]zone.Node{term.InSync, set}
			if term.Proposed != nil {
				next = [2][]zone.Node{set, nil}
			}
			got, err := s.Client(n).ChangeSet(t.Context(), Name, term.Epoch, term.Version, next[0], next[1])
			switch {
			case err == nil:
				term, all[n].term = got, got
			// The term of a lone node in sync is told what is committed, by a version of its
			// own; and a lease may have run out.
			case !errors.Is(err, coordinator.KindStaleVersion) && !errors.Is(err, coordinator.KindStaleEpoch):
				t.Fatal(err)
			}
		}
		pause(t.Context(), s.Timing.Renew/4)
	}
	for _, b := range all {
		b.st.Epoch, b.st.End, b.st.Committed = term.Epoch, 200, 200
	}
	return all, term
}
