package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Subject is a coordinator under test, started for the groups of Groups.
type Subject struct {
	// Client returns the coordinator as the node has it.
	Client func(n zone.Node) coordinator.Coordinator
	Timing coordinator.Timing
	// Disturb does one thing that may happen to a coordinator, drawn by r, and returns
	// how it is undone; nil: nothing ever happens to it.
	Disturb func(r *rand.Rand) (undo func())
}

// Nodes are the members of the group that the suite drives.
var Nodes = []zone.Node{"n1", "n2", "n3"}

// Name is the name of that group.
const Name zone.Group = "g"

// Group is what a subject has to know of it.
func Group(g zone.Group) (coordinator.Group, bool) {
	return coordinator.Group{Name: Name, Members: Nodes}, g == Name
}

// Groups names it.
func Groups() []zone.Group { return []zone.Group{Name} }

// world is the broker group and what is true of it.
type world struct {
	subject Subject
	began   time.Time

	mu     sync.Mutex
	faults []string             // what was broken; guarded by mu, as are all below
	acked  record.Position      // end of what was acknowledged
	writer uint64               // newest epoch that acknowledged
	logs   map[zone.Node]*disk  // survive their processes
	leases map[zone.Node]holder // the last one of each
	grants int
	terms  coordinator.Term // newest seen by anybody
	losses int              // ordered
	// copyTo brings the logs of those who live level with the master's, and says who
	// they are. The caller holds mu.
	copyTo func(from zone.Node, log *disk) map[zone.Node]bool
}

// disk is a member's log: one lineage each epoch, records are counted only.
type disk struct {
	epoch uint64
	end   record.Position
}

type holder struct {
	epoch uint64
	until time.Time // true time
}

func newWorld(s Subject) *world {
	w := &world{subject: s, began: time.Now(), logs: map[zone.Node]*disk{}, leases: map[zone.Node]holder{}}
	for _, n := range Nodes {
		w.logs[n] = &disk{}
	}
	return w
}

func (w *world) fault(format string, args ...any) {
	if len(w.faults) < 5 {
		w.faults = append(w.faults, fmt.Sprintf("after %s: ", time.Since(w.began))+fmt.Sprintf(format, args...))
	}
}

// process is one run of a member.
type process struct {
	w    *world
	node zone.Node
	rate float64 // of its clock to true time
	up   time.Time
	m    *coordinator.Member
	led  uint64 // epoch whose lineage it began

	down atomic.Uint64 // epochs up to this one were given up

	mu     sync.Mutex
	frozen chan struct{} // closed when a pause is over; nil = none; guarded by mu
}

// now is the process's clock.
func (p *process) now() time.Time {
	return p.up.Add(time.Duration(float64(time.Since(p.up)) * p.rate))
}

// gate blocks while the process is paused.
func (p *process) gate() {
	p.mu.Lock()
	f := p.frozen
	p.mu.Unlock()
	if f != nil {
		<-f
	}
}

// pause stops the process; the function returned resumes it.
func (p *process) pause() (resume func()) {
	f := make(chan struct{})
	p.mu.Lock()
	p.frozen = f
	p.mu.Unlock()
	return func() {
		p.mu.Lock()
		p.frozen = nil
		p.mu.Unlock()
		close(f)
	}
}

func (p *process) standing() coordinator.Standing {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	d := p.w.logs[p.node]
	s := coordinator.Standing{Incarnation: 7, Epoch: d.epoch, End: d.end, Fit: true}
	if d.epoch == 0 {
		s.Incarnation = 0
	}
	return s
}

// seen is the coordinator as a process has it; it watches what comes back.
type seen struct {
	coordinator.Coordinator
	p *process
}

// Renew implements coordinator.Coordinator. The pauses before and after it stand for
// the moments at which a process may be stopped.
func (s seen) Renew(ctx context.Context, g zone.Group, st coordinator.Standing) (coordinator.Term, coordinator.Lease, error) {
	s.p.gate()
	asked := time.Now()
	t, l, err := s.Coordinator.Renew(ctx, g, st)
	if err == nil && l.Duration > 0 && l.Epoch > s.p.down.Load() {
		s.p.w.granted(s.p.node, l.Epoch, asked.Add(time.Duration(float64(l.Duration)/s.p.rate)))
	}
	s.p.gate()
	if err == nil {
		s.p.w.observe(t)
	}
	return t, l, err
}

