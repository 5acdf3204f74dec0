package consul

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// blockTime is how long a blocking query waits for a change.
	blockTime = 5 * time.Second
	// retryTime is how long to wait when Consul does not answer.
	retryTime = 200 * time.Millisecond
)

// observer follows the keys of one group, and vacates and elects as the rule says.
type observer struct {
	c     *Coordinator
	group zone.Group
	news  chan struct{} // capacity 1: the state is another one
	deaf  atomic.Bool   // Consul did not answer when it was asked last

	mu      sync.Mutex
	state   state                   // newest seen; guarded by mu, as is all below
	known   bool                    // there is one
	leased  time.Time               // when the lease, or its absence in the epoch, was first seen as it is
	longest time.Duration           // the longest lease that was seen
	vacant  time.Time               // when the term was first seen as it is
	heard   map[zone.Node]time.Time // when a standing was first seen as it is
	waiting string                  // why there is no master
	behind  time.Time               // since when the term is older than one that was in force; zero = it is not
}

func newObserver(c *Coordinator, g zone.Group) *observer {
	return &observer{c: c, group: g, news: make(chan struct{}, 1), heard: map[zone.Node]time.Time{}}
}

// run follows the keys until ctx ends.
func (o *observer) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { o.judgeAlways(ctx) })
	index := uint64(0)
	for ctx.Err() == nil {
		asking, cancel := context.WithTimeout(ctx, blockTime+callTime) // an agent that hangs is not waited for
		q := (&api.QueryOptions{WaitIndex: index, WaitTime: blockTime}).WithContext(asking)
		pairs, meta, err := o.c.o.Client.KV().List(o.c.key(o.group)+"/", q)
		var s state
		if err == nil {
			s, err = o.c.read(o.group, pairs)
		}
		if err == nil && o.newerThan(s) {
			s, err = o.c.list(asking, o.group) // a server that is behind, or a store that has lost the term
		}
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				o.c.o.Logger.Debug("group's keys could not be read", "group", string(o.group), "err", err)
			}
			index = 0
			o.deaf.Store(true)
			pause(ctx, retryTime)
			continue
		}
		o.deaf.Store(false)
		o.take(s, o.c.o.Now())
		next, idle := nextIndex(q.WaitIndex, meta.LastIndex)
		if index = next; idle {
			pause(ctx, retryTime)
		}
	}
}

// nextIndex is what the next blocking query waits beyond, and whether to pause before it:
// nothing has changed. Consul answers so when its time is over; somebody between who does
// not know of its indexes does so at once. 0 = the query does not block: the indexes begin
// anew, as after a restore.
func nextIndex(waited, last uint64) (next uint64, idle bool) {
	if last < waited {
		return 0, true
	}
	return last, last == waited
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// newerThan says whether what is known is newer than a state.
func (o *observer) newerThan(s state) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known && o.state.term.Newer(s.term)
}

// take notes what the keys say now, and since when.
func (o *observer) take(s state, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.known || s.leaseIndex != o.state.leaseIndex || s.term.Epoch != o.state.term.Epoch {
		o.leased = now
	}
	if !o.known || s.term.Version != o.state.term.Version {
		o.vacant = now
	}
	for n, e := range s.standings {
		if e.index != o.state.standings[n].index {
			o.heard[n] = now
		}
	}
	o.longest = max(o.longest, s.lease.Lease, s.term.Leased)
	o.state, o.known = s, true
	select {
	case o.news <- struct{}{}:
	default:
	}
}

// over returns when the last lease is over by this node's clock, margin included: as long
// as it says that it was granted for, after it was seen to change. One that is not there,
// or not of the term's epoch, may have been as long as any. The caller holds mu.
func (o *observer) over() time.Time {
	s, t := o.state, o.c.o.Timing
	if s.leaseIndex != 0 && s.lease.Epoch == s.term.Epoch {
		return o.leased.Add(t.Over(s.lease.Lease))
	}
	return o.leased.Add(t.Over(max(o.longest, s.term.Leased, o.c.known(o.group).Leased)))
}

// judgeAlways carries out what is due whenever something is heard or time has passed.
func (o *observer) judgeAlways(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-o.news:
		}
		timer.Reset(max(o.judge(ctx, o.c.o.Now()), time.Millisecond))
	}
}

