package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/broker/rocketmq"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/acl"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/internal/gossip"
	"github.com/mqrouter/mqrouter/replication/call"
	"github.com/mqrouter/mqrouter/replication/coordinator/raft"
	"github.com/mqrouter/mqrouter/replication/egress"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/masters"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// brokerNode is a broker with both ends of its flows and its front end.
type brokerNode struct {
	*base
	*stack              // of what stands on the store: the node's, or a life's of a member's
	watched *watched    // likewise
	voter   *raft.Voter // nil unless this node votes
	broker  *broker.Broker
	inbox   *flow.Inbox
	outbox  *flow.Outbox
	egress  *egress.Egress
	calls   *call.Server
	masters *masters.Directory          // nil of a life, which has its member's
	puller  atomic.Pointer[flow.Outbox] // outbox, for sessions that may come before it exists

	aclFile atomic.Pointer[acl.File] // nil = clients may do everything
}

// Broker runs a broker until ctx ends, then drains it within the grace period.
func Broker(ctx context.Context, cfg config.Node, o Options) error {
	b, err := open(ctx, cfg, zone.RoleBroker, o)
	if err != nil {
		return err
	}
	if len(b.self.Group.Nodes) > 1 {
		return member(ctx, b, o)
	}
	n := &brokerNode{base: b, stack: b.stack, watched: &b.watched}
	if err := n.start(ctx, o); err != nil {
		return errors.Join(err, n.close())
	}
	return n.serve(ctx)
}

// start builds the node from the ground up; the stack stops it in reverse.
func (n *brokerNode) start(ctx context.Context, o Options) error {
	if o.FS == nil {
		o.FS = disk.OS{}
	}
	var err error
	if o.Limits.ScrubRate == 0 {
		if o.Limits.ScrubRate, err = n.cfg.ScrubBytes(); err != nil {
			return err
		}
	}
	if o.Limits.SegmentBytes == 0 {
		if o.Limits.SegmentBytes, err = n.cfg.SegmentBytes(); err != nil {
			return err
		}
	}
	n.cfg.Limits.Set(&o.Limits)
	alone := func(ctx context.Context) error { return (city{n.base, n.source.Current}).noteAlone(ctx, o.FS) }
	n.broker, err = broker.Open(ctx, broker.Options{FS: o.FS, Wall: o.Wall, Limits: o.Limits, Dir: n.cfg.DataDir, Node: n.self,
		Topology: n.source.Current(), Logger: n.log, Meter: n.meter(), Tracer: n.tracer(), ChangeOf: changeOf, LeaveGroup: n.cfg.LeaveGroup, Alone: alone})
	if err != nil {
		return toldToLeave(err)
	}
	n.watched.queues.add(n.broker.Usage)
	n.run(ctx, "broker", n.broker.Run)
	if err := n.joinCity(n.broker.Topology); err != nil {
		return err
	}
	if err := n.startInbox(ctx); err != nil {
		return err
	}
	if err := n.startOutbox(ctx); err != nil {
		return err
	}
	n.run(ctx, "topology", n.followTopology)
	n.letters, n.flowDesk, n.groups, n.waiting = letterDesk{n}, flowDesk{n}, groupDesk{n}, waitingDesk{n}
	if err := n.serveAdmin(ctx, n, n.broker.Topology); err != nil {
		return err
	}
	return n.startFrontEnd(ctx)
}

// peerOptions are what this node says and demands on in-city connections.
func (n *brokerNode) peerOptions(t *peer.TLS) peer.Options {
	return peer.Options{
		Self: n.certs.Identity(), Group: n.self.Group.Name, Incarnation: n.broker.Sink().Incarnation(), TLS: t,
		Topology: func() (zone.Epoch, zone.Digest) { t := n.broker.Topology(); return t.Epoch, t.Digest }, Logger: n.log,
		DialContext: n.net.Dial,
	}
}

// startInbox listens for the sessions of other brokers, routers and readers.
func (n *brokerNode) startInbox(ctx context.Context) error {
	if err := n.newInbox(); err != nil {
		return err
	}
	guard := n.inCity(n.broker.Topology, zone.RoleBroker, zone.RoleRouter, zone.RoleCacheSync, zone.RoleCoordinator)
	options := n.peerOptions(guard)
	if n.self.Votes() {
		var err error
		c := city{n.base, n.broker.Topology}
		if n.voter, err = c.startVoter(ctx); err != nil {
			return err
		}
		options.Others = c.voterProtocols(n.voter)
	}
	l, err := n.peerListener(options, func(ctx context.Context, s *peer.Session) { n.serveSession(ctx, guard, s) })
	if err != nil {
		return err
	}
	return n.servePeers(ctx, l)
}

