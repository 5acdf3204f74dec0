package node

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/broker/rocketmq"
	"github.com/mqrouter/mqrouter/broker/tails"
	"github.com/mqrouter/mqrouter/internal/bounds"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/internal/gossip"
	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/coordinator/consul"
	"github.com/mqrouter/mqrouter/replication/coordinator/raft"
	"github.com/mqrouter/mqrouter/replication/masters"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// memberNode is a broker of a group with several nodes. Addresses, gossip and the way to
// the coordinator are its own and last as long as the process; what stands on the store
// lasts from one opening of it to the next and is its life.
type memberNode struct {
	*base
	o       Options // with everything filled in
	coord   coordinator.Coordinator
	timing  coordinator.Timing
	voter   *raft.Voter         // nil unless this node votes
	consul  *consul.Coordinator // coord, where that is Consul; else nil
	dialer  *peer.Dialer
	masters *masters.Directory
	door    *door
	guard   *peer.TLS

	tails      *tails.Store // what the log had and the group has not
	tailReader *broker.TailReader
	toMaster   *toMaster  // for what of tails is offered
	offering   sync.Mutex // held while a part of a tail is offered

	life      atomic.Pointer[life]               // nil between two
	forwarder atomic.Pointer[rocketmq.Forwarder] // what passes clients on; nil when nothing does
	passing   *serving                           // the same, as a server; only live's goroutine
	aside     int                                // damaged stores that were moved aside; only live's goroutine
	unread    int                                // openings in a row that the disk failed; only live's goroutine

	mu      sync.Mutex
	seat    rocketmq.Upstream // where the master serves clients; guarded by mu
	changed chan struct{}     // closed when seat is another; guarded by mu
	term    coordinator.Term  // newest known; guarded by mu
	problem string            // why there is no life, or it is of no use; guarded by mu
	damaged string            // why the store is damaged, and stays; "" = it is not, or made way; guarded by mu
}

func newMember(b *base, o Options) *memberNode {
	return &memberNode{base: b, o: o, changed: make(chan struct{})}
}

// member runs a broker of a group with several nodes until ctx ends.
func member(ctx context.Context, b *base, o Options) error {
	return newMember(b, o).runAll(ctx)
}

func (m *memberNode) runAll(ctx context.Context) error {
	if err := m.start(ctx); err != nil {
		return errors.Join(err, m.close())
	}
	m.run(ctx, "member", m.live)
	return m.serve(ctx)
}

// topologyNow is the topology in force: what the file says, since a member applies it
// to whatever life it has.
func (m *memberNode) topologyNow() *zone.Topology { return m.source.Current() }

// start begins what lasts as long as the process: all but what stands on the store.
func (m *memberNode) start(ctx context.Context) error {
	if m.o.FS == nil {
		m.o.FS = disk.OS{}
	}
	var err error
	if m.o.Limits.ScrubRate == 0 {
		if m.o.Limits.ScrubRate, err = m.cfg.ScrubBytes(); err != nil {
			return err
		}
	}
	if m.o.Limits.SegmentBytes == 0 {
		if m.o.Limits.SegmentBytes, err = m.cfg.SegmentBytes(); err != nil {
			return err
		}
	}
	m.cfg.Limits.Set(&m.o.Limits)
	m.tails = broker.NewTails(m.o.FS, m.cfg.DataDir)
	m.tailReader = broker.NewTailReader(m.tails)
	if err := m.joinCity(m.topologyNow); err != nil {
		return err
	}
	m.masters = masters.New(func() []masters.Hint { return leadersIn(m.city) })
	others, err := m.startCoordinator(ctx)
	if err != nil {
		return err
	}
	if err := m.startSessions(ctx, others); err != nil {
		return err
	}
	if m.toMaster, err = newToMaster(m); err != nil {
		return err
	}
	m.watched.queues.add(m.usage)
	desk := memberDesk{m}
	m.letters, m.flowDesk, m.groups, m.waiting, m.orders, m.tailed = desk, desk, desk, waitingOf{desk}, orderDesk{m}, tailDesk{m}
	if err := m.serveAdmin(ctx, m, m.topologyNow); err != nil {
		return err
	}
	ln, err := m.listen(ctx, "client", m.self.Client)
	if err != nil {
		return err
	}
	m.door = newDoor(ln)
	m.onStop("client address", m.door.close)
	return nil
}

// startCoordinator makes the way to the city's coordinator, and this node a voter if it
// is one.
func (m *memberNode) startCoordinator(ctx context.Context) (others map[string]func(net.Conn), err error) {
	c := city{m.base, m.topologyNow}
	m.timing = c.timing()
	info := c.info()
	switch {
	case info == nil || info.Coordinator == nil:
		return nil, errors.New("the topology has no coordinator for this city")
	case info.Coordinator.Driver == zone.CoordinatorConsul:
		place, err := c.startConsul(ctx, m.o.FS)
		if err != nil {
			return nil, err
		}
		m.coord, m.consul, m.timing = place, place, place.Timing()
		return nil, nil
	}
	o := raft.ClientOptions{Voters: c.voters, Dial: c.dial, Self: m.self.Name, Role: zone.RoleBroker}
	if m.self.Votes() {
		if m.voter, err = c.startVoter(ctx); err != nil {
			return nil, err
		}
		others, o.Local = c.voterProtocols(m.voter), m.voter
	}
	client := raft.NewClient(o)
	m.coord = client
	m.onStop("way to the coordinator", func() error { client.Close(); return nil })
	return others, nil
}

