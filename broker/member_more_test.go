package broker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/ship"
	"github.com/mqrouter/mqrouter/zone"
)

// trimmedMaster is a master whose log no longer has its beginning.
func trimmedMaster(t *testing.T, topo *zone.Topology, limits Limits) (*memberNode, *link) {
	t.Helper()
	a := openMember(t, disk.NewMem(), topo, limits)
	a.promote(1)
	l := newLink(a)
	a.answers()
	for round := range 6 {
		a.publishN("orders", fmt.Sprint("old-", round), 60)
		for _, g := range topo.Groups { // nobody holds anything back
			for _, topic := range g.Topics {
				if topic.Name == "orders" && topo.ConsumedIn(g, a.Zone()) && !g.Cache {
					a.drain(g.Name, "orders")
				}
			}
		}
		a.flushProgress(t.Context())
		a.caughtUp(a.Log().Committed())
		if err := a.snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.trim(time.Now().Add(1000 * time.Hour)); err != nil {
		t.Fatal(err)
	}
	if a.Log().Begin() == 0 {
		t.Fatal("nothing was trimmed")
	}
	return a, l
}

// A new replica of a group whose log was trimmed is given the fold, and folds on
// once it has the log up to there; a power cut at any moment of that does no harm.
func TestNewReplicaIsGivenWhatTheLogNoLongerHas(t *testing.T) {
	topo, limits := sample(t), Limits{SegmentBytes: 16 << 10, ProgressDelay: time.Millisecond}
	a, l := trimmedMaster(t, topo, limits)
	kept := a.publishN("orders", "kept", 20)
	l.close()
	rng := rand.New(rand.NewPCG(3, 3))
	mem := disk.NewMem()
	var images []*disk.Mem
	mem.AfterOp(func(op int) {
		if op%7 == 0 {
			images = append(images, mem.Crash(rng)) // one goroutine works on the disk
		}
	})
	copyStore(t, a, mem)
	b := &Broker{fs: mem, dir: "store", member: &Member{}, self: "rz02-a", logger: a.logger, ctx: t.Context()}
	if err := b.finishInstall(Options{Limits: limits}); err != nil {
		t.Fatal(err)
	}
	mem.AfterOp(nil)
	t.Logf("%d power cuts", len(images))
	whole := 0
	for i, image := range append(images, mem) {
		c := openMember(t, image, topo, limits)
		switch inc := c.Log().Incarnation(); {
		case inc == 0: // empty, or not yet replaced
			c.Close()
			continue
		case inc != a.Log().Incarnation() || c.Log().Begin() != a.Log().Begin() || c.Role() != RoleReplica:
			t.Fatalf("cut %d: incarnation %x, begin %d", i, inc, c.Log().Begin())
		}
		whole++
		if i%4 != 0 && i < len(images) {
			c.Close()
			continue
		}
		if err := c.Promote(t.Context(), 9, 9); KindOf(err) != KindNotMaster {
			t.Fatalf("cut %d: promoted without a state: %v", i, err)
		}
		l := newLink(a, c)
		end := a.Log().End()
		c.caughtUp(end)
		a.caughtUp(end)
		l.close()
		if x, y := a.folded(), c.folded(); !slices.Equal(x, y) {
			t.Fatalf("cut %d: the state differs: %d and %d bytes", i, len(x), len(y))
		}
		if c.healed > 0 {
			t.Errorf("cut %d: %d indexes were made anew", i, c.healed)
		}
		if i < len(images) {
			c.Close()
			continue
		}
		a.Close()
		c.promote(2)
		l = newLink(c)
		c.answers()
		wantOnce(t, c.drain("orders-billing", "orders"), kept)
		l.close()
	}
	if whole < 2 {
		t.Errorf("%d power cuts left a store", whole)
	}
}

func TestRestoreTakesOnlyWhatIsWhole(t *testing.T) {
	r := NewRestore(disk.NewMem(), ".")
	ctx := t.Context()
	for _, name := range []string{"x", "snapshot-1", "../handle.key", "LOCK"} {
		if err := r.Start(ctx, []ship.File{{Name: name, Size: 1}}); err == nil {
			t.Errorf("file %s was taken", name)
		}
	}
	if err := r.Start(ctx, []ship.File{{Name: secretName, Size: 4}}); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(ctx, 0, 2, []byte("ab")); err == nil {
		t.Error("a hole was taken")
	}
	if err := r.Write(ctx, 0, 0, []byte("abcde")); err == nil {
		t.Error("more than the file was taken")
	}
	if err := r.Write(ctx, 0, 0, []byte("ab")); err != nil {
		t.Fatal(err)
	}
	if err := r.Install(ctx, ship.Origin{Incarnation: 1, Lanes: 4}); err == nil {
		t.Error("half a file was installed")
	}
	if err := r.Write(ctx, 0, 2, []byte("cd")); err != nil {
		t.Fatal(err)
	}
	if err := r.Install(ctx, ship.Origin{Incarnation: 1, Lanes: 4, Begin: 4096}); err == nil {
		t.Error("a trimmed log without a snapshot was installed")
	}
}

// I5: a master whose lease is over answers nothing, whatever was committed.
func TestMasterWithoutALeaseAnswersNothing(t *testing.T) {
	a := openMember(t, disk.NewMem(), sample(t), testLimits())
	a.promote(1)
	l := newLink(a)
	a.answers()
	a.publishN("orders", "before", 1)
	l.close() // nothing commits
	if st := a.Status().Member; st.Role != RoleMaster || st.Epoch != 1 || st.Lag > 1000 || st.InSync != 1 || st.Committed == 0 || st.Stopped != "" {
		t.Errorf("status: %+v", st)
	}
	msgs, out := []Message{a.message("orders", "1")}, make([]PublishResult, 1)
	answer := make(chan error, 1)
	end := a.Log().End()
	go func() { answer <- a.Publish(t.Context(), msgs, out) }()
	for a.Log().Synced() == end {
	}
	a.lease.Store(false)
	a.Log().Commit(a.Log().Synced()) // its replicas had it, just in time
	err := <-answer
	if KindOf(err) != KindNotMaster || a.Role() != RoleDeposed {
		t.Errorf("publish: %v; role %s", err, a.Role())
	}
	<-a.Deposed()
	a.lease.Store(true)
	if err := a.Publish(t.Context(), msgs, out); KindOf(err) != KindNotMaster {
		t.Errorf("a lease that came back: %v", err)
	}
	if err := a.Settle(t.Context(), flow.Leg{}, flow.Settlement{Through: 1}); KindOf(err) != KindNotMaster {
		t.Errorf("settle: %v", err)
	}
	if _, err := a.ServeCall(t.Context(), CallRecall, nil); KindOf(err) != KindNotMaster {
		t.Errorf("call: %v", err)
	}
	if err := a.Log().Err(); !errors.Is(err, errDeposed) {
		t.Errorf("log: %v", err)
	}
	if st := a.Status().Member; st.Role != RoleDeposed || st.Stopped == "" || st.Master != "rz02-b-1" {
		t.Errorf("status: %+v", st)
	}
}

func TestTopicsChooseWhenTheyAreAcknowledged(t *testing.T) {
	topo := sample(t)
	a := openMember(t, disk.NewMem(), topo, testLimits())
	a.promote(1)
	l := newLink(a)
	a.answers()
	l.close() // nothing commits
	publish := func(durability zone.Durability) chan Level {
		m := a.message("orders", fmt.Sprint(durability))
		info := *m.Topic
		info.Durability = durability
		a.view.Load().topics["orders"].info = &info
		level := make(chan Level, 1)
		go func() {
			out := make([]PublishResult, 1)
			if err := a.Publish(t.Context(), []Message{m}, out); err != nil || out[0].Err != nil {
				t.Errorf("%s: %v, %v", durability, err, out[0].Err)
			}
			level <- out[0].Level
		}()
		return level
	}
	if got := <-publish(zone.DurabilityMaster); got != LevelAccepted {
		t.Errorf("master: %s", got)
	}
	quorum := publish(zone.DurabilityQuorum)
	for len(quorum) == 0 {
		a.Log().Acked(a.Log().Synced())
	}
	if got := <-quorum; got != LevelAccepted {
		t.Errorf("quorum: %s", got)
	}
	all := publish(zone.DurabilityAllInSync)
	a.Log().Acked(a.Log().Synced())
	if len(all) > 0 {
		t.Error("answered before the commit")
	}
	for len(all) == 0 {
		a.Log().Commit(a.Log().Synced())
	}
	if got := <-all; got != LevelStored {
		t.Errorf("all in sync: %s", got)
	}
}

func TestTooFewInSyncRefusePublishes(t *testing.T) {
	a := openMember(t, disk.NewMem(), sample(t), testLimits())
	a.promote(1)
	l := newLink(a)
	a.answers()
	info := *a.view.Load().topics["orders"].info
	info.MinInSync = 2
	a.view.Load().topics["orders"].info = &info
	out := make([]PublishResult, 1)
	if err := a.Publish(t.Context(), []Message{a.message("orders", "1")}, out); err != nil || KindOf(out[0].Err) != KindInSync {
		t.Errorf("one of two: %v, %v", err, out[0].Err)
	}
	a.inSync.Store(2)
	if err := a.Publish(t.Context(), []Message{a.message("orders", "1")}, out); err != nil || out[0].Err != nil {
		t.Errorf("two of two: %v, %v", err, out[0].Err)
	}
	l.close()
}
