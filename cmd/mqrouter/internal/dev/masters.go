package dev

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// mastersEvery is how often nodes of groups with replicas are asked who is master. It
// bounds how exactly a fail-over is told.
const mastersEvery = 250 * time.Millisecond

// reign is who leads a broker group, as its nodes say.
type reign struct {
	node  zone.Node
	epoch uint64
	pid   int
}

// replicated returns the broker groups of several nodes of which some are started.
func (d *deployment) replicated() []*zone.GroupInfo {
	var groups []*zone.GroupInfo
	for _, z := range d.t.Zones() {
		for _, g := range z.Groups {
			if len(g.Nodes) > 1 && len(d.some(g.Nodes)) > 0 {
				groups = append(groups, g)
			}
		}
	}
	return groups
}

// watchMasters says who becomes master of a group, and keeps its pid where a shell finds
// it, until ctx ends.
func (d *deployment) watchMasters(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, g := range d.replicated() {
		wg.Go(func() { d.watchMaster(ctx, g) })
	}
}

func (d *deployment) watchMaster(ctx context.Context, g *zone.GroupInfo) {
	path := d.f.master(g.Name)
	defer os.Remove(path) //nolint:errcheck // it may never have been there
	tick := time.NewTicker(mastersEvery)
	defer tick.Stop()
	var last reign
	var missing time.Time // since when there is none; zero: there is one, or never was
	for ctx.Err() == nil {
		now := d.masterOf(ctx, g)
		switch {
		case now.node == "":
			if last.node != "" && missing.IsZero() {
				missing = time.Now()
				os.Remove(path) //nolint:errcheck // a stale one names a process that has ended
			}
		case now != last || !missing.IsZero():
			if err := os.WriteFile(path, fmt.Appendf(nil, "%d\n", now.pid), 0o644); err != nil {
				d.say("the pid of %s's master cannot be written down: %v", g.Name, err)
			}
			if last.node != "" && now.epoch != last.epoch {
				after := ""
				if !missing.IsZero() {
					after = fmt.Sprintf(", after %v without one", time.Since(missing).Round(mastersEvery/5))
				}
				d.say("%s: %s is master now, of epoch %d%s", g.Name, now.node, now.epoch, after)
			}
			last, missing = now, time.Time{}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// masterOf asks the nodes of a group that run here. One that is frozen is not waited for
// longer than a round.
func (d *deployment) masterOf(ctx context.Context, g *zone.GroupInfo) reign {
	ctx, cancel := context.WithTimeout(ctx, 2*mastersEvery)
	defer cancel()
	nodes := d.some(g.Nodes)
	said := make([]reign, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			s, err := d.ask.Status(ctx, n.Admin)
			if err == nil && s.Member != nil && s.Member.Role == "master" {
				said[i] = reign{n.Name, s.Member.Epoch, s.PID}
			}
		})
	}
	wg.Wait()
	var newest reign
	for _, r := range said {
		if r.epoch > newest.epoch {
			newest = r
		}
	}
	return newest
}
