package broker

import (
	"fmt"
	"strings"
	"sync/atomic"
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

// Everybody waits while a group is made to go on elsewhere: however many lite topics
// move, that is one append, and no request may move any number.
func TestLiteTopicsMoveTogether(t *testing.T) {
	fs := disk.NewMem()
	s := open(t, fs, "rz05-a-1", liteTopology(t, "subscriptions: 20", "subscriptions: 200"), testLimits())
	var names []string
	for i := range 101 {
		names = append(names, fmt.Sprint("t", i))
	}
	s.chat(2, names[:40]...)
	r := LiteRequest{Group: chatters, Topic: "chat", ClientID: "one", Action: LiteAdd, Names: names, From: LiteFromMax}
	if err := s.SyncLite(t.Context(), r); KindOf(err) != KindInvalid {
		t.Errorf("101 lite topics with a place: %v", err)
	}
	s.syncFrom(chatters, "one", LiteRequest{Action: LiteAdd, Names: names[:1]})
	var ops atomic.Int64
	fs.AfterOp(func(int) { ops.Add(1) })
	s.syncFrom(chatters, "one", LiteRequest{Action: LiteAdd, Names: names[:100], From: LiteFromTail, N: 1})
	if n := ops.Load(); n == 0 || n >= 40 {
		t.Errorf("40 moves took %d operations of the disk, want those of an append or two", n)
	}
	fs.AfterOp(nil)
	if got := strings.Fields(s.hearAll(chatters, "one")); len(got) != 40 || strings.Contains(strings.Join(got, " "), "-0") {
		t.Errorf("%d messages came: %v; want the last of each", len(got), got)
	}
}
