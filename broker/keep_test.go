package broker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/tails"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
	"github.com/mqrouter/mqrouter/zone"
)

// parted is a group of two whose old master, c, has what the new one, b, has not.
type parted struct {
	b, c   *memberNode
	common record.Position
	mem    *disk.Mem    // c's disk
	faults *disk.Faulty // what c sees of it
	store  *tails.Store // c's
}

// partWays has a master write to a topic of the durability what its replica does not get,
// commits it when committed is set, and makes the replica master. The old master is
// open again, as a replica that knows of the fail-over ordered in the epoch forced.
func partWays(t *testing.T, durability zone.Durability, committed bool, forced uint64, publish ...func(a *memberNode)) *parted {
	t.Helper()
	topo := sample(t)
	da, db := disk.NewMem(), disk.NewMem()
	a := openMember(t, da, topo, testLimits())
	a.promote(1)
	first := newLink(a)
	a.answers()
	a.publishN("orders", "before", 3)
	first.close()
	copyStore(t, a, db)
	b := openMember(t, db, topo, testLimits())
	l := newLink(a, b)
	a.publish(a.message("orders", "both"))
	l.close()
	p := &parted{b: b, common: a.Log().End(), mem: da, faults: disk.NewFaulty(da)}
	if committed {
		l = newLink(a)
	}
	for _, f := range publish {
		f(a)
	}
	lose(t, a, durability, 5)
	if committed {
		a.publish(a.message("orders", "the mark of the others"))
		l.close()
	}
	a.Depose()
	a.Close()
	b.promote(2)
	l = newLink(b)
	b.answers()
	b.publish(b.message("orders", "after"))
	l.close()
	p.c = openMember(t, p.faults, topo, testLimits())
	p.c.member.Forced = func() uint64 { return forced }
	p.store = p.c.tails
	return p
}

// lose has the master write messages.
func lose(t *testing.T, a *memberNode, durability zone.Durability, n int) {
	t.Helper()
	info := *a.view.Load().topics["orders"].info
	info.Durability = durability
	a.view.Load().topics["orders"].info = &info
	for i := range n {
		end, m := a.Log().Synced(), a.message("orders", fmt.Sprintf("lost-%d", i))
		m.Topic = &info
		go func() { _ = a.Publish(t.Context(), []Message{m}, make([]PublishResult, 1)) }()
		a.synced(end)
	}
}

// synced waits until the log is on the disk beyond a position.
func (a *memberNode) synced(end record.Position) {
	moved := make(chan struct{}, 1)
	cancel := a.Log().Notify(moved)
	defer cancel()
	for a.Log().Synced() == end {
		<-moved
	}
}

func TestOnlyWhatMayHaveBeenAcknowledgedIsSetAside(t *testing.T) {
	for name, c := range map[string]struct {
		durability zone.Durability
		forced     uint64
		messages   int
	}{
		"nobody was told":            {zone.DurabilityAllInSync, 0, 0},
		"an order of before":         {zone.DurabilityAllInSync, 1, 0},
		"acknowledged by its master": {zone.DurabilityMaster, 0, 5},
		"an order gave it up":        {zone.DurabilityAllInSync, 2, 5},
		"a majority, by an order":    {zone.DurabilityQuorum, 2, 5},
		"a majority, by the rule":    {zone.DurabilityQuorum, 0, 0}, // no election passes over what a majority has
	} {
		t.Run(name, func(t *testing.T) {
			p := partWays(t, c.durability, false, c.forced)
			if err := follow(p.b.Log(), p.c.Log()); err != nil {
				t.Fatal(err)
			}
			list, err := p.store.List()
			if err != nil || (len(list) == 1) != (c.messages > 0) {
				t.Fatalf("tails: %+v, %v", list, err)
			}
			if c.messages == 0 {
				return
			}
			x := list[0]
			if x.From != p.common || x.Counts.Messages != c.messages || x.Counts.Certain != 0 || x.Forced != (c.forced > 0) || x.Counts.Topics[0].Topic != "orders" {
				t.Errorf("tail: %+v", x)
			}
		})
	}
}

