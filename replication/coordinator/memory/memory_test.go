package memory_test

import (
	"context"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/coordinator/conformance"
	"github.com/mqrouter/mqrouter/replication/coordinator/memory"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

var (
	seeds = flag.Int("coordinator.seeds", 40, "how many seeds the simulation runs")
	seed  = flag.Uint64("coordinator.seed", 0, "the one seed to run; 0 = as many as asked for")
)

// shop is a coordinator on a book in memory whose process changes.
type shop struct {
	book   memory.Book
	timing coordinator.Timing

	mu     sync.Mutex
	office *coordinator.Office // nil = nobody decides
	end    func()
}

// open lets a new process take over.
func (s *shop) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := uint64(0)
	o := coordinator.NewOffice(coordinator.OfficeOptions{Book: s.book.TakeOver(), Timing: s.timing, Group: conformance.Group, Groups: conformance.Groups,
		Lineage: func() record.LineageID { n++; return record.LineageID(rand.Uint64() | 1) }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = o.Run(ctx)
	}()
	s.office, s.end = o, func() { cancel(); <-done }
}

// close ends the process that decides.
func (s *shop) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		s.end()
	}
	s.office, s.end = nil, nil
}

// via is the coordinator as a member has it: whichever process decides now, after a
// way that takes time.
type via struct{ s *shop }

func (v via) now(op string) (*coordinator.Office, error) {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if v.s.office == nil {
		return nil, &coordinator.Error{Op: op, Kind: coordinator.KindNoQuorum}
	}
	return v.s.office, nil
}

func (v via) Renew(ctx context.Context, g zone.Group, st coordinator.Standing) (coordinator.Term, coordinator.Lease, error) {
	time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	o, err := v.now("renew")
	if err != nil {
		return coordinator.Term{}, coordinator.Lease{}, err
	}
	t, l, err := o.Renew(ctx, g, st)
	time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	return t, l, err
}

func (v via) Watch(ctx context.Context, g zone.Group, after uint64) (coordinator.Term, error) {
	o, err := v.now("watch")
	if err != nil {
		return coordinator.Term{}, err
	}
	return o.Watch(ctx, g, after)
}

func (v via) ChangeSet(ctx context.Context, g zone.Group, epoch, version uint64, in, proposed []zone.Node) (coordinator.Term, error) {
	o, err := v.now("change set")
	if err != nil {
		return coordinator.Term{}, err
	}
	return o.ChangeSet(ctx, g, epoch, version, in, proposed)
}

func (v via) Resign(ctx context.Context, g zone.Group, epoch uint64, to zone.Node) (coordinator.Term, error) {
	o, err := v.now("resign")
	if err != nil {
		return coordinator.Term{}, err
	}
	return o.Resign(ctx, g, epoch, to)
}

func (v via) Failover(ctx context.Context, g zone.Group, order coordinator.Order) (coordinator.Term, error) {
	o, err := v.now("failover")
	if err != nil {
		return coordinator.Term{}, err
	}
	return o.Failover(ctx, g, order)
}

func (v via) Terms(ctx context.Context) ([]coordinator.Term, error) {
	o, err := v.now("terms")
	if err != nil {
		return nil, err
	}
	return o.Terms(ctx)
}

// disturb ends the process that decides; another one takes over at once or later.
func (s *shop) disturb(r *rand.Rand) (undo func()) {
	s.close()
	if r.IntN(2) == 0 {
		s.open()
		return func() {}
	}
	return s.open
}

func subject(s *shop) conformance.Subject {
	s.open()
	return conformance.Subject{Client: func(zone.Node) coordinator.Coordinator { return via{s} }, Timing: s.timing, Disturb: s.disturb}
}

func TestOfficeKeepsThePromisesUnderFaults(t *testing.T) {
	first, last := uint64(1), uint64(*seeds)
	if *seed != 0 {
		first, last = *seed, *seed
	}
	for n := first; n <= last; n++ {
		synctest.Test(t, func(t *testing.T) {
			s := &shop{}
			conformance.Faults(t, subject(s), n, 12)
			s.close()
		})
	}
}

func TestOfficeConforms(t *testing.T) {
	times := coordinator.Timing{Lease: 200 * time.Millisecond, Renew: 50 * time.Millisecond, Margin: 50 * time.Millisecond, Settle: 30 * time.Millisecond}
	conformance.Suite(t, times, func(t *testing.T, times coordinator.Timing) conformance.Subject {
		s := &shop{timing: times}
		t.Cleanup(s.close)
		return subject(s)
	})
}
