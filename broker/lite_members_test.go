package broker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

func (s *station) liteMembers(g zone.ConsumerGroup) *liteMembers {
	for _, h := range s.handsList() {
		if h.sub.key == (subKey{g, "chat"}) {
			return h.lite
		}
	}
	s.t.Fatalf("group %s has no hands", g)
	return nil
}

// A client that leaves may say with what: that neither adds it nor leaves an owner
// behind that nobody knows.
func TestLeavingNamesNothing(t *testing.T) {
	s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
	for _, g := range []zone.ConsumerGroup{chatters, "chat-exclusive"} {
		t.Run(string(g), func(t *testing.T) {
			s.sync(g, "one", LiteAdd, "x")
			s.sync(g, "one", LiteLeave, "x", "y")
			r := LiteRequest{Group: g, Topic: "chat", ClientID: "one", Action: LiteLeave, Names: []string{"x", "y"}}
			if err := s.syncHere(t.Context(), &r); err != nil { // as another broker may say it
				t.Fatal(err)
			}
			m := s.liteMembers(g)
			if clients, named := m.size(); clients != 0 || named != 0 || len(m.owners) != 0 {
				t.Errorf("%d clients have named %d, and own %d; want none", clients, named, len(m.owners))
			}
			s.sync(g, "two", LiteAdd, "x", "y")
			if clients, named := m.size(); clients != 1 || named != 2 {
				t.Errorf("%d clients have named %d, want 1 and 2", clients, named)
			}
			s.sync(g, "two", LiteLeave)
		})
	}
}

// What is refused changes nothing: a lite topic stays with who had it.
func TestRefusedSubscriptionTakesNothingAway(t *testing.T) {
	s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
	var told []string
	s.SetLiteNotify(func(client string, _ zone.Topic, name string) { told = append(told, client+" "+name) })
	const g = "chat-exclusive"
	var full []string
	for i := range 20 {
		full = append(full, fmt.Sprint("t", i))
	}
	s.sync(g, "one", LiteAdd, "a")
	s.sync(g, "two", LiteAdd, full...)
	r := LiteRequest{Group: g, Topic: "chat", ClientID: "two", Action: LiteAdd, Names: []string{"a"}}
	if err := s.SyncLite(t.Context(), r); KindOf(err) != KindLiteSubscriptions {
		t.Fatalf("the 21st subscription: %v", err)
	}
	s.chat(1, "a")
	wantText(t, s.hearAll(g, "one"), "a-0")
	wantText(t, strings.Join(told, ", "), "")

	// One that is refused still hears what it has no longer.
	s.sync(g, "three", LiteAdd, "b", "c")
	s.sync(g, "four", LiteAdd, full[0])
	r = LiteRequest{Group: g, Topic: "chat", ClientID: "two", Action: LiteReplace, Names: append([]string{"b", "n", "o"}, full[:17]...)}
	told = nil
	if err := s.SyncLite(t.Context(), r); KindOf(err) != KindLiteSubscriptions {
		t.Fatalf("a set beyond the limit: %v", err)
	}
	wantText(t, strings.Join(told, ", "), "two b, two "+full[0])
}