// newInbox makes what sessions are handed to.
func (n *brokerNode) newInbox() error {
	var err error
	n.inbox, err = flow.NewInbox(flow.InboxOptions{Sink: n.broker.Sink(), City: n.self.City.Name, Logger: n.log, Meter: n.meter(), Pull: n.pullOptions()})
	if err != nil {
		return err
	}
	return n.startCalls()
}

// serveSession hands a session to what its first frame asks for, once the peer
// is entitled to it by the topology as it is now.
func (n *brokerNode) serveSession(ctx context.Context, guard *peer.TLS, s *peer.Session) {
	first, err := s.Recv(ctx)
	if err != nil {
		return
	}
	if err := guard.Authorize(s.Identity()); err != nil {
		s.CloseText(wire.CodeWrongIdentity, err.Error())
		return
	}
	if err := speaksForItself(n.broker.Topology(), s.Identity(), first); err != nil {
		s.CloseText(wire.CodeWrongIdentity, err.Error())
		return
	}
	n.dispatch(ctx, s, first)
}

// dispatch hands over a session whose peer is entitled to it.
func (n *brokerNode) dispatch(ctx context.Context, s *peer.Session, first wire.Frame) {
	var err error
	role := s.Peer().Role
	switch {
	case role == zone.RoleCoordinator:
		s.CloseText(wire.CodeWrongIdentity, "a coordinator has no records")
	case first.Type == wire.TypeCall: // by a broker of this zone, else package peer had refused it
		err = n.calls.Serve(ctx, s.Peer().Node, s, first)
	case first.Type == wire.TypeWant && role == zone.RoleCacheSync:
		err = n.broker.ServeWant(ctx, s, first)
	case first.Type == wire.TypeWant || role == zone.RoleCacheSync:
		s.CloseText(wire.CodeWrongIdentity, "landings are read with the certificate of a cache reader")
	case asksToPull(first):
		err = n.servePull(ctx, s, first)
	default:
		err = n.inbox.Serve(ctx, &replayed{Stream: s, first: &first})
	}
	if err != nil && ctx.Err() == nil {
		n.log.Debug("session ended", "peer", string(s.Peer().Node), "err", err)
	}
}

// replayed is a stream whose first frame was read already.
type replayed struct {
	wire.Stream
	first *wire.Frame // only Recv's goroutine
}

// Recv implements wire.Stream.
func (r *replayed) Recv(ctx context.Context) (wire.Frame, error) {
	if f := r.first; f != nil {
		r.first = nil
		return *f, nil
	}
	return r.Stream.Recv(ctx)
}

// startOutbox sends this group's flows.
func (n *brokerNode) startOutbox(ctx context.Context) error {
	d, err := n.newDialer()
	if err != nil {
		return err
	}
	n.masters = masters.New(func() []masters.Hint { return leadersIn(n.city) })
	return n.startFlows(ctx, d, n.masters)
}

// newDialer makes the connections to other nodes of the city.
func (n *brokerNode) newDialer() (*peer.Dialer, error) {
	d, err := peer.NewDialer(n.peerOptions(n.inCity(n.broker.Topology, zone.RoleBroker, zone.RoleRouter)))
	if err != nil {
		return nil, err
	}
	n.watched.peers = append(n.watched.peers, watchedPeers{"out", d.Stats})
	n.onStop("peer dialler", d.Close)
	return d, nil
}

// startFlows sends this group's flows over connections of the dialler.
func (n *brokerNode) startFlows(ctx context.Context, d *peer.Dialer, where *masters.Directory) error {
	n.egress = egress.New(egress.Options{City: n.self.City.Name, Topology: n.broker.Topology, Routers: n.routers, Broker: n.brokerAddr, Masters: where,
		Pool: egress.PoolOptions{Open: egress.OverPeer(d, n.broker.Topology().Deployment, n.self.City.Name)}})
	n.onStop("egress", func() error { n.egress.Close(); return nil })
	if err := n.startCalling(); err != nil {
		return err
	}
	loop := newLoopback(n.self.Group.Name, n.egress, n.inbox.Serve)
	var err error
	n.outbox, err = flow.NewOutbox(flow.OutboxOptions{Source: n.broker, Idle: n.broker.IdleLegs, Dialer: loop, City: n.self.City.Name,
		Rand: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), Logger: n.log, Meter: n.meter(), Tracer: n.tracer()})
	if err != nil {
		return err
	}
	n.puller.Store(n.outbox)
	n.watched.queues.add(single(n.inbox.Usage), single(n.outbox.Usage), single(n.egress.Usage))
	n.onStop("loopback", loop.close)
	n.run(ctx, "outbox", n.outbox.Run)
	n.run(ctx, "pulls", n.inbox.Run)
	n.run(ctx, "routers", n.followGossip)
	return nil
}

