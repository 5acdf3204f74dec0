package broker

import (
	"context"
	"fmt"
	"strings"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// CheckSupported lists what the topology asks of this broker group that this
// build does not do, a sentence each. A topology with an entry is refused.
// Message kinds other than normal are no entry: their topics may be declared,
// and sends to them are refused.
func CheckSupported(t *zone.Topology, me *zone.GroupInfo) []string {
	var list []string
	if me != nil && len(me.Nodes) > 1 {
		if x := me.Zone.City.Coordinator; x != nil && x.Driver != zone.CoordinatorRaft {
			list = append(list, fmt.Sprintf("broker group %s has %d nodes, and the coordinator of its city is %s; raft is supported", me.Name, len(me.Nodes), x.Driver))
		}
	}
	return list
}

// checkTopology returns the topology prepared, or why this broker cannot run
// under it.
func (b *Broker) checkTopology(t *zone.Topology) (*view, error) {
	v := newView(t, b.node, b.self)
	if v == nil {
		return nil, &Error{Op: "topology", Kind: KindInvalid, Text: fmt.Sprintf("epoch %s does not have broker group %s", t.Epoch, b.self)}
	}
	list := CheckSupported(t, v.group)
	if n := len(v.group.Nodes); n > 1 && b.member == nil {
		list = append(list, fmt.Sprintf("broker group %s has %d nodes, and this broker was started as its only one; start it again", b.self, n))
	}
	if b.changeOf == nil {
		for _, topic := range t.Topics {
			if topic.AtBudget == zone.BudgetCompact {
				list = append(list, fmt.Sprintf("topic %s: at_budget: %s without a reader of changes", topic.Name, topic.AtBudget))
			}
		}
	}
	if old := b.view.Load(); old != nil {
		if old.zone.Name != v.zone.Name {
			list = append(list, fmt.Sprintf("broker group %s moves from zone %s to %s", b.self, old.zone.Name, v.zone.Name))
		}
		list = append(list, zone.Moves(old.topo, t)...)
	}
	if len(list) > 0 {
		return nil, &Error{Op: "topology", Kind: KindUnsupported, Text: fmt.Sprintf("epoch %s: %s", t.Epoch, strings.Join(list, "; "))}
	}
	return v, nil
}

// checkOwners refuses a topology under which something has moved since the one
// that was applied last, by whatever process on this store.
func (b *Broker) checkOwners(v *view) error {
	var moved []string
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, o := range owners(v.topo) {
		if was, ok := b.state.owners[o.zone]; ok && was != o.owned {
			if o.zone == "" {
				moved = append(moved, "the active GZone")
				continue
			}
			moved = append(moved, fmt.Sprintf("shards or slots of zone %s", o.zone))
		}
	}
	if len(moved) == 0 {
		return nil
	}
	return &Error{Op: "topology", Kind: KindUnsupported,
		Text: fmt.Sprintf("epoch %s moves %s; moves are not supported by this version", v.topo.Epoch, strings.Join(moved, ", "))}
}

// ApplyTopology makes the topology the one in force: it is logged, folded, and
// then used. One that is applied already changes nothing. An older one, another
// one of the same epoch (KindInvalid), and one that asks for what this build
// does not do (KindUnsupported) are refused, and the one in force stays.
func (b *Broker) ApplyTopology(ctx context.Context, t *zone.Topology) error {
	b.topoMu.Lock()
	defer b.topoMu.Unlock()
	v, err := b.checkTopology(t)
	if err != nil {
		return err
	}
	if b.member != nil && b.Role() != RoleMaster && b.Role() != RolePromoting {
		b.view.Store(v) // the master has it logged
		return nil
	}
	b.mu.RLock()
	have, digest := b.state.topology, b.state.digest
	b.mu.RUnlock()
	switch c := t.Epoch.Compare(have); {
	case c < 0:
		return &Error{Op: "topology", Kind: KindInvalid, Text: fmt.Sprintf("epoch %s is older than %s, which was applied", t.Epoch, have)}
	case c == 0 && t.Digest != digest:
		return &Error{Op: "topology", Kind: KindInvalid, Text: fmt.Sprintf("epoch %s was applied with other content; raise the epoch", t.Epoch)}
	case c > 0:
		if err := b.checkOwners(v); err != nil {
			return err
		}
		if err := b.checkLiteKinds(v); err != nil {
			return err
		}
		e, err := b.control(record.TypeTopologyApplied, v.body().append(nil))
		if err == nil {
			err = b.appendWait(ctx, &op{batch: commitlog.Batch{Entries: []commitlog.Entry{e}, Reserved: true}})
		}
		if err != nil {
			return &Error{Op: "topology", Kind: kindOfLog(err), Err: err}
		}
		b.logger.Info("topology applied", "group", string(b.self), "epoch", t.Epoch.String())
	}
	b.view.Store(v)
	b.refreshHands()
	poke(b.legKick)
	poke(b.overKick)
	b.dueAll.Store(true)
	poke(b.dueKick)
	return nil
}
