package node

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/coordinator/consul"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// startConsul makes this node's place in a city whose coordinator is Consul. Its
// address and token come from the configuration, else from the variables that
// Consul's own tools read (CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN, CONSUL_CACERT and so
// on).
func (c city) startConsul(ctx context.Context) (*consul.Coordinator, error) {
	info := c.info()
	if info == nil || info.Coordinator == nil || info.Coordinator.Driver != zone.CoordinatorConsul {
		return nil, fmt.Errorf("the coordinator of city %s is not Consul", c.self.City.Name)
	}
	settings := api.DefaultConfig()
	if c.cfg.Consul != "" {
		settings.Address = c.cfg.Consul
	}
	if c.cfg.ConsulToken != "" {
		settings.Token = c.cfg.ConsulToken
	}
	client, err := api.NewClient(settings)
	if err != nil {
		return nil, fmt.Errorf("consul: %w", err)
	}
	place, err := consul.New(consul.Options{
		Client: client, Prefix: info.Coordinator.Prefix, Self: c.self.Name, Group: c.group, Groups: c.ownGroups,
		Timing: scaled(consul.DefaultTiming(), info.Coordinator.Lease), Lineage: randomLineage, Logger: c.log,
	})
	if err != nil {
		return nil, err
	}
	c.run(ctx, "coordinator", place.Run)
	c.onStop("consul", func() error { settings.Transport.CloseIdleConnections(); return nil })
	return place, nil
}

// ownGroups names the broker group of this node, if it has several nodes.
func (c city) ownGroups() []zone.Group {
	return slices.DeleteFunc(c.groups(), func(g zone.Group) bool { return c.self.Group == nil || g != c.self.Group.Name })
}

// randomLineage returns the id of a lineage.
func randomLineage() record.LineageID {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails: the process ends instead
		if n := binary.LittleEndian.Uint64(b[:]); n != 0 {
			return record.LineageID(n)
		}
	}
}

// scaled returns the times for another lease, in their proportions.
func scaled(d coordinator.Timing, lease time.Duration) coordinator.Timing {
	d = d.WithDefaults()
	if lease <= 0 {
		return d
	}
	d.Renew = d.Renew * lease / d.Lease
	d.Margin = d.Margin * lease / d.Lease
	d.Settle = d.Settle * lease / d.Lease
	d.Lease = lease
	return d
}
