package broker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

var ordered = Order{By: "alice at 10.0.0.1", Why: "ticket 42"}

// waiting lists everything that a query selects, page by page.
func (s *station) waiting(q WaitingQuery) []Waiting {
	s.t.Helper()
	var all []Waiting
	for {
		page, next, err := s.Waiting(s.t.Context(), q)
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, page...)
		if next == (WaitingPlace{}) {
			return all
		}
		q.From = next
	}
}

func idsOf(list []Waiting) (ids []string) {
	for _, w := range list {
		if w.Problem != "" {
			ids = append(ids, "?")
			continue
		}
		ids = append(ids, string(w.Record.MessageID()))
	}
	return ids
}

func namesOf(list []Waiting) (names []WaitingName) {
	for _, w := range list {
		names = append(names, WaitingName{w.Topic, w.Handle})
	}
	return names
}

// wantOutcomes fails unless all results of an order are these.
func wantOutcomes(t testing.TB, what string, list []OrderResult, err error, want ...OrderOutcome) {
	t.Helper()
	var got []OrderOutcome
	for _, r := range list {
		got = append(got, r.Outcome)
		if (r.Err == nil) != (r.Outcome == OrderDone) {
			t.Errorf("%s: outcome %s with %v", what, r.Outcome, r.Err)
		}
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%s: %v, %v; want %v", what, got, err, want)
	}
}

// A delayed message whose topic is gone when it is due, and ten minutes later, is a
// dead letter with the reason, once, whatever restarts; with the topic back it is
// brought back.
func TestDueMessagesOfARemovedTopicAreDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		with := func(n int) []string { e := epoch(n); return e[:] }
		mem := disk.NewMem()
		s := open(t, mem, "rz02-a-1", delayed(t), testLimits())
		defer func() { s.Close() }()
		var ids []string
		for i := range 50 {
			ids = append(ids, fmt.Sprint(i))
			s.publish(s.later("transfer", ids[i], time.Minute+time.Duration(i)*time.Second, "userId", "25"))
		}
		s.publish(s.later("orders", "stays", time.Minute), s.later("transfer", "not yet", 3*time.Hour, "userId", "25"))
		s.topo = withoutTransfer(t, with(2)...)
		if err := s.ApplyTopology(t.Context(), s.topo); err != nil {
			t.Fatal(err)
		}
		time.Sleep(topicGrace + time.Minute + 20*time.Second)
		kept := mem.Crash(rng(3))
		s.Close()
		s.fs = kept
		s.start()
		time.Sleep(time.Hour)
		synctest.Wait()
		s.wantArrived("orders", "stays")
		letters, _, err := s.DeadLetters(t.Context(), DeadLetterQuery{Topic: ParkedTopic, Reason: "unknown-topic"})
		if err != nil || len(letters) != len(ids) {
			t.Fatalf("%d dead letters, %v; want %d", len(letters), err, len(ids))
		}
		got := map[string]bool{}
		for _, l := range letters {
			got[string(l.Record.MessageID())] = true
			if l.Cause.Kind != CauseStranded || l.Cause.Topic != "transfer" || l.Record.DeliverAt().IsZero() {
				t.Fatalf("letter %+v", l.Cause)
			}
		}
		if st := s.Status().Timers; len(got) != len(ids) || st.Pending != 1 || len(st.Blocked) != 0 {
			t.Errorf("%d messages are dead letters; status %+v, want only what is not due pending", len(got), st)
		}
		s.topo = delayed(t, with(3)...)
		if err := s.ApplyTopology(t.Context(), s.topo); err != nil {
			t.Fatal(err)
		}
		var offsets []uint64
		for _, l := range letters {
			offsets = append(offsets, l.Offset)
		}
		for _, want := range []ReplayOutcome{Replayed, ReplayedYet} {
			res, err := s.Replay(t.Context(), ReplayRequest{Topic: ParkedTopic, Offsets: offsets})
			if err != nil || slices.ContainsFunc(res, func(r ReplayResult) bool { return r.Outcome != want }) {
				t.Fatalf("replay %+v, %v", res, err)
			}
		}
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		s.wantArrived("transfer", append(ids, "not yet")...)
	})
}

