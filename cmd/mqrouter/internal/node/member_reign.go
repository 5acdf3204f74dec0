package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/ship"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// resignTime bounds how long a master that stops waits for what it holds to be
	// committed, and for the coordinator to take its epoch back.
	resignTime = 3 * time.Second
)

// reign makes the replica the master of a term, and serves until it must not any more;
// the store is opened again then. When ctx ends it hands over first. Clients are passed on
// until it serves them itself.
func (l *life) reign(ctx context.Context, t coordinator.Term) error {
	l.epoch.Store(t.Epoch)
	defer l.place.StepDown(t.Epoch)
	if err := l.broker.Promote(ctx, t.Epoch, t.Lineage); err != nil {
		return fmt.Errorf("promotion to epoch %d: %w", t.Epoch, err)
	}
	leader, err := ship.NewLeader(ship.LeaderOptions{Self: l.self.Name, Group: l.self.Group.Name, Term: t, Log: l.broker.Log(), Snapshots: l.broker,
		Sets: l.m.coord, Leading: func() bool { return l.place.Holds(t.Epoch) }, Members: l.members, Logger: l.log, Meter: l.meter()})
	if err != nil {
		return err
	}
	leading, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- leader.Run(leading) }()
	l.mu.Lock()
	l.leader = leader
	l.mu.Unlock()
	err = l.rule(ctx, t, ended)
	if ctx.Err() != nil { // also when it did not get to serving: nobody has to wait for its lease
		err = l.resign(ctx, t)
	}
	l.broker.Depose()
	l.mu.Lock()
	l.serves = false
	l.mu.Unlock()
	l.audience.dismiss()
	l.m.learn(l.m.known(), false)
	stop()
	l.mu.Lock()
	l.leader = nil
	l.mu.Unlock()
	<-leader.Done()
	return err
}

// members names the nodes of the group.
func (l *life) members() []zone.Node {
	g := l.m.topologyNow().FindGroup(l.self.Group.Name)
	if g == nil {
		return []zone.Node{l.self.Name}
	}
	var all []zone.Node
	for _, n := range g.Nodes {
		all = append(all, n.Name)
	}
	return all
}

// rule begins to answer and serves until the reign ends.
func (l *life) rule(ctx context.Context, t coordinator.Term, ended <-chan error) error {
	begun := make(chan error, 1)
	lead, giveUp := context.WithCancel(ctx)
	defer giveUp()
	go func() { begun <- l.broker.Lead(lead) }()
	select {
	case err := <-begun:
		if err != nil {
			return fmt.Errorf("beginning of epoch %d: %w", t.Epoch, err)
		}
	case err := <-ended:
		giveUp()
		<-begun
		return reignEnded(err)
	case err := <-l.fail:
		giveUp()
		<-begun
		return reignEnded(err)
	}
	if err := l.startServing(ctx); err != nil {
		return err
	}
	l.m.learn(t, true) // what has waited for a master goes on to this very node
	l.run(ctx, "absent replicas", l.tellAway)
	l.m.stopPassing()
	l.served = true
	for {
		now, changed := l.place.Term()
		l.observe(now)
		if now.Epoch > t.Epoch || now.Master != l.self.Name {
			return reignEnded(errors.New("another term is in force"))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-l.broker.Deposed():
			return reignEnded(errors.New("the lease is over"))
		case err := <-ended:
			return reignEnded(err)
		case err := <-l.fail:
			return reignEnded(err)
		case h := <-l.handOvers:
			if l.handOver(ctx, t, h) {
				return reignEnded(errors.New("handed over by order of an operator"))
			}
		case <-changed:
		}
	}
}

// observe tells shipping of a term.
func (l *life) observe(t coordinator.Term) {
	l.mu.Lock()
	leader := l.leader
	l.mu.Unlock()
	leader.Observe(t)
}

func reignEnded(why error) error { return fmt.Errorf("no longer master: %w", why) }

// startServing takes clients and the sessions of other nodes. What it starts ends with
// the life, clients first.
func (l *life) startServing(ctx context.Context) error {
	if err := l.newInbox(); err != nil {
		return err
	}
	if err := l.startFlows(ctx, l.m.dialer, l.m.masters); err != nil {
		return err
	}
	s, err := l.newFrontEnd(ctx, l.fronts, l.m.fellowTLS())
	if err != nil {
		return err
	}
	at := l.m.door.turn()
	l.run(ctx, "front end", func(ctx context.Context) error { return s.Run(ctx, at) })
	l.watched.queues.add(s.Usage)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serves = true
	l.audience.admit()
	return nil
}

// resign hands the epoch over when the node stops: what is held is committed, nothing is
// answered any more, and the coordinator elects another member at once.
func (l *life) resign(ctx context.Context, t coordinator.Term) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignTime)
	defer cancel()
	if err := l.broker.Drain(ctx); err != nil {
		l.log.Warn("not everything that clients have settled is committed", "err", err)
	}
	l.broker.Depose()
	l.place.StepDown(t.Epoch)
	_, err := l.m.coord.Resign(ctx, l.self.Group.Name, t.Epoch, "")
	switch {
	case err == nil:
		l.log.Info("another member is elected", "epoch", t.Epoch)
	case errors.Is(err, coordinator.KindNoCandidate):
		l.log.Warn("no other member can be master; the group has none until one returns", "epoch", t.Epoch)
	case !errors.Is(err, coordinator.KindStaleEpoch):
		l.log.Warn("the coordinator does not take the epoch back; its lease runs out", "err", err)
	}
	return nil
}
