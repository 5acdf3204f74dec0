package broker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// withReceipts is the sample whose orders and transfers have receipts, which the group
// told consumes. second adds a second group of orders.
func withReceipts(t testing.TB, n int, second bool, edits ...string) *zone.Topology {
	other := ""
	if second {
		other = "  - name: orders-other\n    topics: [orders]\n"
	}
	return sample(t, append([]string{
		"number: 1}", fmt.Sprintf("number: %d}", n),
		"  - name: orders\n", "  - name: orders\n    receipts: receipts\n",
		"  - name: transfer\n", "  - name: transfer\n    receipts: receipts\n",
		"  - name: directed\n", "  - name: receipts\n    route: local\n  - name: directed\n",
		"  - name: transfer-credit\n", "  - name: told\n    topics: [receipts]\n" + other + "  - name: transfer-credit\n",
	}, edits...)...)
}

// told is what receipts said of a message.
type told struct {
	times int
	zone  zone.Zone
	ReceiptMessage
}

// receiptsAt consumes the receipts at the station and adds them to all.
func (s *station) receiptsAt(all map[string]told) {
	s.t.Helper()
	for {
		list := s.receive("told", "receipts", 100, time.Minute)
		if len(list) == 0 {
			return
		}
		for _, d := range list {
			var r Receipt
			if err := json.Unmarshal(d.Record.Body(), &r); err != nil {
				s.t.Fatal(err)
			}
			var keys []string
			for k := range d.Record.Keys {
				keys = append(keys, string(k))
			}
			for i, raw := range r.Messages {
				var m ReceiptMessage
				if err := json.Unmarshal(raw, &m); err != nil || keys[i] != m.ID {
					s.t.Fatalf("%s with keys %v: %v", raw, keys, err)
				}
				all[m.ID] = told{all[m.ID].times + 1, r.Zone, m}
			}
			if string(d.Record.Tag()) != string(r.Topic) {
				s.t.Errorf("tag %q of a receipt for %s", d.Record.Tag(), r.Topic)
			}
		}
		s.ack("told", list...)
	}
}

// onceTold fails unless there is one receipt with the outcome for each id.
func onceTold(t *testing.T, all map[string]told, outcome string, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if r := all[id]; r.times != 1 || r.Outcome != outcome || r.Stored.IsZero() {
			t.Errorf("message %s: %+v, want one receipt, %s", id, r, outcome)
		}
	}
}

// TestReceiptTellsThatAllGroupsHaveSettled: nothing before the last group has, one
// receipt then, and who gave a message up.
func TestReceiptTellsThatAllGroupsHaveSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz02-a-1", withReceipts(t, 1, true), testLimits())
		ids := s.publishN("orders", "m", 250)
		s.drain(billing, "orders")
		all := map[string]told{}
		time.Sleep(time.Minute)
		if s.receiptsAt(all); len(all) != 0 {
			t.Errorf("receipts before the second group has settled anything: %v", all)
		}
		var dead []string
		for _, d := range s.receive("orders-other", "orders", 10, time.Hour) {
			if err := s.DeadLetter(t.Context(), "orders-other", "orders", d.Handle); err != nil {
				t.Fatal(err)
			}
			dead = append(dead, string(d.Record.MessageID()))
		}
		s.drain("orders-other", "orders")
		time.Sleep(time.Minute)
		s.receiptsAt(all)
		acked := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(dead, id) })
		onceTold(t, all, ReceiptAcked, acked...)
		onceTold(t, all, ReceiptDeadLettered, dead...)
		want := []ReceiptGroup{{billing, ReceiptAcked}, {"orders-other", ReceiptDeadLettered}}
		if got := all[dead[0]].Groups; !slices.Equal(got, want) {
			t.Errorf("groups %v, want %v", got, want)
		}
		if c := s.Status().Counts; c.Receipts != 250 || c.NoReceipts != 0 || len(s.state.topics["orders"].queues[0].givenUp) > 0 {
			t.Errorf("counts %+v", c)
		}
		// What is brought back, or read again, has no second receipt.
		s.replay(DeadLetterTopic("orders-other"), false, 0, 1)
		s.reset(ResetRequest{Group: billing, Topic: "orders", Queue: EveryQueue, To: WhereEarliest})
		s.drain("orders-other", "orders")
		s.drain(billing, "orders")
		s.restart()
		time.Sleep(time.Minute)
		again := map[string]told{}
		if s.receiptsAt(again); len(again) != 0 {
			t.Errorf("second receipts %v", again)
		}
		if st := s.Status(); slices.ContainsFunc(st.Groups, func(g GroupStatus) bool { return g.Group == receiptGroup }) {
			t.Errorf("groups %+v", st.Groups)
		}
	})
}