// judge does what is due, if something is, and returns when to look again.
func (o *observer) judge(ctx context.Context, now time.Time) time.Duration {
	t := o.c.o.Timing
	g, ok := o.c.o.Group(o.group)
	if !ok || !slices.Contains(g.Members, o.c.o.Self) {
		return t.Renew
	}
	o.mu.Lock()
	s, known, over := o.state, o.known, o.over()
	o.mu.Unlock()
	if !known {
		return t.Renew
	}
	last, who := s.remembered(o.c.known(o.group), o.c.o.Self)
	behind := last.newer(s.term)
	o.noteBehind(behind, now)
	returned := s.leaseIndex != 0 && s.lease.Returned && s.lease.Epoch == s.term.Epoch
	var next coordinator.Term
	switch {
	case behind && (s.term.Master != "" || !s.ordered()):
		// A term that was in force is gone. Nobody is elected by what is left: its master
		// puts it back, or an operator decides.
		o.wait(setBack(s.term, last, who) + "; its master has not put it back: see mqrouter brokergroup failover")
		return t.Renew
	case s.term.Master != "" && now.Before(over):
		return min(over.Sub(now), t.Renew)
	case s.term.Master != "":
		next = s.vacated()
	case now.Before(over) && !returned && (s.term.Epoch != 0 || behind): // an operator has vacated it, or the key is gone
		return min(over.Sub(now), t.Renew)
	case behind:
		e, elected := o.refound(g, s, now)
		if !elected {
			return t.Settle / 2
		}
		next = s.term.Elected(e, o.c.o.Lineage(), t.Lease, o.c.o.Wall())
	default:
		e, elected := o.elect(g, s, now)
		if !elected {
			return t.Settle / 2
		}
		next = s.term.Elected(e, o.c.o.Lineage(), t.Lease, o.c.o.Wall())
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	switch err := o.c.putTerm(ctx, s, next, asRead(o.c.key(o.group, "lease"), s.leaseIndex)); {
	case err == nil:
		o.c.report(next)
	case !errors.Is(err, errChanged) && ctx.Err() == nil:
		o.c.o.Logger.Warn("decision about a broker group could not be stored", "group", string(o.group), "err", err)
		return retryTime
	}
	return t.Renew / 2 // the change is seen by then, whoever made it
}

// ballot returns what an election is decided from.
func (o *observer) ballot(g coordinator.Group, s state, now time.Time) coordinator.Ballot {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := coordinator.Ballot{Group: g, Term: s.term, Known: s.term.Committed, Settled: !now.Before(o.vacant.Add(o.c.o.Timing.Settle))}
	if s.leaseIndex != 0 && s.lease.Epoch == s.term.Epoch {
		b.Known = max(b.Known, s.lease.Committed)
		if !s.lease.Returned {
			b.Gone = s.lease.Node
		}
	}
	for _, n := range g.Members {
		if e, ok := s.standings[n]; ok && e.Counts(s.term) && o.fresh(n, now) {
			b.Standings = append(b.Standings, e.Standing)
		}
	}
	return b
}

// fresh says whether a member has spoken lately. The caller holds mu.
func (o *observer) fresh(n zone.Node, now time.Time) bool {
	at, ok := o.heard[n]
	return ok && now.Sub(at) < 2*o.c.o.standingEvery()+o.c.o.Timing.Settle
}

// elect applies the rule, or the operator's order.
func (o *observer) elect(g coordinator.Group, s state, now time.Time) (coordinator.Election, bool) {
	b := o.ballot(g, s, now)
	var e coordinator.Election
	var why string
	var ok bool
	switch x := s.order; {
	case !s.ordered():
		e, why, ok = b.Elect()
	case x.AllowLoss:
		if e, why, ok = b.Force(x.Order); ok && e.Loss != nil && !b.Settled {
			ok = false // others may still say what is given up
		}
	default:
		if e, why, ok = b.Appoint(x.To); !ok && b.Settled {
			e, why, ok = b.Elect() // somebody has to lead
		}
	}
	o.wait(why)
	return e, ok
}

// wait notes why there is no master.
func (o *observer) wait(why string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = why
}

// noteBehind notes whether the term is an older one than there was.
func (o *observer) noteBehind(behind bool, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !behind:
		o.behind = time.Time{}
	case o.behind.IsZero():
		o.behind = now
	}
}

// ordered says whether the order is about this very term.
func (s state) ordered() bool { return s.order.Version == s.term.Version && s.order.To != "" }

// refound carries an order out for a group whose term is gone. What the term knew nobody
// does any more: without loss it is the election of a first master, of all nodes, each of
// which has its log; and only what they have said after the last lease was over counts.
func (o *observer) refound(g coordinator.Group, s state, now time.Time) (coordinator.Election, bool) {
	b := coordinator.Ballot{Group: g, Term: coordinator.Term{Group: o.group}}
	var empty []string
	o.mu.Lock()
	b.Settled = !now.Before(o.vacant.Add(o.c.o.Timing.Settle))
	over := o.over()
	for _, n := range g.Members {
		e, ok := s.standings[n]
		if !ok || !o.fresh(n, now) || !o.heard[n].After(over) {
			continue
		}
		st := e.Standing
		st.SeenEpoch = max(st.SeenEpoch, e.remembers.Epoch) // the next one is above all
		b.Standings, b.Known = append(b.Standings, st), max(b.Known, st.Committed)
		if st.Incarnation == 0 {
			empty = append(empty, string(n))
		}
	}
	o.mu.Unlock()
	var e coordinator.Election
	var why string
	var ok bool
	switch x := s.order.Order; {
	case x.AllowLoss:
		if e, why, ok = b.Force(x); ok && !b.Settled {
			ok = false // others may still say what is given up
		}
		if e.Loss == nil && len(empty) > 0 { // the longest log that is left need not be what was acknowledged
			i := slices.IndexFunc(b.Standings, func(st coordinator.Standing) bool { return st.Node == e.Master })
			if i >= 0 {
				e.Loss = &coordinator.Loss{Epoch: e.Epoch, From: b.Standings[i].End, Known: b.Known, By: x.By, Reason: x.Reason}
			}
		}
	default:
		if e, why, ok = b.Appoint(x.To); ok && len(empty) > 0 {
			why, ok = fmt.Sprintf("the term of the group is gone, and with it who was in sync; %v has an empty store: what it had, nobody knows", empty), false
		}
	}
	o.wait(why)
	return e, ok
}

// electable says why the member cannot take over from a master that is willing, or "".
func (o *observer) electable(g coordinator.Group, t coordinator.Term, to zone.Node, now time.Time) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case to == t.Master:
		return string(to) + " is the master"
	case !slices.Contains(t.InSync, to):
		return string(to) + " is not in sync"
	case !slices.Contains(g.Members, to):
		return string(to) + " is not a node of the group"
	case !o.fresh(to, now):
		return string(to) + " does not answer"
	case !o.state.standings[to].Fit:
		return string(to) + " is not fit"
	}
	return ""
}
