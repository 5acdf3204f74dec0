package consul

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

// Failover implements coordinator.Coordinator. It has to be called at a member of the
// group.
func (c *Coordinator) Failover(ctx context.Context, group zone.Group, by coordinator.Order) (coordinator.Term, error) {
	to := by.To
	g, err := c.find("failover", group)
	if err != nil {
		return coordinator.Term{}, err
	}
	o := c.observer(group)
	if o == nil {
		return coordinator.Term{}, fail("failover", group, coordinator.KindRefused, "%s is no member of the group, or has just started: ask a member", c.o.Self)
	}
	ctx, cancel := context.WithTimeout(ctx, orderTime)
	defer cancel()
	vacant, err := c.change(ctx, "failover", group, func(s state) (coordinator.Term, error) {
		if err := o.mayOrder(g, s, by, c.o.Now()); err != nil {
			return s.term, err
		}
		return s.vacated(), nil
	}, func(_ state, next coordinator.Term) (*api.KVTxnOp, error) {
		return set(c.key(group, "order"), order{Version: next.Version, Order: by})
	})
	if err != nil {
		return coordinator.Term{}, err
	}
	c.o.Logger.Warn("fail-over ordered", "group", string(group), "to", string(to), "allow_loss", by.AllowLoss, "by", by.By, "reason", by.Reason)
	for t := vacant; ; {
		if t, err = c.Watch(ctx, group, t.Version); err != nil {
			why, _ := c.Waiting(group)
			c.recallOrder(ctx, group, vacant.Version)
			return coordinator.Term{}, fail("failover", group, coordinator.KindNoQuorum, "%s", why)
		}
		if t.Epoch > vacant.Epoch {
			return by.Outcome(t)
		}
	}
}

// recallOrder takes an order back that was not carried out, so that it is not when the
// operator has turned to something else. When Consul does not answer it stays.
func (c *Coordinator) recallOrder(ctx context.Context, group zone.Group, version uint64) {
	ctx, cancel := bounded(context.WithoutCancel(ctx))
	defer cancel()
	p, _, err := c.o.Client.KV().Get(c.key(group, "order"), (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
	if err != nil || p == nil {
		return
	}
	var x order
	if json.Unmarshal(p.Value, &x) == nil && x.Version == version {
		if _, _, err = c.o.Client.KV().DeleteCAS(p, (&api.WriteOptions{}).WithContext(ctx)); err == nil {
			return
		}
	}
	c.o.Logger.Warn("an order could not be taken back", "group", string(group), "version", version, "err", err)
}

// mayOrder says whether the operator's order can be carried out, as far as that is
// known before the master is asked to stop.
func (o *observer) mayOrder(g coordinator.Group, s state, by coordinator.Order, now time.Time) error {
	to, allowLoss := by.To, by.AllowLoss
	last, who := s.remembered(o.c.known(o.group), o.c.o.Self)
	o.mu.Lock()
	defer o.mu.Unlock()
	behind := last.newer(s.term)
	safe := slices.Contains(s.term.InSync, to) && s.standings[to].Fit
	alive := s.term.Master != "" && s.leaseIndex != 0 && !s.lease.Returned && now.Before(o.leased.Add(max(o.c.o.Timing.Lease, s.lease.Lease)))
	no := func(k coordinator.Kind, format string, args ...any) error {
		return fail("failover", o.group, k, format, args...)
	}
	switch why := by.Check(); {
	case why != "":
		return no(coordinator.KindRefused, "%s", why)
	case !slices.Contains(g.Members, to):
		return no(coordinator.KindNotFound, "%s is not a node of the group", to)
	case to == s.term.Master:
		return no(coordinator.KindRefused, "%s is the master", to)
	case !o.fresh(to, now):
		return no(coordinator.KindNoCandidate, "%s does not answer", to)
	case behind && now.Before(o.over()):
		return no(coordinator.KindRefused, "%s; its master may put it back: ask again in %s", setBack(s.term, last, who), o.over().Sub(now).Round(time.Millisecond))
	case behind:
		return nil // what cannot be without loss the election says
	case allowLoss && alive && !safe:
		return no(coordinator.KindRefused, "the master %s answers; nothing needs to be lost while it does", s.term.Master)
	case !allowLoss && !safe && s.term.Epoch != 0:
		return no(coordinator.KindNoCandidate, "%s is not in sync, or not fit; in sync are %v", to, s.term.InSync)
	}
	return nil
}