// startSessions listens for the sessions of other nodes and makes the dialler of this
// one's.
func (m *memberNode) startSessions(ctx context.Context, others map[string]func(net.Conn)) error {
	incarnation, err := newIncarnation()
	if err != nil {
		return err
	}
	options := func(guard *peer.TLS) peer.Options {
		return peer.Options{
			Self: m.certs.Identity(), Group: m.self.Group.Name, Incarnation: incarnation, TLS: guard, Logger: m.log, DialContext: m.net.Dial,
			Topology: func() (zone.Epoch, zone.Digest) { t := m.topologyNow(); return t.Epoch, t.Digest },
		}
	}
	if m.dialer, err = peer.NewDialer(options(m.inCity(m.topologyNow, zone.RoleBroker, zone.RoleRouter))); err != nil {
		return err
	}
	m.watched.peers = append(m.watched.peers, watchedPeers{"out", m.dialer.Stats})
	m.onStop("peer dialler", m.dialer.Close)
	m.guard = m.inCity(m.topologyNow, zone.RoleBroker, zone.RoleRouter, zone.RoleCacheSync, zone.RoleCoordinator)
	listening := options(m.guard)
	listening.Others, listening.Fellow = others, m.fellow
	l, err := m.peerListener(listening, m.serveSession)
	if err != nil {
		return err
	}
	return m.servePeers(ctx, l)
}

// serveSession hands a session to what its first frame asks for, when this node is the
// master; else it says who is.
func (m *memberNode) serveSession(ctx context.Context, s *peer.Session) {
	first, err := s.Recv(ctx)
	if err != nil {
		return
	}
	if err := m.guard.Authorize(s.Identity()); err != nil {
		s.CloseText(wire.CodeWrongIdentity, err.Error())
		return
	}
	if s.Peer().Role == zone.RoleCoordinator {
		s.CloseText(wire.CodeWrongIdentity, "a coordinator has no records")
		return
	}
	l := m.life.Load()
	if first.Type == wire.TypeFetch {
		if l == nil || !m.fellow(s.Identity()) {
			s.CloseText(wire.CodeWrongIdentity, "parts of the log are for members of the broker group, from one whose store is open")
			return
		}
		l.serveFetch(ctx, s, first)
		return
	}
	if first.Type == wire.TypeFollow {
		if l == nil || !l.serveFollower(ctx, s, first) {
			m.refuse(ctx, s, first)
		}
		return
	}
	if err := speaksForItself(m.topologyNow(), s.Identity(), first); err != nil {
		s.CloseText(wire.CodeWrongIdentity, err.Error())
		return
	}
	if l == nil || !l.serveAsMaster(ctx, s, first) {
		m.refuse(ctx, s, first)
	}
}

// refuse says that this node is not the master, and who is. A node that is about to be
// says so in other words, and nobody looks for the master elsewhere.
func (m *memberNode) refuse(ctx context.Context, s *peer.Session, first wire.Frame) {
	t := m.known()
	f := masters.Refusal(&first, t.Master, t.Epoch, "this node is not the master of group "+string(m.self.Group.Name))
	code := wire.CodeNotMaster
	if t.Master == m.self.Name {
		code = wire.CodeHeld
		r := wire.Refuse{Code: code, Text: "this node is about to be master"}
		f.Payload = r.Append(nil)
	}
	_ = s.Send(ctx, f) // the end of the session says it, too
	_ = s.Close(code)
}

// known returns the newest term that this node knows.
func (m *memberNode) known() coordinator.Term {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.term
}

// learn takes a term: who asks this node is told of it, its clients go to its master,
// and gossip says whether that is this one.
func (m *memberNode) learn(t coordinator.Term, leads bool) {
	seat := rocketmq.Upstream{}
	if n := m.topologyNow().FindNode(t.Master); n != nil && (t.Master != m.self.Name || leads) {
		seat = rocketmq.Upstream{Node: n.Name, Epoch: t.Epoch, Addr: n.Client}
	}
	m.mu.Lock()
	m.term = t
	if seat.Node != m.seat.Node || seat.Epoch != m.seat.Epoch || seat.Addr != m.seat.Addr {
		if seat.Node != "" {
			seat.TLS = m.clientTLSOf(seat.Node)
		}
		m.seat = seat
		close(m.changed)
		m.changed = make(chan struct{})
	}
	m.mu.Unlock()
	err := m.city.SetMeta(func(x *gossip.Meta) {
		if x.Term, x.Leads = t.Epoch, leads; !leads {
			x.Away = ""
		}
	})
	if err != nil && !errors.Is(err, gossip.ErrClosed) {
		m.log.Warn("gossip does not tell who is master", "err", err)
	}
}

// upstream implements rocketmq.ForwarderOptions.Master.
func (m *memberNode) upstream() (rocketmq.Upstream, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seat, m.changed
}

// leadersIn returns which nodes of a pool say that they are masters.
func leadersIn(p *gossip.Pool) []masters.Hint {
	var all []masters.Hint
	for _, m := range p.Members() {
		if m.Leads {
			all = append(all, masters.Hint{Group: m.Group, Node: m.Name, Epoch: m.Term})
		}
	}
	return all
}

// usage tells how full the bounds of the present life are.
func (m *memberNode) usage() []bounds.Usage {
	var all []bounds.Usage
	if l := m.life.Load(); l != nil {
		all = l.usage()
	}
	if f := m.forwarder.Load(); f != nil {
		all = append(all, f.Usage()...)
	}
	return all
}

// say notes and logs why a life has ended; nil is no trouble.
func (m *memberNode) say(err error) {
	text := ""
	if err != nil {
		text = err.Error()
		m.log.Warn("broker is opened again as a replica", "err", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problem = text
}
