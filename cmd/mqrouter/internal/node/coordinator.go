package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/internal/gossip"
	"github.com/mqrouter/mqrouter/replication/coordinator/raft"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// coordinatorNode is a voter of its city's coordinator and nothing else.
type coordinatorNode struct {
	*base
	voter *raft.Voter
}

// Coordinator runs a voter until ctx ends.
func Coordinator(ctx context.Context, cfg config.Node, o Options) error {
	b, err := open(ctx, cfg, zone.RoleCoordinator, o)
	if err != nil {
		return err
	}
	n := &coordinatorNode{base: b}
	if err := n.start(ctx); err != nil {
		return errors.Join(err, n.close())
	}
	return n.serve(ctx)
}

func (n *coordinatorNode) start(ctx context.Context) error {
	incarnation, err := newIncarnation()
	if err != nil {
		return err
	}
	topology := n.source.Current
	if err := n.joinCity(topology); err != nil {
		return err
	}
	c := city{n.base, topology}
	if n.voter, err = c.startVoter(ctx); err != nil {
		return err
	}
	guard := n.inCity(topology, zone.RoleBroker, zone.RoleCoordinator)
	l, err := n.peerListener(peer.Options{
		Self: n.certs.Identity(), Incarnation: incarnation, TLS: guard, Logger: n.log, DialContext: n.net.Dial, Others: c.voterProtocols(n.voter),
		Topology: func() (zone.Epoch, zone.Digest) { t := topology(); return t.Epoch, t.Digest },
	}, func(_ context.Context, s *peer.Session) {
		s.CloseText(wire.CodeWrongIdentity, "a coordinator has no records")
	})
	if err != nil {
		return err
	}
	n.run(ctx, "topology", n.followTopology)
	if err := n.serveAdmin(ctx, n, topology); err != nil {
		return err
	}
	return n.servePeers(ctx, l)
}

// followTopology tells the city which topology is in force here; the voter reads it
// whenever it needs it.
func (n *coordinatorNode) followTopology(ctx context.Context) error {
	for {
		t, changed := n.source.Watch()
		n.text.of(t)
		if err := n.city.SetMeta(func(m *gossip.Meta) { m.Epoch = t.Epoch }); err != nil && ctx.Err() == nil {
			return fmt.Errorf("tell the epoch: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// Status implements admin.Node.
func (n *coordinatorNode) Status() admin.Status {
	s := n.status(n.source.Current())
	voterStatus(&s, n.voter)
	if c := s.Coordinator; c.State != raft.StateLeader && (c.State != raft.StateFollower || c.Leader == "") {
		s.Ready = false // it decides nothing, and helps nobody to decide
	}
	return s
}

// Topology implements admin.Node.
func (n *coordinatorNode) Topology() []byte { return n.text.of(n.source.Current()) }

// Find implements admin.Node: a coordinator has no log.
func (n *coordinatorNode) Find(context.Context, string) ([]admin.Sighting, error) {
	return nil, admin.ErrNotServed
}

// CacheGet implements admin.Node: a coordinator has no cache.
func (n *coordinatorNode) CacheGet(context.Context, string) (admin.CacheEntry, error) {
	return admin.CacheEntry{}, admin.ErrNotServed
}

var _ admin.Node = (*coordinatorNode)(nil)
