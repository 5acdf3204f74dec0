package node

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/replication/ship"
	"github.com/mqrouter/mqrouter/zone"
)

// memberDesk answers operators for a member: the master does, and a replica says who that
// is, so that whoever asks one node after the other is told everything once, or that there
// is no master.
type memberDesk struct{ m *memberNode }

var (
	_ admin.DeadLetters = memberDesk{}
	_ admin.Groups      = memberDesk{}
	_ admin.Flows       = memberDesk{}
	_ admin.Waiting     = waitingOf{}
	_ admin.Node        = (*memberNode)(nil)
)

// master returns the broker that decides for the group when it is this one. The error
// says whose business it is, with 421 Misdirected Request, or that it is nobody's now.
func (d memberDesk) master() (*brokerNode, error) {
	if l := d.m.life.Load(); l != nil && l.reigns() {
		return l.brokerNode, nil
	}
	t := d.m.known()
	if t.Master == "" || t.Master == d.m.self.Name {
		return nil, &admin.RequestError{Status: http.StatusServiceUnavailable,
			Err: fmt.Errorf("broker group %s has no master now: try again", d.m.self.Group.Name)}
	}
	return nil, &admin.RequestError{Status: http.StatusMisdirectedRequest,
		Err: fmt.Errorf("node %s is master of broker group %s", t.Master, d.m.self.Group.Name)}
}

// Queues implements admin.DeadLetters.
func (d memberDesk) Queues(ctx context.Context) ([]admin.DeadLetterQueue, error) {
	n, err := d.master()
	if err != nil {
		return nil, err
	}
	return letterDesk{n}.Queues(ctx)
}

// Letters implements admin.DeadLetters.
func (d memberDesk) Letters(ctx context.Context, q admin.DeadLetterQuery) (admin.DeadLetterPage, error) {
	n, err := d.master()
	if err != nil {
		return admin.DeadLetterPage{}, err
	}
	return letterDesk{n}.Letters(ctx, q)
}

// Replay implements admin.DeadLetters.
func (d memberDesk) Replay(ctx context.Context, r admin.ReplayRequest) ([]admin.ReplayResult, error) {
	n, err := d.master()
	if err != nil {
		return nil, err
	}
	return letterDesk{n}.Replay(ctx, r)
}

// Reset implements admin.Groups.
func (d memberDesk) Reset(ctx context.Context, r admin.ResetRequest) ([]admin.GroupReset, error) {
	n, err := d.master()
	if err != nil {
		return nil, err
	}
	return groupDesk{n}.Reset(ctx, r)
}

// Withdraw implements admin.Flows.
func (d memberDesk) Withdraw(ctx context.Context, r admin.WithdrawRequest) ([]admin.Withdrawal, error) {
	n, err := d.master()
	if err != nil {
		return nil, err
	}
	return flowDesk{n}.Withdraw(ctx, r)
}

// waitingOf is memberDesk for messages that wait.
type waitingOf struct{ memberDesk }

// List implements admin.Waiting.
func (d waitingOf) List(ctx context.Context, q admin.WaitingQuery) (admin.WaitingPage, error) {
	n, err := d.master()
	if err != nil {
		return admin.WaitingPage{}, err
	}
	return waitingDesk{n}.List(ctx, q)
}

// Order implements admin.Waiting.
func (d waitingOf) Order(ctx context.Context, by string, o admin.WaitingOrder) ([]admin.OrderResult, error) {
	n, err := d.master()
	if err != nil {
		return nil, err
	}
	return waitingDesk{n}.Order(ctx, by, o)
}

// Topology implements admin.Node.
func (m *memberNode) Topology() []byte { return m.text.of(m.topologyNow()) }

// CacheGet implements admin.Node: a broker has no cache.
func (m *memberNode) CacheGet(context.Context, string) (admin.CacheEntry, error) {
	return admin.CacheEntry{}, admin.ErrNotServed
}

// Find implements admin.Node. A replica has what the master has, and leaves it to it.
func (m *memberNode) Find(ctx context.Context, id string) ([]admin.Sighting, error) {
	n, err := memberDesk{m}.master()
	if err != nil {
		return nil, err
	}
	return n.Find(ctx, id)
}