// Pages of any size give each message once, with a handle that is good: also of one
// that was carried.
func TestWaitingIsListedInPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz02-a-1", delayed(t), testLimits())
		defer s.Close()
		var want []string
		began := s.clock.Now()
		for i := range 120 {
			want = append(want, fmt.Sprint(i))
			topic := []zone.Topic{"orders", "transfer"}[i%2]
			s.publish(s.later(topic, want[i], time.Duration(i/30)*time.Hour+10*time.Minute, "userId", "25"))
			time.Sleep(time.Second)
		}
		first := s.state.timers.list[0]
		move, _, err := s.straysOf(first, 0, s.log.Committed(), 10)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.carryTimers(t.Context(), move); err != nil {
			t.Fatal(err)
		}
		slices.Sort(want)
		for _, limit := range []int{1, 7, 30, 1000} {
			got := idsOf(s.waiting(WaitingQuery{Kind: WaitingDelayed, Limit: limit}))
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Fatalf("with pages of %d: %d messages, want %d", limit, len(got), len(want))
			}
		}
		for name, c := range map[string]struct {
			q    WaitingQuery
			want int
		}{
			"a topic":            {WaitingQuery{Topic: "transfer"}, 60},
			"another topic":      {WaitingQuery{Topic: "ledger"}, 0},
			"an id":              {WaitingQuery{MessageID: "77"}, 1},
			"the oldest":         {WaitingQuery{Until: began.Add(20 * time.Second)}, 20},
			"the youngest":       {WaitingQuery{Since: began.Add(20 * time.Second)}, 100},
			"due in two hours":   {WaitingQuery{DueUntil: began.Add(119 * time.Minute)}, 60},
			"due in three hours": {WaitingQuery{DueFrom: began.Add(121 * time.Minute)}, 60},
			"without a topic":    {WaitingQuery{Gone: true}, 0},
			"unreadable":         {WaitingQuery{Unreadable: true}, 0},
		} {
			c.q.Kind = WaitingDelayed
			if got := s.waiting(c.q); len(got) != c.want {
				t.Errorf("%s: %v, want %d", name, idsOf(got), c.want)
			}
		}
		for _, w := range s.waiting(WaitingQuery{Kind: WaitingDelayed}) {
			if id, err := s.Recall(t.Context(), w.Topic, w.Handle); err != nil || id != string(w.Record.MessageID()) {
				t.Fatalf("recall of %s: %q, %v", w.Record.MessageID(), id, err)
			}
		}
		if n := s.Status().Timers.Pending; n != 0 {
			t.Errorf("%d wait", n)
		}
		if _, _, err := s.Waiting(t.Context(), WaitingQuery{}); KindOf(err) != KindInvalid {
			t.Errorf("a query without a kind: %v", err)
		}
	})
}

