package broker

import (
	"errors"
	"testing"
	"time"

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

// A member whose topology is older than the one that its group has applied leads all
// the same when it is elected, under its own, and says so.
func TestAMemberWithAnOlderTopologyLeads(t *testing.T) {
	older, newer := sample(t), sample(t, epoch(2)[0], epoch(2)[1])
	a := openMember(t, disk.NewMem(), newer, testLimits())
	b := openMember(t, disk.NewMem(), older, testLimits())
	b.Close()
	copyStore(t, promoted(a), b.fs)
	b = openMember(t, b.fs, older, testLimits())
	l := newLink(a, b)
	sent := a.publishN("orders", "m", 3)
	b.caughtUp(a.Log().Committed())
	l.close()
	a.Close()
	if err := b.CanLead(); err != nil {
		t.Fatalf("not fit: %v", err)
	}
	b.promote(2)
	l = newLink(b)
	defer l.close()
	b.answers()
	if applied, outdated := b.Outdated(); !outdated || applied != newer.Epoch || b.Topology().Epoch != older.Epoch {
		t.Errorf("serves with %s, %s is applied, outdated: %v", b.Topology().Epoch, applied, outdated)
	}
	sent = append(sent, b.publishN("orders", "n", 1)...)
	wantOnce(t, b.drain("orders-billing", "orders"), sent)
	if err := b.ApplyTopology(t.Context(), sample(t, epoch(3)[0], epoch(3)[1])); err != nil {
		t.Errorf("the next topology: %v", err)
	}
	if _, outdated := b.Outdated(); outdated {
		t.Error("still outdated")
	}
}

// A member whose topology moves what the group owns could not lead, and says so before
// it is elected; one that runs refuses it as a master does.
func TestAMemberWithARefusedTopologyIsNotElected(t *testing.T) {
	topo := sample(t)
	moved := sample(t, epoch(2)[0], epoch(2)[1], "rz02: 20-39", "rz02: 20-38", "rz03: 40-59", "rz03: 39-59")
	a := openMember(t, disk.NewMem(), topo, testLimits())
	b := openMember(t, disk.NewMem(), topo, testLimits())
	b.Close()
	copyStore(t, promoted(a), b.fs)
	b = openMember(t, b.fs, topo, testLimits())
	l := newLink(a, b)
	a.publishN("orders", "m", 1)
	b.caughtUp(a.Log().Committed())
	l.close()
	if err := b.ApplyTopology(t.Context(), moved); KindOf(err) != KindUnsupported || b.Topology() != topo {
		t.Errorf("a replica that runs took it: %v", err)
	}
	if err := b.CanLead(); err != nil {
		t.Errorf("not fit with the one it had: %v", err)
	}
	b.Close()
	b = openMember(t, b.fs, moved, testLimits())
	if err := b.CanLead(); KindOf(err) != KindUnsupported {
		t.Errorf("fit with a topology under which it cannot lead: %v", err)
	}
}

// A topology that becomes impossible with the first message of a topic is no longer one
// to lead with from that message on, whatever was said before.
func TestAMembersFitnessFollowsWhatTopicsHold(t *testing.T) {
	topo := sample(t)
	other := sample(t, epoch(2)[0], epoch(2)[1], "  - name: orders\n", "  - name: orders\n    kind: lite\n    lite: {topics: 50, ttl: 1h, subscriptions: 20}\n")
	a := openMember(t, disk.NewMem(), topo, testLimits())
	b := openMember(t, disk.NewMem(), topo, testLimits())
	b.Close()
	copyStore(t, promoted(a), b.fs)
	b = openMember(t, b.fs, other, testLimits())
	l := newLink(a, b)
	defer l.close()
	b.caughtUp(a.Log().Committed())
	if err := b.CanLead(); err != nil {
		t.Fatalf("not fit although the topic is empty: %v", err)
	}
	a.publishN("orders", "m", 1)
	b.caughtUp(a.Log().Committed())
	if err := b.CanLead(); KindOf(err) != KindUnsupported {
		t.Errorf("fit although the topic has a message that would have lost its readers: %v", err)
	}
}

// A damaged store makes way, so that the member opens empty and can be given its
// master's; its log is kept.
func TestADamagedStoreMakesWay(t *testing.T) {
	a := openMember(t, disk.NewMem(), sample(t), testLimits())
	promoted(a)
	a.Close()
	f, err := a.fs.Open("store/log/META")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), a.options())
	if !commitlog.Damaged(err) {
		t.Fatalf("opened with %v", err)
	}
	folder, err := SetAside(a.fs, "store", time.Unix(1e9, 0))
	if err != nil || folder != "log.damaged-20010909T014640Z" {
		t.Fatalf("%s, %v", folder, err)
	}
	if names, err := a.fs.List("store/" + folder); err != nil || len(names) < 2 {
		t.Errorf("kept: %v, %v", names, err)
	}
	b := openMember(t, a.fs, a.topo, testLimits())
	if b.Log().Incarnation() != 0 || b.Err() != nil {
		t.Errorf("incarnation %x, %v", b.Log().Incarnation(), b.Err())
	}
}
