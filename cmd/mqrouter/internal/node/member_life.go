package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/broker/rocketmq"
	"github.com/mqrouter/mqrouter/internal/bounds"
	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// life is one opening of a member's store: a replica that may become master, once. What
// was master ends with its life.
type life struct {
	*brokerNode // its stack is the life's own
	m           *memberNode
	place       *coordinator.Member
	follower    *ship.Follower

	served bool // it has answered as a master; only the life's own goroutine

	epoch atomic.Uint64 // that this life leads; 0 = none
	unfit atomic.Bool   // its log must not be elected
	begin atomic.Uint64 // where the master's log begins, as it told last

	handOvers chan *handOver // to a master's reign; unbuffered
	fetched   chan struct{}  // a token for each member that is given parts of the log

	audience audience // sessions of the master

	mu     sync.Mutex
	leader *ship.Leader // nil unless promoted; guarded by mu
	serves bool         // the master's sessions are taken; guarded by mu
}

// beatOfLife is how soon a life notices that it holds the lease of a new epoch.
const beatOfLife = 25 * time.Millisecond

// oneLife opens the store and lives until ctx ends or the store has to be opened again.
// served says that it has answered as the group's master meanwhile.
func (m *memberNode) oneLife(ctx context.Context) (served bool, err error) {
	l := m.newLife()
	err = l.open(ctx)
	m.judge(err)
	if err == nil {
		m.say(nil)
		m.life.Store(l)
		err = l.serveStore(ctx)
		m.life.Store(nil)
	}
	m.learn(m.known(), false)
	return l.served, errors.Join(err, l.close())
}

func (m *memberNode) newLife() *life {
	return &life{m: m, handOvers: make(chan *handOver), fetched: make(chan struct{}, fetchers), brokerNode: &brokerNode{base: m.base, stack: newStack(), watched: new(watched)}}
}

// open opens the store as a replica.
func (l *life) open(ctx context.Context) error {
	m := l.m
	var err error
	l.broker, err = broker.Open(ctx, broker.Options{FS: m.o.FS, Wall: m.o.Wall, Limits: m.o.Limits, Dir: m.cfg.DataDir, Node: m.self,
		Topology: m.topologyNow(), Logger: m.log, Meter: m.meter(), Tracer: m.tracer(), ChangeOf: changeOf,
		Member: &broker.Member{Lease: l.holdsLease, Master: l.master, InSync: l.inSync,
			Begin:  func() record.Position { return record.Position(l.begin.Load()) },
			Forced: m.forced, Tails: m.tails}})
	if err != nil {
		return err
	}
	l.run(ctx, "broker", l.broker.Run)
	l.place = coordinator.NewMember(coordinator.MemberOptions{Coordinator: m.coord, Group: m.self.Group.Name, Node: m.self.Name,
		Timing: m.timing, Standing: l.standing, Logger: m.log})
	l.follower, err = ship.NewFollower(ship.FollowerOptions{Self: m.self.Name, Group: m.self.Group.Name, Log: l.broker.Log(),
		Restore: broker.NewRestore(m.o.FS, m.cfg.DataDir), Dial: l.dial, Rand: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
		Logger: m.log, Meter: m.meter()})
	if err != nil {
		return err
	}
	l.run(ctx, "topology", l.applyTopology)
	l.run(ctx, "place in the group", l.place.Run)
	l.run(ctx, "healing of the log", l.mend)
	return nil
}

// applyTopology is followTopology of a member, whose node tells gossip by itself.
func (l *life) applyTopology(ctx context.Context) error { return l.followTopology(ctx) }

// dial opens a session with the master of the group, for its log.
func (l *life) dial(ctx context.Context, master zone.Node, session uint64) (wire.Stream, error) {
	t := l.m.topologyNow()
	n := t.FindNode(master)
	if n == nil {
		return nil, fmt.Errorf("node %s is not in the topology", master)
	}
	addr := n.Peer
	if told := memberAddr(l.m.city, master); told != "" {
		addr = told
	}
	s, err := l.m.dialer.Open(ctx, peer.Target{Identity: peer.IdentityFor(t.Deployment, n), Addr: addr,
		Destination: l.self.City.Name, Class: zone.ClassBulk}, session)
	if err != nil {
		return nil, err // not s: a nil *Session is no nil Stream
	}
	return s, nil
}

// standing says where the log stands, for an election.
func (l *life) standing() coordinator.Standing {
	log := l.broker.Log()
	s := coordinator.Standing{Incarnation: log.Incarnation(), Committed: log.Committed(), End: log.Synced(), Fit: l.fit() == nil,
		Majority: majority(l.m.topologyNow())}
	if rows := log.Lineage(); len(rows) > 0 {
		s.Epoch = rows[len(rows)-1].Epoch
	}
	return s
}

// fit returns why this member must not be elected, or nil.
func (l *life) fit() error {
	if l.unfit.Load() {
		return errSetAside
	}
	if err := l.broker.Err(); err != nil {
		return err
	}
	return l.broker.CanLead()
}

var errSetAside = errors.New("its log has diverged from the group's")

func (l *life) holdsLease() bool {
	epoch := l.epoch.Load()
	return epoch != 0 && l.place.Holds(epoch)
}

func (l *life) master() (zone.Node, uint64) {
	t := l.m.known()
	return t.Master, t.Epoch
}

func (l *life) inSync() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leader == nil {
		return 0
	}
	return l.leader.InSync()
}

