package coordinator_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// oneDesk is a coordinator of one desk and one term that nobody changes but the test.
type oneDesk struct {
	coordinator.Coordinator // the methods that a Member does not call

	mu   sync.Mutex
	desk *coordinator.Desk
	term coordinator.Term // guarded by mu
}

func (o *oneDesk) set(t coordinator.Term) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.term = t
}

// Renew implements coordinator.Coordinator.
func (o *oneDesk) Renew(_ context.Context, _ zone.Group, s coordinator.Standing) (coordinator.Term, coordinator.Lease, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.term, o.desk.Renew(time.Now(), pair, o.term, s), nil
}

// Watch implements coordinator.Coordinator.
func (o *oneDesk) Watch(ctx context.Context, _ zone.Group, after uint64) (coordinator.Term, error) {
	for {
		o.mu.Lock()
		t := o.term
		o.mu.Unlock()
		if t.Version != after {
			return t, nil
		}
		select {
		case <-ctx.Done():
			return t, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// TestOnlyTheLogThatWasElectedLeads starts processes of node a after the term of epoch 4
// was given to it, or before, with one store or another.
func TestOnlyTheLogThatWasElectedLeads(t *testing.T) {
	for name, c := range map[string]struct {
		before      bool // the process saw the group without a master before it was elected
		incarnation record.Incarnation
		epoch       uint64 // of the log's last lineage
		want        bool
	}{
		"the process that was elected":                        {true, 7, 3, true},
		"the same with its disk emptied meanwhile":            {true, 0, 0, false},
		"the same with another disk":                          {true, 8, 3, false},
		"one that was started later, with an empty disk":      {false, 0, 0, false},
		"one that was started later, with an older copy":      {false, 7, 3, false},
		"one that was started later, with what it led before": {false, 7, 4, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &oneDesk{desk: coordinator.NewDesk(coordinator.Timing{}, time.Now())}
				vacant := ruled().Vacated()
				vacant.Epoch, vacant.Version = 3, 8
				o.set(ruled())
				if c.before {
					o.set(vacant)
				}
				m := coordinator.NewMember(coordinator.MemberOptions{Coordinator: o, Group: "g", Node: "a",
					Standing: func() coordinator.Standing {
						return coordinator.Standing{Incarnation: c.incarnation, Epoch: c.epoch, End: 100, Fit: true}
					}})
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() { _ = m.Run(ctx) })
				time.Sleep(time.Second)
				o.set(ruled())
				time.Sleep(time.Second)
				if got := m.Holds(4); got != c.want {
					t.Errorf("it holds the lease: %v, want %v", got, c.want)
				}
				cancel()
				wg.Wait()
			})
		})
	}
}

// TestAnotherStoreGetsNoLease gives a lease to the store that was elected only, and has
// the epoch taken away when that is gone.
func TestAnotherStoreGetsNoLease(t *testing.T) {
	start, term := time.Now(), ruled()
	timing := coordinator.Timing{}.WithDefaults()
	d := coordinator.NewDesk(timing, start)
	s := renewal(term)
	s.Incarnation = 8
	if l := d.Renew(start, pair, term, s); l != (coordinator.Lease{}) {
		t.Errorf("another store got the lease %+v", l)
	}
	if l := d.Renew(start, pair, term, renewal(term)); l != (coordinator.Lease{}) {
		t.Errorf("a lease %+v after another store of the same name", l)
	}
	if s := d.Judge(start.Add(timing.Lease+timing.Margin), pair, term); !s.Vacate {
		t.Errorf("the epoch is not taken away: %+v", s)
	}
}

// TestMemberFollowsAQuorumThatCountsVersionsAnew: all voters lost their stores, and the
// member's process has run on.
func TestMemberFollowsAQuorumThatCountsVersionsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term := ruled()
		term.Version = 500
		c := &oneDesk{desk: coordinator.NewDesk(coordinator.Timing{}, time.Now()), term: term}
		m := coordinator.NewMember(coordinator.MemberOptions{Coordinator: c, Group: "g", Node: "b",
			Standing: func() coordinator.Standing { return at("b", 4, 100) }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		synctest.Wait()
		if got, _ := m.Term(); got.Version != 500 {
			t.Fatalf("term %+v", got)
		}
		fresh := coordinator.Term{Group: "g"}.Elected(coordinator.Election{Master: "a", Epoch: 5, InSync: nodes("a")}, 3, 0, time.Now())
		c.set(fresh)
		time.Sleep(time.Second)
		if got, _ := m.Term(); got.Epoch != 5 || got.Version != 1 {
			t.Errorf("term %+v: want the one of epoch 5", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestMemberRenewsAsOftenAsAShorterLeaseAsksFor: its own topology has a lease ten times
// as long as the coordinator's.
func TestMemberRenewsAsOftenAsAShorterLeaseAsksFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := coordinator.Timing{Lease: 15 * time.Second, Renew: 4 * time.Second, Margin: 2 * time.Second}
		c := &oneDesk{desk: coordinator.NewDesk(coordinator.Timing{}, time.Now()), term: coordinator.Term{Group: "g", InSync: nodes("a b"), Epoch: 3, Version: 8, Incarnation: 7}}
		m := coordinator.NewMember(coordinator.MemberOptions{Coordinator: c, Group: "g", Node: "a", Timing: long,
			Standing: func() coordinator.Standing { return at("a", 3, 100) }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		synctest.Wait()
		c.set(ruled())
		time.Sleep(2 * time.Second)
		for range 100 {
			if !m.Holds(4) {
				t.Fatal("the lease ran out between two renewals")
			}
			time.Sleep(100 * time.Millisecond)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
