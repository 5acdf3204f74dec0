package node

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// A member whose log has diverged is set aside, and listens all the same: it learns of
// each new master and passes clients on to it. It does not lead while a member in sync
// answers, whatever loss an operator allows.
func TestADivergedMemberListens(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	nodes := map[zone.Node]*running{}
	for _, name := range []zone.Node{"g-1", "g-2", "g-3"} {
		nodes[name] = c.member(t, name)
	}
	c.publishThrough(t, "g-1", "safe", 1) // all three are in sync
	nodes["g-3"].stop()
	until(t, "the two others do without it", func() bool {
		master, _ := masterOf(t, nodes["g-1"], nodes["g-2"])
		l := master.life.Load()
		return l != nil && l.inSync() == 2
	})
	c.writesAlone(t, "g-3", nodes["g-1"].known().Epoch+1)
	c.publishThrough(t, "g-2", "orders", 3)
	depose := func() { // another epoch, so that the other history is none that is still led
		first, _ := masterOf(t, nodes["g-1"], nodes["g-2"])
		epoch := first.known().Epoch
		first.life.Load().failed("broker", errors.New("test"))
		until(t, "another master", func() bool {
			now, _ := masterOf(t, nodes["g-1"], nodes["g-2"])
			return now.known().Epoch > epoch
		})
		c.publishThrough(t, "g-1", "orders", 4)
	}
	depose()
	depose()

	aside := c.member(t, "g-3")
	until(t, "g-3 is set aside", func() bool { l := aside.life.Load(); return l != nil && l.unfit.Load() })
	if text := aside.memberStatus(aside.life.Load()).Problem; !strings.Contains(text, "diverged") {
		t.Errorf("its status says %q", text)
	}
	depose()
	master, _ := masterOf(t, nodes["g-1"], nodes["g-2"])
	until(t, "g-3 learns of the new master", func() bool {
		now := aside.known()
		return now.Epoch == master.known().Epoch && now.Master == master.self.Name
	})
	c.publishThrough(t, "g-3", "orders", 5)

	// Consent to a loss is no wish for one: members in sync answer, so one of them leads,
	// whether the order comes while there is a master or between two.
	_, err := orderDesk{master.memberNode}.Failover(t.Context(), "operator", admin.FailoverOrder{Group: "g", To: "g-3", AllowLoss: true, Why: "its log is the right one"})
	masterOf(t, nodes["g-1"], nodes["g-2"])
	if l := aside.life.Load(); l == nil || !l.unfit.Load() {
		t.Errorf("g-3 is not set aside after the order: %v", err)
	}
	c.publishThrough(t, "g-3", "orders", 6)
}

// writesAlone leads the store of a node that does not run, without anybody's consent, in
// an epoch of a lineage of its own: what is committed there the group does not have.
func (c *coordinated) writesAlone(t *testing.T, name zone.Node, epoch uint64) {
	t.Helper()
	yes := func() bool { return true }
	b, err := broker.Open(t.Context(), broker.Options{FS: disk.OS{}, Dir: filepath.Join(c.dir, "data", string(name)), Node: c.top.FindNode(name), Topology: c.top,
		ChangeOf: changeOf, Member: &broker.Member{Lease: yes}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- b.Run(ctx) }()
	if err := b.Promote(ctx, epoch, record.LineageID(77)); err != nil {
		t.Fatal(err)
	}
	led := make(chan error, 1)
	go func() { led <- b.Lead(ctx) }()
	until(t, "an epoch of its own", func() bool {
		b.Log().Commit(b.Log().Synced())
		select {
		case err := <-led:
			if err != nil {
				t.Fatal(err)
			}
			return true
		default:
			return false
		}
	})
	out := make([]broker.PublishResult, 1)
	sent := make(chan error, 1)
	go func() {
		err := b.Publish(ctx, []broker.Message{{Topic: c.top.FindTopic("orders"), ID: "alone", Queue: broker.AnyQueue, Body: []byte("x"), Born: time.Now()}}, out)
		sent <- errors.Join(err, out[0].Err)
	}()
	until(t, "a publish of its own", func() bool {
		b.Log().Commit(b.Log().Synced())
		select {
		case err := <-sent:
			if err != nil {
				t.Fatal(err)
			}
			return true
		default:
			return false
		}
	})
	stop()
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}