// TestReceiptsFollowTheTopology: they begin when they are declared, do not wait for a
// group that came after the message, and end when they are declared no more.
func TestReceiptsFollowTheTopology(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
		before := s.publishN("orders", "before", 5)
		if err := s.ApplyTopology(t.Context(), withReceipts(t, 2, false)); err != nil {
			t.Fatal(err)
		}
		ids := s.publishN("orders", "m", 5)
		if err := s.ApplyTopology(t.Context(), withReceipts(t, 3, true)); err != nil {
			t.Fatal(err)
		}
		both := s.publishN("orders", "both", 5)
		all := map[string]told{}
		s.drain(billing, "orders")
		time.Sleep(time.Minute)
		s.receiptsAt(all)
		onceTold(t, all, ReceiptAcked, ids...)
		if len(all) != 5 || len(all[ids[0]].Groups) != 1 {
			t.Errorf("receipts %v, want those of %v, of one group, and none of %v", all, ids, before)
		}
		// The group that has not settled goes: nothing waits for it any more.
		if err := s.ApplyTopology(t.Context(), withReceipts(t, 4, false)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		s.receiptsAt(all)
		onceTold(t, all, ReceiptAcked, both...)
		e := epoch(5)
		if err := s.ApplyTopology(t.Context(), sample(t, e[0], e[1], "  - name: directed\n", "  - name: receipts\n    route: local\n  - name: directed\n",
			"  - name: transfer-credit\n", "  - name: told\n    topics: [receipts]\n  - name: transfer-credit\n")); err != nil {
			t.Fatal(err)
		}
		s.topo = s.Topology()
		s.publishN("orders", "after", 5)
		s.drain(billing, "orders")
		s.restart()
		time.Sleep(time.Minute)
		if s.receiptsAt(all); len(all) != 10 {
			t.Errorf("receipts %v after they ended", all)
		}
	})
}

// TestReceiptsGoToTheZoneOfOrigin: across cities, with a link that fails, and a restart
// of both ends.
func TestReceiptsGoToTheZoneOfOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, withReceipts(t, 1, false), testLimits(), "rz02-a-1", "rz04-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz04-a"]
		var ids []string
		for i := range 40 {
			ids = append(ids, fmt.Sprint("t", i))
			from.publish(from.message("transfer", ids[i], "userId", "65"))
		}
		time.Sleep(time.Minute)
		if got := to.drain("transfer-credit", "transfer"); len(got) != 40 {
			t.Fatalf("%d messages arrived", len(got))
		}
		from.bounce()
		to.bounce()
		time.Sleep(time.Minute)
		all := map[string]told{}
		to.receiptsAt(all)
		if len(all) != 0 {
			t.Errorf("receipts where the messages were consumed: %v", all)
		}
		from.receiptsAt(all)
		onceTold(t, all, ReceiptAcked, ids...)
		if r := all["t3"]; r.zone != "rz04" || r.Landed.IsZero() || r.Landed.Before(r.Stored) {
			t.Errorf("%+v", r)
		}
	})
}

