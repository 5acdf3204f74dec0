package consul

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

// Memory keeps the newest term that a node knows of a group, so that a process which is
// started again knows that Consul has forgotten it. Calls do not overlap.
type Memory interface {
	// Load returns the term that was saved last; without a Version when none was.
	Load(group zone.Group) (coordinator.Term, error)
	// Save is durable when it returns nil.
	Save(t coordinator.Term) error
}

// mark is the place of a term among those of its group.
type mark struct {
	Epoch   uint64 `json:"epoch"`
	Version uint64 `json:"version"`
}

func markOf(t coordinator.Term) mark { return mark{t.Epoch, t.Version} }

// newer says whether the mark is of a newer term than t.
func (m mark) newer(t coordinator.Term) bool {
	return coordinator.Term{Epoch: m.Epoch, Version: m.Version}.Newer(t)
}

// changesUnheard is how many versions are passed over when a master puts its term back:
// so many of its changes at most may have been made without its hearing of it. It asks
// for two at a time (a set, a mark), and for the next when it has heard of the last.
const changesUnheard = 16

// known returns the newest term that this node has learned of a group.
func (c *Coordinator) known(group zone.Group) coordinator.Term {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.terms[group]
}

// recall takes what the memory has of a group.
func (c *Coordinator) recall(group zone.Group) error {
	if c.o.Memory == nil {
		return nil
	}
	t, err := c.o.Memory.Load(group)
	if err != nil {
		return fmt.Errorf("coordinator/consul: memory of group %s: %w", group, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.Version != 0 {
		c.terms[group] = t
	}
	return nil
}

// learn saves a term before anybody here acts upon it. The first one of a group has to be
// saved; when the disk takes no later one, the older one still tells that there was one.
func (c *Coordinator) learn(t coordinator.Term) error {
	if !t.Newer(c.known(t.Group)) {
		return nil
	}
	c.saving <- struct{}{}
	defer func() { <-c.saving }()
	last := c.known(t.Group)
	if !t.Newer(last) {
		return nil // another call has saved a newer one meanwhile
	}
	var err error
	if c.o.Memory != nil {
		err = c.o.Memory.Save(t)
	}
	if err != nil && last.Version == 0 {
		return fmt.Errorf("remember the term: %w", err)
	}
	c.mu.Lock()
	c.terms[t.Group] = t
	failed := err != nil && !c.forgets
	c.forgets = err != nil
	c.mu.Unlock()
	if failed {
		c.o.Logger.Warn("term could not be saved; an older one is remembered", "group", string(t.Group), "epoch", t.Epoch, "version", t.Version, "err", err)
	}
	return nil
}

// remembered returns the newest term that the members know to have been in force, as far
// as their standings tell, and this node's own, and who knows it.
func (s state) remembered(own coordinator.Term, self zone.Node) (last mark, who zone.Node) {
	last, who = markOf(own), self
	for n, e := range s.standings {
		for _, m := range []mark{e.remembers, {e.SeenEpoch, e.Seen}} {
			if m.newer(coordinator.Term{Epoch: last.Epoch, Version: last.Version}) {
				last, who = m, n
			}
		}
	}
	return last, who
}

// setBack says that Consul's store has an older term than there was, or none.
func setBack(t coordinator.Term, last mark, who zone.Node) string {
	what := fmt.Sprintf("Consul's term of the group is of epoch %d, version %d", t.Epoch, t.Version)
	if t.Version == 0 {
		what = "Consul has no term of the group"
	}
	return fmt.Sprintf("%s, and %s knows one of epoch %d, version %d: the key was deleted or restored", what, who, last.Epoch, last.Version)
}

// putBack writes the term that Consul has lost again, as its master may as long as its
// lease runs: nobody was elected meanwhile. Anybody else waits for an order. Beside a node
// that went on alone the lease is not given anew: the term is there again, and an election
// finds out what that one wrote.
func (c *Coordinator) putBack(ctx context.Context, s state, mine coordinator.Term, st coordinator.Standing, asked time.Time) (coordinator.Term, coordinator.Lease, error) {
	c.mu.Lock()
	g := c.granted[mine.Group]
	c.mu.Unlock()
	if mine.Master != st.Node || st.Leads != mine.Epoch || g.epoch != mine.Epoch || !c.o.Now().Before(g.until) {
		return s.term, coordinator.Lease{}, errors.New(setBack(s.term, markOf(mine), c.o.Self))
	}
	next := mine.Noted(st.Committed).Clone()
	next.Version += changesUnheard
	var with []*api.KVTxnOp
	if next.Alone == "" {
		op, err := c.leaseOf(next, st)
		if err != nil {
			return s.term, coordinator.Lease{}, err
		}
		with = append(with, op)
	}
	if err := c.putTerm(ctx, s, next, with...); err != nil {
		return s.term, coordinator.Lease{}, err
	}
	c.o.Logger.Error("Consul had lost the group's term, or was set back; its master has put it back", "group", string(mine.Group), "epoch", next.Epoch, "version", next.Version)
	if next.Alone != "" {
		return next, coordinator.Lease{}, nil
	}
	return next, c.grant(next, asked), nil
}
