package broker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

const billing = zone.ConsumerGroup("orders-billing")

// giveUp publishes n messages and has the consumer group give them all up.
func (s *station) giveUp(n int) []string {
	s.t.Helper()
	ids := s.publishN("orders", "m", n)
	for left := n; left > 0; {
		list := s.receive(billing, "orders", left, time.Hour)
		if len(list) == 0 {
			s.t.Fatal("nothing to give up")
		}
		for _, d := range list {
			if err := s.DeadLetter(s.t.Context(), billing, "orders", d.Handle); err != nil {
				s.t.Fatal(err)
			}
		}
		left -= len(list)
	}
	return ids
}

func (s *station) replay(topic zone.Topic, force bool, offsets ...uint64) []ReplayResult {
	s.t.Helper()
	got, err := s.Replay(s.t.Context(), ReplayRequest{Topic: topic, Offsets: offsets, Force: force})
	if err != nil {
		s.t.Fatal(err)
	}
	return got
}

func outcomes(list []ReplayResult) []ReplayOutcome {
	var all []ReplayOutcome
	for _, r := range list {
		all = append(all, r.Outcome)
	}
	return all
}

func TestReplayBringsDeadLettersBackOnce(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	ids := s.giveUp(5)
	dead := DeadLetterTopic(billing)
	if got := outcomes(s.replay(dead, false, 0, 1, 1, 3, 99)); !slices.Equal(got, []ReplayOutcome{Replayed, Replayed, Replayed, ReplayGone}) {
		t.Fatalf("outcomes %v", got)
	}
	if got := outcomes(s.replay(dead, false, 0, 1, 2)); !slices.Equal(got, []ReplayOutcome{ReplayedYet, ReplayedYet, Replayed}) {
		t.Fatalf("outcomes of the second call %v", got)
	}
	s.restart()
	if got := outcomes(s.replay(dead, false, 0, 1, 2, 3)); slices.Contains(got, Replayed) {
		t.Fatalf("outcomes after a restart %v", got)
	}
	queues, err := s.DeadLetterQueues(t.Context())
	if err != nil || len(queues) != 1 {
		t.Fatalf("%+v, %v", queues, err)
	}
	if q := queues[0]; q.Group != billing || q.Next != 5 || q.Pending != 1 || q.Reasons["consumer"] != 1 || q.Oldest.IsZero() {
		t.Errorf("overview %+v", q)
	}
	pending, next, err := s.DeadLetters(t.Context(), DeadLetterQuery{Topic: dead, Pending: true})
	if err != nil || next != 0 || len(pending) != 1 || pending[0].Offset != 4 {
		t.Fatalf("pending %+v, %d, %v", pending, next, err)
	}
	list := s.receive(billing, "orders", 10, time.Minute)
	if len(list) != 4 || list[0].Attempt != 1 || string(list[0].Record.Body()) != "body of "+string(list[0].Record.MessageID()) {
		t.Fatalf("%d messages came back, want 4 with no attempts counted", len(list))
	}
	s.ack(billing, list...)
	forced := s.replay(dead, true, 0)
	if forced[0].Outcome != Replayed || !slices.Contains(ids, forced[0].MessageID) {
		t.Fatalf("forced: %+v", forced)
	}
	wantOnce(t, s.drain(billing, "orders"), []string{forced[0].MessageID})
}