// TestAFullDiskKeepsTheLogAsItIs: what cannot be saved is not dropped.
func TestAFullDiskKeepsTheLogAsItIs(t *testing.T) {
	p := partWays(t, zone.DurabilityMaster, false, 0)
	end := p.c.Log().End()
	p.faults.Set(func(op disk.Op, name string) error {
		if op == disk.OpPreallocate {
			return syscall.ENOSPC
		}
		return nil
	})
	err := follow(p.b.Log(), p.c.Log())
	var save *SaveError
	if !errors.Is(err, ship.ErrFull) || !errors.As(err, &save) || save.From != p.common || save.End != end {
		t.Errorf("truncated on a full disk: %v", err)
	}
	if p.c.Log().End() != end {
		t.Errorf("the log ends at %d, and ended at %d", p.c.Log().End(), end)
	}
	p.faults.Set(nil)
	if err := follow(p.b.Log(), p.c.Log()); err != nil {
		t.Fatal(err)
	}
	if list, err := p.store.List(); err != nil || len(list) != 1 || list[0].Counts.Messages != 5 {
		t.Errorf("once there is room: %+v, %v", list, err)
	}
}

// TestAPartedLogIsSetAsideAndForsaken: what was committed and given up by an order is
// saved with what is known of it, and the store goes.
func TestAPartedLogIsSetAsideAndForsaken(t *testing.T) {
	p := partWays(t, zone.DurabilityAllInSync, true, 2)
	if err := follow(p.b.Log(), p.c.Log()); !errors.Is(err, ship.ErrCommitted) {
		t.Fatalf("what is committed here: %v", err)
	}
	for range 2 {
		if err := p.c.SetTailAside(t.Context(), p.common); err != nil {
			t.Fatal(err)
		}
	}
	list, err := p.store.List()
	if err != nil || len(list) != 1 {
		t.Fatalf("tails: %+v, %v", list, err)
	}
	if n := list[0].Counts; n.Messages != 6 || n.Certain < 5 {
		t.Errorf("counts: %+v", n)
	}
	page, err := NewTailReader(p.store).Read(t.Context(), TailQuery{ID: list[0].ID, Limit: 100})
	if err != nil || len(page.Records) != 6 || page.Next != 0 {
		t.Fatalf("page: %+v, %v", page, err)
	}
	for i, r := range page.Records[:5] {
		if string(r.Record.MessageID()) != fmt.Sprintf("lost-%d", i) || r.Not != "" || r.Kind != TailMessage {
			t.Errorf("record %d: %+v", i, r)
		}
	}
	p.c.Close()
	if err := Forsake(p.faults, "store", wallNow()); err != nil {
		t.Fatal(err)
	}
	c := openMember(t, p.faults, sample(t), testLimits())
	if i := c.Log().Incarnation(); i != 0 {
		t.Errorf("the store is still there: incarnation %x", i)
	}
	if list, err := c.tails.List(); err != nil || len(list) != 1 {
		t.Errorf("the tail is gone with it: %+v, %v", list, err)
	}
}