// TestOneReceiptWhateverFails cuts the power after every change of the disk while
// messages are settled and receipts are written: afterwards there is one for each
// settled message.
func TestOneReceiptWhateverFails(t *testing.T) {
	mem, rng, topo := disk.NewMem(), rand.New(rand.NewPCG(6, 1)), withReceipts(t, 1, false)
	limits := Limits{SegmentBytes: 16 << 10, ProgressDelay: time.Millisecond}
	s := open(t, mem, "rz02-a-1", topo, limits)
	var mu sync.Mutex
	var cuts []*disk.Mem
	const n = 24
	ids := s.publishN("orders", "m", n)
	mem.AfterOp(func(op int) {
		mu.Lock()
		defer mu.Unlock()
		cuts = append(cuts, mem.Crash(rng))
	})
	for k := range 4 {
		list := s.receive(billing, "orders", n/4, time.Hour)
		if err := s.DeadLetter(t.Context(), billing, "orders", list[0].Handle); err != nil {
			t.Fatal(err)
		}
		s.ack(billing, list[1:]...)
		s.wantReceipts(uint64(k+1) * n / 4)
		if k == 1 {
			if err := s.snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	mem.AfterOp(nil)
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d power cuts", len(cuts))
	for i := 0; i < len(cuts); i += 1 + len(cuts)/40 {
		after := open(t, cuts[i], "rz02-a-1", topo, limits)
		after.drain(billing, "orders")
		after.wantReceipts(n)
		all := map[string]told{}
		after.receiptsAt(all)
		for _, id := range ids {
			if all[id].times != 1 {
				t.Fatalf("cut %d: message %s has %d receipts", i, id, all[id].times)
			}
		}
		after.Close()
	}
}

// wantReceipts waits until so many messages had a receipt.
func (s *station) wantReceipts(n uint64) {
	s.t.Helper()
	for end := time.Now().Add(3 * time.Minute); ; {
		if c := s.Status().Counts; c.Receipts == n {
			return
		} else if time.Now().After(end) {
			s.t.Fatalf("%d messages had a receipt, want %d", c.Receipts, n)
		}
		w := time.NewTimer(time.Millisecond)
		<-w.C
	}
}

func TestFoldFromScratchKnowsReceipts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, topo := disk.NewMem(), withReceipts(t, 1, true)
		s := open(t, mem, "rz02-a-1", topo, testLimits())
		for round := range 6 {
			s.publishN("orders", fmt.Sprint(round), 20)
			for _, g := range []zone.ConsumerGroup{billing, "orders-other"} {
				list := s.receive(g, "orders", 15, time.Minute)
				if err := s.DeadLetter(t.Context(), g, "orders", list[0].Handle); err != nil {
					t.Fatal(err)
				}
				s.ack(g, list[1:11]...)
			}
			time.Sleep(10 * time.Second)
			if round == 3 {
				if err := s.snapshot(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		whole, tail := mem.Crash(rand.New(rand.NewPCG(1, 1))), mem.Crash(rand.New(rand.NewPCG(1, 1)))
		removeSnapshots(t, whole)
		a, b := open(t, tail, "rz02-a-1", topo, testLimits()), open(t, whole, "rz02-a-1", topo, testLimits())
		if !bytes.Equal(scrub(t, a, nil), scrub(t, b, nil)) {
			t.Error("fold from scratch differs from snapshot and tail")
		}
		if c := a.Status().Counts; c.Receipts == 0 {
			t.Errorf("no receipts: %+v", c)
		}
	})
}

// TestReceiptOfAMarkedMessageDoesNotCount appends a receipt again, and one that
// overlaps.
func TestReceiptOfAMarkedMessageDoesNotCount(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", withReceipts(t, 1, false), testLimits())
	s.inQueue("orders", 1, 8, "m")
	orders := s.state.topics["orders"]
	receipt := func(from, to uint64) bool {
		t.Helper()
		r := &record.Record{Type: record.TypeMessage, Topic: "receipts", MessageID: "x", Shard: record.NoShard, Stored: time.Now(),
			Cause: appendCause(nil, &Cause{Kind: CauseReceipt, Topic: "orders", TopicIncarnation: orders.first, Queue: 1, Offsets: []consumer.Range{{From: from, To: to}}})}
		e, err := s.own(r)
		if err != nil {
			t.Fatal(err)
		}
		o := &op{}
		o.batch.Entries = append(o.batch.Entries, e)
		if err := s.appendWait(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		return o.places[0].ok
	}
	if !receipt(2, 4) || receipt(2, 4) || receipt(3, 5) || receipt(0, 3) || !receipt(4, 5) || !receipt(0, 2) {
		t.Error("a receipt of what has one counted, or another did not")
	}
	if got := s.Status().Counts.Receipts; got != 5 {
		t.Errorf("%d messages had a receipt, want 5", got)
	}
}

func TestCauseOfAReceiptIsChecked(t *testing.T) {
	c := Cause{Kind: CauseReceipt, Topic: "t", Queue: 3, TopicIncarnation: 9, Offsets: []consumer.Range{{From: 1, To: 2}, {From: 5, To: 1 << 40}}}
	b := appendCause(nil, &c)
	back, err := ParseCause(b)
	if err != nil || !bytes.Equal(appendCause(nil, &back), b) || !slices.Equal(back.Offsets, c.Offsets) {
		t.Fatalf("%+v, %v", back, err)
	}
	for n := range len(b) {
		if _, err := ParseCause(b[:n]); err == nil {
			t.Errorf("%d of %d bytes were read", n, len(b))
		}
	}
}

// TestReceiptRemembersWhoGaveUp: over a restart, until the other group has settled the
// message too.
func TestReceiptRemembersWhoGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz02-a-1", withReceipts(t, 1, true), testLimits())
		ids := s.publishN("orders", "m", 3)
		for _, d := range s.receive("orders-other", "orders", 3, time.Hour) {
			if err := s.DeadLetter(t.Context(), "orders-other", "orders", d.Handle); err != nil {
				t.Fatal(err)
			}
		}
		s.restart()
		s.drain(billing, "orders")
		time.Sleep(time.Minute)
		all := map[string]told{}
		s.receiptsAt(all)
		onceTold(t, all, ReceiptDeadLettered, ids...)
	})
}

// TestReceiptsWaitForRoom settles messages on a full disk: nothing is read for receipts
// that cannot be stored, and they come once there is room.
func TestReceiptsWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		s, counter := openTapped(t, mem, "rz02-a-1", withReceipts(t, 1, false), Limits{SegmentBytes: 64 << 10})
		defer s.Close()
		s.publishN("orders", "m", 50)
		list := s.receive(billing, "orders", 50, time.Hour)
		m := s.message("orders", "big")
		m.Body = make([]byte, 50<<10)
		s.fill(mem, m)
		synctest.Wait()
		counter.reads.Store(0)
		s.ack(billing, list...)
		time.Sleep(time.Minute)
		synctest.Wait()
		if st := s.Status(); st.Counts.Receipts != 0 || counter.reads.Load() > 0 {
			t.Errorf("on a full disk: %d receipts, %d entries of the log were read", st.Counts.Receipts, counter.reads.Load())
		}
		mem.SetLimit(0)
		time.Sleep(10 * time.Second)
		s.wantReceipts(50)
	})
}
