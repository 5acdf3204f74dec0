package broker

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// isProgress reports whether the batch tells what consumers have settled.
func isProgress(b *commitlog.Batch) bool {
	v, err := record.Parse(b.Entries[0].Record)
	return err == nil && v.Type() == record.TypeProgress
}

// restartSuddenly has the broker be as its disk is, without the progress that an
// orderly end would tell.
func (s *station) restartSuddenly(fs *disk.Mem) {
	s.t.Helper()
	kept := fs.Clone()
	s.Close()
	s.fs = kept
	s.start()
}

// Progress that was collected before a move, and is appended late, must not settle
// again what was moved back.
func TestLateProgressDoesNotUndoALiteMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := disk.NewMem()
		s, tap := openTapped(t, fs, "rz05-a-1", liteTopology(t), testLimits())
		defer func() { s.Close() }()
		s.chat(3, "a")
		s.sync(chatters, "one", LiteAdd, "a")
		release := make(chan struct{})
		late := sync.OnceFunc(func() { <-release })
		hook := func(b *commitlog.Batch) error {
			if isProgress(b) {
				late()
			}
			return nil
		}
		tap.appending.Store(&hook)
		wantText(t, s.hearAll(chatters, "one"), "a-0 a-1 a-2")
		synctest.Wait()
		time.Sleep(time.Second) // the progress is collected, and waits for its append
		var moving sync.WaitGroup
		moving.Go(func() {
			s.syncFrom(chatters, "one", LiteRequest{Action: LiteAdd, Names: []string{"a"}, From: LiteFromMin})
		})
		synctest.Wait()
		close(release)
		moving.Wait()
		time.Sleep(time.Second)
		s.restartSuddenly(fs)
		s.sync(chatters, "one", LiteReplace, "a")
		wantText(t, s.hearAll(chatters, "one"), "a-0 a-1 a-2")
	})
}

// Nor must progress whose record fails when the move is over.
func TestFailedProgressDoesNotUndoALiteMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := disk.NewMem()
		s, tap := openTapped(t, fs, "rz05-a-1", liteTopology(t), testLimits())
		defer func() { s.Close() }()
		s.chat(3, "a")
		s.sync(chatters, "one", LiteAdd, "a")
		var mu sync.Mutex
		var failing []*commitlog.Batch // taken, and not told yet; guarded by mu
		hook := func(b *commitlog.Batch) error {
			mu.Lock()
			defer mu.Unlock()
			if len(failing) == 0 && isProgress(b) {
				failing = append(failing, b)
				return errTaken
			}
			return nil
		}
		tap.appending.Store(&hook)
		wantText(t, s.hearAll(chatters, "one"), "a-0 a-1 a-2")
		time.Sleep(time.Second)
		var moving sync.WaitGroup
		moving.Go(func() {
			s.syncFrom(chatters, "one", LiteRequest{Action: LiteAdd, Names: []string{"a"}, From: LiteFromMin})
		})
		synctest.Wait()
		mu.Lock()
		failing[0].Done(failing[0], errors.New("the disk is full"))
		mu.Unlock()
		moving.Wait()
		time.Sleep(time.Second)
		s.restartSuddenly(fs)
		s.sync(chatters, "one", LiteReplace, "a")
		wantText(t, s.hearAll(chatters, "one"), "a-0 a-1 a-2")
	})
}

// A group whose turn comes late, when a lite topic is forgotten, keeps what it has of
// the one that has sprung into being under its name.
func TestLiteTopicLivesAnewWhileItIsForgotten(t *testing.T) {
	for name, read := range map[string]bool{"read to its end": true, "with what nobody read": false} {
		t.Run(name, func(t *testing.T) {
			s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
			s.chat(2, "a")
			s.sync(chatters, "one", LiteAdd, "b")
			if read {
				s.sync(chatters, "one", LiteAdd, "a")
				wantText(t, s.hearAll(chatters, "one"), "a-0 a-1")
			}
			tp, gone := s.forgetLite("a")
			s.publish(s.lite("a", 2), s.lite("a", 3), s.lite("a", 4))
			s.sync(chatters, "one", LiteAdd, "a")
			s.ack(chatters, wantIDs(t, s.hear(chatters, "one", 8), "a-2")...)
			held := wantIDs(t, s.hear(chatters, "one", 8), "a-3")
			if err := s.settleForgotten(t.Context(), tp, gone); err != nil {
				t.Fatal(err)
			}
			wantIDs(t, s.hear(chatters, "one", 8), "") // a-3 is in hands
			s.ack(chatters, held...)
			wantText(t, s.hearAll(chatters, "one"), "a-4")
			s.restart()
			if lag := s.lag(chatters); lag != 0 {
				t.Errorf("the lag is %d", lag)
			}
		})
	}
}

