package node

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

// decided is a coordinator that has made up its mind: one term is in force, and its
// master has the lease for longer than any test lasts. It keeps what masters give back.
type decided struct {
	coordinator.Coordinator // what is not called here is nil
	term                    coordinator.Term
	resigned                chan uint64 // epochs that were given back
}

func (d *decided) Renew(_ context.Context, _ zone.Group, s coordinator.Standing) (coordinator.Term, coordinator.Lease, error) {
	if s.Leads != d.term.Epoch {
		return d.term, coordinator.Lease{}, nil
	}
	return d.term, coordinator.Lease{Epoch: s.Leads, Duration: time.Hour}, nil
}

func (d *decided) Watch(ctx context.Context, _ zone.Group, after uint64) (coordinator.Term, error) {
	if after != d.term.Version {
		return d.term, nil
	}
	<-ctx.Done()
	return coordinator.Term{}, ctx.Err()
}

func (d *decided) ChangeSet(_ context.Context, _ zone.Group, _, _ uint64, _, _ []zone.Node) (coordinator.Term, error) {
	return d.term, &coordinator.Error{Op: "change", Kind: coordinator.KindStaleVersion}
}

func (d *decided) Resign(_ context.Context, _ zone.Group, epoch uint64, _ zone.Node) (coordinator.Term, error) {
	d.resigned <- epoch
	return d.term, nil
}

// elected opens the store of g-1, one of two nodes, where it has been elected with a set
// in sync. Nothing runs but what stands on the store.
func elected(t *testing.T, inSync ...zone.Node) (*life, *decided) {
	t.Helper()
	c := newCoordinated(t)
	o := Options{Version: "test", Logger: slog.New(slog.DiscardHandler)}
	b, err := open(t.Context(), config.Node{Name: "g-1", Topology: c.file, PKI: c.dir, DataDir: filepath.Join(c.dir, "data", "g-1"), Plaintext: true, Grace: time.Second}, zone.RoleBroker, o)
	if err != nil {
		t.Fatal(err)
	}
	m := newMember(b, o)
	t.Cleanup(func() {
		m.stopPassing()
		if err := m.close(); err != nil {
			t.Error(err)
		}
	})
	if err := m.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	d := &decided{resigned: make(chan uint64, 1),
		term: coordinator.Term{Group: "g", Epoch: 1, Lineage: 7, Master: "g-1", InSync: inSync, Version: 1}}
	m.coord = d
	l := m.newLife()
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	if err := l.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l, d
}

// A node that stops when it has been promoted and cannot serve yet, since what its log
// held is not committed, gives its epoch back: nobody has to wait for its lease.
func TestWhoWasPromotedGivesItsEpochBackBeforeItServes(t *testing.T) {
	l, d := elected(t, "g-1", "g-2") // g-2 never comes, so nothing is committed
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- l.serveStore(ctx) }()
	until(t, "a promotion", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.leader != nil && l.broker.Role() == broker.RolePromoting
	})
	stop()
	if err := <-ended; err != nil {
		t.Errorf("its life ended with %v", err)
	}
	select {
	case epoch := <-d.resigned:
		if epoch != 1 {
			t.Errorf("epoch %d was given back", epoch)
		}
	default:
		t.Error("its epoch was not given back")
	}
}

// A reign goes on although what passed clients on before does not end well.
func TestAReignOutlivesAForwarderThatEndsBadly(t *testing.T) {
	l, d := elected(t, "g-1")
	ended := make(chan struct{})
	close(ended)
	l.m.passing = &serving{cancel: func() {}, done: ended, err: errors.New("a call did not end in time")}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	over := make(chan error, 1)
	go func() { over <- l.serveStore(ctx) }()
	h := &handOver{to: "g-2", done: make(chan error, 1)}
	select {
	case l.handOvers <- h: // taken by a reign that has begun to serve
		if err := <-h.done; err == nil {
			t.Error("it handed over to a node that is not there")
		}
	case err := <-over:
		t.Fatalf("the reign ended: %v", err)
	}
	if !l.reigns() || !l.served {
		t.Error("it does not serve")
	}
	stop()
	if err := <-over; err != nil {
		t.Errorf("its life ended with %v", err)
	}
	if epoch := <-d.resigned; epoch != 1 {
		t.Errorf("epoch %d was given back", epoch)
	}
}

// A master tells by gossip which nodes of its group do not follow it, and no longer than it
// is master.
func TestAMasterTellsWhoDoesNotFollowIt(t *testing.T) {
	l, _ := elected(t, "g-1")
	away := func() string {
		for _, m := range l.m.city.Members() {
			if m.Name == "g-1" {
				return m.Away
			}
		}
		return "not a member"
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	over := make(chan error, 1)
	go func() { over <- l.serveStore(ctx) }()
	until(t, "g-2 is told to be away", func() bool { return away() == "g-2" })
	stop()
	if err := <-over; err != nil {
		t.Errorf("its life ended with %v", err)
	}
	until(t, "nothing is told any more", func() bool { return away() == "" })
}