// Status implements admin.Node.
func (m *memberNode) Status() admin.Status {
	l := m.life.Load()
	var s admin.Status
	if l != nil && l.reigns() {
		s = l.brokerNode.Status()
	} else {
		s = m.status(m.topologyNow())
		if l != nil {
			b := l.broker.Status()
			s.Log = logOf(&b)
			if d := l.broker.Damaged(); d != "" {
				s.Reasons = append(s.Reasons, d)
			}
		}
	}
	if m.voter != nil {
		voterStatus(&s, m.voter)
	}
	s.Member = m.memberStatus(l)
	switch x := s.Member; {
	case x.Problem != "":
		s.Ready = false
		s.Reasons = append(s.Reasons, x.Problem)
	case x.TermGone:
		s.Reasons = append(s.Reasons, x.Waiting)
	case x.Master == "":
		s.Reasons = append(s.Reasons, strings.TrimSuffix("the broker group has no master: "+x.Waiting, ": "))
	case x.Role == broker.RoleReplica.String() && !x.Following:
		s.Ready = false
		s.Reasons = append(s.Reasons, "does not follow the master "+x.Master)
	case l != nil && x.Role == broker.RoleReplica.String() && l.fit() != nil:
		s.Reasons = append(s.Reasons, "cannot be elected: "+l.fit().Error())
	case x.Role == broker.RoleMaster.String():
		if applied, outdated := l.broker.Outdated(); outdated {
			s.Reasons = append(s.Reasons, fmt.Sprintf("serves with topology %s; the group has applied %s: roll that one out to this node", l.broker.Topology().Epoch, applied))
		}
	case x.Role != broker.RoleReplica.String() && x.Role != broker.RoleMaster.String():
		s.Ready = false
		s.Reasons = append(s.Reasons, "becomes master")
	}
	return s
}

// memberStatus says what the node is in its group.
func (m *memberNode) memberStatus(l *life) *admin.Member {
	m.mu.Lock()
	t, problem, damaged := m.term, m.problem, m.damaged
	m.mu.Unlock()
	if damaged != "" {
		problem = fmt.Sprintf("the store is damaged and stays (%s): %s", damaged, problem)
	}
	x := &admin.Member{Role: "opening", Epoch: t.Epoch, Master: string(t.Master), InSync: nodeNames(t.InSync), Proposed: nodeNames(t.Proposed), Problem: problem, SetAside: m.setAsideFolders()}
	x.Damaged = damaged != ""
	if m.consul != nil {
		x.Waiting, x.TermGone = m.consul.Waiting(m.self.Group.Name)
		x.Known = uint64(t.Committed)
		if t.Lost != nil {
			x.Lost = lossOf(t.Lost)
		}
	}
	if list, err := m.tails.List(); len(list) > 0 || err != nil {
		x.Tails = tailsOf(list, m.self)
		if err != nil && x.Problem == "" {
			x.Problem = err.Error()
		}
	}
	if l == nil {
		return x
	}
	x.Role = l.broker.Role().String()
	log := l.broker.Log()
	x.Diverged = l.unfit.Load()
	if i := log.Incarnation(); i != 0 {
		x.Incarnation = fmt.Sprintf("%016x", uint64(i))
	}
	if rows := log.Lineage(); len(rows) > 0 {
		x.LogEpoch = rows[len(rows)-1].Epoch
	}
	x.End, x.Synced, x.Committed = uint64(log.End()), uint64(log.Synced()), uint64(log.Committed())
	if heard, err := l.place.Health(); err != nil {
		x.Unheard, x.CoordinatorErr = heard, err.Error()
	}
	l.mu.Lock()
	leader := l.leader
	l.mu.Unlock()
	if leader == nil {
		f := l.follower.Status()
		x.Following = f.Following
		if f.Err != nil && !f.Following {
			x.FollowErr = f.Err.Error()
		}
		return x
	}
	if epoch, until := l.place.Until(); epoch == t.Epoch {
		x.Lease = max(time.Until(until), 0)
	}
	st := leader.Status()
	if st.Term.Version > t.Version { // the master itself changes the set
		x.InSync, x.Proposed = nodeNames(st.Term.InSync), nodeNames(st.Term.Proposed)
	}
	for _, r := range st.Replicas {
		row := admin.Replica{Node: string(r.Node), Phase: r.Phase.String(), Since: r.Since, Synced: uint64(r.Synced), Behind: uint64(r.Behind), Awaited: r.Awaited}
		if r.Fault != ship.FaultNone {
			row.Fault = r.Fault.String()
		}
		x.Replicas = append(x.Replicas, row)
	}
	return x
}

func nodeNames(nodes []zone.Node) []string {
	var all []string
	for _, n := range nodes {
		all = append(all, string(n))
	}
	return all
}
