package raft

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// The states of a voter in its status.
const (
	StateJoining   = "joining"
	StateFollower  = "follower"
	StateCandidate = "candidate"
	StateLeader    = "leader"
	StateFailed    = "failed"
)

// DefaultBeat is how long a voter misses its leader before it stands for election
// itself; beats come ten times as often. With a lease and a margin after it, and a
// round of messages for each of the two elections, the quorum's own fail-over and that
// of a broker group together stay under 3 s.
const DefaultBeat = 300 * time.Millisecond

// BeatFor is the Beat that goes with a lease: who gives masters a longer one, since the
// machines pause or the network does, needs voters that are as patient. A shorter lease
// does not make them hastier.
func BeatFor(lease time.Duration) time.Duration {
	return max(DefaultBeat, lease/5)
}

const (
	// retryTime is how long a voter waits whose store or quorum cannot be used.
	retryTime = time.Second
	// settleTime is how often the leader compares the quorum with the topology.
	settleTime = 500 * time.Millisecond
	// snapshots kept; trailing entries kept in the log beside the newest.
	keepSnapshots = 2
	trailing      = 256
)

// Options tells a Voter what to be. Self, Dir, Voters, Dial, Group and Groups are
// required.
type Options struct {
	Self zone.Node
	Dir  string // of its store; made when missing
	// Voters returns the voters that the topology in force names, this node among
	// them; it does not block.
	Voters func() []zone.Node
	Dial   Dial
	// Group and Groups are what the topology in force says of the city's broker groups
	// with several nodes.
	Group  func(zone.Group) (coordinator.Group, bool)
	Groups func() []zone.Group
	// Alone returns the node of a broker group for which the topology has one; nil: no
	// group is ever left with one.
	Alone  func(zone.Group) (zone.Node, bool)
	Timing coordinator.Timing
	Beat   time.Duration // 0 = BeatFor the lease
	Logger *slog.Logger  // nil discards
	Meter  metric.Meter  // nil measures nothing
}

// Validate reports every fault, joined.
func (o *Options) Validate() error {
	var errs []error
	if o.Self == "" || o.Dir == "" || o.Voters == nil || o.Dial == nil || o.Group == nil || o.Groups == nil {
		errs = append(errs, errors.New("coordinator/raft: a required option is missing"))
	}
	if o.Beat < 0 || o.Beat > 10*time.Second {
		errs = append(errs, fmt.Errorf("coordinator/raft: beat %s: want up to 10s", o.Beat))
	}
	return errors.Join(append(errs, o.Timing.Validate())...)
}

// Voter is one voter of a city's coordinator. Its methods are safe for concurrent
// use.
type Voter struct {
	o      Options
	server *funnel // connections of members
	peers  *client
	m      *metrics

	mu      sync.Mutex
	state   string      // guarded by mu, as are all below
	since   time.Time   // of state
	problem string      // "" = none
	store   *store      // nil unless open
	stream  *stream     // nil unless raft runs
	raft    *raft.Raft  // nil unless it runs
	machine *machine    // with raft
	desk    *leadership // nil unless this voter leads
}

// leadership is what there is while a voter leads.
type leadership struct {
	office *coordinator.Office
	ctx    context.Context // ends with it
}

// NewVoter returns a voter; Run makes it one.
func NewVoter(o Options) (*Voter, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.Timing = o.Timing.WithDefaults()
	if o.Beat == 0 {
		o.Beat = BeatFor(o.Timing.Lease)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	v := &Voter{o: o, server: newFunnel(o.Self), peers: newClient(o.Dial), state: StateJoining, since: time.Now()}
	var err error
	if v.m, err = newMetrics(o.Meter, v); err != nil {
		return nil, err
	}
	return v, nil
}

// Accept takes a connection that was accepted for one of this package's protocols,
// after mutual TLS, with the identity that the other side proved; only voters are
// heard between voters. It does not block.
func (v *Voter) Accept(c net.Conn, protocol string, from peer.Identity) {
	if protocol == ALPNCoordinator {
		v.server.give(c, from)
		return
	}
	v.mu.Lock()
	s := v.stream
	v.mu.Unlock()
	switch {
	case protocol != ALPNRaft || !slices.Contains(v.o.Voters(), from.Name):
		v.o.Logger.Warn("connection between voters from who is none", "peer", string(from.Name))
		_ = c.Close() // nothing was said yet
	case s == nil:
		_ = c.Close() // raft does not run here now; the other voter tries again
	default:
		s.give(c, from)
	}
}

// Run is the voter until ctx ends; then it hands a leadership over and returns nil.
// What goes wrong with store or quorum is told in Status and tried again.
func (v *Voter) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer v.m.close()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { v.serve(serving) })
	for {
		err := v.vote(ctx)
		if ctx.Err() != nil {
			return nil
		}
		v.enter(StateFailed, err.Error())
		v.o.Logger.Error("voter is out of the quorum", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryTime):
		}
	}
}

