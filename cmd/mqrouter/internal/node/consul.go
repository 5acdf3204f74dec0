package node

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"
	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/coordinator/consul"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// startConsul makes this node's place in a city whose coordinator is Consul, and takes
// part in its group's elections.
func (c city) startConsul(ctx context.Context, fsys disk.FS) (*consul.Coordinator, error) {
	place, err := c.consul(ctx, fsys)
	if err != nil {
		return nil, err
	}
	c.run(ctx, "coordinator", place.Run)
	return place, nil
}

// consul makes the way to the city's Consul. What the configuration leaves out comes from
// the variables that Consul's own tools read (CONSUL_HTTP_ADDR, CONSUL_CACERT and so on).
func (c city) consul(ctx context.Context, fsys disk.FS) (*consul.Coordinator, error) {
	info := c.info()
	if info == nil || info.Coordinator == nil || info.Coordinator.Driver != zone.CoordinatorConsul {
		return nil, fmt.Errorf("the coordinator of city %s is not Consul", c.self.City.Name)
	}
	settings := api.DefaultConfig()
	for _, s := range []struct {
		to   *string
		from string
	}{
		{&settings.Address, c.cfg.Consul.Address}, {&settings.Datacenter, c.cfg.Consul.Datacenter},
		{&settings.TokenFile, c.cfg.Consul.TokenFile}, {&settings.TLSConfig.Address, c.cfg.Consul.ServerName},
		{&settings.TLSConfig.CAFile, c.cfg.Consul.CAFile}, {&settings.TLSConfig.CertFile, c.cfg.Consul.CertFile}, {&settings.TLSConfig.KeyFile, c.cfg.Consul.KeyFile},
	} {
		if s.from != "" {
			*s.to = s.from
		}
	}
	tokenFile := settings.TokenFile
	settings.TokenFile = "" // read here, again and again
	if tokenFile != "" {
		settings.Token = ""
	}
	client, err := api.NewClient(settings)
	if err != nil {
		return nil, fmt.Errorf("consul: %w", err)
	}
	if tokenFile != "" {
		t := &consulToken{path: tokenFile, client: client, log: c.log}
		if err := t.take(); err != nil {
			return nil, fmt.Errorf("consul: %w", err)
		}
		c.run(ctx, "consul token", t.follow)
	}
	place, err := consul.New(consul.Options{
		Client: client, Prefix: info.Coordinator.Prefix, Self: c.self.Name, Group: c.group, Groups: c.ownGroups,
		Timing: scaled(consul.DefaultTiming(), info.Coordinator.Lease), Lineage: randomLineage, Logger: c.log, Meter: c.consulMeter(),
		Memory: termFile{fs: fsys, dir: c.cfg.DataDir},
	})
	if err != nil {
		return nil, err
	}
	c.onStop("consul", func() error { settings.Transport.CloseIdleConnections(); return nil })
	return place, nil
}

// consulMeter returns nil for a node that measures nothing.
func (c city) consulMeter() metric.Meter {
	if c.meters == nil {
		return nil
	}
	return c.meter()
}

// noteAlone tells the term of this node's group that the topology has no other one,
// before its log is opened and written without the others. Only a store that was a
// member's waits for Consul: any other has nothing that a term could miss.
func (c city) noteAlone(ctx context.Context, fsys disk.FS) error {
	if info := c.info(); info == nil || info.Coordinator == nil || info.Coordinator.Driver != zone.CoordinatorConsul {
		return nil
	}
	place, err := c.consul(ctx, fsys)
	if err != nil {
		return err
	}
	known, err := place.Alone(ctx, c.self.Group.Name)
	switch {
	case err == nil:
		return nil
	case known:
		return fmt.Errorf("this store was a member's of a group with several nodes, and Consul has to know that it goes on alone: %w", err)
	}
	c.log.Warn("Consul was not told that this node is the only one of its group; that matters only if it was one of several before", "group", string(c.self.Group.Name), "err", err)
	return nil
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
	by := float64(lease) / float64(d.Lease) // a product of two durations is no duration: beyond 23 s it overflows
	for _, x := range []*time.Duration{&d.Renew, &d.Margin, &d.Settle} {
		*x = time.Duration(float64(*x) * by)
	}
	d.Lease = lease
	return d
}
