package node

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// pullOptions let this group's inbox take broadcasts from what other cities have
// landed, where the topology says so.
func (n *brokerNode) pullOptions() flow.PullOptions {
	return flow.PullOptions{
		Holders: func(id record.FlowID) []flow.Leg {
			return holders(n.broker.Topology(), n.self.Group.Name, n.broker.Sink().Incarnation(), id)
		},
		Dialer:  farDialer{n},
		Session: func() uint64 { return rand.Uint64() | 1 },
	}
}

// farDialer is the egress, which does not exist yet when the inbox is made and does
// when it runs.
type farDialer struct{ n *brokerNode }

var _ flow.Dialer = farDialer{}

// Open implements flow.Dialer.
func (d farDialer) Open(ctx context.Context, leg flow.Leg, session uint64) (wire.Stream, error) {
	return d.n.egress.Open(ctx, leg, session)
}

// asksToPull reports whether the first frame of a session asks for what landed here.
// One that cannot be read is for the inbox to refuse.
func asksToPull(first wire.Frame) bool {
	if first.Type != wire.TypeOpen {
		return false
	}
	o, err := wire.ParseOpen(first.Payload)
	return err == nil && o.Role == wire.OpenPull
}

// servePull serves a flow that landed here to another city that asks for it.
func (n *brokerNode) servePull(ctx context.Context, s *peer.Session, first wire.Frame) error {
	o, err := wire.ParseOpen(first.Payload)
	out := n.puller.Load()
	switch {
	case err != nil:
		s.CloseText(wire.CodeMalformed, err.Error())
		return err
	case out == nil:
		s.CloseText(wire.CodeDraining, "the node is starting")
		return nil
	case o.Group != n.self.Group.Name || o.City != n.self.City.Name:
		s.CloseText(wire.CodeUnknownGroup, "this is "+string(n.self.Group.Name))
		return errNotThisGroup
	case !mayPull(n.broker.Topology(), &o):
		s.CloseText(wire.CodeWrongIdentity, "channel "+o.Want.Target+" does not land in group "+string(o.Flow.Origin))
		return errNotEntitled
	}
	return out.ServePull(ctx, s, first)
}

var (
	errNotThisGroup = errors.New("node: a pull for another group")
	errNotEntitled  = errors.New("node: a pull by who may not")
)