// enter notes a state. It keeps since when the state stays.
func (v *Voter) enter(state, problem string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.state != state {
		v.state, v.since = state, time.Now()
	}
	v.problem = problem
}

// vote opens the store, joins, and runs raft until ctx ends or something fails.
func (v *Voter) vote(ctx context.Context) error {
	st, err := openStore(v.o.Dir, newStoreID)
	if err != nil {
		return err
	}
	v.set(func() { v.store = st })
	err = v.join(ctx, st)
	if err == nil {
		err = v.run(ctx, st)
	}
	v.set(func() { v.store = nil })
	return errors.Join(err, st.failure(), st.close())
}

func (v *Voter) set(f func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f()
}

func newStoreID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: the process ends instead
	return hex.EncodeToString(b[:])
}

func newLineage() record.LineageID {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // likewise
		var n uint64
		for _, x := range b {
			n = n<<8 | uint64(x)
		}
		if n != 0 {
			return record.LineageID(n)
		}
	}
}

// serverID is a voter's id in the quorum.
func serverID(n zone.Node, store string) raft.ServerID { return raft.ServerID(string(n) + "@" + store) }

// nodeOf is the node of a server id. Node names have no "@".
func nodeOf(id raft.ServerID) zone.Node {
	n, _, _ := strings.Cut(string(id), "@")
	return zone.Node(n)
}

// config is the library's configuration.
func (v *Voter) config(id raft.ServerID, notify chan<- bool) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = id
	c.HeartbeatTimeout, c.ElectionTimeout = v.o.Beat, v.o.Beat
	c.LeaderLeaseTimeout = v.o.Beat * 3 / 4
	c.CommitTimeout = min(v.o.Beat, DefaultBeat) / 8 // how late followers learn of a decision: not a matter of patience
	c.SnapshotThreshold, c.SnapshotInterval, c.TrailingLogs = 1024, 30*time.Second, trailing
	c.ShutdownOnRemove = false // the voter looks for itself, and says why it is out
	c.NotifyCh = notify
	c.Logger = &hlog{to: v.o.Logger}
	c.NoLegacyTelemetry = true
	return c
}

// run runs raft until ctx ends or the store fails.
func (v *Voter) run(ctx context.Context, st *store) (err error) {
	logger := &hlog{to: v.o.Logger}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(v.o.Dir, keepSnapshots, logger)
	if err != nil {
		return &StoreError{Path: v.o.Dir, Op: "open snapshots", Err: err}
	}
	stream := &stream{funnel: newFunnel(v.o.Self), dial: v.o.Dial}
	transport := &patient{done: make(chan struct{}), NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: stream, MaxPool: 3, Timeout: max(v.o.Beat, time.Second), Logger: logger, MsgpackUseNewTimeFormat: true})}
	notify := make(chan bool, 16)
	unknown := make(chan struct{})
	fsm := &machine{unknown: func() { close(unknown) }}
	r, err := raft.NewRaft(v.config(serverID(v.o.Self, st.id), notify), fsm, st, st, snaps, transport)
	if err != nil {
		return errors.Join(&StoreError{Path: v.o.Dir, Op: "start", Err: err}, transport.Close())
	}
	transport.leads.Store(leading(r))
	v.set(func() { v.stream, v.raft, v.machine = stream, r, fsm })
	defer func() {
		v.set(func() { v.stream, v.raft, v.machine = nil, nil, nil })
		close(transport.done)
		err = errors.Join(err, r.Shutdown().Error(), transport.Close())
		transport.CloseStreams()
	}()
	v.enter(StateFollower, "")
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-unknown:
			cancel()
		case <-reading.Done():
		}
	})
	err = v.lead(reading, st, r, fsm, notify)
	cancel()
	watch.Wait()
	return errors.Join(err, fsm.failure())
}

// lead leads whenever raft says so, until ctx ends or the store fails.
func (v *Voter) lead(ctx context.Context, st *store, r *raft.Raft, fsm *machine, notify <-chan bool) error {
	var presiding, asking task
	defer asking.end()
	defer presiding.end()
	tick := time.NewTicker(settleTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			if presiding.end() { // before another one may lead: nothing is granted any more
				// A hint, so that the others need not miss this one first.
				if err := r.LeadershipTransfer().Error(); err != nil {
					v.o.Logger.Debug("leadership was not handed over", "err", err)
				}
			}
			return nil
		case <-st.failed:
			return st.failure()
		case leads := <-notify:
			presiding.end()
			v.enter(StateFollower, "")
			if leads {
				presiding.begin(ctx, func(ctx context.Context) { v.preside(ctx, r, fsm) })
			}
		case <-tick.C:
			if v.look(r) && asking.over() {
				asking.begin(ctx, func(ctx context.Context) { v.comeBack(ctx, st) })
			}
		}
	}
}