// reigns reports whether this life serves as the group's master.
func (l *life) reigns() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.serves
}

// serveFollower ships the log to a replica; false = this life is not promoted.
func (l *life) serveFollower(ctx context.Context, s *peer.Session, first wire.Frame) bool {
	l.mu.Lock()
	leader := l.leader
	l.mu.Unlock()
	if leader == nil {
		return false
	}
	if err := leader.Serve(ctx, s.Identity().Name, s, first); err != nil && ctx.Err() == nil {
		l.log.Debug("session of a replica ended", "peer", string(s.Identity().Name), "err", err)
	}
	return true
}

// serveAsMaster serves a session; false = this life is not the master's.
func (l *life) serveAsMaster(ctx context.Context, s *peer.Session, first wire.Frame) bool {
	if !l.holdsLease() {
		return false
	}
	ctx, leave, ok := l.audience.enter(ctx)
	if !ok {
		return false
	}
	defer leave()
	l.dispatch(ctx, s, first)
	return true
}

// serveStore is a replica until it is elected, and then the master until it is no more. nil
// asks for a new life.
func (l *life) serveStore(ctx context.Context) error {
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- l.follower.Run(following) }()
	if err := l.m.passOn(); err != nil {
		stop()
		<-ended
		return err
	}
	why := l.awaitElection(ctx, ended)
	stop()
	if !why.ended {
		if err := <-ended; errors.Is(err, ship.ErrReplaced) {
			return nil // the next start of the store installs the copy: nothing may be written now
		}
	}
	if why.elected == nil {
		return why.follower
	}
	err := l.reign(ctx, *why.elected)
	if ctx.Err() == nil {
		err = errors.Join(err, l.m.passOn()) // whoever comes while this life ends
	}
	return err
}

// turning is why a replica is none any more.
type turning struct {
	elected  *coordinator.Term // it holds the lease of this term's epoch
	ended    bool              // its follower has ended
	follower error             // why; nil asks for a new life
}

// awaitElection follows the term until this node leads it or nothing more can be done.
func (l *life) awaitElection(ctx context.Context, ended <-chan error) turning {
	beat := time.NewTicker(beatOfLife)
	defer beat.Stop()
	var aside error // why the node was set aside; its follower has ended then
	for {
		t, changed := l.place.Term()
		l.m.learn(t, false)
		l.follower.Observe(t)
		l.begin.Store(uint64(l.follower.Status().Begin))
		if t.Master == l.self.Name && l.place.Holds(t.Epoch) {
			return turning{elected: &t, ended: aside != nil}
		}
		if err := l.broker.Err(); err != nil { // also of an idle log, whose follower does not meet it
			return turning{follower: err, ended: aside != nil}
		}
		select {
		case <-ctx.Done():
			return turning{follower: aside, ended: aside != nil}
		case err := <-l.fail:
			return turning{follower: err, ended: aside != nil}
		case err := <-ended:
			var diverged *ship.DivergedError
			if !errors.As(err, &diverged) {
				if err == nil {
					err = errors.New("the follower ended without a reason")
				}
				if errors.Is(err, ship.ErrReplaced) {
					l.log.Info("store was replaced by a copy of the master's")
					err = nil
				}
				return turning{follower: err, ended: true}
			}
			if l.m.gaveUp(t, diverged) {
				return turning{follower: l.part(ctx, diverged), ended: true}
			}
			l.setAside(err)
			ended, aside = nil, err // clients still have to find the master, and an operator may elect this node
		case <-changed:
		case <-beat.C:
		}
	}
}

// setAside keeps a member out of its group whose log holds what the group has not: only
// an operator knows what it is worth.
func (l *life) setAside(err error) {
	l.unfit.Store(true)
	l.place.Kick()
	l.log.Error("this member's log has diverged from its group's; it is set aside", "err", err)
	l.m.mu.Lock()
	l.m.problem = err.Error()
	l.m.mu.Unlock()
}

// serving is a front end at the client address.
type serving struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended
	err    error         // read after done
}

// stop ends it within its grace period. A second stop returns the same.
func (s *serving) stop() error {
	s.cancel()
	<-s.done
	return s.err
}

// passOn passes clients on to the master from now on, if it does not yet. That goes on
// from one life to the next: the store has no part in it.
func (m *memberNode) passOn() error {
	if m.passing != nil {
		return nil
	}
	f, err := rocketmq.NewForwarder(rocketmq.ForwarderOptions{Master: m.upstream, Dial: m.net.Dial, TLS: m.clientTLS(), Fellow: m.fellowTLS(),
		PlaintextOff: !m.cfg.Plaintext, Grace: turnGrace, Logger: m.log})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &serving{cancel: cancel, done: make(chan struct{})}
	at := m.door.turn()
	go func() {
		defer close(s.done)
		s.err = f.Run(ctx, at)
	}()
	m.passing = s
	m.forwarder.Store(f)
	return nil
}

// stopPassing ends what passOn began.
func (m *memberNode) stopPassing() {
	if m.passing == nil {
		return
	}
	if err := m.passing.stop(); err != nil {
		m.log.Warn("passing clients on did not end well", "err", err)
	}
	m.passing = nil
	m.forwarder.Store(nil)
}

// turnGrace is how long the calls that a replica passes on have to end when it is none
// any more.
const turnGrace = 500 * time.Millisecond

// usage tells how full the bounds of this life are.
func (l *life) usage() []bounds.Usage { return l.watched.queues.read() }