// forgetLite appends that a lite topic is over, and no more.
func (s *station) forgetLite(name string) (*topic, []liteTopic) {
	s.t.Helper()
	s.mu.RLock()
	tp := s.state.topics["chat"]
	l := *tp.lite.byName[name]
	body := &liteBody{topic: "chat", incarnation: tp.first, unused: []liteUnused{{l.id, l.last}}}
	s.mu.RUnlock()
	e, err := s.control(record.TypeLite, body.append(nil))
	if err == nil {
		err = s.appendWait(s.t.Context(), &op{batch: commitlog.Batch{Entries: []commitlog.Entry{e}, Reserved: true}})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return tp, []liteTopic{l}
}

// A move is of the lite topic that lives when it is made, not of the one whose messages
// were looked for before.
func TestMoveIsOfTheLiteTopicThatLives(t *testing.T) {
	s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
	s.chat(2, "a")
	s.sync(chatters, "one", LiteAdd, "a")
	wantText(t, s.hearAll(chatters, "one"), "a-0 a-1")
	h := s.liteHands(chatters)
	r := &LiteRequest{Group: chatters, Topic: "chat", ClientID: "one", Action: LiteAdd, Names: []string{"a"}, From: LiteFromTail, N: 1}
	m, err := s.newLiteMove(t.Context(), h, r)
	if err != nil {
		t.Fatal(err)
	}
	tp, gone := s.forgetLite("a")
	if err := s.settleForgotten(t.Context(), tp, gone); err != nil {
		t.Fatal(err)
	}
	s.publish(s.lite("a", 2), s.lite("a", 3))
	if err := m.make(t.Context()); !errors.Is(err, errLiteChanged) {
		t.Fatalf("a move of the former one: %v", err)
	}
	wantText(t, s.hearAll(chatters, "one"), "a-2 a-3")
	if err := s.moveLite(t.Context(), h, r); err != nil {
		t.Fatal(err)
	}
	wantText(t, s.hearAll(chatters, "one"), "a-3")
}

func (s *station) liteHands(g zone.ConsumerGroup) *hands {
	s.t.Helper()
	for _, h := range s.handsList() {
		if h.sub.key == (subKey{g, "chat"}) {
			return h
		}
	}
	s.t.Fatalf("group %s has no hands", g)
	return nil
}

// What a move holds in memory is bounded over all its lite topics, and what a request
// without names leaves behind is nothing.
func TestLiteRequestsAreBounded(t *testing.T) {
	s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
	s.chat(3, "a", "b")
	scan := s.scanLite(s.liteHandsOfNew(chatters).topic)
	scan.offsets, scan.most = map[uint32][]uint64{1: nil, 2: nil}, 6
	if err := scan.scanTo(t.Context(), 6); err != nil || !scan.full {
		t.Errorf("six messages of two lite topics, where five may be: full %v, %v", scan.full, err)
	}
	for _, a := range []LiteAction{LiteReplace, LiteAdd, LiteRemove, LiteLeave} {
		s.sync(chatters, "nameless", a)
	}
	s.sync("chat-exclusive", "one", LiteAdd, "a")
	s.sync("chat-exclusive", "two", LiteAdd, "a") // which leaves one without any
	s.sync(chatters, "three", LiteAdd, "a")
	s.sync(chatters, "three", LiteRemove, "a")
	for g, want := range map[zone.ConsumerGroup]int{chatters: 0, "chat-exclusive": 1} {
		if clients, _ := s.liteMembers(g).size(); clients != want {
			t.Errorf("group %s has %d clients with lite topics, want %d", g, clients, want)
		}
	}
}

func (s *station) liteHandsOfNew(g zone.ConsumerGroup) *hands {
	s.t.Helper()
	s.sync(g, "first", LiteAdd, "x")
	s.sync(g, "first", LiteLeave)
	return s.liteHands(g)
}

// What stands in the index of lite topics that are gone is settled once, however often
// the index is read again.
func TestGoneLiteTopicsAreSettledOnce(t *testing.T) {
	s := open(t, disk.NewMem(), "rz05-a-1", liteTopology(t), testLimits())
	s.chat(3, "old", "gone", "old2")
	s.sync(chatters, "one", LiteAdd, "x")
	tp, list := s.forgetLite("gone")
	if err := s.settleForgotten(t.Context(), tp, list); err != nil {
		t.Fatal(err)
	}
	if err := s.flushHeld(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.sync(chatters, "one", LiteAdd, "old")
	s.hear(chatters, "one", 1) // reads the index from its begin
	h := s.liteHands(chatters)
	if g, some := h.disp.Collect(s.now(), wallNow()); some && len(g.Queues[0].Acked) > 0 {
		t.Errorf("settled again: %v", g.Queues[0].Acked)
	}
	words := strings.Join([]string{reasonWords[record.ReasonQuota], reasonWords[record.ReasonTooLarge]}, " ")
	wantText(t, words, "lite-quota too-large")
}