// task is something that runs beside its owner, at most once at a time.
type task struct {
	cancel context.CancelFunc // nil unless begun
	done   chan struct{}
}

func (t *task) begin(ctx context.Context, f func(context.Context)) {
	ctx, t.cancel = context.WithCancel(ctx)
	t.done = make(chan struct{})
	go func() {
		defer close(t.done)
		f(ctx)
	}()
}

// end ends it and waits; it reports whether it had begun.
func (t *task) end() bool {
	if t.cancel == nil {
		return false
	}
	t.cancel()
	<-t.done
	t.cancel = nil
	return true
}

// over says whether none runs.
func (t *task) over() bool {
	if t.cancel == nil {
		return true
	}
	select {
	case <-t.done:
		return t.end()
	default:
		return false
	}
}

// look tells how the voter is with its quorum, and whether it misses a leader.
func (v *Voter) look(r *raft.Raft) (alone bool) {
	_, leader := r.LeaderWithID()
	v.mu.Lock()
	leads := v.desk != nil
	v.mu.Unlock()
	switch {
	case leads, r.State() == raft.Leader:
		return false
	case leader == "":
		v.enter(StateCandidate, "the quorum has no leader: a majority of the voters must be up and reach each other")
		return true
	}
	v.enter(StateFollower, "")
	return false
}

// comeBack asks the quorum to take the store in again when it does not have it any
// more: the topology had not named this voter for a while.
func (v *Voter) comeBack(ctx context.Context, st *store) {
	self := serverID(v.o.Self, st.id)
	for _, n := range v.o.Voters() {
		if n == v.o.Self {
			continue
		}
		s, err := v.statusOf(ctx, n)
		if err == nil && s.Leader != "" && len(s.Servers) > 0 && !slices.Contains(s.Servers, string(self)) {
			v.o.Logger.Info("voter asks to be taken in again", "answer", v.apply(ctx, n, s, st))
			return
		}
	}
}

func serversOf(servers []raft.Server) string {
	var all []string
	for _, s := range servers {
		all = append(all, string(s.ID))
	}
	return strings.Join(all, ", ")
}

// preside is the leader until ctx ends.
func (v *Voter) preside(ctx context.Context, r *raft.Raft, fsm *machine) {
	var crew crew
	defer crew.end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b := &book{raft: r, machine: fsm, crew: &crew, ctx: ctx, ask: v.ask}
	for {
		// All that former leaders have decided must be in the state first.
		b.leadership = r.CurrentTerm()
		if err := r.Barrier(putTime).Error(); err == nil && r.CurrentTerm() == b.leadership {
			break
		}
		if ctx.Err() != nil || r.State() != raft.Leader {
			return // raft has told so, or will
		}
	}
	office := coordinator.NewOffice(coordinator.OfficeOptions{Book: b, Timing: v.o.Timing, Group: v.o.Group, Groups: v.o.Groups, Alone: v.o.Alone, Lineage: newLineage, Logger: v.o.Logger})
	v.set(func() { v.desk = &leadership{office: office, ctx: ctx} })
	v.enter(StateLeader, "")
	v.o.Logger.Info("coordinator leads its city", "leadership", b.leadership)
	crew.run(func() { v.settle(ctx, r) })
	_ = office.Run(ctx) // returns nil when ctx ends
	v.set(func() { v.desk = nil })
	v.o.Logger.Info("coordinator does not lead its city any more", "leadership", b.leadership)
}

// Status tells how the voter is.
func (v *Voter) Status() Status {
	v.mu.Lock()
	s := Status{Node: v.o.Self, State: v.state, Since: v.since, Problem: v.problem}
	st, r, fsm, desk := v.store, v.raft, v.machine, v.desk
	v.mu.Unlock()
	if st != nil {
		s.Store, s.Fresh = st.id, st.fresh()
	}
	if r == nil {
		return s
	}
	_, leader := r.LeaderWithID()
	s.Server, s.Leader, s.Leadership, s.Applied = string(serverID(v.o.Self, s.Store)), nodeOf(leader), r.CurrentTerm(), r.AppliedIndex()
	if conf := r.GetConfiguration(); conf.Error() == nil {
		for _, x := range conf.Configuration().Servers {
			s.Servers = append(s.Servers, string(x.ID))
		}
	}
	if desk != nil {
		for _, name := range v.o.Groups() {
			t := fsm.term(name)
			t.Group = name
			o := desk.office.Opinion(name)
			s.Groups = append(s.Groups, GroupStatus{Term: t, Leased: o.Leased, Waiting: o.Waiting, Known: o.Known, Standings: o.Standings})
		}
	}
	return s
}