// TestReplayIsForTheGroupThatGaveUp has another consumer group of the topic,
// which settled the messages long ago: it must not see them again.
func TestReplayIsForTheGroupThatGaveUp(t *testing.T) {
	topo := sample(t, "  - name: orders-billing\n    topics: [orders]\n", "  - name: orders-billing\n    topics: [orders]\n  - name: orders-other\n    topics: [orders]\n")
	s := open(t, disk.NewMem(), "rz02-a-1", topo, testLimits())
	ids := s.giveUp(3)
	wantOnce(t, s.drain("orders-other", "orders"), ids)
	s.replay(DeadLetterTopic(billing), false, 0, 1, 2)
	if got := s.drain("orders-other", "orders"); len(got) != 0 {
		t.Errorf("the other group got %v", got)
	}
	wantOnce(t, s.drain(billing, "orders"), ids)
	if st := s.Status(); slices.ContainsFunc(st.Groups, func(g GroupStatus) bool { return g.Group == replayGroup }) {
		t.Errorf("groups %+v", st.Groups)
	}
	s.publishN("orders", "new", 2)
	if got := s.drain("orders-other", "orders"); len(got) != 2 {
		t.Errorf("the other group got %v, want the two new messages", got)
	}
}

// park has the destination of a published record refuse it.
func (s *station) park(id string, reason record.Reason) flow.Leg {
	s.t.Helper()
	return s.parkMessage(s.message("transfer", id, "userId", "65"), reason)
}

func (s *station) parkMessage(m Message, reason record.Reason) flow.Leg {
	s.t.Helper()
	s.publish(m)
	legs := s.Legs()
	if len(legs) != 1 {
		s.t.Fatalf("legs %v", legs)
	}
	cursor, _ := s.Cursor(legs[0])
	err := s.Settle(s.t.Context(), legs[0], flow.Settlement{Through: cursor + 1,
		Outcomes: []flow.Outcome{{First: cursor + 1, Through: cursor + 1, Outcome: record.OutcomeParked, Reason: reason}}})
	if err != nil {
		s.t.Fatal(err)
	}
	return legs[0]
}

// TestReplayKeepsWhatItsKindGivesAMessage: the priority decides what it passes, the
// delivery time is shown to its consumer.
func TestReplayKeepsWhatItsKindGivesAMessage(t *testing.T) {
	for _, kind := range []string{"priority", "delay"} {
		t.Run(kind, func(t *testing.T) {
			topo := sample(t, "  - name: transfer\n", "  - name: transfer\n    kind: "+kind+"\n")
			s := open(t, disk.NewMem(), "rz02-a-1", topo, testLimits())
			m := s.message("transfer", "m", "userId", "65")
			if kind == "priority" {
				m.Priority = 3
			} else {
				m.DeliverAt = time.UnixMilli(1e12).UTC()
			}
			leg := s.parkMessage(m, record.ReasonTooLarge)
			s.replay(ParkedTopic, false, 0)
			items, err := s.Read(leg, 1, 10, 1<<20, nil)
			if err != nil || len(items) != 2 {
				t.Fatalf("%d records were on their way, %v", len(items), err)
			}
			for i, it := range items {
				v, err := record.Parse(it.Record)
				if err != nil {
					t.Fatal(err)
				}
				if v.Priority() != m.Priority || !v.DeliverAt().Equal(m.DeliverAt) || (kind == "priority" && v.Queue() != 3) {
					t.Errorf("record %d has priority %d in queue %d and delivery time %s", i+1, v.Priority(), v.Queue(), v.DeliverAt())
				}
			}
		})
	}
}

func TestReplayRoutesParkedRecordsAnew(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	leg := s.park("p1", record.ReasonTooLarge)
	s.park("p2", record.ReasonUnknownTopic)
	one, _, err := s.DeadLetters(t.Context(), DeadLetterQuery{Topic: ParkedTopic, Reason: "unknown-topic"})
	if err != nil || len(one) != 1 || one[0].Offset != 1 || string(one[0].Record.MessageID()) != "p2" || one[0].Cause.Destination != leg.Group {
		t.Fatalf("%+v, %v", one, err)
	}
	got := s.replay(ParkedTopic, false, 0, 1)
	if !slices.Equal(outcomes(got), []ReplayOutcome{Replayed, Replayed}) || got[0].Where != "transfer to rz04 in hangzhou" {
		t.Fatalf("%+v", got)
	}
	items, err := s.Read(leg, 3, 10, 1<<20, nil)
	if err != nil || len(items) != 2 {
		t.Fatalf("%d records are on their way, %v", len(items), err)
	}
	v, err := record.Parse(items[0].Record)
	if err != nil || string(v.MessageID()) != "p1" || string(v.Body()) != "body of p1" || v.Type() != record.TypeMessage {
		t.Fatalf("%v", err)
	}
	if user, _ := v.Property("userId"); string(user) != "65" {
		t.Errorf("the property is %q", user)
	}
	// What lands elsewhere is for everybody there.
	if !meantFor(v, "transfer-credit") {
		t.Error("the landing is not for its consumers")
	}
}

