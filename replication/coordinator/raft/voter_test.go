package raft

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/coordinator/conformance"
	"github.com/mqrouter/mqrouter/zone"
)

// settled makes n1 the master of the suite's group, as far as terms go.
func settled(t *testing.T, c *cluster) coordinator.Term {
	t.Helper()
	// Two are a quorum without the last one, which may still be about to begin.
	until(t, "all voters take part", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, u := range c.up {
			if s := u.v.Status().State; s != StateFollower && s != StateLeader {
				return false
			}
		}
		return true
	})
	var term coordinator.Term
	until(t, "a first master", func() bool {
		for _, n := range conformance.Nodes {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			got, _, err := c.client(n).Renew(ctx, conformance.Name, coordinator.Standing{Node: n, Incarnation: 7, Fit: true, Seen: term.Version})
			cancel()
			if err == nil {
				term = got
			}
		}
		return term.Master == "n1"
	})
	return term
}

func (c *cluster) terms(t *testing.T) []coordinator.Term {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all, err := c.client("n1").Terms(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestTermsOutliveEveryProcess(t *testing.T) {
	c := three(t)
	term := settled(t, c)
	for _, n := range c.voters() {
		c.stop(n)
	}
	for _, n := range c.voters() {
		c.start(n)
	}
	c.leader()
	if all := c.terms(t); len(all) != 1 || all[0].Epoch < term.Epoch || all[0].Lineage == 0 {
		t.Errorf("terms %+v after a restart of all voters; was %+v", all, term)
	}
}

func TestWithoutQuorumNothingIsDecidedAndItComesBack(t *testing.T) {
	c := three(t)
	settled(t, c)
	leader, _ := c.leader()
	others := slices.DeleteFunc(c.voters(), func(n zone.Node) bool { return n == leader })
	for _, n := range others {
		c.stop(n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, lease, err := c.client("n1").Renew(ctx, conformance.Name, coordinator.Standing{Node: "n1", Incarnation: 7, Fit: true})
	if !errors.Is(err, coordinator.KindNoQuorum) || lease != (coordinator.Lease{}) {
		t.Errorf("renew without a quorum: %+v, %v", lease, err)
	}
	until(t, "the voter tells that the quorum is lost", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		s := c.up[leader].v.Status()
		return s.State == StateCandidate && strings.Contains(s.Problem, "majority")
	})
	c.start(others[0])
	c.leader()
	c.terms(t)
}

func TestVoterWithANewDiskTakesItsOwnPlaceAndVotesOnlyThen(t *testing.T) {
	c := three(t)
	term := settled(t, c)
	leader, v := c.leader()
	lost := slices.DeleteFunc(c.voters(), func(n zone.Node) bool { return n == leader })[0]
	was := v.Status().Servers
	c.stop(lost)
	if err := os.RemoveAll(filepath.Join(c.dir, string(lost))); err != nil {
		t.Fatal(err)
	}
	// While nobody can take it in it stays out, and so does not help to a quorum: it
	// has forgotten what it promised.
	third := slices.DeleteFunc(c.voters(), func(n zone.Node) bool { return n == leader || n == lost })[0]
	c.stop(leader)
	// The leader hands over when it stops: for a moment the third one leads, and would take
	// it in.
	until(t, "the third one does not lead by itself", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		s := c.up[third].v.Status()
		return s.State != StateLeader && s.Leader == ""
	})
	fresh := c.start(lost)
	until(t, "the voter with a new disk waits", func() bool {
		s := fresh.Status()
		return s.State == StateJoining && strings.Contains(s.Problem, string(third)) || s.State == StateJoining && strings.Contains(s.Problem, "no leader")
	})
	c.start(leader)
	until(t, "the voter with a new disk follows", func() bool {
		s := fresh.Status()
		return s.State == StateFollower || s.State == StateLeader
	})
	_, v = c.leader()
	now := v.Status().Servers
	if len(now) != 3 || slices.Equal(was, now) {
		t.Errorf("servers %v, were %v: want the new store in the old one's place", now, was)
	}
	// It counts: with it alone beside one other there is a quorum.
	c.stop(third)
	c.leader()
	if all := c.terms(t); len(all) != 1 || all[0].Epoch < term.Epoch {
		t.Errorf("terms %+v", all)
	}
}

func TestTopologyReplacesAVoter(t *testing.T) {
	c := three(t)
	settled(t, c)
	leader, _ := c.leader()
	gone := slices.DeleteFunc(c.voters(), func(n zone.Node) bool { return n == leader })[0]
	c.mu.Lock()
	c.names = append(slices.DeleteFunc(c.names, func(n zone.Node) bool { return n == gone }), "v4")
	c.mu.Unlock()
	c.stop(gone)
	fresh := c.start("v4")
	until(t, "the new voter is in, the old one out", func() bool {
		s := fresh.Status()
		return (s.State == StateFollower || s.State == StateLeader) && len(s.Servers) == 3 && !slices.ContainsFunc(s.Servers, func(x string) bool { return strings.HasPrefix(x, string(gone)+"@") })
	})
	c.terms(t)
}

func TestDamagedStoreIsNotUsedAndSaysSo(t *testing.T) {
	c := three(t)
	settled(t, c)
	leader, _ := c.leader()
	n := slices.DeleteFunc(c.voters(), func(n zone.Node) bool { return n == leader })[0]
	c.stop(n)
	path := filepath.Join(c.dir, string(n), storeFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b { // every page, so that no bit can hide in a free one
		if i%64 == 40 && i > 8192 {
			b[i] ^= 0x10
		}
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	v := c.start(n)
	until(t, "the voter tells of its store", func() bool {
		s := v.Status()
		return s.State == StateFailed && strings.Contains(s.Problem, "damaged") && strings.Contains(s.Problem, "move the folder away")
	})
	c.terms(t) // the others go on
}

func TestFullDiskStopsTheVoterOnly(t *testing.T) {
	st, err := openStore(t.TempDir(), newStoreID)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.SetUint64([]byte("CurrentTerm"), 3); err != nil {
		t.Fatal(err)
	}
	if err := st.db.Close(); err != nil { // every write fails from now on
		t.Fatal(err)
	}
	if err := st.SetUint64([]byte("CurrentTerm"), 4); err != nil {
		t.Errorf("a failed write of the term is told to the library, which panics: %v", err)
	}
	var se *StoreError
	if err := st.Set([]byte("LastVoteCand"), []byte("x")); !errors.As(err, &se) {
		t.Errorf("a vote was stored after a failure: %v", err)
	}
	select {
	case <-st.failed:
	default:
		t.Error("nobody learns of the failure")
	}
}

func TestMembersAndVotersSpeakForThemselvesOnly(t *testing.T) {
	c := three(t)
	settled(t, c)
	dial := c.dial("n2")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stranger := NewClient(ClientOptions{Voters: c.voters, Dial: dial})
	refused := func(what string, err error, want coordinator.Kind) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	_, _, err := stranger.Renew(ctx, conformance.Name, coordinator.Standing{Node: "n1", Leads: 1})
	refused("n2 renews as n1", err, coordinator.KindRefused)
	term := c.terms(t)[0]
	_, err = stranger.ChangeSet(ctx, conformance.Name, term.Epoch, term.Version, []zone.Node{"n1"}, nil)
	refused("n2 changes the set of n1", err, coordinator.KindStaleEpoch)
	_, err = stranger.Resign(ctx, conformance.Name, term.Epoch, "n2")
	refused("n2 resigns for n1", err, coordinator.KindStaleEpoch)
	leader, _ := c.leader()
	for _, op := range []string{opJoin, opConfirm} {
		_, err = newClient(dial).post(ctx, leader, op, request{To: "n2", Store: "00"})
		var f *failure
		if !errors.As(err, &f) || f.Kind != coordinator.KindRefused {
			t.Errorf("n2 asks for %s: %v", op, err)
		}
	}
}
