package consul

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/coordinator/conformance"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// book is a Memory that fails when it is told to.
type book struct {
	mu    sync.Mutex
	terms map[zone.Group]coordinator.Term
	err   error
}

func (b *book) Load(g zone.Group) (coordinator.Term, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.terms[g], nil
}

func (b *book) Save(t coordinator.Term) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return b.err
	}
	if b.terms == nil {
		b.terms = map[zone.Group]coordinator.Term{}
	}
	b.terms[t.Group] = t
	return nil
}

// patient is quick with a lease that a starved machine does not miss so soon.
var patient = coordinator.Timing{Lease: 1500 * time.Millisecond, Renew: 250 * time.Millisecond, Margin: 150 * time.Millisecond, Settle: 120 * time.Millisecond}

// TestWhatConsulHasLost is about keys that are deleted, emptied or restored, one server
// for all.
func TestWhatConsulHasLost(t *testing.T) {
	s := servers(t, 1)[0]
	t.Run("cases", func(t *testing.T) { // they end before the server does
		for name, f := range map[string]func(*testing.T, *trio){
			"AMasterPutsItBack": putsBack, "ATermThatIsGoneElectsNobody": goneElectsNobody, "AnEmptyStoreIsALoss": emptyStore, "ATermOfABackupElectsNobody": backup,
			"ALeaseIsWaitedFor": leaseIsGone, "WhatCannotBeRememberedIsNotActedUpon": fullMemory, "TheTermNotesWhatASuccessorMustNotGuess": notes,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f(t, newTrio(t, s))
			})
		}
	})
}

// trio is a group of three members at one server, each with its memory.
type trio struct {
	t       *testing.T
	server  *server
	members map[zone.Node]*Coordinator
	books   map[zone.Node]*book
	stops   map[zone.Node]func()
	says    map[zone.Node]coordinator.Standing
	times   coordinator.Timing // of members that are opened
}

func newTrio(t *testing.T, s *server) *trio {
	x := &trio{t: t, server: s, members: map[zone.Node]*Coordinator{}, books: map[zone.Node]*book{},
		stops: map[zone.Node]func(){}, says: map[zone.Node]coordinator.Standing{}, times: patient}
	for i, n := range conformance.Nodes {
		x.books[n] = &book{}
		x.says[n] = coordinator.Standing{Node: n, Incarnation: 7, Epoch: 3, End: record.Position(100 - i), Fit: true}
		x.open(n)
	}
	return x
}

// open starts a member's process, in place of the one before.
func (x *trio) open(n zone.Node) {
	if stop := x.stops[n]; stop != nil {
		stop()
	}
	x.members[n], x.stops[n] = startMember(x.t, x.server.client(), n, x.books[n], x.times)
	st := x.says[n]
	st.Leads, st.Seen, st.SeenEpoch = 0, 0, 0
	x.says[n] = st
}

// renew has the members say where they stand until done is true.
func (x *trio) renew(what string, done func(last map[zone.Node]answer) bool, who ...zone.Node) map[zone.Node]answer {
	x.t.Helper()
	last := map[zone.Node]answer{}
	for deadline := time.Now().Add(patience); ; {
		for _, n := range who {
			st := x.says[n]
			var a answer
			a.term, a.lease, a.err = x.members[n].Renew(x.t.Context(), conformance.Name, st)
			last[n] = a
			if a.err == nil {
				st.Seen, st.SeenEpoch, st.Leads = a.term.Version, a.term.Epoch, 0
				if a.term.Master == n {
					st.Leads = a.term.Epoch
				}
				x.says[n] = st
			}
		}
		if done(last) {
			return last
		}
		if !time.Now().Before(deadline) {
			x.t.Fatalf("%s: not in time: %+v", what, last)
		}
		pause(x.t.Context(), patient.Renew/2)
	}
}

type answer struct {
	term  coordinator.Term
	lease coordinator.Lease
	err   error
}

// lead makes n1 lead with these sets, and all know it. Where the machine stood still for a
// lease, another one was elected meanwhile, and hands over.
func (x *trio) lead(inSync, proposed []zone.Node) coordinator.Term {
	x.t.Helper()
	return x.renew(fmt.Sprintf("n1 leads with %v and %v", inSync, proposed), func(last map[zone.Node]answer) bool {
		for n, a := range last {
			if a.err != nil || a.lease.Duration == 0 {
				continue
			}
			if a.term.Version == last["n1"].term.Version && a.term.Version == last["n2"].term.Version && a.term.Version == last["n3"].term.Version &&
				n == "n1" && slices.Equal(a.term.InSync, inSync) && slices.Equal(a.term.Proposed, proposed) {
				return true
			}
			x.towards(n, a.term, inSync, proposed)
		}
		return false
	}, conformance.Nodes...)["n1"].term
}

