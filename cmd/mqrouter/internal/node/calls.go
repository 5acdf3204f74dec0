package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/replication/call"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// startCalls lets the brokers of this zone ask this one. The way back is
// startCalling, once there is an egress.
func (n *brokerNode) startCalls() error {
	var err error
	n.calls, err = call.NewServer(call.ServerOptions{Meter: n.meter(), KindName: callName, May: n.mayCall, Handle: func(ctx context.Context, kind uint8, body []byte) ([]byte, error) {
		reply, err := n.broker.ServeCall(ctx, broker.CallKind(kind), body)
		return reply, faultOf(err)
	}})
	if err == nil {
		n.watched.queues.add(single(n.calls.Usage))
	}
	return err
}

// mayCall leaves to members of this broker group what is of their logs.
func (n *brokerNode) mayCall(from zone.Node, kind uint8) error {
	if broker.CallKind(kind) != broker.CallOffer {
		return nil
	}
	if x := n.broker.Topology().FindNode(from); x == nil || x.Group == nil || x.Group.Name != n.self.Group.Name {
		return fmt.Errorf("broker %s is no member of broker group %s", from, n.self.Group.Name)
	}
	return nil
}

// startCalling lets this broker ask those of its zone.
func (n *brokerNode) startCalling() error {
	c, err := call.NewClient(call.Options{Meter: n.meter(), KindName: callName, Session: func() uint64 { return rand.Uint64() | 1 },
		Open: func(ctx context.Context, to zone.Group, session uint64) (wire.Stream, error) {
			return n.egress.Open(ctx, flow.Leg{City: n.self.City.Name, Group: to, Flow: record.FlowID{Class: zone.ClassControl}}, session)
		}})
	if err != nil {
		return err
	}
	n.watched.queues.add(single(c.Usage))
	n.broker.SetCaller(zoneCaller{c})
	return nil
}

func callName(kind uint8) string { return broker.CallKind(kind).String() }

// faultOf makes the error of a broker fit to travel.
func faultOf(err error) error {
	if err == nil {
		return nil
	}
	kind := broker.KindOf(err)
	switch kind {
	case 0:
		kind = broker.KindInternal
	case broker.KindClosed: // which the caller is not
		kind = broker.KindUnavailable
	}
	return &call.Fault{Kind: uint16(kind), Text: err.Error()}
}

// zoneCaller is a broker's way to the other groups of its zone.
type zoneCaller struct{ client *call.Client }

var _ broker.Caller = zoneCaller{}

// Call implements broker.Caller.
func (z zoneCaller) Call(ctx context.Context, to zone.Group, kind broker.CallKind, body []byte) ([]byte, error) {
	reply, err := z.client.Call(ctx, to, uint8(kind), body)
	if err == nil {
		return reply, nil
	}
	var f *call.Fault
	if !errors.As(err, &f) {
		return nil, &broker.Error{Op: "call", Kind: broker.KindUnavailable, Err: err}
	}
	known := broker.Kind(f.Kind)
	if uint16(known) != f.Kind {
		known = broker.KindInternal
	}
	return nil, &broker.Error{Op: "call", Kind: known, Text: fmt.Sprintf("group %s: %s", to, f.Text)}
}