// Watch implements coordinator.Coordinator.
func (s seen) Watch(ctx context.Context, g zone.Group, after uint64) (coordinator.Term, error) {
	s.p.gate()
	t, err := s.Coordinator.Watch(ctx, g, after)
	if err == nil {
		s.p.w.observe(t)
	}
	return t, err
}

// granted notes a lease and checks that no other one is valid.
func (w *world) granted(n zone.Node, epoch uint64, until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.grants++
	now := time.Now()
	if !now.Before(until) {
		return // over already
	}
	for other, h := range w.leases {
		if (other != n || h.epoch != epoch) && now.Before(h.until) {
			w.fault("%s got a lease for epoch %d while that of %s for epoch %d is valid for another %s", n, epoch, other, h.epoch, h.until.Sub(now))
		}
	}
	w.leases[n] = holder{epoch: epoch, until: until}
}

// gaveUp notes that a process answers for no epoch any more: it is dead, or said so.
func (w *world) gaveUp(n zone.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.leases, n)
}

// observe checks a term against what was seen before.
func (w *world) observe(t coordinator.Term) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.Version <= w.terms.Version {
		if t.Version == w.terms.Version && (t.Epoch != w.terms.Epoch || t.Master != w.terms.Master) {
			w.fault("version %d is two terms: %+v and %+v", t.Version, t, w.terms)
		}
		return
	}
	if t.Epoch < w.terms.Epoch {
		w.fault("epoch %d of version %d comes after epoch %d of version %d", t.Epoch, t.Version, w.terms.Epoch, w.terms.Version)
	}
	w.terms = t
}

// work is one step of a process as member of its group.
func (p *process) work(ctx context.Context) {
	p.gate()
	t, _ := p.m.Term()
	if t.Master != p.node || !p.m.Holds(t.Epoch) {
		return
	}
	if p.led != t.Epoch {
		p.begin(t)
	}
	p.gate()
	p.write(ctx, t)
}

// begin starts the lineage of an epoch, and checks that it was not given to somebody
// who lacks what was acknowledged.
func (p *process) begin(t coordinator.Term) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	d := p.w.logs[p.node]
	if t.Epoch <= d.epoch {
		return
	}
	if d.end < p.w.acked && p.w.losses == 0 {
		p.w.fault("%s leads epoch %d with a log up to %d, but %d was acknowledged", p.node, t.Epoch, d.end, p.w.acked)
	}
	if p.w.losses > 0 {
		p.w.acked = min(p.w.acked, d.end)
	}
	p.led, d.epoch = t.Epoch, t.Epoch
}

// write appends a record, has it copied by those who live, and acknowledges it when
// the sets have it; and changes the set as who lives does.
func (p *process) write(ctx context.Context, t coordinator.Term) {
	p.w.mu.Lock()
	mine := p.w.logs[p.node]
	if mine.epoch != t.Epoch || p.led != t.Epoch {
		p.w.mu.Unlock()
		return
	}
	mine.end++
	lives := p.w.copyTo(p.node, mine)
	all := true
	for _, n := range append(append([]zone.Node(nil), t.InSync...), t.Proposed...) {
		d := p.w.logs[n]
		all = all && d.epoch == mine.epoch && d.end >= mine.end
	}
	if all && p.m.Holds(t.Epoch) { // checked last, as a master does before its answer
		if t.Epoch < p.w.writer {
			p.w.fault("epoch %d acknowledges after epoch %d did", t.Epoch, p.w.writer)
		}
		p.w.acked, p.w.writer = max(p.w.acked, mine.end), t.Epoch
	}
	p.w.mu.Unlock()
	var inSync, proposed []zone.Node
	for _, n := range Nodes {
		if lives[n] {
			proposed = append(proposed, n)
			if contains(t.InSync, n) || contains(t.Proposed, n) {
				inSync = append(inSync, n)
			}
		}
	}
	if len(inSync) == len(proposed) {
		proposed = nil
	}
	if same(inSync, t.InSync) && same(proposed, t.Proposed) {
		return
	}
	next, err := p.client().ChangeSet(ctx, Name, t.Epoch, t.Version, inSync, proposed)
	if err == nil {
		p.w.observe(next)
		p.m.Observe(next)
	}
}

func (p *process) client() coordinator.Coordinator { return p.w.subject.Client(p.node) }

func contains(all []zone.Node, n zone.Node) bool {
	for _, x := range all {
		if x == n {
			return true
		}
	}
	return false
}

func same(a, b []zone.Node) bool {
	if len(a) != len(b) {
		return false
	}
	for _, n := range a {
		if !contains(b, n) {
			return false
		}
	}
	return true
}