// towards takes a step of lead at the node that leads.
func (x *trio) towards(n zone.Node, now coordinator.Term, inSync, proposed []zone.Node) {
	x.t.Helper()
	missing := func(of []zone.Node) bool {
		return slices.ContainsFunc(of, func(n zone.Node) bool { return !slices.Contains(now.InSync, n) && !slices.Contains(now.Proposed, n) })
	}
	ctx, c := x.t.Context(), x.members[n]
	var err error
	switch {
	case now.Proposed != nil && !slices.Equal(now.Proposed, proposed):
		_, err = c.ChangeSet(ctx, conformance.Name, now.Epoch, now.Version, now.Proposed, nil)
	case n != "n1" && slices.Contains(now.InSync, "n1"):
		_, err = c.Resign(ctx, conformance.Name, now.Epoch, "n1")
	case n != "n1":
		_, err = c.ChangeSet(ctx, conformance.Name, now.Epoch, now.Version, now.InSync, append(slices.Clone(now.InSync), "n1"))
	case missing(inSync):
		_, err = c.ChangeSet(ctx, conformance.Name, now.Epoch, now.Version, now.InSync, inSync)
	case !slices.Equal(now.InSync, inSync) || !slices.Equal(now.Proposed, proposed):
		_, err = c.ChangeSet(ctx, conformance.Name, now.Epoch, now.Version, inSync, proposed)
	}
	for _, passing := range []coordinator.Kind{coordinator.KindStaleVersion, coordinator.KindStaleEpoch, coordinator.KindNoCandidate, coordinator.KindNoQuorum} {
		if errors.Is(err, passing) {
			return
		}
	}
	if err != nil {
		x.t.Fatal(err)
	}
}

// led waits until n1 leads with a lease, all of the group in sync.
func (x *trio) led() coordinator.Term {
	x.t.Helper()
	x.lead(conformance.Nodes, nil)
	for n, st := range x.says {
		st.Epoch, st.End, st.Committed = x.says[n].SeenEpoch, 200, 200
		x.says[n] = st
	}
	return x.lead(conformance.Nodes, nil)
}

func (x *trio) forget(keys ...string) {
	x.t.Helper()
	kv, c := x.server.client().KV(), x.members["n1"]
	if len(keys) == 0 {
		if _, err := kv.DeleteTree(c.key(conformance.Name)+"/", nil); err != nil {
			x.t.Fatal(err)
		}
	}
	for _, k := range keys {
		if _, err := kv.Delete(c.key(conformance.Name, k), nil); err != nil {
			x.t.Fatal(err)
		}
	}
}

// nobodyIsElected renews for several leases.
func (x *trio) nobodyIsElected(who ...zone.Node) {
	x.t.Helper()
	end := time.Now().Add(3 * patient.Lease)
	last := x.renew("some leases", func(last map[zone.Node]answer) bool {
		for n, a := range last {
			if a.err == nil || a.lease.Duration > 0 {
				x.t.Fatalf("%s was answered %+v for a term that is gone", n, a)
			}
		}
		for _, a := range last { // on a busy machine Consul may have been slow, for once
			if !errors.Is(a.err, coordinator.KindNoQuorum) || !strings.Contains(a.err.Error(), "deleted or restored") {
				return false
			}
		}
		return time.Now().After(end)
	}, who...)
	for n := range last {
		if why, gone := x.members[n].Waiting(conformance.Name); !gone || !strings.Contains(why, "failover") {
			x.t.Errorf("%s waits for %q, gone: %v", n, why, gone)
		}
	}
}

// inVain is for how long an order is tried that is not to be carried out.
const inVain = 5 * time.Second

// order gives an order at n while the members go on to tell where they stand.
func (x *trio) order(n zone.Node, o coordinator.Order, within time.Duration) (coordinator.Term, error) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), within)
	defer cancel()
	type outcome struct {
		term coordinator.Term
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		t, err := x.members[n].Failover(ctx, conformance.Name, o)
		done <- outcome{t, err}
	}()
	var got *outcome
	x.renew("the order is carried out, or is not", func(map[zone.Node]answer) bool {
		select {
		case o := <-done:
			got = &o
			return true
		default:
			return false
		}
	}, conformance.Nodes...)
	return got.term, got.err
}