// routers returns the living routers of this city.
func (n *brokerNode) routers() []egress.RouterInfo {
	var all []egress.RouterInfo
	for _, m := range n.city.Members() {
		if m.Role == zone.RoleRouter {
			all = append(all, egress.RouterInfo{Node: m.Name, Addr: m.Peer, Draining: m.Draining})
		}
	}
	return all
}

func (n *brokerNode) brokerAddr(name zone.Node) string { return memberAddr(n.city, name) }

// memberAddr returns the in-city address that gossip knows of a node, or "".
func memberAddr(p *gossip.Pool, name zone.Node) string {
	for _, m := range p.Members() {
		if m.Name == name {
			return m.Peer
		}
	}
	return ""
}

// followGossip moves sessions soon when a router dies.
func (n *brokerNode) followGossip(ctx context.Context) error {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.city.Changes():
		case <-again:
		}
		again = nil
		if d := n.egress.RoutersChanged(); d > 0 {
			again = time.After(d)
		}
	}
}

// startFrontEnd serves the RocketMQ 5 clients.
func (n *brokerNode) startFrontEnd(ctx context.Context) error {
	s, err := n.newFrontEnd(ctx, n.fronts, nil)
	if err != nil {
		return err
	}
	ln, err := n.listen(ctx, "client", n.self.Client)
	if err != nil {
		return err
	}
	n.run(ctx, "front end", func(ctx context.Context) error { return s.Run(ctx, ln) })
	return nil
}

// clientTLS is what clients meet.
func (b *base) clientTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return b.certs.Certificate(), nil
	}}
}

// newFrontEnd makes what serves the RocketMQ 5 clients; fronts and fellow as in its options.
func (n *brokerNode) newFrontEnd(ctx context.Context, fronts func(*zone.GroupInfo) []*zone.NodeInfo, fellow *tls.Config) (*rocketmq.Server, error) {
	access, err := n.followACL(ctx)
	if err != nil {
		return nil, err
	}
	s, err := rocketmq.New(rocketmq.Options{
		Access: access, Fronts: fronts, ProducerCame: n.broker.ProducerCame, Store: n.broker, Zone: n.self.Zone.Name, Group: n.self.Group.Name, PlaintextOff: !n.cfg.Plaintext, Grace: n.cfg.Grace, Logger: n.log, Meter: n.meter(),
		Tracer: n.tracer(), Sampler: n.traces.Sampler(),
		TLS: n.clientTLS(), Fellow: fellow,
	})
	if err != nil {
		return nil, err
	}
	n.watched.queues.add(s.Usage)
	n.broker.SetLiveness(s.Alive)
	n.broker.SetLiteNotify(s.LiteLost)
	n.broker.SetProducers(s.CheckBack)
	return s, nil
}

// applyRetry is how long a topology that could not be logged waits.
const applyRetry = time.Second

// followTopology puts newer topologies in force, as far as the broker can.
func (n *brokerNode) followTopology(ctx context.Context) error {
	for {
		t, changed := n.source.Watch()
		var again <-chan time.Time
		switch err := n.broker.ApplyTopology(ctx, t); {
		case err == nil:
			n.refused.Store(nil)
			n.text.of(t)
			if err := n.city.SetMeta(func(m *gossip.Meta) { m.Epoch = t.Epoch }); err != nil && ctx.Err() == nil {
				return fmt.Errorf("tell the epoch: %w", err)
			}
		case ctx.Err() != nil:
			return nil
		default:
			text := err.Error()
			n.refused.Store(&text)
			n.log.Error("topology is not in force here", "err", err)
			var e *broker.Error
			if errors.As(err, &e) && e.Retryable() {
				again = time.After(applyRetry)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again:
		}
	}
}

var _ admin.Node = (*brokerNode)(nil)
