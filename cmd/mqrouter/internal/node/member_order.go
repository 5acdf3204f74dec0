package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
	"github.com/mqrouter/mqrouter/zone"
)

// orderDesk carries out what operators order of a member's broker group.
type orderDesk struct{ m *memberNode }

var _ admin.BrokerGroups = orderDesk{}

const (
	// levelTime bounds how long a master that answers nothing any more waits for its
	// successor to have all of its log. A member in sync needs a round trip and a sync.
	levelTime = time.Second
	// levelPause is how often that is looked at.
	levelPause = 2 * time.Millisecond
)

// handOver is an order to pass a reign on. It is given to the loop of the reign.
type handOver struct {
	to   zone.Node
	term coordinator.Term // that it led to; read after done
	done chan error       // capacity 1
}

// mine refuses what is about another broker group.
func (d orderDesk) mine(group string) error {
	if own := d.m.self.Group.Name; group != string(own) {
		return &admin.RequestError{Status: http.StatusBadRequest, Err: fmt.Errorf("this node is of broker group %s, not of %s", own, group)}
	}
	return nil
}

// Switch implements admin.BrokerGroups.
func (d orderDesk) Switch(ctx context.Context, _ string, o admin.SwitchOrder) ([]admin.GroupTerm, error) {
	if err := d.mine(o.Group); err != nil {
		return nil, err
	}
	if _, err := memberDesk(d).master(); err != nil {
		return nil, err
	}
	l := d.m.life.Load()
	if l == nil {
		return nil, &admin.RequestError{Status: http.StatusServiceUnavailable, Err: errors.New("this node is the master no more: ask again")}
	}
	h := &handOver{to: zone.Node(o.To), done: make(chan error, 1)}
	ctx, cancel := context.WithTimeout(ctx, 2*resignTime+levelTime)
	defer cancel()
	select {
	case l.handOvers <- h:
	case <-l.broker.Deposed():
		return nil, &admin.RequestError{Status: http.StatusServiceUnavailable, Err: errors.New("this node is the master no more: ask again")}
	case <-ctx.Done():
		return nil, &admin.RequestError{Status: http.StatusServiceUnavailable, Err: errors.New("the master is not ready to hand over: ask again")}
	}
	if err := <-h.done; err != nil { // bounded by handOver
		return nil, err
	}
	return []admin.GroupTerm{termOf(h.term)}, nil
}

// Failover implements admin.BrokerGroups.
func (d orderDesk) Failover(ctx context.Context, by string, o admin.FailoverOrder) ([]admin.GroupTerm, error) {
	if err := d.mine(o.Group); err != nil {
		return nil, err
	}
	if strings.TrimSpace(o.Why) == "" {
		return nil, &admin.RequestError{Status: http.StatusBadRequest, Err: errors.New("say why: who comes after you will ask")}
	}
	t, err := d.m.coord.Failover(ctx, d.m.self.Group.Name, coordinator.Order{To: zone.Node(o.To), AllowLoss: o.AllowLoss, By: by, Reason: o.Why})
	if err != nil {
		return nil, orderError(err)
	}
	return []admin.GroupTerm{termOf(t)}, nil
}

// orderError gives a coordinator's refusal the status of its kind.
func orderError(err error) error {
	status := http.StatusConflict
	switch {
	case errors.Is(err, coordinator.KindNoQuorum):
		status = http.StatusServiceUnavailable
	case errors.Is(err, coordinator.KindNotFound):
		status = http.StatusNotFound
	}
	return &admin.RequestError{Status: status, Err: err}
}

func termOf(t coordinator.Term) admin.GroupTerm {
	g := admin.GroupTerm{Group: string(t.Group), Epoch: t.Epoch, Master: string(t.Master), InSync: nodeNames(t.InSync)}
	if t.Lost != nil && t.Lost.Epoch == t.Epoch {
		g.Lost = lossOf(t.Lost)
	}
	return g
}

func lossOf(l *coordinator.Loss) *admin.GroupLoss {
	return &admin.GroupLoss{Epoch: l.Epoch, From: uint64(l.From), Known: uint64(l.Known), At: l.At}
}

// Extent implements admin.BrokerGroups.
func (d orderDesk) Extent(ctx context.Context, q admin.ExtentQuery) (admin.LogExtent, error) {
	l := d.m.life.Load()
	if l == nil {
		return admin.LogExtent{}, &admin.RequestError{Status: http.StatusServiceUnavailable, Err: errors.New("the store is not open now")}
	}
	x, err := l.broker.CountRecords(ctx, record.Position(q.From), record.Position(q.To))
	if err != nil {
		return admin.LogExtent{}, &admin.RequestError{Status: http.StatusConflict, Err: err}
	}
	out := admin.LogExtent{From: uint64(x.From), To: uint64(x.To), Records: x.Records, Partial: x.Partial}
	for _, t := range x.Topics {
		out.Topics = append(out.Topics, admin.TopicCount{Topic: string(t.Topic), Messages: t.Messages})
	}
	return out, nil
}

