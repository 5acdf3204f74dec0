package raft

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// metrics are a voter's instruments. They are read from its status when somebody
// asks, so that nothing is counted on the way of a request.
type metrics struct{ registration metric.Registration }

func newMetrics(m metric.Meter, v *Voter) (*metrics, error) {
	if m == nil {
		return &metrics{}, nil
	}
	g := gauges{m: m}
	quorum := g.make("mqrouter.coordinator.quorum", "1 while the voter has a leader or is it; 0 while nothing can be decided here")
	leader := g.make("mqrouter.coordinator.leader", "1 while the voter leads")
	voters := g.make("mqrouter.coordinator.voters", "Servers of the quorum as the voter knows it")
	master := g.make("mqrouter.coordinator.group.master", "1 while the broker group has a master with a lease; told by the leader")
	epoch := g.make("mqrouter.coordinator.group.epoch", "Epoch of the broker group; told by the leader")
	inSync := g.make("mqrouter.coordinator.group.in_sync", "Nodes of the broker group that are in sync; told by the leader")
	if g.err != nil {
		return nil, g.err
	}
	reg, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := v.Status()
		o.ObserveInt64(quorum, truth(s.State == StateLeader || s.State == StateFollower && s.Leader != ""))
		o.ObserveInt64(leader, truth(s.State == StateLeader))
		o.ObserveInt64(voters, int64(len(s.Servers)))
		for _, x := range s.Groups {
			about := metric.WithAttributes(attribute.String("group", string(x.Term.Group)))
			o.ObserveInt64(master, truth(x.Term.Master != "" && x.Leased), about)
			o.ObserveInt64(epoch, int64(x.Term.Epoch), about)
			o.ObserveInt64(inSync, int64(len(x.Term.InSync)), about)
		}
		return nil
	}, quorum, leader, voters, master, epoch, inSync)
	return &metrics{registration: reg}, err
}

func (m *metrics) close() {
	if m.registration != nil {
		_ = m.registration.Unregister() // the meter's end does it as well
	}
}

type gauges struct {
	m   metric.Meter
	err error
}

func (g *gauges) make(name, text string) metric.Int64ObservableGauge {
	i, err := g.m.Int64ObservableGauge(name, metric.WithDescription(text))
	if err != nil {
		g.err = err
	}
	return i
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