func putsBack(t *testing.T, x *trio) {
	x.times.Lease, x.times.Margin = time.Minute, 2*time.Second // nothing here waits for its end
	for _, n := range conformance.Nodes {
		x.open(n)
	}
	was := x.led()
	for _, keys := range [][]string{nil, {"term"}, {"lease"}} {
		x.forget(keys...)
		got := x.renew("n1 has its lease", func(last map[zone.Node]answer) bool {
			return last["n1"].lease.Duration > 0 && last["n2"].err == nil && last["n3"].err == nil
		}, conformance.Nodes...)
		now := got["n1"].term
		if now.Epoch != was.Epoch || now.Master != "n1" || !slices.Equal(now.InSync, was.InSync) || got["n2"].term.Version != now.Version {
			t.Errorf("after %v were deleted the term is %+v, of n2 %+v; it was %+v", keys, now, got["n2"].term, was)
		}
		if len(keys) == 0 && now.Version <= was.Version {
			t.Errorf("version %d was put back as %d: others may have seen one between", was.Version, now.Version)
		}
	}
}

func goneElectsNobody(t *testing.T, x *trio) {
	was := x.led()
	for _, n := range conformance.Nodes {
		x.stops[n]()
	}
	x.forget()
	for _, n := range conformance.Nodes { // started again: they know it from their memories
		x.open(n)
	}
	x.nobodyIsElected(conformance.Nodes...)
	// n3 has lost its memory and knows nothing; the others' are enough.
	x.stops["n3"]()
	x.books["n3"] = &book{}
	x.open("n3")
	pause(t.Context(), 2*patient.Renew)
	x.says["n3"] = coordinator.Standing{Node: "n3", Incarnation: 7, Epoch: was.Epoch, End: 190, Committed: 190, Fit: true}
	next, err := x.order("n2", coordinator.Order{To: "n3"}, inVain)
	if err == nil || next.Master != "" {
		t.Fatalf("%+v, %v: n3 has not the longest log, and nobody allowed a loss", next, err)
	}
	if next, err = x.order("n2", coordinator.Order{To: "n1"}, patience); err != nil {
		t.Fatal(err)
	}
	if next.Master != "n1" || next.Epoch <= was.Epoch || next.Lost != nil || !slices.Equal(next.InSync, []zone.Node{"n1"}) {
		t.Errorf("%+v after an order; it was %+v", next, was)
	}
}

func emptyStore(t *testing.T, x *trio) {
	x.led()
	for _, n := range conformance.Nodes {
		x.stops[n]()
	}
	x.forget()
	x.says["n1"] = coordinator.Standing{Node: "n1", Fit: true} // its disk was replaced
	for _, n := range conformance.Nodes {
		x.open(n)
	}
	x.nobodyIsElected(conformance.Nodes...)
	if next, err := x.order("n2", coordinator.Order{To: "n2"}, inVain); err == nil || !strings.Contains(err.Error(), "empty store") {
		t.Fatalf("%+v, %v: what n1 had nobody knows", next, err)
	}
	next, err := x.order("n2", coordinator.Order{To: "n2", AllowLoss: true, By: "test", Reason: "n1 has a new disk"}, patience)
	if err != nil || next.Master != "n2" || next.Lost == nil || next.Lost.By != "test" || next.Lost.From != 200 {
		t.Errorf("%+v, %v, lost %+v", next, err, next.Lost)
	}
}

func backup(t *testing.T, x *trio) {
	kv, key := x.server.client().KV(), x.members["n1"].key(conformance.Name, "term")
	x.led()
	old, _, err := kv.Get(key, nil)
	if err != nil {
		t.Fatal(err)
	}
	// n2 and n3 leave the set, and the backup does not know.
	x.lead([]zone.Node{"n1"}, nil)
	x.stops["n1"]()
	old.ModifyIndex = 0
	if _, err := kv.Put(old, nil); err != nil {
		t.Fatal(err)
	}
	x.nobodyIsElected("n2", "n3")
}

func leaseIsGone(t *testing.T, x *trio) {
	x.led()
	at := time.Now() // n1 renews no more from here on
	x.forget("lease")
	got := x.renew("another leads", func(last map[zone.Node]answer) bool {
		return last["n2"].lease.Duration > 0 || last["n3"].lease.Duration > 0
	}, "n2", "n3")
	if d := time.Since(at); d < patient.Lease {
		t.Errorf("%+v leads %s after the lease of %s was deleted, which n1 may still hold", got["n2"].term, d, patient.Lease)
	}
}

