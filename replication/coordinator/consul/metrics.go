package consul

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/zone"
)

// measure makes the instruments. They have the names of the raft driver's, whose alerts
// are about the same things; here each member tells what it sees, and of its group's term
// only while Consul answers it. They end with the meter.
func (c *Coordinator) measure() error {
	m := c.o.Meter
	if m == nil {
		return nil
	}
	var err error
	gauge := func(name, text string) metric.Int64ObservableGauge {
		g, e := m.Int64ObservableGauge(name, metric.WithDescription(text))
		if err == nil {
			err = e
		}
		return g
	}
	quorum := gauge("mqrouter.coordinator.quorum", "1 while Consul answers this member; 0 while nothing can be decided here")
	master := gauge("mqrouter.coordinator.group.master", "1 while the broker group has a master with a lease, as this member sees it")
	epoch := gauge("mqrouter.coordinator.group.epoch", "Epoch of the broker group, as this member sees it")
	inSync := gauge("mqrouter.coordinator.group.in_sync", "Nodes of the broker group that are in sync, as this member sees it")
	if err != nil {
		return err
	}
	_, err = m.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		for _, name := range c.o.Groups() {
			v, ok := c.view(name)
			if !ok {
				continue
			}
			to.ObserveInt64(quorum, truth(v.hears))
			if !v.hears {
				continue
			}
			about := metric.WithAttributes(attribute.String("group", string(name)))
			to.ObserveInt64(master, truth(v.led), about)
			to.ObserveInt64(epoch, int64(v.epoch), about) //nolint:gosec // counts masters
			to.ObserveInt64(inSync, int64(v.inSync), about)
		}
		return nil
	}, quorum, master, epoch, inSync)
	return err
}

// view is what a member sees of its group.
type view struct {
	hears  bool // Consul answers
	led    bool // there is a master, and its lease is not over
	epoch  uint64
	inSync int
}

// view returns false before Consul was asked.
func (c *Coordinator) view(g zone.Group) (view, bool) {
	o := c.observer(g)
	if o == nil {
		return view{}, false
	}
	deaf := o.deaf.Load()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.known {
		return view{}, deaf
	}
	t := o.state.term
	return view{hears: !deaf, led: t.Master != "" && o.behind.IsZero() && c.o.Now().Before(o.over()), epoch: t.Epoch, inSync: len(t.InSync)}, true
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
