package broker

import (
	"context"
	"fmt"
	"strings"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// checkTopology returns the topology prepared, or why this broker cannot run
// under it.
func (b *Broker) checkTopology(t *zone.Topology) (*view, error) {
	v := newView(t, b.node, b.self)
	if v == nil {
		return nil, &Error{Op: "topology", Kind: KindInvalid, Text: fmt.Sprintf("epoch %s does not have broker group %s", t.Epoch, b.self)}
	}
	var list []string
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
		if _, err := b.checkLeadable(v); err != nil {
			return err // as its master refuses it
		}
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
		if _, err := b.checkLiteKinds(v); err != nil {
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

// checkLeadable returns why this broker could not decide for its group under a
// topology, or nil. One that is older than what was applied will do: it is in force
// here until this node has the newer one. open says that the next message may change
// the answer.
func (b *Broker) checkLeadable(v *view) (open bool, err error) {
	if err := b.checkOwners(v); err != nil {
		return false, err
	}
	return b.checkLiteKinds(v)
}

// verdict is what CanLead said of a topology, and of which state.
type verdict struct {
	view   *view
	epoch  zone.Epoch
	digest zone.Digest
	topics int // that the state knows
	err    error
}

// CanLead returns why this broker could not be the master of its group under the
// topology that it has, or nil: such a member must not be elected. It is cheap while
// no topology changes, unless a topic that is empty would be refused with its first
// message.
func (b *Broker) CanLead() error {
	v := b.view.Load()
	b.mu.RLock()
	now := verdict{view: v, epoch: b.state.topology, digest: b.state.digest, topics: len(b.state.topics)}
	b.mu.RUnlock()
	if last := b.leadable.Load(); last != nil && last.view == now.view && last.epoch == now.epoch && last.digest == now.digest && last.topics == now.topics {
		return last.err
	}
	var open bool
	if open, now.err = b.checkLeadable(v); !open {
		b.leadable.Store(&now)
	}
	return now.err
}

// Outdated returns the epoch that the group has applied when this broker's own topology
// is an older one, or another one of the same epoch.
func (b *Broker) Outdated() (applied zone.Epoch, outdated bool) {
	t := b.Topology()
	b.mu.RLock()
	defer b.mu.RUnlock()
	c := t.Epoch.Compare(b.state.topology)
	return b.state.topology, c < 0 || c == 0 && t.Digest != b.state.digest
}

// takeUpTopology puts this broker's topology in force when it begins to lead. When the
// group has applied a newer one before, which this node does not have yet, that stays
// applied, and the own one is served by.
func (b *Broker) takeUpTopology(ctx context.Context) error {
	err := b.ApplyTopology(ctx, b.Topology())
	applied, outdated := b.Outdated()
	if err == nil || !outdated || KindOf(err) != KindInvalid {
		return err
	}
	if err := b.CanLead(); err != nil {
		return err
	}
	b.logger.Warn("leading with a topology that is not the one the group has applied", "group", string(b.self), "epoch", b.Topology().Epoch.String(), "applied", applied.String(), "err", err)
	b.refreshHands()
	return nil
}