func fullMemory(t *testing.T, x *trio) {
	full := errors.New("disk full")
	fail := func(err error) {
		x.books["n2"].mu.Lock()
		defer x.books["n2"].mu.Unlock()
		x.books["n2"].err = err
	}
	fail(full)
	x.renew("n1 leads, n2 is told nothing", func(last map[zone.Node]answer) bool {
		return last["n1"].lease.Duration > 0 && errors.Is(last["n2"].err, full)
	}, conformance.Nodes...)
	fail(nil)
	x.renew("n2 is told", func(last map[zone.Node]answer) bool {
		return last["n2"].term.Epoch > 0 && last["n1"].lease.Duration > 0
	}, conformance.Nodes...)
	fail(full) // from now on an older term tells that there was one
	x.lead([]zone.Node{"n1"}, []zone.Node{"n1", "n2"})
}

func TestANodeThatGoesOnAloneIsNoted(t *testing.T) {
	x := newTrio(t, servers(t, 1)[0])
	if known, err := x.members["n2"].Alone(t.Context(), conformance.Name); err != nil || known {
		t.Fatalf("a group that never had a term: %v, %v", known, err)
	}
	x.led()
	for _, n := range conformance.Nodes {
		x.stops[n]()
	}
	known, err := x.members["n2"].Alone(t.Context(), conformance.Name)
	if err != nil || !known {
		t.Fatalf("alone: %v, %v", known, err)
	}
	terms, err := x.members["n2"].Terms(t.Context())
	if err != nil || len(terms) != 1 || terms[0].Alone != "n2" {
		t.Fatalf("terms %+v, %v", terms, err)
	}
	st := x.says["n2"]
	st.Epoch, st.End = st.Epoch+4, 500 // what it wrote alone
	x.says["n2"] = st
	x.open("n1")
	x.open("n3")
	end := time.Now().Add(2 * patient.Lease)
	x.renew("n2 is waited for", func(last map[zone.Node]answer) bool {
		if m := last["n1"].term.Master; m == "n3" || m == "n1" && last["n1"].lease.Duration > 0 && last["n1"].term.Epoch > terms[0].Epoch {
			t.Fatalf("%s was elected, and what n2 wrote alone is lost: %+v", m, last["n1"].term)
		}
		return time.Now().After(end)
	}, "n1", "n3")
	x.open("n2")
	got := x.renew("n2 leads", func(last map[zone.Node]answer) bool { return last["n2"].lease.Duration > 0 }, conformance.Nodes...)
	if now := got["n2"].term; now.Alone != "" || now.Epoch <= st.Epoch {
		t.Errorf("%+v after n2 came back with epoch %d", now, st.Epoch)
	}
	x.server.kill()
	if known, err := x.members["n1"].Alone(t.Context(), conformance.Name); !known || !errors.Is(err, coordinator.KindNoQuorum) {
		t.Errorf("alone, and Consul is away: %v, %v", known, err)
	}
}

func notes(t *testing.T, x *trio) {
	st := x.says["n1"]
	st.Majority = true
	x.says["n1"] = st
	got := x.renew("n1 leads, a majority may acknowledge", func(last map[zone.Node]answer) bool {
		return last["n1"].lease.Duration > 0 && last["n1"].term.Majority
	}, conformance.Nodes...)
	if now := got["n1"].term; now.Leased != patient.Lease {
		t.Errorf("leased %s, leases are %s", now.Leased, patient.Lease)
	}
	st = x.says["n1"]
	x.times.Lease *= 2 // the topology has longer leases, and n1 is started again first
	x.open("n1")
	x.says["n1"] = st // whoever leads an epoch does so in one process; this is about its lease
	got = x.renew("a longer lease", func(last map[zone.Node]answer) bool { return last["n1"].lease.Duration == x.times.Lease }, "n1")
	if now := got["n1"].term; now.Leased != x.times.Lease {
		t.Errorf("leased %s, a lease is %s", now.Leased, x.times.Lease)
	}
	st = x.says["n1"]
	st.Epoch, st.Committed, st.End = got["n1"].term.Epoch, 150, 150
	x.says["n1"] = st
	c := x.members["n1"]
	c.mu.Lock()
	g := c.granted[conformance.Name]
	g.noted = g.noted.Add(-coordinator.NoteEvery)
	c.granted[conformance.Name] = g
	c.mu.Unlock()
	x.renew("the term says what is committed", func(last map[zone.Node]answer) bool { return last["n1"].term.Committed == 150 }, "n1")
}
