package consul

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// maxValue bounds what is read from a key, in bytes.
const maxValue = 16 << 10

// lease is the value of a group's lease. Turn makes each renewal another value:
// Consul does not count it as a change to write what is there already.
type lease struct {
	Turn      uint64          `json:"turn"`
	Epoch     uint64          `json:"epoch"`
	Node      zone.Node       `json:"node"`
	Committed record.Position `json:"committed"`
	// Lease is how long it was granted for: observers may have other times. In
	// nanoseconds; 0 = as long as the reader's own.
	Lease time.Duration `json:"lease_ns"`
	// Returned says that the master has given it back, and answers for Epoch no more.
	Returned bool `json:"returned,omitempty"`
}

// order is the value of an operator's fail-over. It counts for one election only.
type order struct {
	Version uint64 `json:"version"` // of the vacant term
	coordinator.Order
}

// state is what the keys of a group say at a time. An index is 0 when there is no such
// key.
type state struct {
	term       coordinator.Term
	termIndex  uint64
	lease      lease
	leaseIndex uint64
	order      order
	standings  map[zone.Node]entry
}

// saying is the value of a standing; Turn is as in lease.
type saying struct {
	Turn uint64 `json:"turn"`
	coordinator.Standing
	Remembers mark `json:"remembers"` // the newest term that the node ever knew
}

type entry struct {
	coordinator.Standing
	remembers mark
	index     uint64
}

func (c *Coordinator) key(g zone.Group, parts ...string) string {
	return strings.Join(append([]string{c.o.Prefix, string(g)}, parts...), "/")
}

// read makes a state of the pairs below a group's key.
func (c *Coordinator) read(g zone.Group, pairs api.KVPairs) (state, error) {
	s := state{term: coordinator.Term{Group: g}, standings: map[zone.Node]entry{}}
	root := c.key(g) + "/"
	var errs []error
	take := func(p *api.KVPair, into any) bool {
		if len(p.Value) > maxValue {
			errs = append(errs, fmt.Errorf("key %s has %d bytes", p.Key, len(p.Value)))
			return false
		}
		if err := json.Unmarshal(p.Value, into); err != nil {
			errs = append(errs, fmt.Errorf("key %s: %w", p.Key, err))
			return false
		}
		return true
	}
	for _, p := range pairs {
		switch name := strings.TrimPrefix(p.Key, root); {
		case name == "term" && take(p, &s.term):
			s.termIndex = p.ModifyIndex
		case name == "lease" && take(p, &s.lease):
			s.leaseIndex = p.ModifyIndex
		case name == "order":
			take(p, &s.order)
		case strings.HasPrefix(name, "standing/"):
			var x saying
			if take(p, &x) && string(x.Node) == strings.TrimPrefix(name, "standing/") {
				s.standings[x.Node] = entry{Standing: x.Standing, remembers: x.Remembers, index: p.ModifyIndex}
			}
		}
	}
	if s.term.Group != g {
		errs = append(errs, fmt.Errorf("the term below %s is of group %q", root, s.term.Group))
	}
	return s, errors.Join(errs...)
}

// list reads a group's keys as they are now.
func (c *Coordinator) list(ctx context.Context, g zone.Group) (state, error) {
	pairs, _, err := c.o.Client.KV().List(c.key(g)+"/", (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
	if err != nil {
		return state{}, err
	}
	return c.read(g, pairs)
}

// errChanged says that a transaction was refused since a key is not as it was read.
var errChanged = errors.New("a key has changed meanwhile")

// commit runs a transaction. It fails with errChanged when nothing was done because of
// a changed key; after another error it may have been done.
func (c *Coordinator) commit(ctx context.Context, ops ...*api.KVTxnOp) error {
	all := make(api.TxnOps, 0, len(ops))
	for _, o := range ops {
		all = append(all, &api.TxnOp{KV: o})
	}
	ok, res, _, err := c.o.Client.Txn().Txn(all, (&api.QueryOptions{}).WithContext(ctx))
	switch {
	case err != nil:
		return err
	case ok:
		return nil
	}
	for _, e := range res.Errors {
		// An index that does not match, or a key that is there or is not: Consul has no
		// codes for them, and nothing else refuses a transaction of these verbs.
		if strings.Contains(e.What, "permission") || strings.Contains(e.What, "ACL") {
			return fmt.Errorf("consul refuses: %.200s", e.What)
		}
	}
	return errChanged
}

// asRead is the operation that demands the key to be as it was read.
func asRead(key string, index uint64) *api.KVTxnOp {
	if index == 0 {
		return &api.KVTxnOp{Verb: api.KVCheckNotExists, Key: key}
	}
	return &api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: index}
}

// put is the operation that replaces a key that is as it was read; an index of 0: that
// is not there.
func put(key string, index uint64, v any) (*api.KVTxnOp, error) {
	b, err := json.Marshal(v)
	return &api.KVTxnOp{Verb: api.KVCAS, Key: key, Index: index, Value: b}, err
}

// set is the operation that writes a key whatever it was.
func set(key string, v any) (*api.KVTxnOp, error) {
	b, err := json.Marshal(v)
	return &api.KVTxnOp{Verb: api.KVSet, Key: key, Value: b}, err
}

// known is what the state says to be committed in the term's epoch.
func (s state) known() record.Position {
	if s.leaseIndex != 0 && s.lease.Epoch == s.term.Epoch {
		return s.lease.Committed
	}
	return 0
}

// vacated is the next term, without a master.
func (s state) vacated() coordinator.Term { return s.term.Vacated().Noted(s.known()) }

// putTerm writes the next term if the one that was read is in force, together with
// other operations.
func (c *Coordinator) putTerm(ctx context.Context, s state, next coordinator.Term, others ...*api.KVTxnOp) error {
	op, err := put(c.key(next.Group, "term"), s.termIndex, next)
	if err != nil {
		return err
	}
	return c.commit(ctx, append(others, op)...)
}

// extra returns one more operation for the change of a state's term to the next.
type extra func(s state, next coordinator.Term) (*api.KVTxnOp, error)

// putTermWith is putTerm with the operation that with returns; nil: without.
func (c *Coordinator) putTermWith(ctx context.Context, s state, next coordinator.Term, with extra) error {
	if with == nil {
		return c.putTerm(ctx, s, next)
	}
	op, err := with(s, next)
	if err != nil {
		return err
	}
	return c.putTerm(ctx, s, next, op)
}

// returned is the operation by which the master of a state's term gives its lease back.
// That is written: a key that is not there says nothing.
func (c *Coordinator) returned(s state, next coordinator.Term) (*api.KVTxnOp, error) {
	return set(c.key(next.Group, "lease"), lease{Turn: c.turn.Add(1), Epoch: s.term.Epoch, Node: s.term.Master, Committed: max(s.known(), next.Committed), Returned: true})
}
