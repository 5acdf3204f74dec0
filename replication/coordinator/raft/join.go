package raft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

// joinTime is how often a voter that is not part of the quorum asks the others, and
// how long it waits for each answer.
const joinTime = 300 * time.Millisecond

// join returns when raft may run on the store: when it has run before, when the quorum
// has the store as one of its servers, or when a new quorum was begun. Until then the
// voter must not listen to the others: one that has forgotten how it voted could vote
// again.
func (v *Voter) join(ctx context.Context, st *store) error {
	if !st.fresh() {
		return nil
	}
	for {
		done, why := v.knock(ctx, st)
		if done {
			return nil
		}
		v.enter(StateJoining, why)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(joinTime):
		}
	}
}

// knock asks the other voters once. why says what is missing.
func (v *Voter) knock(ctx context.Context, st *store) (done bool, why string) {
	voters := v.o.Voters()
	if !slices.Contains(voters, v.o.Self) {
		return false, "the topology does not name this node as a voter"
	}
	self := serverID(v.o.Self, st.id)
	founders := []raft.Server{{ID: self, Address: raft.ServerAddress(v.o.Self)}}
	var missing []string
	for _, n := range voters {
		if n == v.o.Self {
			continue
		}
		s, err := v.statusOf(ctx, n)
		switch {
		case err != nil:
			missing = append(missing, fmt.Sprintf("%s (%v)", n, err))
		case slices.Contains(s.Servers, string(self)):
			return true, "" // the others have begun with it, or have taken it in
		case len(s.Servers) > 0:
			return false, v.apply(ctx, n, s, st)
		case s.Store == "":
			missing = append(missing, fmt.Sprintf("%s (%s)", n, s.Problem))
		case !s.Fresh:
			missing = append(missing, fmt.Sprintf("%s (its store is starting)", n))
		default:
			founders = append(founders, raft.Server{ID: serverID(n, s.Store), Address: raft.ServerAddress(n)})
		}
	}
	if len(missing) > 0 {
		return false, "a new quorum begins when all voters are up; waiting for " + strings.Join(missing, ", ")
	}
	// All have empty stores: everybody comes to the same list.
	slices.SortFunc(founders, func(a, b raft.Server) int { return strings.Compare(string(a.ID), string(b.ID)) })
	if err := v.found(st, founders); err != nil {
		return false, err.Error()
	}
	v.o.Logger.Info("quorum of the coordinator begins", "servers", serversOf(founders))
	return true, ""
}

// found writes the first configuration into the store.
func (v *Voter) found(st *store, founders []raft.Server) error {
	snaps, err := raft.NewFileSnapshotStoreWithLogger(v.o.Dir, keepSnapshots, &hlog{to: v.o.Logger})
	if err != nil {
		return &StoreError{Path: v.o.Dir, Op: "open snapshots", Err: err}
	}
	_, nowhere := raft.NewInmemTransport("")
	err = raft.BootstrapCluster(v.config(serverID(v.o.Self, st.id), nil), st, st, snaps, nowhere, raft.Configuration{Servers: founders})
	if err != nil {
		return &StoreError{Path: v.o.Dir, Op: "begin", Err: err}
	}
	return nil
}

// apply asks the leader of a quorum that exists to take this store in.
func (v *Voter) apply(ctx context.Context, known zone.Node, s Status, st *store) (why string) {
	leader := s.Leader
	if leader == "" {
		return fmt.Sprintf("the quorum of %s has no leader", known)
	}
	ctx, cancel := context.WithTimeout(ctx, putTime)
	defer cancel()
	if _, err := v.peers.post(ctx, leader, opJoin, request{To: v.o.Self, Store: st.id}); err != nil {
		return fmt.Sprintf("%s, which leads, does not take this store in: %v", leader, err)
	}
	return fmt.Sprintf("%s, which leads, takes this store in", leader)
}

func (v *Voter) statusOf(ctx context.Context, n zone.Node) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	a, err := v.peers.post(ctx, n, opStatus, request{})
	switch {
	case err != nil:
		return Status{}, err
	case a.Status == nil:
		return Status{}, errNoStatus
	}
	return *a.Status, nil
}

var errNoStatus = errors.New("an answer without a status")

// ask implements book.ask.
func (v *Voter) ask(ctx context.Context, id raft.ServerID, leadership uint64) error {
	v.mu.Lock()
	r := v.raft
	v.mu.Unlock()
	if nodeOf(id) == v.o.Self {
		if r == nil || r.State() != raft.Leader || r.CurrentTerm() != leadership {
			return errStaleLeadership
		}
		return nil
	}
	a, err := v.peers.post(ctx, nodeOf(id), opConfirm, request{})
	switch {
	case err != nil:
		return fmt.Errorf("voter %s: %w", nodeOf(id), err)
	case a.Server != string(id) || a.Leadership != leadership:
		return fmt.Errorf("voter %s: %w", nodeOf(id), errStaleLeadership)
	}
	return nil
}

// takeIn puts a voter with a new store into the place of the one before, if any. It
// may be asked again.
func (v *Voter) takeIn(r *raft.Raft, n zone.Node, storeID string) error {
	if !slices.Contains(v.o.Voters(), n) {
		return fmt.Errorf("the topology does not name %s as a voter", n)
	}
	conf := r.GetConfiguration()
	if err := conf.Error(); err != nil {
		return err
	}
	id := serverID(n, storeID)
	for _, s := range conf.Configuration().Servers {
		switch {
		case s.ID == id:
			return nil
		case nodeOf(s.ID) == n:
			if err := r.RemoveServer(s.ID, 0, putTime).Error(); err != nil {
				return err
			}
			v.o.Logger.Warn("voter came back with another store and is taken for a new one", "voter", string(n), "was", string(s.ID), "is", string(id))
		}
	}
	return r.AddVoter(id, raft.ServerAddress(n), 0, putTime).Error()
}

// settle makes the quorum what the topology says: it takes out those that are not
// voters any more, when all others are in. New voters come by themselves.
func (v *Voter) settle(ctx context.Context, r *raft.Raft) {
	tick := time.NewTicker(settleTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		conf := r.GetConfiguration()
		if conf.Error() != nil {
			continue
		}
		servers, voters := conf.Configuration().Servers, v.o.Voters()
		missing := slices.ContainsFunc(voters, func(n zone.Node) bool {
			return !slices.ContainsFunc(servers, func(s raft.Server) bool { return nodeOf(s.ID) == n })
		})
		if missing || len(voters) == 0 {
			continue
		}
		for _, s := range servers {
			if slices.Contains(voters, nodeOf(s.ID)) {
				continue
			}
			if err := r.RemoveServer(s.ID, 0, putTime).Error(); err != nil {
				v.o.Logger.Warn("voter could not be taken out of the quorum", "voter", string(s.ID), "err", err)
				break
			}
			v.o.Logger.Info("voter is taken out of the quorum: the topology does not name it any more", "voter", string(s.ID))
			break // one at a time
		}
	}
}

// confirmAnswer says in which leadership this voter is.
func (v *Voter) confirmAnswer() answer {
	v.mu.Lock()
	r, st := v.raft, v.store
	v.mu.Unlock()
	if r == nil || st == nil {
		return refuse(coordinator.KindNoQuorum, "this voter is not part of the quorum now")
	}
	return answer{Server: string(serverID(v.o.Self, st.id)), Leadership: r.CurrentTerm()}
}
