package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/zone"
)

// Withdrawal is what one leg holds for a destination that is gone.
type Withdrawal struct {
	Leg     flow.Leg
	Records uint64        // that are not settled and not declared lost before
	Bytes   int64         // of them
	Oldest  time.Duration // age of the oldest; 0 = not readable
}

// Withdraw gives up, for good, everything that waits for a group which the
// topology does not have any more, and forgets that the group was owed anything.
// With dry it only says what that would be. Should the group come back, it gets
// what is still in the log, and is told of what is not.
//
// A group that the topology has is refused (KindInvalid): bring it back, or take
// it out of the topology first.
func (b *Broker) Withdraw(ctx context.Context, group zone.Group, dry bool) ([]Withdrawal, error) {
	if err := b.ready("withdraw"); err != nil {
		return nil, err
	}
	list, declared, oldest := b.withdrawals(group)
	if declared {
		return nil, &Error{Op: "withdraw", Kind: KindInvalid, Text: fmt.Sprintf("topology %s has the group %s: what waits for it is not given up by hand; take it out of the topology first, or see at_budget", b.Topology().Epoch, group)}
	}
	now := b.wallNow()
	for i, n := range oldest {
		if e, err := n.index.Get(n.from); err == nil {
			if v, err := b.readRecord(e); err == nil {
				list[i].Oldest = max(now.Sub(v.Stored()), 0)
			}
		}
	}
	if dry {
		return list, nil
	}
	for _, w := range list {
		if err := b.decide(ctx, &giveUp{leg: w.Leg, kind: giveWithdrawn}); err != nil {
			return nil, &Error{Op: "withdraw", Kind: kindOfLog(err), Err: err}
		}
		b.logger.Error("an operator gave up what waits for a destination that is gone", "group", string(group), "city", string(w.Leg.City),
			"flow", w.Leg.Flow.Target, "records", w.Records, "bytes", w.Bytes)
	}
	return list, nil
}

// withdrawals lists the legs to the group that hold something; declared says that
// the topology has the group. The needs say where the oldest record of each is.
func (b *Broker) withdrawals(group zone.Group) (list []Withdrawal, declared bool, oldest []need) {
	topo := b.Topology()
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, id := range sortedFlows(b.state.out) {
		f := b.state.out[id]
		for _, l := range f.legs {
			last := l.last(f.head())
			if l.key.group != group || l.cursor >= last {
				continue
			}
			leg, live := liveLeg(topo, id, l.key)
			declared = declared || (live && l.end == 0)
			first := l.firstPending(last)
			list = append(list, Withdrawal{Leg: leg, Records: l.pendingIn(first, last), Bytes: l.backlog})
			oldest = append(oldest, need{f.index, first - 1})
		}
	}
	if len(list) == 0 {
		declared = topo.FindGroup(group) != nil
	}
	return list, declared, oldest
}

// pendingIn counts the numbers to be sent from first to last.
func (l *leg) pendingIn(first, last uint64) (count uint64) {
	for n := first; n <= last; {
		f, through := l.fateOf(n, last)
		if f == fateSend {
			count += through - n + 1
		}
		n = through + 1
	}
	return count
}
