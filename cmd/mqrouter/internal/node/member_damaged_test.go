package node

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

// A node whose disk cannot be read any more, or whose received store is damaged before it
// was put in place, becomes a copy of the master's: what cannot be read is kept aside.
func TestAStoreThatCannotBeReadMakesWay(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	a, b, d := c.member(t, "g-1"), c.member(t, "g-2"), c.member(t, "g-3")
	c.publishThrough(t, "g-1", "safe", 1) // all three are in sync
	master, others := masterOf(t, a, b, d)
	sick, torn := others[0], others[1]

	aside := func(folder string) int {
		names, _ := filepath.Glob(filepath.Join(folder, damagedPrefix+"*"))
		return len(names)
	}
	ofSick, ofTorn := sick.cfg.DataDir, torn.cfg.DataDir
	sick.stop()
	failing := disk.NewFaulty(disk.OS{})
	failing.Set(func(op disk.Op, name string) error {
		if op == disk.OpRead && strings.Contains(name, "/log/") && aside(ofSick) == 0 {
			return syscall.EIO
		}
		return nil
	})
	c.publishThrough(t, master.self.Name, "orders", 2)
	sick = c.memberOn(t, sick.self.Name, true, broker.Limits{}, failing)
	until(t, "a copy in the place of what cannot be read", func() bool {
		return aside(ofSick) == 1 && sameStore(sick, master)
	})
	if s := sick.Status(); s.Member.Damaged || len(s.Member.SetAside) != 1 {
		t.Errorf("status %+v", s.Member)
	}
	c.publishThrough(t, sick.self.Name, "safe", 3)

	torn.stop()
	if err := os.WriteFile(filepath.Join(torn.cfg.DataDir, "INSTALL"), []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.publishThrough(t, master.self.Name, "orders", 4)
	torn = c.member(t, torn.self.Name)
	until(t, "a copy in the place of what was received", func() bool {
		return aside(ofTorn) == 1 && sameStore(torn, master)
	})
}

// A damaged store stays where it may be the last copy of something, and that is told; one
// that could not be read once or twice is no damaged one.
func TestADamagedStoreStaysWhereItMayBeTheLastCopy(t *testing.T) {
	c := newTrio(t)
	m := c.unstarted(t, "g-2")
	for name, x := range map[string]struct {
		term coordinator.Term
		says string
	}{
		"nobody leads": {coordinator.Term{InSync: []zone.Node{"g-1"}}, "no master"},
		"it leads":     {coordinator.Term{Master: "g-2", InSync: []zone.Node{"g-1"}}, "is the group's master"},
		"in sync":      {coordinator.Term{Master: "g-1", InSync: []zone.Node{"g-1", "g-2"}}, "in sync"},
		"proposed":     {coordinator.Term{Master: "g-1", InSync: []zone.Node{"g-1"}, Proposed: []zone.Node{"g-1", "g-2"}}, "in sync"},
		"out of it":    {coordinator.Term{Master: "g-1", InSync: []zone.Node{"g-1", "g-3"}}, ""},
	} {
		if why := m.indispensable(x.term); (why == "") != (x.says == "") || !strings.Contains(why, x.says) {
			t.Errorf("%s: %q, want %q", name, why, x.says)
		}
	}
	m.keepsDamaged("the group has no master")
	if x := m.memberStatus(nil); !x.Damaged || !strings.Contains(x.Problem, "the group has no master") {
		t.Errorf("status %+v", x)
	}
	broken := &broker.SnapshotError{Name: "s", What: "cannot be read", Err: syscall.EIO}
	for tries := 1; tries < unreadTries; tries++ {
		if m.judge(broken); m.unread != tries {
			t.Errorf("%d tries are %d", tries, m.unread)
		}
	}
	if m.judge(nil); m.unread != 0 || m.memberStatus(nil).Damaged {
		t.Errorf("opened: %d tries, status %+v", m.unread, m.memberStatus(nil))
	}
}
