package broker

import (
	"errors"
	"testing"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
)

// A copy that was received while the node followed, and never put in place, does not
// replace what the node wrote as a master afterwards.
func TestACopyThatWaitsDoesNotReplaceWhatAMasterWrote(t *testing.T) {
	topo, limits := sample(t), testLimits()
	a := openMember(t, disk.NewMem(), topo, limits)
	r := NewRestore(a.fs, a.dir)
	if err := r.Start(t.Context(), []ship.File{{Name: secretName, Size: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(t.Context(), 0, 0, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := r.Install(t.Context(), ship.Origin{Incarnation: 99, Lanes: 4}); err != nil {
		t.Fatal(err)
	}
	a.promote(1)
	l := newLink(a)
	a.answers()
	sent := a.publishN("orders", "m", 3)
	l.close()
	inc, end := a.Log().Incarnation(), a.Log().Committed()
	a.Close()
	b := openMember(t, a.fs, topo, limits)
	if got := b.Log().Incarnation(); got != inc || b.Log().End() < end {
		t.Fatalf("store %x ends at %d; was %x up to %d", got, b.Log().End(), inc, end)
	}
	b.promote(2)
	l = newLink(b)
	b.answers()
	wantOnce(t, b.drain("orders-billing", "orders"), sent)
	l.close()
}

// I5 and more: a master whose fold fails is none from that moment, and says so.
func TestAMasterWhoseFoldFailsIsNoneAnyMore(t *testing.T) {
	a := openMember(t, disk.NewMem(), sample(t), testLimits())
	a.promote(1)
	l := newLink(a)
	a.answers()
	a.publishN("orders", "m", 1)
	if err := a.Err(); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("an index cannot be opened")
	a.fail(cause)
	<-a.Deposed()
	if err := a.Err(); !errors.Is(err, cause) || a.Role() != RoleDeposed || a.Log().Err() == nil {
		t.Errorf("%v; role %s, log: %v", err, a.Role(), a.Log().Err())
	}
	out := make([]PublishResult, 1)
	if err := a.Publish(t.Context(), []Message{a.message("orders", "1")}, out); err == nil {
		t.Error("a publish was taken")
	}
	l.close()
}

// A publish to a topic with a least number of copies is not acknowledged when members
// went out of sync while it was under way.
func TestAcknowledgedMeansAsManyCopiesAsTheTopicAsksFor(t *testing.T) {
	a := openMember(t, disk.NewMem(), sample(t), testLimits())
	a.promote(1)
	l := newLink(a)
	a.answers()
	a.inSync.Store(2)
	info := *a.view.Load().topics["orders"].info
	info.MinInSync = 2
	a.view.Load().topics["orders"].info = &info
	l.close() // nothing commits
	answer := make(chan error, 1)
	end := a.Log().Synced()
	publish := func() {
		out := make([]PublishResult, 1)
		err := a.Publish(t.Context(), []Message{a.message("orders", "1")}, out)
		answer <- errors.Join(err, out[0].Err)
	}
	go publish()
	for a.Log().Synced() == end {
	}
	a.inSync.Store(1) // the replica is gone; the set without it commits
	a.Log().Commit(a.Log().Synced())
	var e *Error
	if err := <-answer; !errors.As(err, &e) || KindOf(err) != KindUnconfirmed || !e.Retryable() {
		t.Errorf("with one copy: %v", err)
	}
	a.inSync.Store(2)
	l = newLink(a)
	go publish()
	if err := <-answer; err != nil {
		t.Errorf("with two copies: %v", err)
	}
	l.close()
}

// A replica whose log cannot be read any more takes nothing: it must not count as in
// sync and be unable to lead.
func TestAReplicaThatCannotReadItsLogTakesNothing(t *testing.T) {
	topo := sample(t)
	a := openMember(t, disk.NewMem(), topo, testLimits())
	b := openMember(t, disk.NewMem(), topo, testLimits())
	b.caughtUp(0)
	copyStore(t, promoted(a), b.fs)
	b.Close()
	b = openMember(t, b.fs, topo, testLimits())
	if err := follow(a.Log(), b.Log()); err != nil {
		t.Fatal(err)
	}
	b.Log().Depose(&commitlog.CorruptError{Position: 1, What: "test"}) // as a failed scan does
	if b.Err() == nil {
		t.Error("it calls itself fit")
	}
	if _, err := b.Log().Sync(t.Context()); !errors.Is(err, commitlog.ErrStopped) {
		t.Errorf("sync: %v", err)
	}
	if err := b.Log().AddLineage(t.Context(), record.LineageStart{Epoch: 9, ID: 9, First: b.Log().End()}); !errors.Is(err, commitlog.ErrStopped) {
		t.Errorf("lineage: %v", err)
	}
}

// promoted makes a member the master of epoch 1, alone.
func promoted(m *memberNode) *memberNode {
	m.promote(1)
	l := newLink(m)
	m.answers()
	l.close()
	return m
}