// handOver passes the reign of t on to the node of the order, and reports whether the
// reign has ended thereby. A node that is not in sync is refused, and nothing has
// changed. From the moment that this node answers nothing any more there is no way
// back: when the wanted node falls out then, the rule elects one that is in sync.
func (l *life) handOver(ctx context.Context, t coordinator.Term, h *handOver) (over bool) {
	if err := l.maySucceed(h.to); err != nil {
		h.done <- &admin.RequestError{Status: http.StatusConflict, Err: err}
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*resignTime)
	defer cancel()
	drain, stop := context.WithTimeout(ctx, resignTime)
	if err := l.broker.Drain(drain); err != nil {
		l.log.Warn("not everything that clients have settled is committed", "err", err)
	}
	// From here on the log ends where it ends, and is shipped still: who is level with it
	// has everything that was ever acknowledged.
	err := l.broker.Halt(drain)
	stop()
	to := h.to
	if !l.awaitLevel(ctx, to) || err != nil {
		l.log.Warn("the node that was to take over has not got all of the log; the rule elects", "peer", string(to), "err", err)
		to = ""
	}
	l.broker.Depose()
	next, err := l.m.coord.Resign(ctx, l.self.Group.Name, t.Epoch, to)
	if errors.Is(err, coordinator.KindNoCandidate) && to != "" {
		l.log.Warn("the node that was to take over cannot; the rule elects", "peer", string(to), "err", err)
		to = ""
		next, err = l.m.coord.Resign(ctx, l.self.Group.Name, t.Epoch, "")
	}
	if errors.Is(err, coordinator.KindStaleEpoch) { // done already, when only an answer was lost
		if now, watchErr := l.m.coord.Watch(ctx, l.self.Group.Name, 0); watchErr == nil && now.Epoch > t.Epoch && now.Master == to {
			next, err = now, nil
		}
	}
	l.place.StepDown(t.Epoch)
	switch {
	case err != nil:
		h.done <- orderError(fmt.Errorf("the master has stopped, and the coordinator elects another one when its lease is over: %w", err))
	case to == "":
		h.done <- &admin.RequestError{Status: http.StatusConflict,
			Err: fmt.Errorf("%s fell behind at the last moment; the master has stopped, and the coordinator elects another one that is in sync", h.to)}
	default:
		h.term = next
		h.done <- nil
	}
	return true
}

// replica returns what the master knows of one of its replicas.
func (l *life) replica(n zone.Node) (ship.ReplicaStatus, bool) {
	l.mu.Lock()
	leader := l.leader
	l.mu.Unlock()
	if leader == nil {
		return ship.ReplicaStatus{}, false
	}
	all := leader.Status().Replicas
	i := slices.IndexFunc(all, func(r ship.ReplicaStatus) bool { return r.Node == n })
	if i < 0 {
		return ship.ReplicaStatus{}, false
	}
	return all[i], true
}

// maySucceed says why a node cannot take over from this one, or nil.
func (l *life) maySucceed(to zone.Node) error {
	if to == l.self.Name {
		return fmt.Errorf("%s is the master already", to)
	}
	l.mu.Lock()
	leader := l.leader
	l.mu.Unlock()
	if leader == nil {
		return errors.New("this node is the master no more: ask again")
	}
	inSync := leader.Status().Term.InSync
	r, ok := l.replica(to)
	switch {
	case !ok:
		return fmt.Errorf("%s is not a node of the group; it has %v", to, l.members())
	case r.Fault != ship.FaultNone:
		return fmt.Errorf("%s is %s: %s", to, r.Phase, r.Fault)
	case !slices.Contains(inSync, to):
		return fmt.Errorf("%s is not in sync: it is %s and lacks %d bytes; in sync are %v", to, r.Phase, r.Behind, inSync)
	}
	return nil
}

// awaitLevel waits until the replica has all of the log, for a moment, and says whether it
// has.
func (l *life) awaitLevel(ctx context.Context, to zone.Node) bool {
	ctx, cancel := context.WithTimeout(ctx, levelTime)
	defer cancel()
	tick := time.NewTicker(levelPause)
	defer tick.Stop()
	for {
		r, ok := l.replica(to)
		if !ok || r.Synced >= l.broker.Log().End() {
			return ok
		}
		select {
		case <-ctx.Done():
			return false
		case <-l.broker.Deposed():
			return false
		case <-tick.C:
		}
	}
}

// setAsideFolders names the logs in the data folder that were moved out of the way.
func (m *memberNode) setAsideFolders() []string {
	names, err := m.o.FS.Folders(m.cfg.DataDir)
	if err != nil { // there is no store yet
		return nil
	}
	return slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, asidePrefix) })
}

// asidePrefix begins the names of logs that were moved out of the way.
const asidePrefix = "log."