// What an operator drops is never delivered, nor what nobody can read any more for
// ever tried; and the record of each says who ordered it and why.
func TestOperatorDropsDelayedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		s := open(t, mem, "rz02-a-1", delayed(t), testLimits())
		defer func() { s.Close() }()
		var msgs []Message
		for i := range 300 {
			msgs = append(msgs, s.later("orders", fmt.Sprint(i), 10*time.Hour))
		}
		s.publish(msgs...)
		index := indexName(s.state.timers.list[0].id)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		spoil(t, mem, index, func(f string) { damage(t, mem, f, 512+20*123+3) })
		s.start()
		bad := s.waiting(WaitingQuery{Kind: WaitingDelayed, Unreadable: true})
		if len(bad) != 1 || !strings.Contains(bad[0].Problem, "damaged") {
			t.Fatalf("unreadable: %+v", bad)
		}
		drop := namesOf(s.waiting(WaitingQuery{Kind: WaitingDelayed, Limit: 1000})[:200])
		late := WaitingName{"orders", s.publish(s.later("orders", "late", time.Second))[0].Recall}
		time.Sleep(2 * time.Second)
		list, err := s.DropDelayed(t.Context(), []WaitingName{drop[0], late, {"transfer", drop[1].Handle}, {"orders", "x"}, drop[0]}, ordered)
		wantOutcomes(t, "some", list, err, OrderDone, OrderGone, OrderRefused, OrderRefused, OrderGone)
		list, err = s.DropDelayed(t.Context(), drop[1:], ordered)
		wantOutcomes(t, "the others", list, err, slices.Repeat([]OrderOutcome{OrderDone}, 199)...)
		for what, o := range map[string]Order{"nobody": {Why: "x"}, "no reason": {By: "x", Why: " "}, "lines": {By: "x", Why: "a\nb"}, "long": {By: "x", Why: strings.Repeat("y", 1000)}} {
			if _, err := s.DropDelayed(t.Context(), drop[:1], o); KindOf(err) != KindInvalid {
				t.Errorf("an order with %s: %v", what, err)
			}
		}
		s.restart()
		time.Sleep(11 * time.Hour)
		synctest.Wait()
		if got := s.arrived("orders"); len(got) != 101 { // and the one that was late
			t.Errorf("%d messages arrived, want 101", len(got))
		}
		if st := s.Status().Timers; st.Pending != 0 || len(st.Blocked) != 0 {
			t.Errorf("status %+v, want nothing pending", st)
		}
		found, err := s.FindMessage(t.Context(), "5")
		if err != nil || len(found) != 2 || found[1].Type != record.TypeRecall || found[1].Order != ordered {
			t.Errorf("found %+v, %v", found, err)
		}
	})
}

// An operator decides about half messages; the first decision in the log counts,
// whoever makes it.
func TestOperatorDecidesAboutHalfMessages(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", txSample(t, lateTerms), testLimits())
	tx := map[string]string{}
	for i := range 20 {
		id := fmt.Sprint(i)
		tx[id] = s.half("pay", id)
	}
	s.half("transfer", "far", "userId", "u01")
	all := s.waiting(WaitingQuery{Kind: WaitingUndecided, Topic: "pay", Limit: 3})
	if got := idsOf(all); len(got) != 20 || got[7] != "7" || all[7].Handle != tx["7"] || all[7].Topic != "pay" {
		t.Fatalf("waiting %v", got)
	}
	names := namesOf(all)
	wantKind(t, "a producer's rollback", s.end("pay", tx["0"], ResolutionRollback), 0)
	list, err := s.ResolveHalves(t.Context(), names[:10], ResolutionCommit, ordered)
	wantOutcomes(t, "commit", list, err, append([]OrderOutcome{OrderGone}, slices.Repeat([]OrderOutcome{OrderDone}, 9)...)...)
	wantKind(t, "a producer's late rollback", s.end("pay", tx["3"], ResolutionRollback), KindDecided)
	wantKind(t, "a producer's commit of the same", s.end("pay", tx["3"], ResolutionCommit), 0)
	list, err = s.ResolveHalves(t.Context(), append(names[10:], WaitingName{"pay", "x"}), ResolutionRollback, ordered)
	wantOutcomes(t, "rollback", list, err, append(slices.Repeat([]OrderOutcome{OrderDone}, 10), OrderRefused)...)
	s.restart()
	wantKind(t, "a producer's late commit", s.end("pay", tx["12"], ResolutionCommit), KindDecided)
	wantOnce(t, s.drain(billing, "pay"), []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"})
	if got := idsOf(s.waiting(WaitingQuery{Kind: WaitingUndecided})); !slices.Equal(got, []string{"far"}) {
		t.Errorf("waiting %v, want the other topic's", got)
	}
	for id, kind := range map[string]record.Type{"5": record.TypeMessage, "15": record.TypeRollback} {
		found, err := s.FindMessage(t.Context(), id)
		if err != nil || len(found) != 2 || found[1].Type != kind || found[1].Order != ordered {
			t.Errorf("found %+v, %v", found, err)
		}
	}
	for _, r := range []Resolution{ResolutionUnknown, 7} {
		if _, err := s.ResolveHalves(t.Context(), names[:1], r, ordered); KindOf(err) != KindInvalid {
			t.Errorf("resolution %d: %v", r, err)
		}
	}
}