// TestL9_ReplayAndItsMarkAreOne cuts the power after every change of the disk
// while letters are replayed. Whatever is left: a letter is marked exactly when
// its message is in the topic, so none is in neither place and a second replay
// brings none back twice.
func TestL9_ReplayAndItsMarkAreOne(t *testing.T) {
	mem, rng, topo := disk.NewMem(), rand.New(rand.NewPCG(7, 8)), sample(t)
	limits := Limits{SegmentBytes: 16 << 10}
	s := open(t, mem, "rz02-a-1", topo, limits)
	const n = 12
	ids := s.giveUp(n)
	dead := DeadLetterTopic(billing)
	var mu sync.Mutex
	type cut struct {
		kept *disk.Mem
		done int
	}
	var cuts []cut
	done := 0
	mem.AfterOp(func(int) {
		mu.Lock()
		defer mu.Unlock()
		cuts = append(cuts, cut{mem.Crash(rng), done})
	})
	for at := uint64(0); at < n; at += 4 {
		s.replay(dead, false, at, at+1, at+2, at+3)
		mu.Lock()
		done = int(at) + 4
		mu.Unlock()
		if at == 4 {
			if err := s.snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	mem.AfterOp(nil)
	for i, c := range cuts {
		after := open(t, c.kept, "rz02-a-1", topo, limits)
		letters, _, err := after.DeadLetters(t.Context(), DeadLetterQuery{Topic: dead})
		if err != nil || len(letters) != n {
			t.Fatalf("cut %d: %d letters, %v", i, len(letters), err)
		}
		marked := map[string]bool{}
		for k, d := range letters {
			marked[string(d.Record.MessageID())] = d.Replayed
			if k < c.done && !d.Replayed {
				t.Fatalf("cut %d: letter %d was replayed and is not marked", i, k)
			}
		}
		var rest []uint64
		for k := range uint64(n) {
			rest = append(rest, k)
		}
		after.replay(dead, false, rest...)
		wantOnce(t, after.drain(billing, "orders"), ids)
		if t.Failed() {
			t.Fatalf("cut %d: marks %v", i, marked)
		}
		after.Close()
	}
	if len(cuts) < 5 {
		t.Fatalf("only %d power cuts", len(cuts))
	}
}

// TestL8_RefusedReplayStaysADeadLetter fails the append, and refuses what has no
// place to go: the letter is there as before.
func TestL8_RefusedReplayStaysADeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		limits := testLimits()
		limits.SegmentBytes = 64 << 10
		s := open(t, mem, "rz02-a-1", sample(t), limits)
		defer s.Close()
		m := s.message("orders", "big")
		m.Body = make([]byte, 50<<10)
		s.publish(m)
		d := s.receive(billing, "orders", 1, time.Hour)[0]
		if err := s.DeadLetter(t.Context(), billing, "orders", d.Handle); err != nil {
			t.Fatal(err)
		}
		s.fill(mem, m)
		dead := DeadLetterTopic(billing)
		if _, err := s.Replay(t.Context(), ReplayRequest{Topic: dead, Offsets: []uint64{0}}); KindOf(err) != KindDiskFull {
			t.Fatalf("replay on a full disk: %v", err)
		}
		mem.SetLimit(0)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := outcomes(s.replay(dead, false, 0)); !slices.Equal(got, []ReplayOutcome{Replayed}) {
			t.Fatalf("once the disk had room: %v", got)
		}
	})
}