// TestWhatCannotBeReadIsKept: a member that was given an older version has what a newer one
// wrote, and its group has not. It must be able to follow: that is kept, and shown, and not
// offered by a version that cannot know what it decides about the rest.
func TestWhatCannotBeReadIsKept(t *testing.T) {
	p := partWays(t, zone.DurabilityAllInSync, false, 0, func(a *memberNode) {
		e, err := a.own(&record.Record{Type: record.TypeMessage, Topic: "orders", Shard: record.NoShard, Stored: a.wallNow(), Cause: []byte{causeVersion, 250}})
		if err != nil {
			t.Fatal(err)
		}
		end := a.Log().Synced()
		go func() { _ = a.appendWait(t.Context(), &op{batch: commitlog.Batch{Entries: []commitlog.Entry{e}}}) }()
		a.synced(end)
	})
	if err := follow(p.b.Log(), p.c.Log()); err != nil {
		t.Fatal(err)
	}
	list, err := p.store.List()
	if err != nil || len(list) != 1 || list[0].Counts.Kinds[string(TailUnknown)] != 1 || list[0].Counts.Messages != 5 {
		t.Fatalf("tails: %+v, %v", list, err)
	}
	r := NewTailReader(p.store)
	page, err := r.Read(t.Context(), TailQuery{ID: list[0].ID, Limit: 100, All: true})
	if err != nil || len(page.Records) != 6 || page.Records[0].Kind != TailUnknown || page.Records[0].Not == "" || page.Records[1].Not != "" {
		t.Errorf("shown: %+v, %v", page, err)
	}
	if _, err := r.Read(t.Context(), TailQuery{ID: list[0].ID, Limit: 100, Offered: true}); !errors.Is(err, ErrNewer) {
		t.Errorf("to be offered: %v", err)
	}
	newer := commitlog.Entry{Kind: commitlog.KindOwn, Record: []byte(strings.Repeat("\xff", 400))}
	if v, kind := kindInTail(&newer); kind != TailUnknown || len(v.Bytes()) != 0 {
		t.Errorf("a record of a newer encoding is %q, %d bytes", kind, len(v.Bytes()))
	}
}

// TestAPowerCutBetweenSavingAndForsakingLosesNothing cuts the power after every change of
// the disk from before what the group gave up is saved until its store is gone: as long as
// the tail is not there, the log that has it is, and who goes on where it was cut has the
// tail once in the end and no store.
func TestAPowerCutBetweenSavingAndForsakingLosesNothing(t *testing.T) {
	p := partWays(t, zone.DurabilityAllInSync, true, 2)
	var images []*disk.Mem
	rng := rand.New(rand.NewPCG(5, 5))
	p.mem.AfterOp(func(int) { images = append(images, p.mem.Crash(rng)) })
	if err := p.c.SetTailAside(t.Context(), p.common); err != nil {
		t.Fatal(err)
	}
	p.c.Close()
	if err := Forsake(p.faults, "store", wallNow()); err != nil {
		t.Fatal(err)
	}
	p.mem.AfterOp(nil)
	without, gone := 0, 0
	saved := func(fs disk.FS) int {
		list, err := NewTails(fs, "store").List()
		if err != nil || len(list) > 1 || len(list) == 1 && (list[0].Damage != nil || list[0].Counts.Messages != 6) {
			t.Fatalf("tails: %+v, %v", list, err)
		}
		return len(list)
	}
	for i, image := range append(images, p.mem.Crash(rng)) {
		c := openMember(t, image, sample(t), testLimits())
		c.member.Forced = func() uint64 { return 2 }
		if n := saved(image); n == 0 {
			without++
		}
		if c.Log().Incarnation() == 0 {
			gone++
			if saved(image) == 0 {
				t.Fatalf("cut %d of %d: the store is gone, and nothing of it is saved", i, len(images))
			}
			c.Close()
			continue
		}
		if err := c.SetTailAside(t.Context(), p.common); err != nil {
			t.Fatalf("cut %d: %v", i, err)
		}
		c.Close()
		if err := Forsake(image, "store", wallNow()); err != nil {
			t.Fatalf("cut %d: %v", i, err)
		}
		if saved(image) != 1 {
			t.Fatalf("cut %d: nothing is saved", i)
		}
		c = openMember(t, image, sample(t), testLimits())
		if inc := c.Log().Incarnation(); inc != 0 {
			t.Errorf("cut %d: the store is still there: incarnation %x", i, inc)
		}
		c.Close()
	}
	if without == 0 || gone == 0 || gone > len(images) {
		t.Errorf("of %d cuts %d are before the tail is saved, %d behind the end of the store: the test shows nothing", len(images), without, gone)
	}
}
