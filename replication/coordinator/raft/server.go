package raft

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

// caller is who asks, as its certificate says.
type caller struct {
	node zone.Node
	role zone.Role
}

// callerKey is the caller's in the context of a connection.
type callerKey struct{}

// Bounds of the server.
const (
	headTime  = 5 * time.Second // for the head of a request, and its body
	idleTime  = time.Minute     // a connection without a request
	maxHead   = 4 << 10         // bytes of a head
	maxAtOnce = 2048            // requests being served, those that watch included
)

// serve answers members, operators and voters until ctx ends.
func (v *Voter) serve(ctx context.Context) {
	var crew crew
	defer crew.end()
	places := make(chan struct{}, maxAtOnce)
	s := &http.Server{
		ReadHeaderTimeout: headTime, ReadTimeout: headTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHead,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if c, ok := c.(*counted); ok {
				return context.WithValue(ctx, callerKey{}, caller{node: c.from.Name, role: c.from.Role})
			}
			return ctx
		},
		ErrorLog: slog.NewLogLogger(v.o.Logger.Handler(), slog.LevelDebug),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !crew.enter() {
				return
			}
			defer crew.leave()
			select {
			case places <- struct{}{}:
				defer func() { <-places }()
			default:
				write(w, refuse(coordinator.KindNoQuorum, "%d requests are being served", maxAtOnce))
				return
			}
			// The request's context ends with its connection, the server's with the node.
			rctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			defer context.AfterFunc(ctx, cancel)()
			v.handle(rctx, w, r)
		}),
	}
	stop := context.AfterFunc(ctx, func() {
		_ = s.Close()        // ends connections, and with them requests
		_ = v.server.Close() // never fails
	})
	defer stop()
	_ = s.Serve(v.server) // ends with ctx only
	<-ctx.Done()
}

func write(w http.ResponseWriter, a answer) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a) // the peer has gone, if it fails
}

func (v *Voter) handle(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	from, ok := r.Context().Value(callerKey{}).(caller)
	if !ok || from.node == "" {
		http.Error(w, "nobody knows who asks", http.StatusForbidden)
		return
	}
	op, ok := pathOp(r)
	if !ok {
		http.Error(w, "no such operation", http.StatusNotFound)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		return
	}
	var q request
	if err := json.Unmarshal(body, &q); err != nil {
		http.Error(w, "no request: "+err.Error(), http.StatusBadRequest)
		return
	}
	write(w, v.answer(ctx, from, op, q))
}

func pathOp(r *http.Request) (string, bool) {
	const prefix = "/v1/"
	p := r.URL.Path
	if r.Method != http.MethodPost || len(p) <= len(prefix) || p[:len(prefix)] != prefix {
		return "", false
	}
	return p[len(prefix):], true
}

// may says why the caller may not ask this, or "".
func (v *Voter) may(from caller, op string, q *request) string {
	voter := slices.Contains(v.o.Voters(), from.node)
	switch op {
	case opRenew:
		if q.Standing == nil || q.Standing.Node != from.node {
			return "a member speaks for itself only"
		}
	case opJoin:
		if !voter || q.To != from.node {
			return "a voter speaks for itself only"
		}
	case opConfirm:
		if !voter {
			return "only voters ask that"
		}
	case opChange, opResign:
		// Whether the caller is the master is judged where the term is known.
	case opFailover:
		return v.mayOrder(from, q)
	}
	return ""
}

// mayOrder says why the caller may not order a fail-over, or "". A broker does so in
// the name of an operator, of whose certificate or token it knows, and for its own
// group only: the key of one broker is no key to the others' records.
func (v *Voter) mayOrder(from caller, q *request) string {
	if q.Order == nil {
		return "no order"
	}
	switch from.role {
	case zone.RoleAdmin:
		q.Order.By = string(from.node) // not what it says of itself
		return ""
	case zone.RoleBroker:
		if g, ok := v.o.Group(q.Group); ok && slices.Contains(g.Members, from.node) {
			return q.Order.Check()
		}
		return "a broker orders that for its own group only, in the name of an operator"
	}
	return "only operators order that, or brokers in their name"
}

// answer does what is asked.
func (v *Voter) answer(ctx context.Context, from caller, op string, q request) answer {
	if why := v.may(from, op, &q); why != "" {
		return refuse(coordinator.KindRefused, "%s", why)
	}
	switch op {
	case opStatus:
		s := v.Status()
		return answer{Status: &s}
	case opConfirm:
		return v.confirmAnswer()
	}
	v.mu.Lock()
	desk, r := v.desk, v.raft
	v.mu.Unlock()
	if desk == nil {
		a := refuse(coordinator.KindNoQuorum, "this voter does not lead")
		if r != nil {
			_, id := r.LeaderWithID()
			a.Failed.Leader = nodeOf(id)
		}
		return a
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(desk.ctx, cancel)()
	if op == opJoin {
		return v.joinAnswer(r, q)
	}
	return v.asLeader(ctx, desk.office, from, op, q)
}

func (v *Voter) joinAnswer(r *raft.Raft, q request) answer {
	if err := v.takeIn(r, q.To, q.Store); err != nil {
		return refuse(coordinator.KindNoQuorum, "%v", err)
	}
	return answer{}
}

// asLeader answers what only the leader can.
func (v *Voter) asLeader(ctx context.Context, o *coordinator.Office, from caller, op string, q request) answer {
	var t coordinator.Term
	var err error
	switch op {
	case opRenew:
		if q.Standing == nil {
			return refuse(coordinator.KindRefused, "no standing")
		}
		var l coordinator.Lease
		if t, l, err = o.Renew(ctx, q.Group, *q.Standing); err == nil {
			return answer{Term: &t, Lease: l.Duration.Microseconds(), LeaseEpoch: l.Epoch}
		}
	case opWatch:
		t, err = o.Watch(ctx, q.Group, q.After)
	case opChange, opResign:
		if master := v.master(q.Group); from.node != master {
			return refuse(coordinator.KindStaleEpoch, "the master is %q, not %s", master, from.node)
		}
		if op == opResign {
			t, err = o.Resign(ctx, q.Group, q.Epoch, q.To)
		} else {
			t, err = o.ChangeSet(ctx, q.Group, q.Epoch, q.Version, q.InSync, q.Proposed)
		}
	case opFailover:
		t, err = o.Failover(ctx, q.Group, *q.Order)
	case opTerms:
		all, err := o.Terms(ctx)
		if err != nil {
			return failed(err)
		}
		return answer{Terms: all}
	default:
		return refuse(coordinator.KindRefused, "no operation %.40q", op)
	}
	if err != nil {
		return failed(err)
	}
	return answer{Term: &t}
}

func (v *Voter) master(g zone.Group) zone.Node {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.machine == nil {
		return ""
	}
	return v.machine.term(g).Master
}

func failed(err error) answer {
	var e *coordinator.Error
	if !errors.As(err, &e) {
		return refuse(coordinator.KindNoQuorum, "%v", err)
	}
	text := e.Text
	if e.Err != nil {
		text = fmt.Sprintf("%s%v", text, e.Err)
	}
	return refuse(e.Kind, "%s", text)
}