func TestReplayRefusesWhatHasNoPlace(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	s.giveUp(1)
	dead := DeadLetterTopic(billing)
	e2 := epoch(2)
	without := sample(t, e2[0], e2[1], "  - name: orders-billing\n    topics: [orders]\n", "  - name: orders-new\n    topics: [orders]\n")
	if err := s.ApplyTopology(t.Context(), without); err != nil {
		t.Fatal(err)
	}
	got := s.replay(dead, false, 0)
	if got[0].Outcome != ReplayError || KindOf(got[0].Err) != KindGroupUnknown {
		t.Fatalf("%+v", got)
	}
	letters, _, err := s.DeadLetters(t.Context(), DeadLetterQuery{Topic: dead})
	if err != nil || len(letters) != 1 || letters[0].Replayed {
		t.Fatalf("%+v, %v", letters, err)
	}
	for _, r := range []ReplayRequest{{Topic: "orders", Offsets: []uint64{0}}, {Topic: "%DLQ%none", Offsets: []uint64{0}}, {Topic: dead}, {Topic: dead, Offsets: make([]uint64, MaxReplay+1)}} {
		if got, err := s.Replay(t.Context(), r); err == nil {
			t.Errorf("%+v: %+v", r, got)
		}
	}
	if _, err := s.Receive(t.Context(), ReceiveRequest{Group: replayGroup, Topic: dead, Filter: Filter{All: true}}); err == nil {
		t.Error("a client may consume as the group that marks what was replayed")
	}
}

func TestDryRunChangesNothing(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	s.giveUp(2)
	got, err := s.Replay(t.Context(), ReplayRequest{Topic: DeadLetterTopic(billing), Offsets: []uint64{0, 1}, DryRun: true})
	if err != nil || !slices.Equal(outcomes(got), []ReplayOutcome{Replayed, Replayed}) || got[0].Where != "orders for orders-billing in rz02" {
		t.Fatalf("%+v, %v", got, err)
	}
	if list := s.receive(billing, "orders", 10, time.Minute); len(list) != 0 {
		t.Errorf("%d messages came back", len(list))
	}
	letters, _, _ := s.DeadLetters(t.Context(), DeadLetterQuery{Topic: DeadLetterTopic(billing)})
	if len(letters) != 2 || letters[0].Replayed {
		t.Errorf("%+v", letters)
	}
}

func TestDeadLettersComeInPages(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	s.giveUp(10)
	var got []uint64
	from := uint64(0)
	for range 10 {
		page, next, err := s.DeadLetters(t.Context(), DeadLetterQuery{Topic: DeadLetterTopic(billing), From: from, Limit: 3})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range page {
			got = append(got, d.Offset)
		}
		if from = next; next == 0 {
			break
		}
	}
	if want := "[0 1 2 3 4 5 6 7 8 9]"; fmt.Sprint(got) != want {
		t.Errorf("offsets %v, want %s", got, want)
	}
	if one, _, _ := s.DeadLetters(t.Context(), DeadLetterQuery{Topic: DeadLetterTopic(billing), MessageID: "m-7"}); len(one) != 1 {
		t.Errorf("%d letters of m-7", len(one))
	}
	if none, _, _ := s.DeadLetters(t.Context(), DeadLetterQuery{Topic: DeadLetterTopic(billing), Tag: "red"}); len(none) != 0 {
		t.Errorf("letters with a tag that none has: %+v", none)
	}
	if none, _, _ := s.DeadLetters(t.Context(), DeadLetterQuery{Topic: DeadLetterTopic(billing), Since: time.Now().Add(time.Hour)}); len(none) != 0 {
		t.Errorf("%d letters of the future", len(none))
	}
}
